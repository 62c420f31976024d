"""A story is written beside what the publisher wrote, fits, and is read back."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from redrive.recovery.failure import Failure, describe
from redrive.recovery.failure_headers import (
    _TRACES,
    BUDGET,
    HeaderNames,
    Origin,
    ParkReason,
    has_room_for_counter,
    properties_for_parking,
    properties_for_retry,
)
from redrive.recovery.history import MOST, MOST_ATTEMPTS, NO_HISTORY, Attempt, History, read_history
from redrive.wire.properties import Properties, decode_properties
from redrive.wire.raw_properties import find_header, join_table, raw_long, raw_text, split_table

NOON = dt.datetime(2024, 5, 17, 12, 0, 0, 123_000, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
ORIGIN = Origin("domain.events", "order.new", "q.orders", app="shop", host="worker-1")
FAILURE = Failure("ValueError", "no such customer", "Traceback: here\nValueError\n", "0123456789ab", NOON)
SMALL = Properties(content_type="application/json", headers={"tenant": "a"}, delivery_mode=2, message_id="m-1")


def retried(raw: bytes = SMALL.encode(), history: History | None = None, **other: Any) -> bytes:
    given: dict[str, Any] = {"origin": ORIGIN, "attempt": 1, "delay": 15 * SECOND, "failure": FAILURE, **other}
    return properties_for_retry(raw, History() if history is None else history, given.pop("failure"), **given)


def parked(raw: bytes = SMALL.encode(), history: History | None = None, **other: Any) -> bytes:
    given: dict[str, Any] = {"origin": ORIGIN, "attempt": 1, "at": NOON, "failure": FAILURE, **other}
    given.setdefault("reason", ParkReason.EXHAUSTED)
    return properties_for_parking(raw, history or History(), given.pop("failure"), **given)


def headers(raw: bytes) -> dict[str, Any]:
    return dict(decode_properties(raw).headers or {})


def read(raw: bytes, names: HeaderNames | None = None) -> History:
    count_header = (names or HeaderNames()).attempts
    return read_history(headers(raw), ORIGIN.queue, count_header=count_header, via_reject=False)


def attempt(number: int, message: str = "no") -> Attempt:
    return Attempt(number, NOON, "ValueError", message, "0123456789ab", SECOND)


# A retry ------------------------------------------------------------------------------------------------


def test_a_retry_carries_its_count_its_attempts_and_where_it_came_from() -> None:
    assert headers(retried()) == {
        "tenant": "a",
        "x-redrive-attempts": 1,
        "x-redrive-first-failed-at": "2024-05-17T12:00:00.123Z",
        "x-redrive-exchange": "domain.events",
        "x-redrive-routing-key": "order.new",
        "x-redrive-queue": "q.orders",
        "x-redrive-reason": "ValueError: no such customer",
        "x-redrive-history": [
            {
                "number": 1,
                "error": "ValueError",
                "message": "no such customer",
                "fingerprint": "0123456789ab",
                "at": "2024-05-17T12:00:00.123Z",
                "delay-ms": 15000,
            }
        ],
    }


def test_its_count_is_an_amqp_int() -> None:
    assert find_header(retried(), b"x-redrive-attempts") == b"I\x00\x00\x00\x01"


def test_a_count_that_was_text_becomes_a_number() -> None:
    raw = Properties(headers={"x-redrive-attempts": "1"}).encode()

    assert headers(retried(raw, History(failed=1), attempt=2))["x-redrive-attempts"] == 2


def test_attempt_follows_attempt() -> None:
    raw, history = SMALL.encode(), History()
    for number in range(1, 4):
        failure = changed(FAILURE, at=NOON + number * SECOND, message=f"try {number}")
        raw = retried(raw, history, failure=failure, attempt=number, delay=number * SECOND)
        history = read(raw)

    assert history.failed == 3
    assert history.first_failed_at == NOON + SECOND
    assert [(told.number, told.message, told.at, told.delay) for told in history.attempts] == [
        (number, f"try {number}", NOON + number * SECOND, number * SECOND) for number in (1, 2, 3)
    ]


def test_the_original_exchange_and_key_outlive_the_way_of_the_retries() -> None:
    raw = retried()
    again = Origin("", "q.orders", "q.orders", "shop", "worker-2")

    known = read(retried(raw, read(raw), origin=again, attempt=2))

    assert (known.exchange, known.routing_key) == ("domain.events", "order.new")


def test_names_that_are_not_utf8_survive() -> None:
    odd = changed(ORIGIN, exchange="\udcff", routing_key="\udcfe")

    known = read(retried(origin=odd))

    assert (known.exchange, known.routing_key) == ("\udcff", "\udcfe")


def test_a_snooze_counts_no_attempt_and_keeps_what_is_known() -> None:
    raw = retried()
    before = read(raw)

    after = read(retried(raw, before.with_another_snooze(), failure=None, attempt=2, not_before=NOON + SECOND))

    assert after == replace(before, snoozes=1, not_before=NOON + SECOND)


def test_a_crash_is_counted_beside_the_attempts() -> None:
    raw = retried(history=History().with_crashes(1), failure=None)

    assert headers(raw)["x-redrive-attempts"] == 0
    assert read(raw).crashes == 1


def test_a_time_to_wait_for_goes_when_it_is_over() -> None:
    raw = retried(not_before=NOON)
    assert read(raw).not_before == NOON

    assert read(retried(raw, read(raw), attempt=2)).not_before is None


def test_other_peoples_consumers_find_the_headers_they_know() -> None:
    names = HeaderNames(attempts="x-retries", reason="x-retry-reason")

    told = headers(retried(names=names))

    assert (told["x-retries"], told["x-retry-reason"]) == (1, "ValueError: no such customer")
    assert "x-redrive-attempts" not in told
    assert "x-redrive-reason" not in told


def test_other_peoples_consumers_find_the_words_they_know() -> None:
    names = HeaderNames(attempts="x-retries", reason="x-retry-reason", wording="db_error: {message}")

    first = retried(names=names)
    second = retried(first, read(first, names), attempt=2, names=names)

    assert headers(first)["x-retry-reason"] == headers(second)["x-retry-reason"] == "db_error: no such customer"
    assert read(second, names).attempts[-1].error_type == "ValueError"


def test_a_long_message_is_short_in_the_history() -> None:
    raw = retried(failure=changed(FAILURE, message="x" * 1000))

    assert len(read(raw).attempts[0].message) == 250


def test_no_more_attempts_are_told_than_can_be_read() -> None:
    before = History(failed=500, attempts=tuple(map(attempt, range(MOST_ATTEMPTS))), dropped=7)

    known = read(retried(history=before, attempt=501))

    assert len(known.attempts) == MOST_ATTEMPTS
    assert known.attempts[-1].number == 501
    assert known.dropped == 501 - MOST_ATTEMPTS


def test_a_count_beyond_all_bounds_stays_where_it_is() -> None:
    assert read(retried(history=History(failed=MOST), attempt=MOST + 1)).failed == MOST


def test_a_count_never_falls() -> None:
    assert read(retried(history=History(failed=5), attempt=2)).failed == 5


def test_times_of_other_zones_are_written_in_utc() -> None:
    there = dt.datetime(2024, 5, 17, 17, 30, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30)))

    assert headers(retried(not_before=there))["x-redrive-not-before"] == "2024-05-17T12:00:00.000Z"


# Parking ------------------------------------------------------------------------------------------------


def test_a_parked_message_tells_why_where_when_and_by_whom() -> None:
    history = History(failed=2, snoozes=1, crashes=1, first_failed_at=NOON - SECOND, attempts=(attempt(2),))

    told = headers(parked(history=history, attempt=3))

    assert [entry["number"] for entry in told.pop("x-redrive-history")] == [2, 3]
    assert told == {
        "tenant": "a",
        "x-redrive-attempts": 3,
        "x-redrive-attempts-dropped": 1,
        "x-redrive-snoozes": 1,
        "x-redrive-crashes": 1,
        "x-redrive-first-failed-at": "2024-05-17T11:59:59.123Z",
        "x-redrive-reason": "exhausted",
        "x-redrive-fingerprint": "0123456789ab",
        "x-redrive-exchange": "domain.events",
        "x-redrive-routing-key": "order.new",
        "x-redrive-queue": "q.orders",
        "x-redrive-host": "worker-1",
        "x-redrive-app": "shop",
        "x-redrive-parked-at": "2024-05-17T12:00:00.123Z",
        "x-redrive-error": "ValueError",
        "x-redrive-message": "no such customer",
        "x-redrive-stack": "Traceback: here\nValueError\n",
    }


@pytest.mark.parametrize("reason", ParkReason)
def test_it_can_be_parked_without_an_error(reason: ParkReason) -> None:
    told = headers(parked(history=History(failed=2), failure=None, attempt=3, reason=reason))

    assert (told["x-redrive-attempts"], told["x-redrive-reason"]) == (2, str(reason))
    assert "x-redrive-error" not in told
    assert "x-redrive-history" not in told


def test_the_last_attempt_waits_for_nothing() -> None:
    raw = parked(retried(not_before=NOON), History(), attempt=1)

    assert read(raw).attempts[-1].delay is None
    assert read(raw).not_before is None


def test_a_retry_of_what_was_once_parked_tells_nothing_of_that() -> None:
    told = headers(retried(parked()))

    for name in ("error", "message", "stack", "fingerprint", "host", "app", "parked-at"):
        assert f"x-redrive-{name}" not in told


# What the publisher wrote -------------------------------------------------------------------------------

HARMFUL: dict[str, Any] = {
    "x-death": [{"queue": "q", "count": 1}],
    **{f"x-{which}-death-{what}": "q" for which in ("first", "last") for what in ("queue", "reason", "exchange")},
    "x-delivery-count": 1,
    "x-acquired-count": 1,
    "CC": ["copy"],
    "BCC": ["copy"],
}


@pytest.mark.parametrize("write", [retried, parked])
def test_what_would_harm_the_copy_goes(write: Any) -> None:
    raw = Properties(headers={**HARMFUL, "cc": "stays", "x-redriven-count": 2}, expiration="5000", priority=3).encode()

    made = decode_properties(write(raw))

    assert made.headers is not None
    assert not HARMFUL.keys() & made.headers.keys()
    assert (made.headers["cc"], made.headers["x-redriven-count"]) == ("stays", 2)
    assert (made.expiration, made.priority) == (None, 3)


@pytest.mark.parametrize("write", [retried, parked])
def test_the_user_becomes_a_header_and_stays_one(write: Any) -> None:
    once = write(Properties(user_id="ann", app_id="shop").encode())
    twice = write(once)

    for raw in (once, twice):
        made = decode_properties(raw)
        assert (made.user_id, made.app_id) == (None, "shop")
        assert made.headers is not None
        assert made.headers["x-redrive-user-id"] == "ann"


texts = st.text(st.characters(codec="utf-8"), max_size=20)
odd_texts = st.text(st.characters(exclude_categories=()), max_size=300)
counts = st.integers(0, MOST)
moments = st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)).map(  # noqa: DTZ001
    lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)
)
values = st.one_of(st.none(), st.booleans(), st.integers(-5, 2**40), texts, st.binary(max_size=20), st.lists(texts))
foreign = st.dictionaries(texts.filter(lambda name: not name.startswith("x-redrive")), values, max_size=5)
ours = st.dictionaries(
    st.sampled_from(["x-redrive-attempts", "x-redrive-history", "x-redrive-stack", "x-death", "CC", "x-retries"]),
    values,
)
big = st.integers(0, 3000).map(lambda size: {"big": "x" * size})
properties = st.builds(
    Properties,
    **{name: st.none() | texts for name in ("content_type", "content_encoding", "correlation_id", "reply_to")},
    **{name: st.none() | texts for name in ("expiration", "message_id", "type", "user_id", "app_id", "cluster_id")},
    headers=st.none() | st.tuples(foreign, ours, big).map(lambda parts: {**parts[0], **parts[1], **parts[2]}),
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    timestamp=st.none() | moments.map(lambda at: at.replace(microsecond=0)),
)
failures = st.none() | st.one_of(
    st.builds(Failure, odd_texts, odd_texts, odd_texts.map(lambda text: text * 20), texts, moments),
    st.builds(describe, st.builds(ValueError, odd_texts), moments),
)
delays = st.none() | st.timedeltas(dt.timedelta(0), dt.timedelta(days=40))
attempts = st.builds(Attempt, counts, st.none() | moments, odd_texts, odd_texts, texts, delays)
histories = st.builds(
    History,
    failed=st.integers(0, 100),
    snoozes=counts,
    crashes=counts,
    dropped=st.integers(0, 1000),
    first_failed_at=st.none() | moments,
    attempts=st.lists(attempts, max_size=6).map(tuple),
    exchange=st.none() | texts,
    routing_key=st.none() | texts,
)
all_names = st.sampled_from(
    [HeaderNames(), HeaderNames("x-retries", "x-retry-reason", "db_error: {message}"), HeaderNames("a" * 64, "r" * 64)]
)
budgets = st.integers(0, 6000) | st.just(BUDGET)
writers = st.sampled_from(["retrying", "parking"])


def write(kind: str, raw: bytes, history: History, failure: Failure | None, **given: Any) -> bytes:
    given |= {"origin": ORIGIN, "attempt": history.failed + 1}
    if kind == "retrying":
        return properties_for_retry(raw, history, failure, delay=SECOND, not_before=NOON, **given)
    return properties_for_parking(raw, history, failure, reason=ParkReason.EXHAUSTED, at=NOON, **given)


def foreign_fields(raw: bytes, names: HeaderNames) -> list[tuple[bytes, bytes]]:
    """The headers that are neither a part of a story nor harmful, as they lie on the wire."""
    flags = raw[0]
    at = 2
    for flag in (0x80, 0x40):
        at += 1 + raw[at] if flags & flag else 0
    fields = split_table(raw[at:]) if flags & 0x20 else []
    told = {names.attempts.encode(), names.reason.encode(), *(name.encode() for name in HARMFUL)}
    return [(name, value) for name, value in fields if name not in told and not name.startswith(b"x-redrive-")]


@settings(max_examples=300)
@given(properties, failures, all_names, budgets)
def test_the_short_way_of_a_first_retry_leads_to_the_same_bytes(
    original: Properties, failure: Failure | None, names: HeaderNames, budget: int
) -> None:
    """An equal history that is not the very one of messages without goes the long way."""
    given: dict[str, Any] = {"origin": ORIGIN, "attempt": 1, "delay": SECOND, "names": names, "budget": budget}

    short = properties_for_retry(original.encode(), NO_HISTORY, failure, **given)

    assert short == properties_for_retry(original.encode(), History(), failure, **given)


@pytest.mark.parametrize("raw", [b"", b"\x80", b"\x20\x00\x00\x00\x00\x09", b"\x00\x00trailing"])
def test_the_short_way_is_not_for_properties_that_cannot_be_read(raw: bytes) -> None:
    assert retried(raw, NO_HISTORY) == retried(raw, History())


def test_every_header_that_goes_leaves_a_trace() -> None:
    told = [name for key, name in vars(HeaderNames).items() if key.isupper() and name.startswith("x-redrive-")]

    assert all(any(trace in name.encode() for trace in _TRACES) for name in [*HARMFUL, *told])


@settings(max_examples=300)
@given(writers, properties, histories, failures, all_names, budgets)
def test_every_story_decodes_fits_leaves_the_rest_as_it_was_and_is_read_back(
    kind: str, original: Properties, history: History, failure: Failure | None, names: HeaderNames, budget: int
) -> None:
    raw = original.encode()

    made = write(kind, raw, history, failure, names=names, budget=budget)

    decoded = decode_properties(made)
    assert len(made) <= max(budget, len(raw))
    assert foreign_fields(made, names) == foreign_fields(raw, names)
    for name in ("content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to"):
        assert getattr(decoded, name) == getattr(original, name)
    for name in ("message_id", "timestamp", "type", "app_id", "cluster_id"):
        assert getattr(decoded, name) == getattr(original, name)
    assert (decoded.expiration, decoded.user_id) == (None, None)
    if has_room_for_counter(raw, names=names, budget=budget):
        assert read(made, names).failed == history.failed + (failure is not None)
    else:
        assert read(made, names).failed == read(raw, names).failed
    if len(raw) <= budget - 512:
        assert len(made) <= budget
        _same_counts(read(made, names), history, failure)


def _same_counts(after: History, before: History, failure: Failure | None) -> None:
    assert (after.snoozes, after.crashes) == (before.snoozes, before.crashes)
    failed = before.failed + (failure is not None)
    assert after.first_failed_at == (before.first_failed_at or (failure and failure.at) if failed else None)
    told = len(before.attempts) + before.dropped + (failure is not None)
    assert len(after.attempts) + after.dropped == max(told, failed)


# The budget ---------------------------------------------------------------------------------------------

LONG = Failure(
    "ValueError", "m" * 1000, "oldest\n" + "frame\n" * 1000 + "raise\n", "0123456789ab", NOON
)  # with a history of ten attempts of 250 characters


def long_story(room: int, **other: Any) -> dict[str, Any]:
    """A long story of a small message that has this much room for it."""
    raw = SMALL.encode()
    history = History(failed=10, attempts=tuple(attempt(number, "x" * 250) for number in range(1, 11)))
    made = parked(raw, history, failure=LONG, attempt=11, budget=len(raw) + room, **other)
    assert len(made) <= len(raw) + room
    return headers(made)


def test_with_room_enough_everything_is_told() -> None:
    told = long_story(BUDGET)

    assert len(told["x-redrive-history"]) == 11
    assert "x-redrive-attempts-dropped" not in told
    assert told["x-redrive-stack"] == LONG.stack


def test_the_oldest_attempts_go_first_and_only_as_many_as_must() -> None:
    told = long_story(9500)

    numbers = [entry["number"] for entry in told["x-redrive-history"]]
    assert numbers == list(range(12 - len(numbers), 12))
    assert 3 <= len(numbers) < 11
    assert told["x-redrive-attempts-dropped"] == 11 - len(numbers)
    assert told["x-redrive-stack"] == LONG.stack


def test_then_the_stack_is_cut_in_the_middle() -> None:
    told = long_story(4000)

    assert [entry["number"] for entry in told["x-redrive-history"]] == [11]
    assert told["x-redrive-attempts-dropped"] == 10
    assert told["x-redrive-stack"].startswith("oldest\n")
    assert told["x-redrive-stack"].endswith("raise\n")
    assert " bytes cut ...\n" in told["x-redrive-stack"]
    assert told["x-redrive-message"] == LONG.message


def test_then_all_of_the_stack_and_the_end_of_the_message() -> None:
    told = long_story(1300)

    assert "x-redrive-stack" not in told
    assert told["x-redrive-message"] == "m" * 79 + "…"
    assert told["x-redrive-history"][0]["message"] == "m" * 79 + "…"


def test_then_the_last_attempt() -> None:
    told = long_story(600)

    assert "x-redrive-history" not in told
    assert told["x-redrive-attempts-dropped"] == 11
    assert (told["x-redrive-queue"], told["x-redrive-error"]) == ("q.orders", "ValueError")


def test_then_all_but_counts_times_reason_and_fingerprint() -> None:
    assert long_story(300) == {
        "tenant": "a",
        "x-redrive-attempts": 11,
        "x-redrive-attempts-dropped": 11,
        "x-redrive-first-failed-at": "2024-05-17T12:00:00.123Z",
        "x-redrive-reason": "exhausted",
        "x-redrive-fingerprint": "0123456789ab",
    }


def test_then_all_but_the_count() -> None:
    assert long_story(60) == {"tenant": "a", "x-redrive-attempts": 11, "x-redrive-attempts-dropped": 11}


def test_and_a_message_that_fills_the_frame_is_only_freed_of_what_would_harm_it() -> None:
    raw = Properties(headers={"tenant": "a", "CC": ["copy"]}, expiration="5000", user_id="ann").encode()

    made = parked(raw, budget=20)

    assert decode_properties(made) == Properties(headers={"tenant": "a"})
    assert not has_room_for_counter(raw, budget=20)


def test_it_can_be_asked_beforehand_whether_a_retry_can_be_counted() -> None:
    raw = SMALL.encode()
    takes = len(b"\x12x-redrive-attemptsI\x00\x00\x00\x01\x1ax-redrive-attempts-droppedI\x00\x00\x00\x01")

    assert has_room_for_counter(raw, budget=len(raw) + takes)
    assert not has_room_for_counter(raw, budget=len(raw) + takes - 1)


def test_a_message_that_has_been_counted_can_be_counted_again() -> None:
    raw = Properties(headers={"x-redrive-attempts": 1, "x-redrive-attempts-dropped": 1}).encode()

    assert has_room_for_counter(raw, budget=len(raw))
    assert read(retried(raw, History(failed=1), attempt=2, budget=len(raw))).failed == 2


def test_a_count_for_which_there_is_no_room_stays_what_it_was() -> None:
    raw = b"\x20\x00" + join_table([(b"x-redrive-attempts", b"b\x03"), (b"x-redrive-attempts-dropped", b"b\x03")])

    assert not has_room_for_counter(raw, budget=len(raw))
    assert read(retried(raw, History(failed=3), attempt=4, budget=len(raw))).failed == 3


def test_what_the_harmful_headers_took_is_room_for_the_story() -> None:
    raw = Properties(headers={"x-death": [{"reason": "x" * 2000}]}).encode()

    assert "x-redrive-stack" in headers(parked(raw, budget=len(raw)))


# Properties that cannot be read -------------------------------------------------------------------------

BROKEN = {
    "nothing": b"",
    "half the flags": b"\x20",
    "a table that ends too soon": b"\x20\x00\x00\x00\x00\xff\x01a",
    "an unknown type deep inside": b"\x20\x00" + join_table([(b"a", b"F" + join_table([(b"b", b"?")]))]),
    "bytes too many": SMALL.encode() + b"\x00",
}


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("write", [retried, parked])
def test_a_story_of_unreadable_properties_holds_them_as_a_header(write: Any, raw: bytes) -> None:
    made = decode_properties(write(raw))

    assert made.delivery_mode == 2
    assert made.headers is not None
    assert made.headers["x-redrive-raw-properties"] == raw
    assert made.headers["x-redrive-attempts"] == 1
    assert find_header(write(raw), b"x-redrive-raw-properties") == b"x" + len(raw).to_bytes(4, "big") + raw
    assert has_room_for_counter(raw, budget=0)


def test_the_header_outlives_the_next_story() -> None:
    assert headers(parked(retried(b"\x20"), History(failed=1), attempt=2))["x-redrive-raw-properties"] == b"\x20"


@given(writers, st.binary(max_size=3000), histories, failures, st.integers(1024, 4000))
def test_no_bytes_at_all_break_the_writing(
    kind: str, raw: bytes, history: History, failure: Failure | None, budget: int
) -> None:
    made = write(kind, b"\xff\xff" + raw, history, failure, budget=budget)

    told = headers(made)
    assert len(made) <= budget
    assert (b"\xff\xff" + raw).startswith(told["x-redrive-raw-properties"])
    assert told.get("x-redrive-raw-properties-size", len(told["x-redrive-raw-properties"])) == len(raw) + 2
    _same_counts(read(made), history, failure)


def test_unreadable_properties_that_are_too_large_are_cut_and_say_so() -> None:
    told = headers(parked(b"\x20" + b"x" * 5000, budget=4096))

    kept = told["x-redrive-raw-properties"]
    assert 3000 < len(kept) < 4096
    assert told["x-redrive-raw-properties-size"] == 5001
    assert (told["x-redrive-reason"], told["x-redrive-fingerprint"]) == ("exhausted", "0123456789ab")


# By hand ------------------------------------------------------------------------------------------------


def test_all_that_is_not_ours_stays_byte_for_byte() -> None:
    odd = [(b"a", b"b\x80"), (b"a", b"s\x80\x00"), (b"\xff", b"D\x02" + bytes(4)), (b"z", b"u\x00\x01")]
    raw = b"\x28\x03" + join_table([*odd, (b"x-death", raw_text("?")), (b"last", raw_long(1))]) + b"\x07"

    made = retried(raw)

    assert made[:2] == b"\x28\x03"
    assert made.endswith(b"\x07")
    assert split_table(made[2:-1])[:5] == [*odd, (b"last", raw_long(1))]
