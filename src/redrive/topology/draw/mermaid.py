"""A picture as a Mermaid flowchart, for README files and wikis that draw it themselves.

Everything that could mean something to Mermaid, to the Markdown inside its labels or to HTML is written as a character
code: `#35;` is `#`. Of the punctuation only what is harmless where it stands is left as it is, so that the text can be
read. A colon is always a code: Mermaid's preprocessor takes `style … : … #…;` for its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from redrive.topology.draw import style
from redrive.topology.draw.picture import Edge, EdgeKind, Group, Node, NodeKind, Picture, Tone

_DOTTED = (EdgeKind.HANDED, EdgeKind.OTHERWISE)
_ROUND = (NodeKind.EXCHANGE, NodeKind.DELAYS)

_HARMLESS = re.compile(r"[^\W_]|(?<=[^\W_])[_-](?=[^\W_])|\.(?! )|(?<=\S) (?=\S)|[,()]")


def mermaid(picture: Picture) -> str:
    return "\n".join(_lines(picture)) + "\n"


def _lines(picture: Picture) -> Iterator[str]:
    yield "flowchart LR"
    grouped = {id for group in picture.groups for id in group.members}
    nodes = {node.id: node for node in picture.nodes}
    yield from (f"  {_node(node)}" for node in picture.nodes if node.id not in grouped)
    for group in picture.groups:
        yield from _subgraph(group, nodes)
    yield from (f"  {_edge(edge)}" for edge in picture.edges)
    yield from _looks(picture)


def _subgraph(group: Group, nodes: Mapping[str, Node]) -> Iterator[str]:
    yield f'  subgraph group_{group.main}[" "]'
    yield from (f"    {_node(nodes[id])}" for id in group.members)
    yield "  end"


def _node(node: Node) -> str:
    label = _label(node.lines)
    return f"{node.id}([{label}])" if node.kind in _ROUND else f"{node.id}[{label}]"


def _edge(edge: Edge) -> str:
    label = f"|{_label(edge.lines)}|" if edge.lines else ""
    return f"{edge.source} {'-.->' if edge.kind in _DOTTED else '-->'}{label} {edge.target}"


def _looks(picture: Picture) -> Iterator[str]:
    for kind in NodeKind:
        ids = [node.id for node in picture.nodes if node.kind is kind]
        if ids:
            yield f"  classDef {kind}Node {_look(kind)}"
            yield f"  class {','.join(ids)} {kind}Node"
    if picture.groups:
        yield f"  classDef groupBox fill:transparent,stroke:{style.TONES[Tone.FLOW][0]}"
        yield f"  class {','.join(f'group_{group.main}' for group in picture.groups)} groupBox"
    for tone in (Tone.RETRY, Tone.DEAD):
        numbers = [str(number) for number, each in enumerate(picture.tones) if each is tone]
        if numbers:
            yield f"  linkStyle {','.join(numbers)} stroke:{style.TONES[tone][0]}"


def _look(kind: NodeKind) -> str:
    """Dark letters on light boxes in either theme, since it is not known which."""
    dashes = ",stroke-dasharray:4 3" if kind is NodeKind.MISSING else ""
    fill, border = style.BOXES[kind][0]
    return f"fill:{fill},stroke:{border},color:{style.INK[0]}{dashes}"


def _label(lines: Iterable[str]) -> str:
    return f'"{"<br/>".join(map(_escape, lines))}"'


def _escape(text: str) -> str:
    kept = {match.start() for match in _HARMLESS.finditer(text)}
    return "".join(char if at in kept else _code(char) for at, char in enumerate(text))


def _code(char: str) -> str:
    """Mermaid breaks a line at `\\n` even if the backslash is a code: a space without width keeps them apart."""
    return f"#{ord(char)};" + ("#8203;" if char == "\\" else "")
