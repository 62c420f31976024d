"""How each edge runs, and where on its nodes it begins and ends.

    next    between neighbouring columns: a swing through the gap between them
    slot    from a queue to something further right: level, below whatever stands between
    same    within a column: out to the right and back
    self    from a node to itself
    lane    anything else: along the free lane between two rows

A gap has room for the labels of either side and, between these, for the swings, so that edges and labels keep out of
each other's way. An edge with a label has a port of its own, as high as the label; those without share one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from redrive.topology.draw.grid import Grid
from redrive.topology.draw.picture import Edge
from redrive.topology.draw.writing import Label

LOOP = 26.0  # how far a loop reaches out
_BARE = 12.0
_LEAST = 18.0


class Way(Enum):
    NEXT = "next"
    SLOT = "slot"
    SAME = "same"
    SELF = "self"
    LANE = "lane"


class Side(Enum):
    LEFT = "left"
    RIGHT = "right"
    LOOP = "loop"  # on the right too, above all others


@dataclass(frozen=True, slots=True)
class Port:
    """A place on the side of a node. `key` is the edge's number, or what the edges that share it have in common."""

    node: str
    side: Side
    key: int | str


@dataclass(frozen=True, slots=True)
class Route:
    edge: Edge
    way: Way
    source: Port
    target: Port
    label: Label
    rightwards: bool

    @property
    def ends(self) -> tuple[Port, Port]:
        return (self.source, self.target)

    @property
    def labelled_port(self) -> Port | None:
        """Where its label stands; None: on its lane."""
        match self.way:
            case Way.LANE:
                return None
            case Way.NEXT:
                return self.target if self.rightwards else self.source
            case Way.SLOT | Way.SAME | Way.SELF:
                return self.source
            case _:
                assert_never(self.way)

    @property
    def label_stands_before_the_next_column(self) -> bool:
        """As that of a slot does, which passes below the others there; those of loops stand right where they begin."""
        return self.way is Way.NEXT or self.way is Way.SLOT


def routes_of(edges: tuple[Edge, ...], grid: Grid) -> tuple[Route, ...]:
    return tuple(_route(number, edge, grid) for number, edge in enumerate(edges))


def _route(number: int, edge: Edge, grid: Grid) -> Route:
    way = _way(edge, grid)
    label = Label.of(edge, on_one_line=way is Way.LANE)
    rightwards = grid.column[edge.source] <= grid.column[edge.target]
    if way is Way.SELF:
        loop = Port(edge.source, Side.LOOP, number)
        return Route(edge, way, loop, loop, label, rightwards)
    out_side = Side.RIGHT if rightwards else Side.LEFT
    in_side = Side.LEFT if rightwards and way is not Way.SAME else Side.RIGHT
    # The end with the label has a port of its own; so have both ends of what runs between a queue and its own parts.
    alone = _within_a_group(edge, grid)
    at_the_source = way in (Way.SLOT, Way.SAME) or (way is Way.NEXT and not rightwards)
    labelled_source = bool(label.lines) and at_the_source
    labelled_target = bool(label.lines) and way is Way.NEXT and rightwards
    source = Port(edge.source, out_side, number if alone or labelled_source else "out")
    target = Port(edge.target, in_side, number if alone or labelled_target else "in")
    return Route(edge, way, source, target, label, rightwards)


def _way(edge: Edge, grid: Grid) -> Way:
    if edge.source == edge.target:
        return Way.SELF
    distance = grid.column[edge.target] - grid.column[edge.source]
    if distance == 0:
        return Way.SAME
    if abs(distance) == 1:
        return Way.NEXT
    if distance > 1 and edge.source == grid.rows[grid.row[edge.source]].main:
        return Way.SLOT
    return Way.LANE


def _within_a_group(edge: Edge, grid: Grid) -> bool:
    row = grid.rows[grid.row[edge.source]]
    return row.main is not None and {edge.source, edge.target} <= set(row.members) and row.main in edge.ends


# Ports on their nodes -----------------------------------------------------------------------------


class PortTable:
    """The ports of each side of each node, from top to bottom, with the height that each of them needs."""

    def __init__(self, routes: tuple[Route, ...], grid: Grid) -> None:
        self._heights: dict[tuple[str, Side], dict[int | str, float]] = {}
        self._aligned = {
            _main_end(route, grid)
            for route in routes
            if _within_a_group(route.edge, grid) and route.way is not Way.SELF
        }
        ends = [(route, *pair) for route in routes for pair in (route.ends, route.ends[::-1])]
        order = {id: position for position, id in enumerate(grid.column)}
        # As their other ends stand below each other, so that edges do not cross where they need not.
        ends.sort(key=lambda end: (grid.row[end[2].node], order[end[2].node], not end[0].rightwards))
        for route, port, _ in ends:
            self._add(route, port)

    def _add(self, route: Route, port: Port) -> None:
        if port in self._aligned:
            return
        own = route.labelled_port == port or isinstance(port.key, int)
        height = max(_LEAST, route.label.height) if own and route.label.lines else _BARE
        if route.way is Way.SELF:
            height = max(height, LOOP)
        side = self._heights.setdefault((port.node, port.side), {})
        side[port.key] = max(height, side.get(port.key, 0))

    def is_aligned(self, port: Port) -> bool:
        """Is it where its other end says: on the queue whose part the other end is?"""
        return port in self._aligned

    def height(self, node: str, side: Side) -> float:
        return sum(self._heights.get((node, side), {}).values())

    def stacked(self, node: str, side: Side, top: float) -> Iterator[tuple[Port, float]]:
        """Each port and its middle, the first beginning at `top`."""
        for key, height in self._heights.get((node, side), {}).items():
            yield Port(node, side, key), top + height / 2
            top += height

    def centred(self, node: str, side: Side, middle: float) -> Mapping[Port, float]:
        return dict(self.stacked(node, side, middle - self.height(node, side) / 2))


def _main_end(route: Route, grid: Grid) -> Port:
    main = grid.rows[grid.row[route.edge.source]].main
    return route.source if route.edge.source == main else route.target
