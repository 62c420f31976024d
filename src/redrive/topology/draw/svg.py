"""A picture as SVG: complete in itself, readable in light and in dark, and by those who have it read to them.

No script, no font from elsewhere, and no style that leaks: every rule is about what is inside `.redrive-topology`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import assert_never
from xml.sax.saxutils import escape

from redrive.topology.draw.geometry import Box, Curve, Line, Path, Point
from redrive.topology.draw.layout import MARGIN, PlacedEdge, PlacedNode, layout_of
from redrive.topology.draw.lettering import Style, is_measurable, visible
from redrive.topology.draw.picture import EdgeKind, NodeKind, Picture, Tone
from redrive.topology.draw.stylesheet import STYLESHEET
from redrive.topology.draw.writing import ICON, Text, has_clock

_LEAST_WIDTH = 420


def svg(picture: Picture) -> str:
    layout = layout_of(picture)
    width = max(layout.width, _LEAST_WIDTH)
    legend = _Legend(picture, width, layout.height)
    height = ceil(legend.bottom + MARGIN)
    tones, groups = picture.tones, sorted(layout.groups, key=lambda box: box.y)
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" class="redrive-topology" role="img" '
            f'width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
            f"<title>{escape(_title(picture))}</title>",
            f"<desc>{escape(' '.join(_sentences(picture)))}</desc>",
            f"<style>\n{STYLESHEET}</style>",
            f"<defs>{''.join(map(_arrow_head, Tone))}</defs>",
            f'<rect class="paper" {_place(Box(0, 0, width, height))}/>',
            *(f'<rect class="group" {_place(box)} rx="12"/>' for box in layout.groups),
            *map(_text, layout.headings),
            *(_edge(placed, tone) for placed, tone in zip(layout.edges, tones, strict=True)),
            *(_label(placed, tone, groups) for placed, tone in zip(layout.edges, tones, strict=True)),
            *map(_node, layout.nodes),
            *legend.lines,
            "</svg>",
            "",
        ]
    )


# What is said about it ----------------------------------------------------------------------------


def _title(picture: Picture) -> str:
    kinds = [node.kind for node in picture.nodes]
    counts = [
        ("exchange", kinds.count(NodeKind.EXCHANGE) + kinds.count(NodeKind.DELAYS)),
        ("queue", kinds.count(NodeKind.MAIN) + kinds.count(NodeKind.PLAIN)),
        ("waiting queue", kinds.count(NodeKind.WAITING)),
        ("dead-letter queue", kinds.count(NodeKind.DEAD)),
    ]
    said = [f"{count} {what}{'s' if count != 1 else ''}" for what, count in counts if count]
    return f"Topology: {', '.join(said) or 'nothing'}"


def _sentences(picture: Picture) -> Iterator[str]:
    names = {node.id: node.lines[0] for node in picture.nodes}
    for edge in picture.edges:
        said = ", ".join(edge.lines)
        yield f"{names[edge.source]} to {names[edge.target]}{': ' if said else ''}{said}."


# Elements -----------------------------------------------------------------------------------------


def _node(placed: PlacedNode) -> str:
    node, box = placed.node, placed.box
    round_ends = node.kind in (NodeKind.EXCHANGE, NodeKind.DELAYS)
    parts = [
        f'<g class="node {node.kind}" data-node="{node.id}">',
        f"<title>{escape(visible(node.name))}</title>",
        f'<rect class="body" {_place(box)} rx="{min(box.height / 2, 18) if round_ends else 6:g}"/>',
    ]
    if not round_ends:
        parts.append(f'<rect class="bar" {_place(Box(box.x, box.y, 5, box.height))} rx="2.5"/>')
    if has_clock(node):
        parts.append(_clock(placed.texts[1]))
    return "".join((*parts, *map(_text, placed.texts), "</g>"))


def _clock(caption: Text) -> str:
    x, y = caption.start.x - ICON + 5, caption.start.y - 4
    return (
        f'<path class="clock" d="M{_n(x - 4.5)} {_n(y)}a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0'
        f'M{_n(x)} {_n(y - 2.5)}v2.5h2"/>'
    )


def _edge(placed: PlacedEdge, tone: Tone) -> str:
    edge = placed.edge
    every = escape("\n".join(visible(key) for key in edge.keys) or edge.why)
    return (
        f'<path class="edge {tone} {_css_name(edge.kind)}" data-from="{edge.source}" data-to="{edge.target}" '
        f'd="{_path_data(placed.path)}" marker-end="url(#redrive-{tone})"><title>{every}</title></path>'
    )


def _label(placed: PlacedEdge, tone: Tone, groups: list[Box]) -> str:
    """Groups stand below each other, so only the last that begins above a label can be what it stands on."""
    if placed.label is None:
        return ""
    above = bisect_right(groups, placed.label.y, key=lambda group: group.y)
    ground = "on-group" if above and groups[above - 1].contains(placed.label) else "on-paper"
    texts = "".join(map(_text, placed.texts))
    return f'<g class="label {tone}"><rect class="{ground}" {_place(placed.label)} rx="3"/>{texts}</g>'


def _text(text: Text) -> str:
    fixed = ""
    if not is_measurable(text.content):
        fixed = f' textLength="{_n(text.style.width(text.content))}" lengthAdjust="spacingAndGlyphs"'
    return (
        f'<text class="{_css_name(text.style.name)}" x="{_n(text.start.x)}" y="{_n(text.start.y)}"{fixed}>'
        f"{escape(text.content)}</text>"
    )


def _arrow_head(tone: Tone) -> str:
    return (
        f'<marker id="redrive-{tone}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path class="head {tone}" d="M0 1L10 5L0 9z"/></marker>'
    )


def _path_data(path: Path) -> str:
    data = [f"M{_p(path.start)}"]
    for step in path.steps:
        match step:
            case Line(end):
                data.append(f"L{_p(end)}")
            case Curve(first, second, end):
                data.append(f"C{_p(first)} {_p(second)} {_p(end)}")
            case _:
                assert_never(step)
    return "".join(data)


def _place(box: Box) -> str:
    return f'x="{_n(box.x)}" y="{_n(box.y)}" width="{_n(box.width)}" height="{_n(box.height)}"'


def _p(point: Point) -> str:
    return f"{_n(point.x)} {_n(point.y)}"


def _n(number: float) -> str:
    """With a tenth of a pixel: more is noise in a file that people compare."""
    return f"{round(number, 1):g}"


def _css_name(value: str) -> str:
    return value.lower().replace(" ", "-")


# Legend -------------------------------------------------------------------------------------------

_NODE_WORDS: Mapping[NodeKind, str] = {
    NodeKind.EXCHANGE: "exchange",
    NodeKind.DELAYS: "delays what it is given",
    NodeKind.MAIN: "queue",
    NodeKind.PLAIN: "queue without dead letters",
    NodeKind.WAITING: "waits, then goes on",
    NodeKind.DEAD: "dead letters",
    NodeKind.MISSING: "missing",
}
_EDGE_WORDS: Mapping[EdgeKind, str] = {
    EdgeKind.BINDING: "by routing key",
    EdgeKind.DEAD_LETTER: "moved by the broker",
    EdgeKind.RETURN: "moved by the broker",
    EdgeKind.HANDED: "published by a worker",
    EdgeKind.OTHERWISE: "what no binding takes",
}


@dataclass(frozen=True, slots=True)
class _Entry:
    words: str
    sign: str  # an element, drawn from 0, 0


class _Legend:
    """What the signs mean, as far as they occur; in as many lines as it takes."""

    _LINE = 22.0
    _SIGN = 34.0
    _BETWEEN = 22.0

    def __init__(self, picture: Picture, width: float, top: float) -> None:
        self.lines: list[str] = []
        x, y = MARGIN, top
        for entry in _entries(picture):
            needed = self._SIGN + Style.CAPTION.width(entry.words)
            if x > MARGIN and x + needed > width - MARGIN:
                x, y = MARGIN, y + self._LINE
            words = Text(entry.words, Style.CAPTION, Point(x + self._SIGN, y + 10))
            self.lines.append(
                f'<g class="legend"><g transform="translate({_n(x)} {_n(y)})">{entry.sign}</g>{_text(words)}</g>'
            )
            x += needed + self._BETWEEN
        self.bottom = y + 14 if self.lines else top - MARGIN


def _entries(picture: Picture) -> Iterator[_Entry]:
    for kind in NodeKind:
        if any(node.kind is kind for node in picture.nodes):
            corner = 6 if kind in (NodeKind.EXCHANGE, NodeKind.DELAYS) else 3
            yield _Entry(
                _NODE_WORDS[kind],
                f'<g class="node {kind}"><rect class="body" width="26" height="13" rx="{corner}"/></g>',
            )
    said: dict[str, EdgeKind] = {}
    for edge in picture.edges:
        said.setdefault(_EDGE_WORDS[edge.kind], edge.kind)
    for words, way in sorted(said.items(), key=lambda one: list(EdgeKind).index(one[1])):
        tone = Tone.FLOW if way in (EdgeKind.BINDING, EdgeKind.OTHERWISE) else Tone.RETRY
        yield _Entry(
            words, f'<path class="edge {tone} {_css_name(way)}" d="M0 7H26" marker-end="url(#redrive-{tone})"/>'
        )
