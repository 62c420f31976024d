"""A picture as SVG: complete in itself, readable in light and in dark, and by screen readers.

No script, no font from elsewhere, and no style that leaks: every rule applies inside `.redrive-topology` only.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from xml.sax.saxutils import escape

from redrive.topology.draw import style
from redrive.topology.draw.layout import INDENT, MARGIN, Box, Layout, PlacedEdge, PlacedNode, number
from redrive.topology.draw.picture import EdgeKind, NodeKind, Picture, Tone
from redrive.topology.draw.style import Font

_LEAST_WIDTH = 420
_ROUND = (NodeKind.EXCHANGE, NodeKind.DELAYS)


def svg(picture: Picture) -> str:
    layout = Layout(picture)
    width = max(layout.width, _LEAST_WIDTH)
    legend, bottom = _legend(picture, width, layout.height)
    height = ceil(bottom + MARGIN)
    edges = list(zip(layout.edges, picture.tones, strict=True))
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" class="redrive-topology" role="img" '
            f'width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
            f"<title>{escape(_title(picture))}</title>",
            f"<desc>{escape(' '.join(_sentences(picture)))}</desc>",
            f"<style>\n{''.join(_stylesheet())}</style>",
            f"<defs>{''.join(map(_arrow_head, Tone))}</defs>",
            _rect("paper", Box(0, 0, width, height), 0),
            *(_rect("group", box, 12) for box in layout.groups),
            *(_text(heading, Font.HEADING, x, MARGIN + 10) for heading, x in layout.headings),
            *(_edge(edge, tone) for edge, tone in edges),
            *(_label(edge, tone, layout.groups) for edge, tone in edges if edge.lines),
            *map(_node, layout.nodes.values()),
            *legend,
            "</svg>",
            "",
        ]
    )


def _title(picture: Picture) -> str:
    kinds = [node.kind for node in picture.nodes]
    counts = {
        "exchange": kinds.count(NodeKind.EXCHANGE) + kinds.count(NodeKind.DELAYS),
        "queue": kinds.count(NodeKind.MAIN) + kinds.count(NodeKind.PLAIN),
        "waiting queue": kinds.count(NodeKind.WAITING),
        "dead-letter queue": kinds.count(NodeKind.DEAD),
    }
    parts = [f"{count} {what}{'s' if count != 1 else ''}" for what, count in counts.items() if count]
    return f"Topology: {', '.join(parts) or 'nothing'}"


def _sentences(picture: Picture) -> Iterator[str]:
    names = {node.id: node.lines[0] for node in picture.nodes}
    for edge in picture.edges:
        yield f"{names[edge.source]} to {names[edge.target]}{': ' if edge.lines else ''}{', '.join(edge.lines)}."


# Elements -------------------------------------------------------------------------------------------------


def _node(placed: PlacedNode) -> str:
    node, box = placed.node, placed.box
    parts = [
        f'<g class="node {node.kind}" data-node="{node.id}"><title>{escape(style.visible(node.name))}</title>',
        _rect("body", box, min(box.height / 2, 18) if node.kind in _ROUND else 6),
    ]
    if node.kind not in _ROUND:
        parts.append(_rect("bar", Box(box.x, box.y, 5, box.height), 2.5))
    y = box.y + (box.height - placed.text_height) / 2
    for text, font, indent in placed.texts:
        parts.append(_text(text, font, box.x + INDENT + indent, y + font.size))
        if indent:
            parts.append(_clock(box.x + INDENT + 5, y + font.size - 4))
        y += font.line_height
    return "".join((*parts, "</g>"))


def _clock(x: float, y: float) -> str:
    circle = f"M{number(x - 4.5)} {number(y)}a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0"
    return f'<path class="clock" d="{circle}M{number(x)} {number(y - 2.5)}v2.5h2"/>'


def _edge(placed: PlacedEdge, tone: Tone) -> str:
    edge = placed.edge
    title = escape("\n".join(map(style.visible, edge.keys)) or edge.why)
    return (
        f'<path class="edge {tone} {_css_name(edge.kind)}" data-from="{edge.source}" data-to="{edge.target}" '
        f'd="{placed.path}" marker-end="url(#redrive-{tone})"><title>{title}</title></path>'
    )


def _label(placed: PlacedEdge, tone: Tone, groups: list[Box]) -> str:
    """With a background that hides the line behind it."""
    box, font = placed.label, placed.font
    ground = "on-group" if any(group.contains(box) for group in groups) else "on-paper"
    lines = enumerate(placed.lines)
    texts = (_text(line, font, box.x + 4, box.y + 1 + at * font.line_height + font.size) for at, line in lines)
    return f'<g class="label {tone}">{_rect(ground, box, 3)}{"".join(texts)}</g>'


def _text(text: str, font: Font, x: float, y: float) -> str:
    """Letters whose width is not known are made to fit."""
    fit = f' textLength="{number(font.width(text))}" lengthAdjust="spacingAndGlyphs"'
    fixed = "" if style.is_measurable(text) else fit
    return f'<text class="{_css_name(font.name)}" x="{number(x)}" y="{number(y)}"{fixed}>{escape(text)}</text>'


def _rect(name: str, box: Box, corner: float) -> str:
    size = f'width="{number(box.width)}" height="{number(box.height)}"'
    return f'<rect class="{name}" x="{number(box.x)}" y="{number(box.y)}" {size} rx="{number(corner)}"/>'


def _arrow_head(tone: Tone) -> str:
    return (
        f'<marker id="redrive-{tone}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path class="head {tone}" d="M0 1L10 5L0 9z"/></marker>'
    )


def _css_name(value: str) -> str:
    return value.lower().replace(" ", "-")


# Legend ---------------------------------------------------------------------------------------------------

_NODES = {
    NodeKind.EXCHANGE: "exchange",
    NodeKind.DELAYS: "delays what it is given",
    NodeKind.MAIN: "queue",
    NodeKind.PLAIN: "queue without dead letters",
    NodeKind.WAITING: "waits, then goes on",
    NodeKind.DEAD: "dead letters",
    NodeKind.MISSING: "missing",
}
_EDGES = {
    "by routing key": (Tone.FLOW, EdgeKind.BINDING),
    "moved by the broker": (Tone.RETRY, EdgeKind.DEAD_LETTER, EdgeKind.RETURN),
    "published by a worker": (Tone.RETRY, EdgeKind.HANDED),
    "what no binding takes": (Tone.FLOW, EdgeKind.OTHERWISE),
}


def _legend(picture: Picture, width: float, y: float) -> tuple[list[str], float]:
    """Return what the signs in this picture mean, in as many lines as needed, and where they end."""
    entries: list[str] = []
    x = MARGIN
    for words, sign in _signs(picture):
        needed = 34 + Font.CAPTION.width(words)
        if x > MARGIN and x + needed > width - MARGIN:
            x, y = MARGIN, y + 22
        text = _text(words, Font.CAPTION, x + 34, y + 10)
        entries.append(f'<g class="legend"><g transform="translate({number(x)} {number(y)})">{sign}</g>{text}</g>')
        x += needed + 22
    return entries, y + 14 if entries else y - MARGIN


def _signs(picture: Picture) -> Iterator[tuple[str, str]]:
    """Yield each meaning and its element, drawn from 0, 0."""
    nodes, edges = {node.kind for node in picture.nodes}, {edge.kind for edge in picture.edges}
    for kind, words in _NODES.items():
        if kind in nodes:
            yield words, f'<g class="node {kind}">{_rect("body", Box(0, 0, 26, 13), 6 if kind in _ROUND else 3)}</g>'
    for words, (tone, *kinds) in _EDGES.items():
        if found := [kind for kind in kinds if kind in edges]:
            look = f"edge {tone} {_css_name(found[0])}"
            yield words, f'<path class="{look}" d="M0 7H26" marker-end="url(#redrive-{tone})"/>'


# Style sheet ----------------------------------------------------------------------------------------------

_MONOSPACED = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
_PROPORTIONAL = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"


def _stylesheet() -> Iterator[str]:
    for font in Font:
        family = _MONOSPACED if font.monospaced else _PROPORTIONAL
        yield _rule(f".{font.name.lower()}", f"font: {font.weight} {font.size:g}px {family}")
    yield _rule("text", "white-space: pre")
    yield _rule(".heading", "letter-spacing: 0.06em")
    yield _rule(".body", "stroke-width: 1.3")
    yield _rule(".missing .body", "stroke-dasharray: 4 3")
    yield _rule(".clock", "fill: none; stroke-width: 1.2")
    yield _rule(".edge", "fill: none; stroke-width: 1.4")
    yield _rule(".edge.handed", "stroke-dasharray: 5 3")
    yield _rule(".edge.otherwise", "stroke-dasharray: 1.5 3")
    yield from _colours(0)
    yield "@media (prefers-color-scheme: dark) {\n"
    yield from _colours(1)
    yield "}\n"


def _colours(paper: int) -> Iterator[str]:
    """The rules for light (0) or dark (1) paper."""
    yield _rule(".paper, .on-paper", f"fill: {style.PAPER[paper]}")
    yield _rule(".group", f"fill: {style.GROUP_FILL[paper]}; stroke: {style.GROUP_BORDER[paper]}")
    yield _rule(".on-group", f"fill: {style.GROUP_FILL[paper]}")
    yield _rule("text", f"fill: {style.INK[paper]}")
    yield _rule(".caption, .entrance, .heading", f"fill: {style.MUTED[paper]}")
    for tone in Tone:
        yield _rule(f".edge.{tone}", f"stroke: {style.TONES[tone][paper]}")
        yield _rule(f".head.{tone}, .label.{tone} .reason", f"fill: {style.TONES[tone][paper]}")
    for kind in NodeKind:
        fill, border = style.BOXES[kind][paper]
        yield _rule(f".node.{kind} .body", f"fill: {fill}; stroke: {border}")
        yield _rule(f".node.{kind} .bar", f"fill: {border}")
        yield _rule(f".node.{kind} .clock", f"stroke: {border}")


def _rule(selectors: str, declarations: str) -> str:
    scoped = ", ".join(f".redrive-topology {selector}" for selector in selectors.split(", "))
    return f"{scoped} {{ {declarations} }}\n"
