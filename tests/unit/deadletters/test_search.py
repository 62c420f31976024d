"""Queries: what they match, how they are written back, and where their mistakes are."""

from __future__ import annotations

import datetime as dt
import gzip
import pickle
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from redrive.deadletters.dead_letter import DeadLetter, Summary, read_dead_letter
from redrive.deadletters.search import MOST_BODY, MOST_TERMS, MOST_TEXT, Query, Term, parse
from redrive.errors import ConfigurationError, SearchError
from redrive.wire.properties import Properties
from redrive.wire.raw_properties import raw_table

NOON = dt.datetime(2024, 5, 17, 12, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
LETTER = Summary(
    queue="q.orders.dlq",
    position=0,
    id="m-1-0123456789abcdef",
    message_id="m-1/ann",
    correlation_id="c-17",
    type="OrderPlaced",
    source="q.orders",
    exchange="domain.events",
    routing_key="order.new",
    reason="exhausted",
    error="httpx.ReadTimeout",
    error_message="No answer from payments",
    fingerprint="3fa9c0ffee00",
    attempts=3,
    dead_at=NOON - 1.5 * HOUR,
    redriven=1,
    last_operation="op_01J8",
    size=2_048,
    parked=True,
    unreadable=False,
)
BODY = b"""{"customer": {"id": 42, "name": "Ann \\u00d6", "vip": true, "note": null},
 "items": [{"sku": "A-1", "price": 1.10}, {"sku": "B-2"}], "tags": ["red", "Blue"], "first name": "x", "ref": "0042"}"""
HEADERS = Properties(
    headers={"tenant": "acme", "n": 5, "flag": False, "a.b": "dotted", "a:b": "colon", "when": NOON, "raw": b"\xffxyz"}
).encode()


def query(text: str) -> Query:
    return parse(text, NOON)


def matches(text: str, body: bytes = BODY, letter: Any = LETTER, raw: bytes = HEADERS) -> bool:
    return query(text).matches(letter, body, raw)


def problem(text: str) -> SearchError:
    with pytest.raises(SearchError) as caught:
        query(text)
    return caught.value


# What is known of a message ---------------------------------------------------------------------------------

FOUND = [
    "",
    "error:timeout",
    "error:payments",
    "error:=httpx.ReadTimeout",
    'error:"no answer"',
    "source:orders",
    "type:orderplaced",
    "type:=OrderPlaced",
    "reason:exhausted",
    "key:order.new",
    "exchange:domain",
    "op:op_01J8",
    "id:m-1-0123",
    "id:ann",
    "correlation:c-17",
    "group:3fa9",
    "group:3FA9",
    "group:=3fa9c0ffee00",
    "attempts:3",
    "attempts:=3",
    "attempts:>2",
    "attempts:>=3",
    "attempts:<4",
    "redriven:>0",
    "redriven:<=1",
    "size:>2kb",
    "size:2KiB",
    "size:<1mb",
    "ERROR:Timeout",
]
NOT_FOUND = [
    "error:ValueError",
    "error:=readtimeout",
    "error:=httpx.readtimeout",
    "source:=orders",
    "type:=orderplaced",
    "group:c0ffee",
    "group:=3fa9",
    "attempts:2",
    "attempts:<3",
    "redriven:0",
    "redriven:>1",
    "size:<2kb",
    "op:op_2",
]


@pytest.mark.parametrize("text", FOUND)
def test_it_is_found(text: str) -> None:
    assert matches(text)


@pytest.mark.parametrize("text", NOT_FOUND)
def test_it_is_not_found(text: str) -> None:
    assert not matches(text)


@pytest.mark.parametrize("text", [f"-{text}" for text in NOT_FOUND])
def test_a_minus_finds_what_does_not_match(text: str) -> None:
    assert matches(text)


@pytest.mark.parametrize("text", [f"-{text}" for text in FOUND if text])
def test_a_minus_leaves_out_what_matches(text: str) -> None:
    assert not matches(text)


def test_all_terms_must_match() -> None:
    assert matches("error:timeout source:q.orders -redriven:0")
    assert not matches("error:timeout source:q.mail")


def test_what_a_message_does_not_tell_matches_nothing_but_emptiness() -> None:
    unknown = replace(LETTER, type=None, source=None)

    assert not matches("type:Order", letter=unknown)
    assert matches('type:=""', letter=unknown)
    assert not matches('type:=""')


def test_a_whole_letter_is_searched_like_its_summary() -> None:
    letter: DeadLetter = read_dead_letter(HEADERS, BODY, queue="q", position=0)

    assert matches("reason:unknown header.tenant:acme body.customer.id:42", letter=letter)


# Times ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *("since:2h", "until:1h", "since:1h30m", "until:90m", "since:2024-05-17", "since:2024-05-17T10:30"),
        *("until:2024-05-17T10:30Z", "since:2024-05-17T12:00+02:00", 'since:"2024-05-17 10:00"', "since:1000000d"),
    ],
)
def test_times_are_ago_or_of_the_calendar(text: str) -> None:
    assert matches(text)


