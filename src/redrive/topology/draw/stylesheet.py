"""The style sheet inside an SVG: letters, shapes, and colours for light and for dark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from redrive.topology.draw.lettering import Style
from redrive.topology.draw.palette import DARK, LIGHT, Palette
from redrive.topology.draw.picture import NodeKind, Tone

_MONOSPACED = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
_PROPORTIONAL = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"

_SHAPES = (
    ("text", "white-space: pre"),
    (".heading", "letter-spacing: 0.06em"),
    (".body", "stroke-width: 1.3"),
    (".missing .body", "stroke-dasharray: 4 3"),
    (".clock", "fill: none; stroke-width: 1.2"),
    (".edge", "fill: none; stroke-width: 1.4"),
    (".edge.handed", "stroke-dasharray: 5 3"),
    (".edge.otherwise", "stroke-dasharray: 1.5 3"),
)


def _letters() -> Iterator[tuple[str, str]]:
    for style in Style:
        letters = style.value
        family = _MONOSPACED if letters.monospaced else _PROPORTIONAL
        yield f".{style.name.lower()}", f"font: {letters.weight} {letters.size:g}px {family}"


def _colours(palette: Palette) -> Iterator[tuple[str, str]]:
    yield ".paper, .on-paper", f"fill: {palette.paper}"
    yield ".group", f"fill: {palette.group}; stroke: {palette.group_border}"
    yield ".on-group", f"fill: {palette.group}"
    yield "text", f"fill: {palette.ink}"
    yield ".caption, .entrance, .heading", f"fill: {palette.muted}"
    for tone in Tone:
        yield f".edge.{tone}", f"stroke: {palette.tones[tone]}"
        yield f".head.{tone}, .label.{tone} .reason", f"fill: {palette.tones[tone]}"
    for kind in NodeKind:
        border = palette.borders[kind]
        yield f".node.{kind} .body", f"fill: {palette.fills[kind]}; stroke: {border}"
        yield f".node.{kind} .bar", f"fill: {border}"
        yield f".node.{kind} .clock", f"stroke: {border}"


def _rules(rules: Iterable[tuple[str, str]]) -> str:
    """Each rule for nothing but these pictures, wherever the SVG is pasted."""
    lines = []
    for selectors, declarations in rules:
        scoped = ", ".join(f".redrive-topology {selector.strip()}" for selector in selectors.split(","))
        lines.append(f"{scoped} {{ {declarations} }}\n")
    return "".join(lines)


STYLESHEET = "".join(
    (
        _rules(_letters()),
        _rules(_SHAPES),
        _rules(_colours(LIGHT)),
        f"@media (prefers-color-scheme: dark) {{\n{_rules(_colours(DARK))}}}\n",
    )
)
