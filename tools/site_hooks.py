"""What `mkdocs build` does beside its own work (`hooks` in mkdocs.yml).

*Links out of docs/.* They are to work in the repository and in the site. Copies of the files would go stale and links
to a website need one, so each file that a page links to gets a page of its own: `site_sources` says where, and this
file hands them to MkDocs. The changelog and the architecture come into the manual in the same way.

*Diagrams.* Mermaid draws in the browser, with three megabytes that the theme fetches from a network. A state diagram is
a table, so here it is shown as one; another kind of diagram fails the build: draw an SVG (`docs/pictures`).

*The icon* is the console's.
"""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from site_sources import HOMES, needed, page_of, relink

ROOT = Path(__file__).parents[1]
ICON = ROOT / "src/redrive/admin/console/static/icon.svg"
log = logging.getLogger("mkdocs.hooks.site")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    fence = {"name": "mermaid", "class": "diagram", "format": diagram}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    made = {at: path for path, at in HOMES.items() if files.get_file_from_path(at) is None}
    own = [(f"docs/{file.src_uri}", file.content_string) for file in files.documentation_pages()]
    made |= needed([*own, *((path, (ROOT / path).read_text()) for path in made.values())], ROOT)
    for at, path in made.items():
        files.append(_file(at, path, config))
    files.append(File.generated(config, "assets/icon.svg", abs_src_path=str(ICON)))
    return files


def _file(at: str, path: str, config: MkDocsConfig) -> File:
    if not at.endswith(".md"):
        return File.generated(config, at, abs_src_path=str(ROOT / path))
    content, origin = page_of(path, ROOT)
    return File.generated(config, at, content=relink(content, origin, at, ROOT))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Pages that were made above have their links already."""
    uri = page.file.src_uri
    return markdown if page.file.generated_by is not None else relink(markdown, f"docs/{uri}", uri, ROOT)


# Diagrams -------------------------------------------------------------------------------------------------


def diagram(source: str, *_: Any, **__: Any) -> str:
    """A state diagram of Mermaid's as a table: in this state, on that, it becomes."""
    kind, *lines = source.strip().splitlines()
    if not kind.startswith("stateDiagram"):
        log.warning("a %s cannot be shown without the network: draw an SVG instead", kind)
    rows = "".join(_row(*row) for row in _steps(lines))
    head = "<tr><th>from</th><th>on</th><th>to</th></tr>"
    return f'<table class="diagram"><thead>{head}</thead><tbody>{rows}</tbody></table>'


def _steps(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    last = ""
    for line in lines:
        found = re.fullmatch(r"\s*(\S+) --> (\S+?)(?:: (.*))?", line)
        if found is None or "[*]" in found.groups():  # where it begins and ends stands in the notes
            continue
        yield found[1] if found[1] != last else "", found[3] or "", found[2]
        last = found[1]


def _row(state: str, on: str, to: str) -> str:
    start = f"<code>{html.escape(state)}</code>" if state else ""
    return f"<tr><td>{start}</td><td>{html.escape(on)}</td><td><code>{html.escape(to)}</code></td></tr>"
