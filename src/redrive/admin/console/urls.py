"""Addresses of pages. A console may be mounted anywhere, and the name of a queue may hold anything: `a/b`, `%`, `#`."""

from __future__ import annotations

from urllib.parse import quote, urlencode, urlsplit

from starlette.requests import Request


class Urls:
    """`to("queues", "a/b", "messages", q="error:Timeout")` is /ops/queues/a%2Fb/messages?q=error%3ATimeout"""

    def __init__(self, root: str) -> None:
        self.root = quote(root.rstrip("/"), safe="/%")

    def __call__(self, *parts: str, **asked: object) -> str:
        path = "/".join(quote(part, safe="", errors="replace") for part in parts)
        said = {name: _query_value(value) for name, value in asked.items() if value not in (None, "", False, ())}
        query = urlencode(said, doseq=True, errors="replace")
        return f"{self.root}/{path}" + (f"?{query}" if query else "")

    def __repr__(self) -> str:
        return f"<Links under {self.root or '/'}>"


def _query_value(value: object) -> object:
    return "1" if value is True else value


def links_of(request: Request) -> Urls:
    return Urls(request.scope.get("root_path", ""))


def address_asked_for(request: Request) -> str:
    """The path as it was sent, with its query: by which the same page is asked for again."""
    query = request.scope.get("query_string", b"").decode("latin-1")
    return quote(request.scope["path"], safe="/%:@!$&'()*+,;=~-._") + (f"?{query}" if query else "")


def is_ours(links: Urls, address: str) -> bool:
    """May a browser be sent there, whoever wrote it? Only to a page of this console.

    Browsers read a backslash as a slash and leave out tabs and lines, so that more leads to another site than one would
    think; what is not plain is refused.
    """
    if not address.isascii() or not address.isprintable() or any(char in address for char in "\\ <>\"'"):
        return False
    parts = urlsplit(address)
    if parts.scheme or parts.netloc or address.startswith("//"):
        return False
    return parts.path.startswith(f"{links.root}/") and "/../" not in f"{parts.path}/" and "//" not in parts.path