@pytest.mark.parametrize("text", ["since:1h", "until:2h", "since:2024-05-18", "until:2024-05-17T10:29:59"])
def test_other_times_are_not(text: str) -> None:
    assert not matches(text)


def test_a_message_that_does_not_say_when_it_died_is_in_no_time() -> None:
    letter = replace(LETTER, dead_at=None)

    assert not matches("since:2h", letter=letter)
    assert not matches("until:2h", letter=letter)


def test_a_moment_without_a_zone_is_utc() -> None:
    assert parse("since:2h", NOON.replace(tzinfo=None)) == query("since:2h")


# Bodies and headers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *("body.customer.id:42", "body.customer.id:=42", "body.customer.id:42.0", "body.customer.id:>41"),
        *("body.customer.id:<=42", "body.customer.name:ann", 'body.customer.name:="Ann Ö"', "body.customer.name:ö"),
        *("body.customer.vip:true", "body.customer.note:null", "body.items.0.sku:a-1", "body.items.1.sku:=B-2"),
        *("body.items.0.price:1.1", "body.items.0.price:<2", "body.tags:blue", "body.tags:=Blue", "body.tags.0:red"),
        *('body."first name":x', "body.ref:0042", "body.ref:42", "body.ref:>41", "-body.ref:=42", "body:sku"),
        *("header.tenant:ACME", "header.n:5", "header.n:>=5", "header.flag:false", "header.a.b:dotted"),
        *('header."a:b":colon', "header.when:2024-05", "header.raw:xyz", "-header.missing:x", "-body.no.such:x"),
        *('ann "order.new"', "payments", "3fa9", "C-17", "-body.customer.id:>42", "-body.items.9.sku:A"),
    ],
)
def test_values_inside_are_found(text: str) -> None:
    assert matches(text)


@pytest.mark.parametrize(
    "text",
    [
        *("body.customer.id:4", "body.customer.id:forty", "body.customer.id:>42", "body.customer:ann"),
        *("body.customer.vip:1", "body.customer.note:0", "body.items.2.sku:B", "body.items.-1.sku:B"),
        *("body.items.²:x", "body.tags.red:x", "header.tenant:=ACME", "header.n:55", "body.ref:=42", "body.ref:>x"),
        *("header.Tenant:acme", '"nowhere to be found"', "grün", "body.customer.name:=ann"),
    ],
)
def test_other_values_are_not(text: str) -> None:
    assert not matches(text)


@pytest.mark.parametrize(
    "body",
    [b"", b"no json", b"[" * 100_000, b'{"a": ' * 5_000, b"\xff\xfe{", b'{"a": 1e999}', b'"a"', b"{" + b" " * 99],
)
def test_a_body_that_is_no_json_has_nothing_at_any_path(body: bytes) -> None:
    assert not matches("body.a:1", body)
    assert matches("-body.a:1", body)


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_body_is_searched_as_what_it_stands_for(encoding: str, compress: Callable[[bytes], bytes]) -> None:
    raw = Properties(content_encoding=encoding).encode()

    for text in ("body.customer.id:42", "body:blue", "vip", f"size:{LETTER.size}"):
        assert matches(text, compress(BODY), raw=raw), text
    assert not matches("body.customer.id:43", compress(BODY), raw=raw)
    assert matches("body:plain", b"plain", raw=raw)  # called compressed, and it is not
    assert matches("body:plain", b"plain", raw=b"\x40\x00")  # unreadable properties


def test_a_huge_body_is_searched_in_its_beginning_and_not_as_json() -> None:
    body = b'{"a": 1, "start": "' + b"x" * MOST_BODY + b'", "end": 2}'

    assert matches('"start"', body)
    assert not matches("end", body)
    assert not matches("body.a:1", body)


