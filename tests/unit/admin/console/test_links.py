"""Addresses: under any path, for queues of any name, and never of another site."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from redrive.admin.console.urls import Urls, address_asked_for, is_ours


def test_a_link_is_made_of_parts_and_what_is_asked() -> None:
    to = Urls("")
    assert to() == "/"
    assert to("queues", "a/b %#ü", "messages", q="error:x y", spend=True, cursor=None, fresh=False) == (
        "/queues/a%2Fb%20%25%23%C3%BC/messages?q=error%3Ax+y&spend=1"
    )
    assert to("re-drive", ids=["1", "2"]) == "/re-drive?ids=1&ids=2"


def test_it_begins_where_the_console_is_mounted() -> None:
    assert Urls("/ops/redrive/")("audit") == "/ops/redrive/audit"
    assert Urls("/ö p")("audit") == "/%C3%B6%20p/audit"


@given(st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_a_name_is_one_part_of_the_path_and_comes_back_as_it_was(name: str) -> None:
    path = Urls("")("queues", name)
    assert path.count("/") == 2
    assert unquote(path.removeprefix("/queues/")) == name


def test_half_a_surrogate_pair_makes_a_link_all_the_same() -> None:
    assert Urls("")("queues", "\udc80", q="\udc80") == "/queues/%3F?q=%3F"


def request(path: str, query: bytes = b"") -> Request:
    return Request({"type": "http", "method": "GET", "path": path, "query_string": query, "headers": []})


def test_the_address_of_a_page_is_what_was_asked_for() -> None:
    assert address_asked_for(request("/queues/a%2Fb", b"q=error%3Ax")) == "/queues/a%2Fb?q=error%3Ax"
    assert address_asked_for(request("/queues/ü\n")) == "/queues/%C3%BC%0A"


@pytest.mark.parametrize("address", ["/", "/queues/a%2Fb?q=1#x", "/operations"])
def test_our_pages_are_ours(address: str) -> None:
    assert is_ours(Urls(""), address)
    assert is_ours(Urls("/ops"), f"/ops{address}")
    assert not is_ours(Urls("/other"), f"/ops{address}")


@pytest.mark.parametrize(
    "address",
    [
        *(
            "",
            "queues",
            "//evil.example",
            "///evil.example",
            "/\\evil.example",
            "\\\\evil.example",
            "http://evil.example/",
        ),
        *("/ops/../evil", "/ops//evil.example", "javascript:alert(1)", "/ops/\tx", "/ops/ x", "/ops/ü", "/opsevil"),
        *("/ops/..", "https:/evil.example", "/ops/<script>"),
    ],
)
def test_what_is_not_plainly_ours_is_not(address: str) -> None:
    assert not is_ours(Urls("/ops"), address)
