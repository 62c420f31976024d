"""Where everything is in a picture: boxes of nodes and groups, paths of edges, places of labels.

Columns follow a message: exchanges (as many columns as are bound behind each other), queues, the queues in which
messages wait, dead-letter queues, and last the ends that several queues share. A row is one queue with its parts; every
other node stands in the middle row of the nodes that it is connected to. A queue is as high as its parts, so that the
edges between them are level; its edges to nodes further right leave below them.

Between two columns is a gap. It has room for the labels of its left column, for edges that change their height, and for
the labels of its right column; so labels, edges and nodes do not overlap. An edge to the next column, or from the queue
of a row to any column on its right, uses the gaps. Every other edge runs along a lane of its own below a row.

Edges meet a node at ports. An edge with a label has a port as high as the label; the other edges share one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from math import ceil
from statistics import median_low
from typing import TypeAlias

from redrive.topology.draw.picture import Edge, EdgeKind, Group, Node, NodeKind, Picture
from redrive.topology.draw.style import Font

MARGIN = 24.0
INDENT = 16.0  # of the text in a node
ICON = 15.0  # room for the clock before a caption
_HEADINGS = 26.0
_PADDING = 14.0  # of a group's box
_BETWEEN_NODES = 14.0
_BETWEEN_ROWS = 16.0
_LANE = 18.0
_PORT = 18.0
_ARROW = 12.0
_LOOP = 26.0  # how far the edge from a node to itself reaches
_NARROWEST = 96.0
_LEAST_SWING, _WIDEST_SWING = 24.0, 130.0  # room for a change of height


class Column(IntEnum):
    """Kinds of columns, from left to right."""

    EXCHANGES = 0
    QUEUES = 1
    WAITING = 2
    DEAD = 3
    SHARED = 4

    @property
    def heading(self) -> str:
        return ("EVENTS IN", "QUEUES", "WAITING", "DEAD LETTERS", "SHARED DEAD LETTERS")[self]


@dataclass(slots=True)
class Box:
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    def contains(self, other: Box) -> bool:
        within_width = self.x <= other.x and other.right <= self.right
        return within_width and self.y <= other.y and other.bottom <= self.bottom


@dataclass(slots=True)
class Port:
    height: float = _PORT
    y: float = 0.0


Ports: TypeAlias = "dict[int | str, Port]"  # of one side of a node, from top to bottom


def _height(ports: Ports) -> float:
    return sum(port.height for port in ports.values())


def _stack(ports: Ports, top: float) -> None:
    for port in ports.values():
        port.y = top + port.height / 2
        top += port.height


@dataclass(slots=True)
class PlacedNode:
    node: Node
    column: int
    row: int
    texts: list[tuple[str, Font, float]]  # each with its indent
    box: Box
    left: Ports = field(default_factory=dict)
    right: Ports = field(default_factory=dict)

    @property
    def text_height(self) -> float:
        return sum(font.line_height for _, font, _ in self.texts)

    def centre_on(self, y: float) -> None:
        self.box.y = y - self.box.height / 2
        for ports in (self.left, self.right):
            _stack(ports, y - _height(ports) / 2)


@dataclass(slots=True)
class PlacedEdge:
    edge: Edge
    source: PlacedNode
    target: PlacedNode
    lines: tuple[str, ...]
    font: Font
    label: Box
    is_inside_group: bool  # it connects a queue with one of its parts, and is level
    is_in_lane: bool
    start: Port = field(default_factory=Port)
    end: Port = field(default_factory=Port)
    lane: float = 0.0
    path: str = ""

    @property
    def is_loop(self) -> bool:
        return self.source is self.target

    @property
    def distance(self) -> int:
        return self.target.column - self.source.column

    @property
    def gaps(self) -> tuple[int, int]:
        """The columns whose gaps it begins and ends in."""
        return self.source.column - (self.distance < 0), self.target.column - (self.distance > 0)

    @property
    def row_above_lane(self) -> int:
        start, end = self.source.row, self.target.row
        return end - 1 if start < end else end


@dataclass(slots=True)
class Gap:
    """The room on the right of a column: labels of its nodes, changes of height, labels of the next column."""

    x: float = 0.0
    before: float = 0.0
    swing: float = 0.0
    after: float = 0.0

    @property
    def left(self) -> float:
        """Where changes of height begin."""
        return self.x + self.before

    @property
    def right(self) -> float:
        """Where changes of height end."""
        return self.left + self.swing

    @property
    def end(self) -> float:
        return self.right + self.after


class Layout:
    """A picture laid out. `width` and `height` are those of the paper without its legend."""

    def __init__(self, picture: Picture) -> None:
        self._grid = _Grid(picture)
        self.nodes = {node.id: self._node(node) for node in picture.nodes}
        self.edges = [self._edge(edge) for edge in picture.edges]
        self._add_ports()
        self.height = ceil(self._place_rows(MARGIN + _HEADINGS) + MARGIN)
        self._gaps = [Gap() for _ in self._grid.columns]
        self.headings = list(self._place_columns(picture.groups))
        for edge in self.edges:
            edge.path = self._path(edge)
            self._place_label(edge)
        self.groups = [_bounding_box([self.nodes[id].box for id in group.members]) for group in picture.groups]
        ends = [gap.end + _ARROW for gap in self._gaps[-1:]]
        self.width = ceil(max([MARGIN, *ends, *(edge.label.right + MARGIN for edge in self.edges)]))

    def __repr__(self) -> str:
        return f"<Layout {self.width} x {self.height}, nodes={len(self.nodes)} edges={len(self.edges)}>"

    def _node(self, node: Node) -> PlacedNode:
        name, caption, *entrances = node.lines
        texts = [(name, Font.NAME, 0.0), (caption, Font.CAPTION, ICON if has_clock(node) else 0.0)]
        texts += [(entrance, Font.ENTRANCE, 0.0) for entrance in entrances]
        width = max(font.width(text) + indent for text, font, indent in texts) + 2 * INDENT
        return PlacedNode(node, self._grid.column[node.id], self._grid.row[node.id], texts, Box(width=width))

    def _edge(self, edge: Edge) -> PlacedEdge:
        source, target = self.nodes[edge.source], self.nodes[edge.target]
        distance = target.column - source.column
        in_lane = distance < -1 or (distance > 1 and edge.source not in self._grid.rows)
        lines = (" · ".join(edge.lines),) if in_lane and edge.lines else edge.lines
        font = Font.KEY if edge.kind is EdgeKind.BINDING else Font.REASON
        width = max(map(font.width, lines)) + 8 if lines else 0.0
        label = Box(width=width, height=len(lines) * font.line_height + 2 if lines else 0.0)
        return PlacedEdge(edge, source, target, lines, font, label, self._grid.is_inside_group(edge), in_lane)

    # Ports ------------------------------------------------------------------------------------------------

    def _add_ports(self) -> None:
        """Give each edge its ports, in the order of the nodes at their other ends, so that few edges cross."""
        order = {id: number for number, id in enumerate(self.nodes)}
        ends = [(edge.target, number, edge, True) for number, edge in enumerate(self.edges)]
        ends += [(edge.source, number, edge, False) for number, edge in enumerate(self.edges)]
        ends.sort(key=lambda end: (end[0].row, order[end[0].node.id], end[2].distance < 0))
        for _, number, edge, is_start in ends:
            node = edge.source if is_start else edge.target
            if edge.is_inside_group and node.node.id in self._grid.rows:
                continue  # a queue is as high as its parts: their ports are also its ports
            port = self._port(edge, node, number, is_start)
            if is_start or edge.is_inside_group:
                edge.start = port
            if not is_start or edge.is_inside_group:
                edge.end = port
        for node in self.nodes.values():
            node.box.height = max(node.text_height + 16, _height(node.left), _height(node.right))

    def _port(self, edge: PlacedEdge, node: PlacedNode, number: int, is_start: bool) -> Port:
        is_left = edge.distance < 0 if is_start else edge.distance > 0
        has_label = bool(edge.lines) and not edge.is_in_lane and is_start != (edge.distance == 1)
        own = has_label or edge.is_inside_group or edge.is_loop
        port = (node.left if is_left else node.right).setdefault(number if own else f"shared {is_start}", Port())
        port.height = max(port.height, edge.label.height if own else 0.0, _LOOP if edge.is_loop else 0.0)
        return port

    # From top to bottom -----------------------------------------------------------------------------------

    def _place_rows(self, y: float) -> float:
        """Place everything below `y`, and return where the last row ends."""
        for row, group in enumerate(self._grid.rows.values() or [None]):
            padding = _PADDING if group is not None and len(group.members) > 1 else 0.0
            y = self._place_row(row, group, y + padding) + padding
            lanes = [edge for edge in self.edges if edge.is_in_lane and edge.row_above_lane == row]
            for edge in lanes:
                y += _LANE
                edge.lane = y
            y += _BETWEEN_ROWS + (_LANE / 2 if lanes else 0.0)
        return y - _BETWEEN_ROWS

    def _place_row(self, row: int, group: Group | None, top: float) -> float:
        """Place a queue with its parts, and the nodes of other columns next to them, and return where they end."""
        needed = self._place_parts(group, 0.0) if group is not None else 0.0
        stacks = [[self.nodes[id] for id in stack] for stack in self._grid.stacks[row].values()]
        heights = [sum(node.box.height + _BETWEEN_NODES for node in stack) - _BETWEEN_NODES for stack in stacks]
        tallest = max(heights, default=0.0)
        for stack, height in zip(stacks, heights, strict=True):
            _stack_nodes(stack, top + (tallest - height) / 2)
        if group is not None:
            self._place_parts(group, top + (tallest - needed) / 2)
        return top + tallest

    def _place_parts(self, group: Group, top: float) -> float:
        """Place the parts of a queue, and below them its other edges to the right; return the height of all this."""
        main, parts = self.nodes[group.main], [self.nodes[id] for id in group.members[1:]]
        free = below = _stack_nodes(parts[: len(group.waiting)], top)
        y = top
        for dead in parts[len(group.waiting) :]:
            # It may begin next to the last queue that waits, if its level edges pass below that.
            ports = _height(dead.left)
            dead.centre_on(max(y + dead.box.height / 2, free + ports / 2))
            free = dead.box.y + (dead.box.height + ports) / 2
            y = dead.box.bottom + _BETWEEN_NODES
        below = max(below, y)
        _stack(main.right, below)
        needed = below - top + (_height(main.right) or -_BETWEEN_NODES)
        main.box.height = max(main.box.height, needed)
        return needed

    # From left to right -----------------------------------------------------------------------------------

    def _place_columns(self, groups: Iterable[Group]) -> Iterator[tuple[str, float]]:
        """Place columns and gaps; yield a heading for each kind of column, and where it begins."""
        for edge in self.edges:
            self._widen_gaps(edge)
        last_of_groups = max((self._grid.column[id] for group in groups for id in group.members), default=None)
        x, headed = MARGIN, None
        for number, (kind, gap) in enumerate(zip(self._grid.columns, self._gaps, strict=True)):
            boxes = [node.box for node in self.nodes.values() if node.column == number]
            width = max(_NARROWEST, 1.1 * Font.HEADING.width(kind.heading), *(box.width for box in boxes))
            x += _PADDING if kind is Column.QUEUES else 0.0
            if kind is not headed:
                yield kind.heading, x
            headed = kind
            for box in boxes:
                box.x, box.width = x, width
            gap.x = x + width + _ARROW + (_PADDING if number == last_of_groups else 0.0)
            x = gap.end + _ARROW

    def _widen_gaps(self, edge: PlacedEdge) -> None:
        out, back = (self._gaps[number] for number in edge.gaps)
        if edge.lines and not edge.is_in_lane:
            room = edge.label.width + 6
            if edge.distance == 0:
                out.before = max(out.before, room + _LOOP)
            else:
                out.after = max(out.after, room)
        if edge.is_loop:
            return
        rises = [(back, edge.start.y - edge.end.y)]
        if edge.is_in_lane:
            rises = [(out, edge.start.y - edge.lane), (back, edge.end.y - edge.lane)]
        for gap, rise in (one for one in rises if one[1] or abs(edge.distance) == 1):
            gap.swing = max(gap.swing, min(_WIDEST_SWING, _LEAST_SWING + abs(rise) / 4))

    def _path(self, edge: PlacedEdge) -> str:
        """Return what SVG calls path data."""
        source, target = edge.source.box, edge.target.box
        start = (source.x if edge.distance < 0 else source.right, edge.start.y)
        end = (target.x if edge.distance > 0 else target.right, edge.end.y)
        if edge.is_loop:
            above, below = (start[0], start[1] - 7), (start[0], start[1] + 7)
            return _draw_turn(above, below, start[0] + _LOOP)
        out, back = (self._gaps[number] for number in edge.gaps)
        if edge.distance == 0:
            turn = _draw_turn((out.left, start[1]), (out.left, end[1]), out.right)
            return f"M{_at(*start)}L{turn[1:]}L{_at(*end)}"
        points = [start, *_control_points(edge, back, start[1], end[1]), end]
        if edge.is_in_lane:
            points[1:-1] = [
                *_control_points(edge, out, start[1], edge.lane),
                *_control_points(edge, back, edge.lane, end[1]),
            ]
        return _draw_line(points)

    def _place_label(self, edge: PlacedEdge) -> None:
        label, gap = edge.label, self._gaps[edge.gaps[0]]
        y = edge.start.y
        if edge.is_in_lane:
            label.x, y = min(self._gaps[number].right for number in edge.gaps) + 8, edge.lane
        elif edge.distance == 0:
            label.x = gap.x + _LOOP - 8
        else:
            label.x, y = gap.end - label.width, edge.end.y if edge.distance == 1 else edge.start.y
        label.y = y - label.height / 2


Point: TypeAlias = "tuple[float, float]"


def has_clock(node: Node) -> bool:
    return node.kind in (NodeKind.WAITING, NodeKind.DELAYS)


def number(value: float) -> str:
    """With a tenth of a pixel: more is noise in a file that people compare."""
    return f"{round(value, 1):g}"


def _stack_nodes(nodes: Iterable[PlacedNode], y: float) -> float:
    for node in nodes:
        node.centre_on(y + node.box.height / 2)
        y = node.box.bottom + _BETWEEN_NODES
    return y


def _bounding_box(boxes: list[Box]) -> Box:
    left, top = min(box.x for box in boxes) - _PADDING, min(box.y for box in boxes) - _PADDING
    right, bottom = max(box.right for box in boxes), max(box.bottom for box in boxes)
    return Box(left, top, right + _PADDING - left, bottom + _PADDING - top)


def _control_points(edge: PlacedEdge, gap: Gap, before: float, after: float) -> tuple[Point, Point]:
    first, last = (gap.left, gap.right) if edge.distance > 0 else (gap.right, gap.left)
    return (first, before), (last, after)


def _draw_line(points: list[Point]) -> str:
    """Through all points: straight if the next one is level, else by a curve that begins and ends level."""
    data = f"M{_at(*points[0])}"
    for (x, y), (next_x, next_y) in pairwise(points):
        half = (x + next_x) / 2
        curve = f"C{_at(half, y)} {_at(half, next_y)} {_at(next_x, next_y)}"
        data += f"L{_at(next_x, next_y)}" if y == next_y else curve
    return data


def _draw_turn(start: Point, end: Point, reach: float) -> str:
    """To another height and back to the same side."""
    return f"M{_at(*start)}C{_at(reach, start[1])} {_at(reach, end[1])} {_at(*end)}"


def _at(x: float, y: float) -> str:
    return f"{number(x)} {number(y)}"


# Columns and rows -----------------------------------------------------------------------------------------


class _Grid:
    """The column and the row of each node. `rows` has the groups by their main queue, from top to bottom."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        kinds = _columns(picture)
        depths = _depths(picture, [id for id, kind in kinds.items() if kind is Column.EXCHANGES])
        deepest = max(depths.values(), default=-1)
        later = sorted(set(kinds.values()) - {Column.EXCHANGES})
        self.columns = [*[Column.EXCHANGES] * (deepest + 1), *later]
        self.column = {id: deepest - depths[id] if id in depths else self.columns.index(kinds[id]) for id in kinds}
        self._ties: dict[str, list[str]] = defaultdict(list)
        for edge in picture.edges:
            self._ties[edge.source].append(edge.target)
            self._ties[edge.target].append(edge.source)
        self.rows = self._groups(kinds)
        self.row = {id: row for row, group in enumerate(self.rows.values()) for id in group.members}
        parts = self.row.keys() - self.rows.keys()
        for id in (*sorted(depths, key=lambda id: depths[id]), *kinds):
            if id not in self.row:  # in the middle of the rows that it is connected to, as far as they are known
                known = [self.row[other] for other in self._ties[id] if other in self.row]
                self.row[id] = median_low(known) if known else max(len(self.rows) - 1, 0)
        # The nodes of a row that stand below each other, by row and column, except for the parts of its queue.
        self.stacks: dict[int, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        for id in (id for id in self.column if id not in parts):
            self.stacks[self.row[id]][self.column[id]].append(id)

    def is_inside_group(self, edge: Edge) -> bool:
        """Does it connect a queue with one of its own parts?"""
        group = self.rows.get(edge.source) or self.rows.get(edge.target)
        ends = set(edge.ends)
        return group is not None and len(ends) == 2 and group.main in ends and ends <= set(group.members)

    def _groups(self, kinds: Mapping[str, Column]) -> dict[str, Group]:
        """Queues of the same exchange stand together; a waiting queue of several queues stands among them."""
        groups = {group.main: group for group in self._picture.groups}
        position = {id: number for number, id in enumerate(id for id in kinds if kinds[id] is Column.EXCHANGES)}
        first: dict[str, int] = {}
        for edge in self._picture.edges:
            if edge.source in position:
                first[edge.target] = min(position[edge.source], first.get(edge.target, len(kinds)))
        queues = [id for id, kind in kinds.items() if kind is Column.QUEUES]
        queues.sort(key=lambda id: first.get(id, len(kinds)))
        rows = [groups.get(id) or Group(id) for id in queues]
        owned = {id for group in rows for id in group.members}
        for id in (id for id, kind in kinds.items() if kind is Column.WAITING and id not in owned):
            tied = [row for row, group in enumerate(rows) if not {*group.members}.isdisjoint(self._ties[id])]
            rows.insert(median_low(tied) + 1 if tied else len(rows), Group(id))
        return {group.main: group for group in rows}


def _columns(picture: Picture) -> dict[str, Column]:
    mains = {group.main for group in picture.groups}  # one that is missing is a queue, also if it has edges
    owned = {id for group in picture.groups for id in group.members}
    sources = {edge.source for edge in picture.edges} - mains
    bound = {edge.target for edge in picture.edges if edge.kind is EdgeKind.BINDING} | mains

    def column(id: str, kind: NodeKind) -> Column:
        if kind in (NodeKind.EXCHANGE, NodeKind.DELAYS) or (kind is NodeKind.MISSING and id in sources):
            return Column.EXCHANGES
        if kind in (NodeKind.MAIN, NodeKind.PLAIN) or (kind is NodeKind.MISSING and id in bound):
            return Column.QUEUES
        if kind is NodeKind.WAITING:
            return Column.WAITING
        return Column.DEAD if id in owned else Column.SHARED

    return {node.id: column(node.id, node.kind) for node in picture.nodes}


def _depths(picture: Picture, exchanges: list[str]) -> dict[str, int]:
    """Return how many exchanges are bound behind each; those in a cycle stop where it closes."""
    after: dict[str, list[str]] = {id: [] for id in exchanges}
    for edge in picture.edges:
        if edge.source in after and edge.target in after:
            after[edge.source].append(edge.target)
    depths: dict[str, int] = {}
    for exchange in exchanges:
        way = [exchange]
        while way:
            ahead = next((id for id in after[way[-1]] if id not in depths and id not in way), None)
            if ahead is not None:
                way.append(ahead)
            else:
                here = way.pop()
                depths[here] = max((depths[id] + 1 for id in after[here] if id in depths), default=0)
    return {id: depths[id] for id in exchanges}
