"""Definitions as pictures that a person can read: events in, queues, retry loops with their delays, dead letters.

    print(draw(expand(topology, server), "mermaid"))

They are drawn from the definitions alone, so that a live broker or somebody's `definitions.json` can be drawn as well.

| module       | what                                                                              |
|--------------|-----------------------------------------------------------------------------------|
| `roles`      | what each queue is for: work, waiting, dead letters; and whose part it is         |
| `picture`    | what there is to see: nodes, edges, groups                                        |
| `lettering`  | names made visible, shortened and measured                                        |
| `palette`    | their colours                                                                     |
| `mermaid`    | a picture for README files and wikis that draw it themselves                      |
| `dot`        | a picture for Graphviz                                                            |
| `svg`        | a picture to look at as it is, in light and dark; `stylesheet` has its looks      |
| `grid`       | for the SVG: which column and row each node has                                   |
| `ports`      | for the SVG: how each edge runs and where it meets its nodes                      |
| `layout`     | for the SVG: where everything is, from `heights`, `widths`, `writing`, `geometry` |

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
    """The text of a picture in one of `FORMATS`; the same for the same definitions, in whatever order they come."""
    write = FORMATS.get(format)
    if write is None:
        hint = did_you_mean(format, FORMATS, f", want one of {', '.join(FORMATS)}", shown=repr)
        raise ConfigurationError(f"unknown format {format!r}{hint}")
    return write(picture_of(definitions))
