"""Where everything is: boxes for nodes and groups, paths for edges, places for labels.

First the columns and rows (`grid`), then how each edge runs (`ports`), then the heights, then the widths. Nodes of a
column, rows of a picture and labels of a gap cannot overlap, since each has its own room.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import assert_never

from redrive.topology.draw.geometry import Box, Path, Point
from redrive.topology.draw.grid import Grid, grid_of
from redrive.topology.draw.heights import PADDING, Heights
from redrive.topology.draw.lettering import Style
from redrive.topology.draw.picture import Edge, Node, Picture
from redrive.topology.draw.ports import LOOP, Port, Route, Side, Way, routes_of
from redrive.topology.draw.widths import ARROW, HEADING, Widths
from redrive.topology.draw.writing import Text, texts_on

MARGIN = 24.0
_HEADINGS = 26.0


@dataclass(frozen=True, slots=True)
class PlacedNode:
    node: Node
    box: Box
    texts: tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class PlacedEdge:
    edge: Edge
    path: Path
    label: Box | None
    texts: tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    width: int
    height: int
    nodes: tuple[PlacedNode, ...]
    edges: tuple[PlacedEdge, ...]
    groups: tuple[Box, ...]
    headings: tuple[Text, ...]

    def __repr__(self) -> str:
        return f"<Layout {self.width} x {self.height}, nodes={len(self.nodes)} edges={len(self.edges)}>"


def layout_of(picture: Picture) -> Layout:
    grid = grid_of(picture)
    routes = routes_of(picture.edges, grid)
    heights = Heights(picture, grid, routes, top=MARGIN + _HEADINGS)
    widths = Widths(picture, grid, routes, heights, left=MARGIN)
    boxes = {node.id: _box(node.id, grid, heights, widths) for node in picture.nodes}
    edges = tuple(_Pen(boxes, heights, widths).edges(routes))
    rightmost = max([widths.right, *(edge.label.right for edge in edges if edge.label is not None)])
    return Layout(
        ceil(rightmost + MARGIN),
        ceil(heights.bottom + MARGIN),
        tuple(PlacedNode(node, boxes[node.id], texts_on(node, boxes[node.id])) for node in picture.nodes),
        edges,
        tuple(_around([boxes[id] for id in group.members]) for group in picture.groups),
        tuple(_headings(grid, widths)),
    )


def _box(node: str, grid: Grid, heights: Heights, widths: Widths) -> Box:
    column = grid.column[node]
    return Box(widths.column_x[column], heights.top[node], widths.column_width[column], heights.height[node])


def _around(boxes: list[Box]) -> Box:
    left, top = min(box.x for box in boxes), min(box.y for box in boxes)
    right, bottom = max(box.right for box in boxes), max(box.bottom for box in boxes)
    return Box(left, top, right - left, bottom - top).grown(PADDING)


def _headings(grid: Grid, widths: Widths) -> Iterator[Text]:
    """One for each kind of column, above the first of them."""
    for place in sorted(set(grid.places)):
        x = widths.column_x[grid.places.index(place)]
        yield Text(HEADING[place], Style.HEADING, Point(x, MARGIN + 10))


class _Pen:
    """Draws paths and puts labels next to them."""

    def __init__(self, boxes: Mapping[str, Box], heights: Heights, widths: Widths) -> None:
        self._boxes = boxes
        self._heights = heights
        self._widths = widths

    def edges(self, routes: tuple[Route, ...]) -> Iterator[PlacedEdge]:
        for route in routes:
            box = self._label_box(route) if route.label.lines else None
            texts = route.label.texts_in(box) if box is not None else ()
            yield PlacedEdge(route.edge, self._path(route), box, texts)

    def _path(self, route: Route) -> Path:
        start, end = self._point(route.source), self._point(route.target)
        out, back = self._widths.gap_at(route.source), self._widths.gap_at(route.target)
        path = Path(start, ())
        match route.way:
            case Way.SELF:
                above, below = Point(start.x, start.y - 7), Point(start.x, start.y + 7)
                return Path(above, ()).turn_to(below.x, below.y, start.x + LOOP)
            case Way.SAME:
                path = path.line_to(out.swing_start, start.y)
                return path.turn_to(out.swing_start, end.y, out.swing_end).line_to(*end)
            case Way.NEXT | Way.SLOT:
                away, near = (
                    (back.swing_start, back.swing_end) if route.rightwards else (out.swing_end, out.swing_start)
                )
                return path.line_to(away, start.y).swing_to(near, end.y).line_to(*end)
            case Way.LANE:
                return self._along_a_lane(route, path, end)
            case _:
                assert_never(route.way)

    def _along_a_lane(self, route: Route, path: Path, end: Point) -> Path:
        out, back = self._widths.gap_at(route.source), self._widths.gap_at(route.target)
        y = self._heights.lane_y[route]
        if route.rightwards:
            path = path.line_to(out.swing_start, path.start.y).swing_to(out.swing_end, y)
            return path.line_to(back.swing_start, y).swing_to(back.swing_end, end.y).line_to(*end)
        path = path.line_to(out.swing_end, path.start.y).swing_to(out.swing_start, y)
        return path.line_to(back.swing_end, y).swing_to(back.swing_start, end.y).line_to(*end)

    def _point(self, port: Port) -> Point:
        box = self._boxes[port.node]
        return Point(box.x if port.side is Side.LEFT else box.right, self._heights.y(port))

    def _label_box(self, route: Route) -> Box:
        label, port = route.label, route.labelled_port
        if port is None:
            left = min(self._widths.gap_at(route.source).swing_end, self._widths.gap_at(route.target).swing_end)
            return Box(left + 8, self._heights.lane_y[route] - label.height / 2, label.width, label.height)
        gap = self._widths.gap_at(port)
        y = self._heights.y(port) - label.height / 2
        if route.label_stands_before_the_next_column:
            return Box(gap.labels_end - label.width, y, label.width, label.height)
        return Box(gap.x + (LOOP - ARROW + 4 if route.way is Way.SELF else 0), y, label.width, label.height)