def test_bytes_that_are_no_text_are_searched_all_the_same() -> None:
    assert matches("body:Needle", b"\xff\x00nEEDle\xfe")
    assert matches("body:müll", "Müll\xff".encode("latin-1") + "MÜLL".encode())
    assert matches('body:="ab"', b"ab")
    assert not matches('body:="ab"', b"abc")


def test_properties_that_cannot_be_read_have_no_headers() -> None:
    assert not matches("header.tenant:acme", raw=b"\xff\xff tenant")
    assert matches("-header.tenant:acme", raw=b"")


def test_a_header_that_is_nested_too_deep_matches_nothing() -> None:
    deep = b"V"
    for _ in range(40):
        deep = raw_table([(b"a", deep)])
    raw = b"\x20\x00" + len(b"\x04deep" + deep).to_bytes(4) + b"\x04deep" + deep

    assert not matches("header.deep:a", raw=raw)


def test_the_body_is_asked_for_once_and_only_when_all_else_matches() -> None:
    asked = []

    def body() -> bytes:
        asked.append(1)
        return BODY

    assert not query("body.customer.id:42 error:Nothing").matches(LETTER, body)
    assert asked == []
    assert query("body.customer.id:42 sku error:Timeout").matches(LETTER, body, lambda: HEADERS)
    assert asked == [1]


@pytest.mark.parametrize(
    ("text", "body", "properties"),
    [
        ("-error:Nothing", False, False),
        ("-header.a:x", False, True),
        ("-body.a:x", True, True),  # its encoding is in the properties
        ("-text -header.a:x", True, True),
    ],
)
def test_a_query_reads_only_what_its_terms_are_about(text: str, body: bool, properties: bool) -> None:
    read: set[str] = set()

    def read_body() -> bytes:
        read.add("body")
        return BODY

    def read_properties() -> bytes:
        read.add("properties")
        return HEADERS

    assert query(text).matches(LETTER, read_body, read_properties)
    assert ("body" in read, "properties" in read) == (body, properties)


# Written back -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (
            'error:Timeout  source:q.orders\tbody.customer.id:42 redriven:>0 since:2h "free text"',
            'error:Timeout source:q.orders body.customer.id:42 redriven:>0 since:2h "free text"',
        ),
        ('ERROR:"Timeout"', "error:Timeout"),
        ('"word"', "word"),
        ("-redriven:=3", "-redriven:3"),
        ('type:="a b"', 'type:="a b"'),
        ('type:"=x"', 'type:"=x"'),
        ('"-x"', '"-x"'),
        ('"a:b"', '"a:b"'),
        (r'"say \"hi\" \\ \n"', r'"say \"hi\" \\ \\n"'),
        ('body."a.b"."c d".e:x', 'body."a.b"."c d".e:x'),
        ('header."a.b":x', "header.a.b:x"),
        ('header."a:b":x', 'header."a:b":x'),
        ("10:30 http", '"10:30" http'),
        ("body.x", "body.x"),
        ('""', '""'),
        ("  ", ""),
    ],
)
def test_its_text_is_canonical(text: str, canonical: str) -> None:
    assert str(query(text)) == canonical
    assert query(canonical) == query(text)


def test_terms_are_values() -> None:
    assert query("-body.a.0:>=5").terms == (Term("body", "5", ">=", ("a", "0"), negated=True),)


pieces = st.sampled_from(
    [
        *("error", "body", "header", "size", "since", "redriven", "group", "x", "2h", "42", "10kb", "2024-05-17"),
        *(":", ".", "-", "=", ">", "<", ">=", '"', "\\", " ", "\t", "\n", "ü", "\u202e", "\x00", "\ud800", "0"),
    ]
)
typed = st.lists(pieces, max_size=14).map("".join) | st.text(max_size=30)


@given(typed)
@example('body."a":>"5"')
@example('error:">"')
@example("header.a:>=5x")
@example('since:"2h\n"')
def test_whatever_is_typed_is_a_query_or_a_search_error(text: str) -> None:
    try:
        found = query(text)
    except SearchError:
        return
    assert query(str(found)) == found
    assert str(query(str(found))) == str(found)
    found.matches(LETTER, BODY, HEADERS)


terms = st.builds(
    Term,
    st.sampled_from(["", "error", "type", "id"]),
    st.text(max_size=10),
    negated=st.booleans(),
) | st.builds(
    Term,
    st.just("body"),
    st.text(max_size=10),
    st.sampled_from([":", "="]),
    st.lists(st.text(max_size=5), max_size=3).map(tuple),
    st.booleans(),
)


