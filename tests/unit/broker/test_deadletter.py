"""What dying does to the properties of a message. That RabbitMQ does the same is shown in tests/contracts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.broker.deadletter import Copies, Death, dead_letter_of, deaths_of, decode_history, encode_history, is_cycle
from redrive.broker.dialect import DIALECTS, LATEST, Dialect
from redrive.wire.properties import Properties, decode_properties
from redrive.wire.raw_properties import (
    RawValue,
    find_header,
    patch_properties,
    raw_array,
    raw_long,
    raw_table,
    raw_text,
    split_table,
)
from redrive.wire.values import encode_value

OLD, NEW = DIALECTS["3.10"], DIALECTS["4.3"]
every_dialect = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS.keys())

Dying = tuple[bytes, tuple[Death, ...]]


def killed(raw: bytes, deaths: tuple[Death, ...] = (), **how: Any) -> Dying:
    usual: dict[str, Any] = {
        "queue": "main",
        "reason": "rejected",
        "exchange": "orders",
        "routing_keys": ("order.created",),
        "now": 1_700_000_000,
        "dead_letter_key": None,
        "dialect": LATEST,
    }
    return dead_letter_of(raw, deaths, **usual | how)


def row(names: str, dialect: Dialect) -> Dying:
    """A message that has died in these queues, one after the other."""
    dying: Dying = Properties().encode(), ()
    for name in names:
        dying = killed(*dying, queue=name, dialect=dialect)
    return dying


def headers(raw: bytes) -> dict[str, Any]:
    return dict(decode_properties(raw).headers or {})


def names(deaths: tuple[Death, ...]) -> str:
    return "".join(death.queue for death in deaths)


def header_order(raw: bytes) -> list[bytes]:
    return [name for name, _ in split_table(raw[2:])]


# The first death ------------------------------------------------------------------------------------


@every_dialect
def test_the_first_death_is_written_into_x_death(dialect: Dialect) -> None:
    raw, deaths = killed(Properties(headers={"mine": 1}).encode(), dialect=dialect)

    (entry,) = headers(raw)["x-death"]
    assert entry.pop("time").timestamp() == 1_700_000_000
    assert entry == {
        "count": 1,
        "reason": "rejected",
        "queue": "main",
        "exchange": "orders",
        "routing-keys": ["order.created"],
    }
    assert headers(raw)["mine"] == 1
    assert deaths == (Death("main", "rejected", 1, 1_700_000_000, "orders", ("order.created",)),)


@every_dialect
def test_the_first_death_is_named_and_since_4_0_the_last_as_well(dialect: Dialect) -> None:
    raw, deaths = killed(Properties().encode(), dialect=dialect)
    raw, deaths = killed(raw, deaths, queue="retry", reason="expired", exchange="", dialect=dialect)

    found = headers(raw)
    assert [found[f"x-first-death-{what}"] for what in ("queue", "reason", "exchange")] == [
        "main",
        "rejected",
        "orders",
    ]
    last = [found.get(f"x-last-death-{what}") for what in ("queue", "reason", "exchange")]
    assert last == (["retry", "expired", ""] if dialect.writes_last_death else [None] * 3)


@every_dialect
def test_an_expiration_is_removed_and_noted(dialect: Dialect) -> None:
    raw, deaths = killed(Properties(expiration="5000", message_id="m").encode(), dialect=dialect)

    assert decode_properties(raw).expiration is None
    assert decode_properties(raw).message_id == "m"
    assert headers(raw)["x-death"][0]["original-expiration"] == deaths[0].original_expiration == "5000"


@pytest.mark.parametrize(("expiration", "noted"), [("0100", "100"), ("+1", "1"), ("nonsense", "nonsense")])
def test_3_10_notes_the_expiration_as_it_was_and_4_0_as_a_number(expiration: str, noted: str) -> None:
    raw = Properties(expiration=expiration).encode()

    assert killed(raw, dialect=OLD)[1][0].original_expiration == expiration
    assert killed(raw, dialect=NEW)[1][0].original_expiration == noted


@every_dialect
def test_headers_are_sorted_and_keep_their_types(dialect: Dialect) -> None:
    raw = patch_properties(b"\x00\x00", set_headers={b"zebra": b"b\x01", b"ape": b"s\x00\x01"})

    raw, _ = killed(raw, dialect=dialect)

    assert header_order(raw) == sorted(header_order(raw))
    assert find_header(raw, b"zebra") == b"b\x01"
    assert find_header(raw, b"ape") == b"s\x00\x01"


@every_dialect
@pytest.mark.parametrize("key", [None, "dead"])
def test_copies_stay_unless_3_10_has_a_key_for_dead_letters(dialect: Dialect, key: str | None) -> None:
    raw = Properties(headers={"CC": ["a"], "BCC": ["b"]}).encode()

    found = headers(killed(raw, dead_letter_key=key, dialect=dialect)[0])

    assert ("CC" in found) == (key is None or dialect is not OLD)
    assert "BCC" not in found


# Later deaths ---------------------------------------------------------------------------------------


@every_dialect
def test_a_death_like_an_earlier_one_is_counted_with_it(dialect: Dialect) -> None:
    raw, deaths = killed(Properties(expiration="9").encode(), dialect=dialect)
    raw, deaths = killed(raw, deaths, exchange="", routing_keys=("main",), now=1_800_000_000, dialect=dialect)

    assert deaths == (Death("main", "rejected", 2, 1_700_000_000, "orders", ("order.created",), "9"),)
    assert [entry["count"] for entry in headers(raw)["x-death"]] == [2]


@every_dialect
def test_another_reason_or_another_queue_is_another_death(dialect: Dialect) -> None:
    dying = killed(Properties().encode(), dialect=dialect)
    for queue, reason in (("main", "expired"), ("other", "rejected"), ("main", "rejected")):
        dying = killed(*dying, queue=queue, reason=reason, dialect=dialect)

    assert {(death.queue, death.reason): death.count for death in dying[1]} == {
        ("main", "rejected"): 2,
        ("main", "expired"): 1,
        ("other", "rejected"): 1,
    }
    assert (dying[1][0].queue, dying[1][0].reason) == ("main", "rejected")


@pytest.mark.parametrize(
    ("died_in", "order"), [("a", "a"), ("ab", "ba"), ("abc", "cba"), ("abcd", "dcba"), ("abca", "acb"), ("abcb", "bca")]
)
def test_since_4_0_the_newest_death_comes_first(died_in: str, order: str) -> None:
    raw, deaths = row(died_in, NEW)

    assert names(deaths) == order
    assert [entry["queue"] for entry in headers(raw)["x-death"]] == list(order)


@pytest.mark.parametrize(
    ("died_in", "order"), [("a", "a"), ("ab", "ba"), ("abc", "cab"), ("abcd", "dbac"), ("abca", "abc"), ("abcb", "bac")]
)
def test_in_3_10_all_but_the_newest_change_their_order(died_in: str, order: str) -> None:
    raw, deaths = row(died_in, OLD)

    assert names(deaths) == order
    assert [entry["queue"] for entry in headers(raw)["x-death"]] == list(order)


def test_fields_stand_in_the_order_of_the_version() -> None:
    plain = ["count", "reason", "queue", "time", "exchange", "routing-keys"]
    raw = Properties(expiration="1").encode()

    assert _fields(killed(raw, dialect=NEW)) == [["original-expiration", *plain]]
    assert _fields(killed(raw, dialect=OLD)) == [[*plain, "original-expiration"]]
    assert _fields(killed(*killed(raw, dialect=OLD), queue="b", dialect=OLD)) == [
        sorted(plain),
        [*plain, "original-expiration"],
    ]


def _fields(dying: Dying) -> list[list[str]]:
    return [list(entry) for entry in headers(dying[0])["x-death"]]


# What a client wrote --------------------------------------------------------------------------------


CLAIM = raw_table([(b"queue", raw_text("main")), (b"reason", raw_text("rejected")), (b"count", raw_long(7))])


def claiming(value: RawValue, **more: RawValue) -> bytes:
    named = {name.replace("_", "-").encode(): claimed for name, claimed in more.items()}
    return patch_properties(b"\x00\x00", set_headers={b"x-death": value, **named})


def test_3_10_counts_on_from_what_a_client_claims_and_4_0_does_not() -> None:
    raw = claiming(raw_array([CLAIM]))

    assert killed(raw, deaths_of(raw, OLD), dialect=OLD)[1][0].count == 8
    assert killed(raw, deaths_of(raw, NEW), dialect=NEW)[1][0].count == 1
    assert deaths_of(raw, OLD) == (Death("main", "rejected", 7, 0, "", ()),)
    assert deaths_of(raw, NEW) == ()


def test_3_10_keeps_the_fields_of_a_claim_that_it_does_not_know() -> None:
    other = raw_table([(b"queue", raw_text("other")), (b"mine", b"b\x01")])

    raw, _ = killed(claiming(raw_array([other])), dialect=OLD)

    assert headers(raw)["x-death"][1] == {"queue": "other", "mine": 1}


def test_3_10_keeps_a_claimed_first_death_if_there_is_a_claimed_x_death() -> None:
    raw = claiming(raw_array([]), x_first_death_queue=raw_text("forged"))

    assert headers(killed(raw, dialect=OLD)[0])["x-first-death-queue"] == "forged"
    assert headers(killed(raw, dialect=NEW)[0])["x-first-death-queue"] == "main"


@every_dialect
@pytest.mark.parametrize("garbage", ["text", 7, None, {"queue": "main"}, [], ["text", 7]], ids=repr)
def test_garbage_is_replaced(dialect: Dialect, garbage: Any) -> None:
    raw = claiming(encode_value(garbage))

    raw, deaths = killed(raw, deaths_of(raw, dialect), dialect=dialect)

    assert [entry["count"] for entry in headers(raw)["x-death"]] == [1]
    assert len(deaths) == 1


@pytest.mark.parametrize(
    ("count", "after"),
    [
        (None, 1),
        ("many", 1),
        (True, 1),
        (-5, -4),
        ((1 << 63) - 1, (1 << 63) - 1),
    ],
)
def test_a_claimed_count_that_makes_no_sense_does_no_harm(count: Any, after: int) -> None:
    claim = {"queue": "main", "reason": "rejected"} | ({} if count is None else {"count": count})

    assert killed(claiming(encode_value([claim])), dialect=OLD)[1][0].count == after


def test_one_table_for_each_death_as_before_3_6_is_counted() -> None:
    old_style = {"queue": "main", "reason": "rejected"}

    _, deaths = killed(claiming(encode_value([old_style, old_style, {"queue": "other"}])), dialect=OLD)

    assert [(death.queue, death.count) for death in deaths] == [("main", 3), ("other", 1)]


def test_a_claim_may_hold_anything_and_reads_as_far_as_it_makes_sense() -> None:
    claim: dict[str, Any] = {
        "queue": 1,
        "reason": None,
        "count": "x",
        "time": "now",
        "exchange": [],
        "routing-keys": "k",
    }
    keys: dict[str, Any] = {"queue": b"\xff", "routing-keys": ["a", 1], "original-expiration": "5"}

    assert deaths_of(claiming(encode_value([claim, keys])), OLD) == (
        Death("", "", 0, 0, "", ()),
        Death("\udcff", "", 0, 0, "", ("a", ""), "5"),
    )


def test_a_message_without_x_death_claims_nothing() -> None:
    assert deaths_of(Properties(headers={"a": 1}).encode(), OLD) == ()


# Cycles ---------------------------------------------------------------------------------------------


def death(queue: str, reason: str = "expired") -> Death:
    return Death(queue, reason, 1, 0, "", ())


REJECTED_A = death("a", "rejected")


@pytest.mark.parametrize(
    ("deaths", "reason", "target", "expected"),
    [
        ((death("a"),), "expired", "a", True),
        ((death("a"),), "expired", "b", False),
        ((death("b"), death("a")), "expired", "a", True),
        ((death("b"), death("a")), "maxlen", "a", True),
        ((death("b"), death("a")), "delivery_limit", "a", True),
        ((REJECTED_A, death("b")), "rejected", "b", False),
        ((death("b"), REJECTED_A), "expired", "a", False),
        ((death("c"), REJECTED_A, death("b")), "expired", "b", False),
        ((death("c"), death("b"), REJECTED_A), "expired", "b", True),
        ((death("a"), death("a", "maxlen")), "expired", "a", True),
        ((), "expired", "a", False),
    ],
)
def test_a_cycle_is_a_way_back_that_no_consumer_has_rejected_on(
    deaths: tuple[Death, ...], reason: str, target: str, expected: bool
) -> None:
    assert is_cycle(deaths, reason, target) == expected


# Storage --------------------------------------------------------------------------------------------


names_of_things = st.text(st.characters(codec="utf-8"), max_size=10) | st.just("\udcff")
some_deaths = st.lists(
    st.builds(
        Death,
        queue=names_of_things,
        reason=st.sampled_from(["rejected", "expired", "maxlen", "delivery_limit"]),
        count=st.integers(1, 1 << 40),
        time=st.integers(0, 1 << 40),
        exchange=names_of_things,
        routing_keys=st.lists(names_of_things, max_size=3).map(tuple),
        original_expiration=st.none() | names_of_things,
    ),
    max_size=4,
).map(tuple)


some_keys = st.lists(names_of_things, max_size=3).map(tuple)
some_copies = st.none() | st.builds(Copies, some_keys, some_keys)


@given(some_deaths, some_copies)
def test_a_history_comes_out_of_storage_as_it_went_in(deaths: tuple[Death, ...], copies: Copies | None) -> None:
    assert decode_history(encode_history(deaths, copies)) == (deaths, copies)


def test_nothing_stored_is_no_history() -> None:
    assert decode_history(b"") == ((), None)


def test_deaths_that_were_stored_without_copies_are_read() -> None:
    """As brokers wrote them before they kept copies."""
    fields = raw_table([(b"queue", raw_text("work")), (b"reason", raw_text("rejected")), (b"count", raw_long(2))])

    assert decode_history(raw_array([fields])) == ((Death("work", "rejected", 2, 0, "", ()),), None)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["rejected", "expired"])), max_size=8))
def test_in_3_10_what_die_returns_is_what_the_header_tells(way: list[tuple[str, str]]) -> None:
    dying: Dying = Properties().encode(), ()
    for queue, reason in way:
        dying = killed(*dying, queue=queue, reason=reason, dialect=OLD)
        assert deaths_of(dying[0], OLD) == dying[1]
    assert sum(death.count for death in dying[1]) == len(way)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["rejected", "expired"])), max_size=8))
def test_the_versions_agree_on_everything_but_order(way: list[tuple[str, str]]) -> None:
    told: list[set[Death]] = []
    for dialect in DIALECTS.values():
        dying: Dying = Properties().encode(), ()
        for moment, (queue, reason) in enumerate(way):
            dying = killed(*dying, queue=queue, reason=reason, now=moment, dialect=dialect)
        told.append(set(dying[1]))

    assert told[0] == told[1] == told[2]
