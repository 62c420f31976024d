"""A picture as Graphviz DOT, for those who have `dot` and want their own layout, colours or format.

    "A quoted string is any double-quoted string ("...") possibly containing escaped quotes (\\")."

Labels are escStrings: a backslash begins an escape there, and an ampersand an HTML entity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from redrive.topology.draw import style
from redrive.topology.draw.picture import Edge, EdgeKind, Group, Node, NodeKind, Picture, Tone
from redrive.topology.draw.style import visible

_BOX: Mapping[NodeKind, str] = {
    NodeKind.EXCHANGE: "rounded,filled",
    NodeKind.DELAYS: "rounded,filled",
    NodeKind.MISSING: "dashed,filled",
}
_STROKE: Mapping[EdgeKind, str] = {EdgeKind.HANDED: ", style=dashed", EdgeKind.OTHERWISE: ", style=dotted"}


def dot(picture: Picture) -> str:
    return "\n".join(_lines(picture)) + "\n"


def _lines(picture: Picture) -> Iterator[str]:
    yield "digraph topology {"
    yield '  graph [rankdir=LR, fontname="Helvetica", nodesep=0.3, ranksep=0.8]'
    yield '  node [shape=box, fontname="Helvetica", fontsize=11, margin="0.15,0.08"]'
    yield '  edge [fontname="Helvetica", fontsize=9, arrowsize=0.7]'
    grouped = {id for group in picture.groups for id in group.members}
    nodes = {node.id: node for node in picture.nodes}
    yield from (f"  {_node(node)}" for node in picture.nodes if node.id not in grouped)
    for group in picture.groups:
        yield from _cluster(group, nodes)
    for edge, tone in zip(picture.edges, picture.tones, strict=True):
        yield f"  {_edge(edge, tone)}"
    yield "}"


def _cluster(group: Group, nodes: Mapping[str, Node]) -> Iterator[str]:
    yield f"  subgraph {_quote(f'cluster_{group.main}')} {{"
    yield f'    style="rounded,filled"; fillcolor="{style.GROUP_FILL[0]}"; color="{style.GROUP_BORDER[0]}"'
    yield from (f"    {_node(nodes[id])}" for id in group.members)
    yield "  }"


def _node(node: Node) -> str:
    tooltip = _label([visible(node.name)])
    return f"{_quote(node.id)} [label={_label(node.lines)}, tooltip={tooltip}, {_look(node.kind)}]"


def _look(kind: NodeKind) -> str:
    fill, border = style.BOXES[kind][0]
    return f'style="{_BOX.get(kind, "filled")}", fillcolor="{fill}", color="{border}"'


def _edge(edge: Edge, tone: Tone) -> str:
    colour = f'color="{style.TONES[tone][0]}", fontcolor="{style.TONES[tone][0]}"'
    label = f"label={_label(edge.lines)}, " if edge.lines else ""
    back = ", constraint=false" if edge.kind is EdgeKind.RETURN and edge.source.startswith("queue") else ""
    return f"{_quote(edge.source)} -> {_quote(edge.target)} [{label}{colour}{_STROKE.get(edge.kind, '')}{back}]"


def _label(lines: Iterable[str]) -> str:
    return _quote(r"\n".join(map(_escape, lines)))


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")


def _quote(text: str) -> str:
    return f'"{text}"'