@given(st.lists(terms, max_size=4))
def test_any_terms_are_written_so_that_they_are_read_again(written: list[Term]) -> None:
    assert list(query(" ".join(map(str, written))).terms) == written


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_no_message_makes_it_raise(body: bytes, raw: bytes) -> None:
    matches("body.a:1 body.b.0:x header.a:1 text -body:ü", body, raw=raw)
    matches("-body.a:1 -header.a:1 -text -ü", body, raw=raw)


# Mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("errro:x", 0, "unknown field errro, did you mean error?"),
        ("source:q errro:x", 9, "did you mean error?"),
        ("-errro:x", 1, "did you mean error?"),
        ("fingerprint:3fa9", 0, "did you mean group?"),
        ("routing_key:a", 0, "did you mean key?"),
        ("zzz:x", 0, "there are attempts, body,"),
        ("http://example.org", 0, "put it in quotes"),
        ("q.orders:x", 0, "unknown field q"),
        ("error.type:x", 5, "error has no parts"),
        ("error:", 6, "a value is missing after error:"),
        ("error: x", 6, "a value is missing after error:"),
        ('error:"x', 6, 'a closing " is missing'),
        ('"x', 0, 'a closing " is missing'),
        ('"x"y', 3, "after a closing quote comes a space"),
        ('error:"x"y', 9, "after a closing quote comes a space"),
        ("x - y", 2, "before the term that must not match"),
        ("--x", 0, "before the term that must not match"),
        ("redriven:many", 9, "redriven: wants a number"),
        ("attempts:>=3kb", 9, "attempts: wants a number"),
        ("size:10gb", 5, "size: wants a number, like >10kb"),
        ("attempts:²", 9, "wants a number"),
        ("since:yesterday", 6, "since: wants a time ago, like 2h"),
        ("until:15", 6, "until: wants a time ago"),
        ("since:=2h", 6, "a comparison already"),
        ("body.:x", 5, "a name is missing after the ."),
        ("body..a:x", 5, "a name is missing after the ."),
        ('body."a"', 8, "here a : and a value must follow"),
        ("header:x", 0, "which header?"),
        ('header."a"."b":x', 0, "which header?"),
    ],
)
def test_a_mistake_is_pointed_at(text: str, position: int, words: str) -> None:
    error = problem(text)

    assert words in error.problem
    assert error.position == position


def test_the_message_shows_the_line_with_a_caret_under_the_place() -> None:
    assert str(problem("source:q errro:x")).splitlines()[1:] == ["  source:q errro:x", "           ^"]


def test_of_a_long_query_what_is_around_the_place_is_shown() -> None:
    _, line, caret = str(problem("x" * 500 + " errro:x " + "y" * 500)).splitlines()

    assert line.startswith("  …x")
    assert line.endswith("y…")
    assert len(line) < 100
    assert line[caret.index("^") :].startswith("errro:x")


def test_what_a_terminal_would_obey_is_not_in_the_message() -> None:
    _, line, caret = str(problem('\x1b[2J\u202e\n"x')).splitlines()

    assert line == '  ·[2J··"x'
    assert caret.index("^") == line.index('"')


def test_a_query_has_an_end() -> None:
    assert problem("x" * (MOST_TEXT + 1)).position == MOST_TEXT


def test_a_query_has_a_limited_number_of_terms_and_the_error_names_the_limit() -> None:
    allowed = " ".join(["ü"] * MOST_TERMS)
    assert len(query(allowed).terms) == MOST_TERMS

    error = problem(f"{allowed} error:x")

    assert f"at most {MOST_TERMS} terms" in str(error)
    assert error.position == len(allowed) + len(" error:")


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("ü", "Ü" * MOST_BODY),
        ("body:ü", "Ü" * MOST_BODY),
        ("body.text:ü", '{"text":"' + "Ü" * (MOST_BODY // 2 - 10) + '"}'),
    ],
)
def test_a_body_is_folded_once_for_all_terms(text: str, body: str) -> None:
    many, raw = query(" ".join(f"{text}{'ü' * number}" for number in range(MOST_TERMS))), body.encode()
    assert many.matches(LETTER, raw)
    started = time.process_time()
    assert query(text).matches(LETTER, raw)
    once = time.process_time() - started

    started = time.process_time()
    assert many.matches(LETTER, raw)

    assert time.process_time() - started < 4 * once + 0.05


def test_the_error_is_a_mistake_in_configuration_and_can_be_pickled() -> None:
    error = problem("errro:x")

    assert isinstance(error, ConfigurationError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
