"""Points, boxes and paths, in the units of the picture; y grows downwards, as in SVG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias


class Point(NamedTuple):
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Box:
    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    @property
    def middle(self) -> float:
        return self.y + self.height / 2

    def grown(self, by: float) -> Box:
        return Box(self.x - by, self.y - by, self.width + 2 * by, self.height + 2 * by)

    def overlaps(self, other: Box) -> bool:
        beside = self.right <= other.x or other.right <= self.x
        above = self.bottom <= other.y or other.bottom <= self.y
        return not beside and not above

    def contains(self, other: Box) -> bool:
        within_width = self.x <= other.x and other.right <= self.right
        return within_width and self.y <= other.y and other.bottom <= self.bottom

    def has_on_its_border(self, point: Point) -> bool:
        on_a_side = point.x in (self.x, self.right) and self.y <= point.y <= self.bottom
        return on_a_side or (point.y in (self.y, self.bottom) and self.x <= point.x <= self.right)


@dataclass(frozen=True, slots=True)
class Line:
    end: Point


@dataclass(frozen=True, slots=True)
class Curve:
    """A cubic Bézier curve."""

    first: Point
    second: Point
    end: Point


Step: TypeAlias = "Line | Curve"


@dataclass(frozen=True, slots=True)
class Path:
    start: Point
    steps: tuple[Step, ...]

    @property
    def end(self) -> Point:
        return self.steps[-1].end

    def line_to(self, x: float, y: float) -> Path:
        if self.steps and self.end == (x, y):
            return self
        return Path(self.start, (*self.steps, Line(Point(x, y))))

    def swing_to(self, x: float, y: float) -> Path:
        """To another height, leaving and arriving level."""
        here = self.end if self.steps else self.start
        if here.y == y:
            return self.line_to(x, y)
        half = (here.x + x) / 2
        return Path(self.start, (*self.steps, Curve(Point(half, here.y), Point(half, y), Point(x, y))))

    def turn_to(self, x: float, y: float, reach: float) -> Path:
        """To another height and back to the side it came from, by way of `reach`."""
        here = self.end if self.steps else self.start
        return Path(self.start, (*self.steps, Curve(Point(reach, here.y), Point(reach, y), Point(x, y))))
