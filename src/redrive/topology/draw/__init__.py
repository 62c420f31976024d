"""Definitions as pictures that a person can read: events in, queues, retry loops with their delays, dead letters.

    print(draw(expand(topology, server), "mermaid"))

They are drawn from the definitions alone, so that a live broker or any `definitions.json` can be drawn as well.

| module    | what it does                                                                       |
|-----------|------------------------------------------------------------------------------------|
| `roles`   | finds the role of each queue (work, waiting, dead letters) and its main queue      |
| `picture` | makes the graph: nodes, edges, groups                                              |
| `style`   | makes names printable and measures them; has the colours                           |
| `mermaid` | writes the graph for README files and wikis that draw it themselves                |
| `dot`     | writes the graph for Graphviz                                                      |
| `layout`  | places everything for the SVG                                                      |
| `svg`     | writes a picture that can be looked at as it is, in light and dark                 |

Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from redrive.errors import ConfigurationError
from redrive.text import did_you_mean
from redrive.topology.definitions import Definitions
from redrive.topology.draw.dot import dot
from redrive.topology.draw.mermaid import mermaid
from redrive.topology.draw.picture import Edge, EdgeKind, Group, Node, NodeKind, Picture, picture_of
from redrive.topology.draw.svg import svg

__all__ = ["FORMATS", "Edge", "EdgeKind", "Group", "Node", "NodeKind", "Picture", "draw", "picture_of"]

FORMATS: Mapping[str, Callable[[Picture], str]] = {"mermaid": mermaid, "dot": dot, "svg": svg}


def draw(definitions: Definitions, format: str) -> str:
    """Return the picture as text in one of `FORMATS`. The order of the definitions does not matter."""
    write = FORMATS.get(format)
    if write is None:
        hint = did_you_mean(format, FORMATS, f", want one of {', '.join(FORMATS)}", shown=repr)
        raise ConfigurationError(f"unknown format {format!r}{hint}")
    return write(picture_of(definitions))
