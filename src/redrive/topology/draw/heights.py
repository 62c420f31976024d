"""How high everything is, and where from top to bottom.

A row is as high as the highest of what stands in it, and a queue as high as all its parts, so that the edges between
them run level:

    loops       edges from the queue to itself
    waiting     each with the edges to and from it
    dead        lower than what waits: the edges to it pass below that
    slots       edges to whatever is further right, and from elsewhere

Below each row there are lanes for the edges that fit nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator

from redrive.topology.draw.grid import Grid, Row
from redrive.topology.draw.picture import Node, Picture
from redrive.topology.draw.ports import Port, PortTable, Route, Side, Way
from redrive.topology.draw.writing import height_on

PADDING = 14.0  # of a group's box
_BETWEEN_NODES = 14.0
_BETWEEN_ROWS = 16.0
_TRACK = 18.0


class Heights:
    """The top and the height of each node, and the height at which each edge meets it or runs along a lane."""

    def __init__(self, picture: Picture, grid: Grid, routes: tuple[Route, ...], top: float) -> None:
        self._grid = grid
        self._ports = PortTable(routes, grid)
        self.top: dict[str, float] = {}
        self.height = {node.id: self._least(node) for node in picture.nodes}
        self._port_y: dict[Port, float] = {}
        self._own = _own_edges(routes, self._ports)
        self._lanes = _lanes(routes, grid)
        self.lane_y: dict[Route, float] = {}
        self._stacks: dict[int, dict[int, list[str]]] = {}
        for id in grid.column:
            self._stacks.setdefault(grid.row[id], {}).setdefault(grid.column[id], []).append(id)
        self.bottom = self._place_rows(top)
        self._align(routes)

    def y(self, port: Port) -> float:
        return self._port_y[port]

    def _least(self, node: Node) -> float:
        left, right, loops = (self._ports.height(node.id, side) for side in Side)
        return max(height_on(node), left, right + loops)

    def _place_rows(self, y: float) -> float:
        for number, row in enumerate(self._grid.rows):
            y += PADDING if len(row.members) > 1 else 0
            y = self._place_row(number, row, y)
            y += PADDING if len(row.members) > 1 else 0
            for route in self._lanes.get(number, ()):
                y += _TRACK
                self.lane_y[route] = y
            y += _BETWEEN_ROWS + (_TRACK / 2 if number in self._lanes else 0)
        return y - _BETWEEN_ROWS

    def _place_row(self, number: int, row: Row, top: float) -> float:
        """The queue with its parts, and all other stacks of the row beside it, centred on the same line."""
        parts = self._place_parts(row)
        if row.main is not None:
            self.height[row.main] = max(self.height[row.main], parts)
            parts = self.height[row.main]
        others = list(self._other_stacks(number, row))
        tallest = max([parts, *(self._stack_height(stack) for stack in others)])
        self._shift_row(row, top + (tallest - parts) / 2)
        for stack in others:
            y = top + (tallest - self._stack_height(stack)) / 2
            for id in stack:
                self._put(id, y)
                y += self.height[id] + _BETWEEN_NODES
        return top + tallest

    def _other_stacks(self, number: int, row: Row) -> Iterator[list[str]]:
        for stack in self._stacks.get(number, {}).values():
            if others := [id for id in stack if id not in row.members]:
                yield others

    def _stack_height(self, stack: list[str]) -> float:
        return sum(self.height[id] for id in stack) + _BETWEEN_NODES * (len(stack) - 1)

    def _place_parts(self, row: Row) -> float:
        """Tops of the parts, counted from the top of the row; the height that they and the slots below need."""
        y = self._loops_height(row)
        for id in row.waiting:
            self.top[id] = y
            y += self.height[id] + _BETWEEN_NODES
        free, beneath = y, 0.0  # where a level edge passes below what waits; where the last end ended
        for id in row.dead:
            first, last = self._own_span(id)
            self.top[id] = max(beneath, free - first)
            free = self.top[id] + last
            beneath = self.top[id] + self.height[id] + _BETWEEN_NODES
        return max(y, free, beneath) - _BETWEEN_NODES + self._slots_height(row)

    def _own_span(self, id: str) -> tuple[float, float]:
        """From where to where the edges from its own queue reach, counted from the top of a node."""
        ports = self._ports.centred(id, Side.LEFT, self.height[id] / 2)
        own = [(y, self._own[port]) for port, y in ports.items() if port in self._own]
        if not own:
            return 0.0, 0.0
        return own[0][0] - own[0][1] / 2, own[-1][0] + own[-1][1] / 2

    def _slots_height(self, row: Row) -> float:
        slots = self._ports.height(row.main, Side.RIGHT) if row.main is not None else 0
        return slots + (_BETWEEN_NODES if slots and (row.waiting or row.dead) else 0)

    def _loops_height(self, row: Row) -> float:
        return self._ports.height(row.main, Side.LOOP) if row.main is not None else 0

    def _shift_row(self, row: Row, top: float) -> None:
        """From places within a row to places in the picture."""
        if row.main is None:
            for id in row.members:
                self._put(id, self.top[id] + top)
            return
        height, loops = self.height[row.main], self._loops_height(row)
        needed = max((self.top[id] + self.height[id] for id in (*row.waiting, *row.dead)), default=loops)
        spare = (height - needed - self._slots_height(row)) / 2
        for id in (*row.waiting, *row.dead):
            self._put(id, self.top[id] + top + spare)
        self.top[row.main] = top
        self._port_y |= self._ports.centred(row.main, Side.LEFT, top + height / 2)
        self._port_y |= self._ports.stacked(row.main, Side.LOOP, top + spare)
        below = top + height - spare - self._ports.height(row.main, Side.RIGHT)
        self._port_y |= self._ports.stacked(row.main, Side.RIGHT, below)

    def _put(self, id: str, top: float) -> None:
        self.top[id] = top
        middle = top + self.height[id] / 2
        loops = self._ports.height(id, Side.LOOP)
        self._port_y |= self._ports.centred(id, Side.LEFT, middle)
        self._port_y |= self._ports.centred(id, Side.RIGHT, middle + loops / 2)
        self._port_y |= self._ports.centred(id, Side.LOOP, middle - self._ports.height(id, Side.RIGHT) / 2)

    def _align(self, routes: tuple[Route, ...]) -> None:
        """Between a queue and its parts an edge runs level: the part says where."""
        for route in routes:
            if self._ports.is_aligned(route.source):
                self._port_y[route.source] = self._port_y[route.target]
            elif self._ports.is_aligned(route.target):
                self._port_y[route.target] = self._port_y[route.source]


def _own_edges(routes: tuple[Route, ...], ports: PortTable) -> dict[Port, float]:
    """The ports of parts at which the edges of their own queues meet them, and how high their labels are."""
    own = {}
    for route in routes:
        if ports.is_aligned(route.source):
            own[route.target] = route.label.height
        elif ports.is_aligned(route.target):
            own[route.source] = route.label.height
    return own


def _lanes(routes: tuple[Route, ...], grid: Grid) -> dict[int, list[Route]]:
    """For each row the edges that run below it: next to the row of their end, on the side of their beginning."""
    lanes: dict[int, list[Route]] = {}
    for route in routes:
        if route.way is Way.LANE:
            start, end = grid.row[route.edge.source], grid.row[route.edge.target]
            lanes.setdefault(end - 1 if start < end else end, []).append(route)
    return lanes
