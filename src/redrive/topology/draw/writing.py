"""What is written on nodes and along edges, line by line, and the room that it takes."""

from __future__ import annotations

from dataclasses import dataclass

from redrive.topology.draw.geometry import Box, Point
from redrive.topology.draw.lettering import Style
from redrive.topology.draw.picture import Edge, EdgeKind, Node, NodeKind

INDENT = 16.0
ICON = 15.0  # room for a small clock before a caption
_ABOVE_AND_BELOW = 16.0


@dataclass(frozen=True, slots=True)
class Text:
    content: str
    style: Style
    start: Point  # where its base line begins

    @property
    def box(self) -> Box:
        """The room that it takes, from its tallest letter to its deepest."""
        size = self.style.size
        return Box(self.start.x, self.start.y - 0.8 * size, self.style.width(self.content), size)


# Nodes --------------------------------------------------------------------------------------------


def width_on(node: Node) -> float:
    return max(style.width(line) + indent for line, style, indent in _lines(node)) + 2 * INDENT


def height_on(node: Node) -> float:
    return _height(node) + _ABOVE_AND_BELOW


def texts_on(node: Node, box: Box) -> tuple[Text, ...]:
    y = box.middle - _height(node) / 2
    texts = []
    for line, style, indent in _lines(node):
        texts.append(Text(line, style, Point(box.x + INDENT + indent, y + style.size)))
        y += style.line_height
    return tuple(texts)


def has_clock(node: Node) -> bool:
    return node.kind in (NodeKind.WAITING, NodeKind.DELAYS)


def _lines(node: Node) -> list[tuple[str, Style, float]]:
    name, caption, *entrances = node.lines
    lines = [(name, Style.NAME, 0.0), (caption, Style.CAPTION, ICON if has_clock(node) else 0.0)]
    return lines + [(entrance, Style.ENTRANCE, 0.0) for entrance in entrances]


def _height(node: Node) -> float:
    return sum(style.line_height for _, style, _ in _lines(node))


# Labels -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Label:
    """What is written along an edge."""

    lines: tuple[str, ...]
    style: Style

    @classmethod
    def of(cls, edge: Edge, *, on_one_line: bool) -> Label:
        lines = edge.lines
        style = Style.KEY if edge.kind is EdgeKind.BINDING else Style.REASON
        return cls((" · ".join(lines),) if on_one_line and lines else lines, style)

    @property
    def width(self) -> float:
        return max(map(self.style.width, self.lines)) + 8 if self.lines else 0.0

    @property
    def height(self) -> float:
        return len(self.lines) * self.style.line_height + 2 if self.lines else 0.0

    def texts_in(self, box: Box) -> tuple[Text, ...]:
        size, height = self.style.size, self.style.line_height
        return tuple(
            Text(line, self.style, Point(box.x + 4, box.y + 1 + number * height + size))
            for number, line in enumerate(self.lines)
        )
