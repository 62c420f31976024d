"""The client of a request that came through proxies.

`X-Forwarded-For` and `X-Forwarded-Proto` can be sent by any client. They are read only if the peer of the connection is
a proxy that the configuration names (`--trust-proxy`); otherwise the peer is the client, whatever a request contains.

Each proxy appends the address that it was called from. So the list is read from its end: the client is the first
address that is not a trusted proxy itself. Everything before that address was written by the client.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from redrive.admin.access.settings import Network

Scope = MutableMapping[str, Any]


def client_scope(scope: Scope, proxies: Sequence[Network]) -> Scope:
    """Return the scope of a request with the address and the scheme of the client, if its peer is a trusted proxy."""
    peer = scope.get("client")
    if peer is None or not is_trusted(peer[0], proxies):
        return scope
    address = _client(peer[0], _forwarded_parts(scope, b"x-forwarded-for"), proxies)
    scheme = next(reversed(_forwarded_parts(scope, b"x-forwarded-proto")), "").lower()
    return {**scope, "client": (address, 0)} | ({"scheme": scheme} if scheme in ("http", "https") else {})


def is_trusted(address: str, proxies: Sequence[Network]) -> bool:
    known = _address(address)
    return known is not None and any(known in network for network in proxies)


def _client(peer: str, forwarded: Sequence[str], proxies: Sequence[Network]) -> str:
    address = peer
    for entry in reversed(forwarded):
        known = _address(entry)
        if known is None:  # what no proxy writes: the last proxy that is known has to do
            break
        address = str(known)
        if not is_trusted(address, proxies):
            break
    return address


def _forwarded_parts(scope: Scope, name: bytes) -> list[str]:
    """Return the parts of a header, which may be there several times."""
    values = [value.decode("latin-1") for header, value in scope["headers"] if header.lower() == name]
    return [part.strip() for part in ",".join(values).split(",")] if values else []


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Return an IPv4 or IPv6 address, also of `192.0.2.1:4711` and `[2001:db8::1]:4711`; None if it is neither."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found
