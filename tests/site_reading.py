"""Reading a built site: what a page has a browser fetch, where it leads, and what of that is not there.

Everything is a function of the pages' texts, so that the checks can be checked.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import unquote

# What a browser loads by itself when it shows a page. A link that somebody has to click is none of it.
_FETCHED = {("img", "src"), ("script", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("audio", "src")}
_FETCHED |= {("video", "poster"), ("embed", "src"), ("object", "data"), ("track", "src"), ("input", "src")}
_SETS = {("img", "srcset"), ("source", "srcset")}
# A <link> of these kinds is fetched, or has a connection opened; `canonical` and `next` only say something.
_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}
_STYLE = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


@dataclass
class PageText:
    """What is on one page."""

    fetched: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = PageText()
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        self.page.anchors.update(named[name] for name in ("id", "name") if named.get(name))
        self.page.fetched += [value for name, value in named.items() if (tag, name) in _FETCHED]
        for name, value in named.items():
            if (tag, name) in _SETS:
                self.page.fetched += [part.split()[0] for part in value.split(",") if part.strip()]
        self.page.fetched += style_targets(named.get("style", ""))
        if tag == "link" and _LINKS.intersection(named.get("rel", "").split()):
            self.page.fetched.append(named.get("href", ""))
        if tag in ("a", "area") and "href" in named:
            self.page.links.append(named["href"])

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.page.fetched += style_targets(data)

    def handle_endtag(self, tag: str) -> None:
        self._in_style = self._in_style and tag != "style"


def read_page(text: str) -> PageText:
    reader = _Reader()
    reader.feed(text)
    return reader.page


def style_targets(text: str) -> list[str]:
    """What a stylesheet has a browser fetch."""
    found = [one or other for one, other in _STYLE.findall(text)]
    return [target for target in found if not target.startswith(("data:", "#"))]


def leaves(target: str) -> bool:
    """Does it lead out of the site? A path does not, whatever it is; a scheme or a host does."""
    return bool(re.match(r"(?!data:)[a-z][a-z0-9+.-]*:|//", target, re.IGNORECASE))


def broken(pages: Mapping[str, PageText], files: Set[str]) -> Iterator[str]:
    """Every target within the site that is not there. `files` are all its files, `pages` those that are HTML."""
    for at, page in pages.items():
        for target in [*page.fetched, *page.links]:
            if target.startswith("data:") or leaves(target):
                continue
            path, _, anchor = target.partition("#")
            found = _file(unquote(path.partition("?")[0]), at, files)
            if found is None:
                yield f"{at}: {target}: there is no such file"
            elif anchor and found in pages and unquote(anchor) not in pages[found].anchors:
                yield f"{at}: {target}: there is no such place on {found}"


def _file(path: str, at: str, files: Set[str]) -> str | None:
    """The file that a path on the page `at` means."""
    if not path:
        return at
    start = "" if path.startswith("/") else posixpath.dirname(at)
    whole = posixpath.normpath(posixpath.join(start, path.lstrip("/")))
    for candidate in (whole, posixpath.normpath(posixpath.join(whole, "index.html"))):
        if candidate in files:
            return candidate
    return None
