"""How wide everything is, and where from left to right.

A column is as wide as its longest name. A gap has room for the labels next to the column before it, for the swings of
edges from one height to another, and for the labels next to the column after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from redrive.topology.draw.grid import Grid, Place
from redrive.topology.draw.heights import PADDING, Heights
from redrive.topology.draw.lettering import Style
from redrive.topology.draw.picture import Picture
from redrive.topology.draw.ports import LOOP, Port, Route, Side, Way
from redrive.topology.draw.writing import width_on

ARROW = 12.0
HEADING = {
    Place.EXCHANGES: "EVENTS IN",
    Place.QUEUES: "QUEUES",
    Place.WAITING: "WAITING",
    Place.DEAD: "DEAD LETTERS",
    Place.SHARED: "SHARED DEAD LETTERS",
}
_NARROWEST = 96.0
_LEAST_SWING = 24.0
_WIDEST_SWING = 130.0
_SPACED = 1.1  # headings are spaced out


@dataclass(slots=True)
class Gap:
    """What is right of a column: labels of its nodes, swings, labels of the next column's nodes."""

    before: float = 0.0
    swing: float = 0.0
    after: float = 0.0
    level: bool = True  # does every edge in it run level?
    x: float = 0.0  # where the labels begin

    @property
    def swing_start(self) -> float:
        return self.x + self.before

    @property
    def swing_end(self) -> float:
        return self.swing_start + self.swing

    @property
    def labels_end(self) -> float:
        return self.swing_end + self.after

    @property
    def is_used(self) -> bool:
        return bool(self.before or self.swing or self.after)

    def share_room(self) -> None:
        """Where nothing swings and no two labels are on the same height, the two kinds of labels need no more room
        than the wider of them.
        """
        if self.level:
            self.before = max(0.0, self.before - self.after - self.swing)


class Widths:
    """Where each column begins, how wide it is, and what the gap after it has room for."""

    def __init__(self, picture: Picture, grid: Grid, routes: tuple[Route, ...], heights: Heights, left: float) -> None:
        self._grid = grid
        self._last_of_groups = max((grid.column[id] for group in picture.groups for id in group.members), default=None)
        self.column_width = [max(_NARROWEST, _SPACED * Style.HEADING.width(HEADING[place])) for place in grid.places]
        for node in picture.nodes:
            column = grid.column[node.id]
            self.column_width[column] = max(self.column_width[column], width_on(node))
        self.gaps = [Gap() for _ in grid.places]
        for route in routes:
            self._make_room(route, heights)
        self.column_x: list[float] = []
        self.right = self._place(left)

    def _make_room(self, route: Route, heights: Heights) -> None:
        for port in (route.source, route.target):
            gap = self.gap_at(port)
            other = heights.lane_y.get(route)
            rise = abs(heights.y(route.source) - heights.y(route.target) if other is None else heights.y(port) - other)
            if route.way is not Way.SELF and (rise or route.way is not Way.SLOT):
                gap.swing = max(gap.swing, min(_WIDEST_SWING, _LEAST_SWING + rise / 4))
                gap.level = gap.level and not rise
            if port == route.labelled_port and route.label.lines:
                room = route.label.width + 6 + (LOOP if route.way is Way.SELF else 0)
                if route.label_stands_before_the_next_column:
                    gap.after = max(gap.after, room)
                else:
                    gap.before = max(gap.before, room)

    def gap_at(self, port: Port) -> Gap:
        column = self._grid.column[port.node]
        return self.gaps[column - 1 if port.side is Side.LEFT else column]

    def _place(self, x: float) -> float:
        """The columns and gaps one after the other; where the last of them ends."""
        right = x
        for number, gap in enumerate(self.gaps):
            if self._grid.places[number] is Place.QUEUES:
                x += PADDING
                gap.share_room()
            self.column_x.append(x)
            x += self.column_width[number] + (PADDING if number == self._last_of_groups else 0)
            right = x
            gap.x = x + ARROW
            x = gap.labels_end + ARROW
        return x if self.gaps and self.gaps[-1].is_used else right
