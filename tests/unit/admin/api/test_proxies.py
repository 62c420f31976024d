"""Forwarded headers: ignored, unless a trusted proxy sent them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.admin.access.settings import networks
from redrive.admin.api.proxies import client_scope

PROXIES = networks(["10.0.0.0/8", "2001:db8:1::/48"])


def scope(peer: str | None, *headers: tuple[str, str], scheme: str = "http") -> dict[str, Any]:
    sent = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    return {"type": "http", "client": (peer, 4711) if peer else None, "scheme": scheme, "headers": sent}


def client(peer: str | None, *forwarded: str) -> str | None:
    found = client_scope(scope(peer, *(("X-Forwarded-For", value) for value in forwarded)), PROXIES)["client"]
    return str(found[0]) if found else None


@pytest.mark.parametrize("peer", ["192.0.2.1", "127.0.0.1", "::1", "testclient", None])
def test_forwarded_headers_of_other_peers_are_ignored(peer: str | None) -> None:
    sent = scope(peer, ("X-Forwarded-For", "198.51.100.7"), ("X-Forwarded-Proto", "https"))
    assert client_scope(sent, PROXIES) == sent
    assert client_scope(sent, ()) == sent


@pytest.mark.parametrize(
    ("forwarded", "expected"),
    [
        (["198.51.100.7"], "198.51.100.7"),
        (["198.51.100.7:4711"], "198.51.100.7"),
        (["[2001:db8:9::7]:4711"], "2001:db8:9::7"),
        (["::ffff:198.51.100.7"], "198.51.100.7"),
        (["1.1.1.1, 198.51.100.7"], "198.51.100.7"),  # the client itself wrote the first
        (["1.1.1.1", "198.51.100.7, 10.0.0.9"], "198.51.100.7"),
        (["198.51.100.7, 2001:db8:1::9, 10.0.0.9"], "198.51.100.7"),
        (["10.0.0.8, 10.0.0.9"], "10.0.0.8"),
        (["198.51.100.7, unknown, 10.0.0.9"], "10.0.0.9"),
        (["", ","], "10.0.0.1"),
        ([], "10.0.0.1"),
    ],
)
def test_the_client_is_the_last_address_that_is_not_a_trusted_proxy(forwarded: list[str], expected: str) -> None:
    assert client("10.0.0.1", *forwarded) == expected
    assert client("::ffff:10.0.0.1", *forwarded) in (expected, "::ffff:10.0.0.1")


@pytest.mark.parametrize(
    ("forwarded", "expected"), [("https", "https"), ("HTTPS", "https"), ("https, http", "http"), ("ftp", "http")]
)
def test_the_scheme_is_what_the_nearest_proxy_says(forwarded: str, expected: str) -> None:
    sent = scope("10.0.0.1", ("X-Forwarded-Proto", forwarded))
    assert client_scope(sent, PROXIES)["scheme"] == expected


@given(st.lists(st.text(st.characters(max_codepoint=255))))
def test_whatever_is_forwarded_there_is_one_client(forwarded: list[str]) -> None:
    assert client("10.0.0.1", *forwarded)
