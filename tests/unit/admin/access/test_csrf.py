"""Whose request it is that comes with somebody's cookie."""

from __future__ import annotations

import pytest

from redrive.admin.access.csrf import is_cross_site

HOST = "dlq.example:8443"


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "get"])
def test_who_only_looks_may_come_from_anywhere(method: str) -> None:
    assert not is_cross_site(method, {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}, HOST)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "post", "TRACE", "SOMETHING"])
@pytest.mark.parametrize(
    ("site", "refused"),
    [("same-origin", False), ("none", False), ("same-site", True), ("cross-site", True), ("", True), ("Same", True)],
)
def test_the_browser_says_whose_it_is(method: str, site: str, refused: bool) -> None:
    assert is_cross_site(method, {"Sec-Fetch-Site": site}, HOST) is refused


def test_what_the_browser_says_of_the_site_counts_more_than_the_origin() -> None:
    ours = {"Origin": f"https://{HOST}"}
    assert is_cross_site("POST", ours | {"Sec-Fetch-Site": "cross-site"}, HOST)
    assert not is_cross_site("POST", {"Origin": "https://x", "sec-fetch-site": "same-origin"}, HOST)


@pytest.mark.parametrize("header", ["Origin", "origin", "ORIGIN", "Referer"])
def test_without_that_the_origin_must_be_this_host(header: str) -> None:
    assert not is_cross_site("POST", {header: f"https://{HOST}"}, HOST)
    assert is_cross_site("POST", {header: "https://evil.example"}, HOST)


def test_a_referer_counts_with_its_path_and_an_origin_before_it() -> None:
    referer = {"Referer": f"https://{HOST}/admin/queues?x=1#y"}
    assert not is_cross_site("POST", referer, HOST)
    assert is_cross_site("POST", referer | {"Origin": "null"}, HOST)


def test_who_says_nothing_is_refused() -> None:
    assert is_cross_site("POST", {}, HOST)
    assert is_cross_site("POST", {"Host": HOST, "Cookie": "x"}, HOST)


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "dlq.example:8443",
        "https://dlq.example",
        "https://dlq.example:8444",
        "https://dlq.example:8443.evil.example",
        "https://evil.example/dlq.example:8443",
        "https://evil.example?dlq.example:8443",
        "https://dlq.example:8443@evil.example",
        "https://me@dlq.example:8443",
        "https://dlq.example:99999",
        "https://[dlq.example:8443",
        "ftp://dlq.example:8443",
        "javascript://dlq.example:8443",
    ],
)
def test_what_only_looks_like_this_host_is_another(origin: str) -> None:
    assert is_cross_site("POST", {"Origin": origin}, HOST)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://dlq.example", "dlq.example:443"),
        ("http://dlq.example:80", "dlq.example"),
        ("https://DLQ.example", "dlq.EXAMPLE"),
        ("http://[::1]:8080", "[::1]:8080"),
        ("http://127.0.0.1:8080", "127.0.0.1:8080"),
    ],
)
def test_a_host_may_be_written_in_several_ways(origin: str, host: str) -> None:
    assert not is_cross_site("POST", {"Origin": origin}, host)


@pytest.mark.parametrize("host", ["", "@dlq.example", "dlq.example/x", "dlq.example?x", "dlq.ex\tample", "["])
def test_a_host_that_is_none_is_not_ours(host: str) -> None:
    assert is_cross_site("POST", {"Origin": "https://dlq.example"}, host)
    assert is_cross_site("POST", {"Origin": "https://"}, host)
