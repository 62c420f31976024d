"""Is a request made by our own pages, or by another site in the browser of somebody who is signed in?

A browser sends cookies along with what another site makes it send. It also says where a request comes from, and no
page can change that: `Sec-Fetch-Site`, and where that is missing (old browsers, and plain HTTP beyond loopback)
`Origin` or `Referer`. A request that changes something and says nothing of this is refused.

Only for requests that a cookie has signed in. A key or token in `Authorization` is put there by who knows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})  # they change nothing here (RFC 9110, 9.2.1)
_OURS = frozenset({"same-origin", "none"})  # none: the person did it themselves, in the address bar
_PORTS = {"http": 80, "https": 443}


def is_cross_site(method: str, headers: Mapping[str, str], host: str) -> bool:
    """`host`: the Host header of the request, as the browser knows this server."""
    if method.upper() in _SAFE:
        return False
    said = {name.lower(): value.strip() for name, value in headers.items()}
    if "sec-fetch-site" in said:
        return said["sec-fetch-site"] not in _OURS
    source = said.get("origin", said.get("referer"))
    return source is None or not _is_at(source, host)


def _is_at(source: str, host: str) -> bool:
    try:
        theirs, ours = urlsplit(source), urlsplit(f"//{host}")
        if theirs.scheme not in _PORTS or not ours.hostname or ours.netloc != host or "@" in theirs.netloc + host:
            return False
        return _place(theirs, theirs.scheme) == _place(ours, theirs.scheme)
    except ValueError:  # no port is that high; a bracket is not closed
        return False


def _place(parts: SplitResult, scheme: str) -> tuple[str | None, int]:
    return parts.hostname, _PORTS[scheme] if parts.port is None else parts.port
