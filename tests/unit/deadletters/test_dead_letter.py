"""What a dead letter tells, whoever put it there; and that nothing anybody writes into it can break the reading."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.broker.deadletter import dead_letter_of
from redrive.broker.dialect import DIALECTS
from redrive.deadletters.dead_letter import (
    MOST_DEATHS,
    UNKNOWN,
    DeadLetter,
    DeathRecord,
    Summary,
    read_dead_letter,
    read_summary,
)
from redrive.recovery.failure import Failure
from redrive.recovery.failure_headers import Origin, ParkReason, properties_for_parking, properties_for_retry
from redrive.recovery.history import MOST, Attempt, HeaderNames, History, read_history
from redrive.wire.properties import Properties, decode_properties
from redrive.wire.raw_properties import join_table, patch_properties, raw_long, raw_table, raw_text

NOON = dt.datetime(2024, 5, 17, 12, 0, 0, 123_000, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
ORIGIN = Origin("domain.events", "order.new", "q.orders", app="shop", host="worker-1")
FAILURE = Failure("ValueError", "no such customer", "Traceback: here\nValueError\n", "0123456789ab", NOON)
ORDER = Properties(
    content_type="application/json",
    headers={"tenant": "acme"},
    delivery_mode=2,
    correlation_id="c-1",
    message_id="m-1",
    timestamp=NOON.replace(microsecond=0),
    type="OrderPlaced",
)
BODY = b'{"customer": 42}'
names = st.sampled_from(
    [
        *("x-death", "x-redriven-deaths", "x-redrive-history", "x-redrive-reason", "x-redrive-queue"),
        *("x-redrive-attempts", "x-redrive-parked-at", "x-redrive-fingerprint", "x-redrive-error", "x-redrive-stack"),
        *("x-redrive-message", "x-first-death-queue", "x-first-death-reason", "x-redriven-count", "x-redriven-op"),
        *("x-redrive-exchange", "x-redrive-routing-key", "x-redrive-app", "tenant"),
    ]
)
nonsense = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["exhausted", "rejected", "expired", "q.orders", "2024-05-17T12:00:00Z", "\x1b[31m"])
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.integers(0, 10**10).map(lambda seconds: NOON + seconds * SECOND - 10**9 * SECOND),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["queue", "reason", "count", "time", "exchange", "routing-keys", "error", "redriven-at"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
hostile_headers = st.dictionaries(names, nonsense, max_size=8)


def letter(raw: bytes, body: bytes = BODY, names: HeaderNames | None = None) -> DeadLetter:
    return read_dead_letter(raw, body, queue="q.orders.dlq", position=7, names=names or HeaderNames())


def summary(raw: bytes, body: bytes = BODY) -> Summary:
    return read_summary(raw, body, "q.orders.dlq", 7)


def with_headers(headers: Mapping[str, Any]) -> bytes:
    return Properties(headers=headers, message_id="m-1").encode()


def parked(raw: bytes = ORDER.encode(), history: History | None = None, **other: Any) -> bytes:
    given: dict[str, Any] = {"origin": ORIGIN, "attempt": 3, "at": NOON + SECOND, "failure": FAILURE, **other}
    given.setdefault("reason", ParkReason.EXHAUSTED)
    return properties_for_parking(raw, history or History(), given.pop("failure"), **given)


def retried(raw: bytes = ORDER.encode(), history: History | None = None, attempt: int = 1) -> bytes:
    return properties_for_retry(raw, history or History(), FAILURE, origin=ORIGIN, attempt=attempt, delay=15 * SECOND)


def known(raw: bytes) -> History:
    return read_history(decode_properties(raw).headers or {}, "q.orders", via_reject=False)


def death(queue: object = "q.orders", reason: object = "rejected", count: object = 1, **more: Any) -> dict[str, Any]:
    where = {"exchange": "domain.events", "routing-keys": ["order.new"], "time": NOON.replace(microsecond=0)}
    return {"count": count, "reason": reason, "queue": queue, **where, **more}


# Parked by Redrive ------------------------------------------------------------------------------------------


def test_a_parked_message_tells_its_whole_story() -> None:
    told = letter(parked())

    assert (told.queue, told.position) == ("q.orders.dlq", 7)
    assert (told.message_id, told.correlation_id, told.type) == ("m-1", "c-1", "OrderPlaced")
    assert (told.content_type, told.timestamp) == ("application/json", NOON.replace(microsecond=0))
    assert (told.source, told.exchange, told.routing_key) == ("q.orders", "domain.events", "order.new")
    assert (told.reason, told.error, told.error_message) == ("exhausted", "ValueError", "no such customer")
    assert (told.fingerprint, told.stack) == ("0123456789ab", FAILURE.stack)
    assert (told.app, told.host, told.dead_at) == ("shop", "worker-1", NOON + SECOND)
    assert (told.attempts, told.redriven, told.last_operation) == (3, 0, None)
    assert told.size == len(BODY)
    assert told.headers["tenant"] == "acme"
    assert told.parked
    assert not told.unreadable


def test_its_attempts_are_those_that_were_written() -> None:
    raw = retried()
    raw = parked(retried(raw, known(raw), attempt=2), known(raw), attempt=2)

    assert letter(raw).history == known(raw).attempts
    assert [attempt.number for attempt in letter(raw).history] == [1, 2]


def test_a_message_with_more_attempts_than_fit_tells_how_many_are_missing() -> None:
    attempts = tuple(Attempt(number, NOON, "E", "m", "f") for number in range(1, 120))

    assert letter(parked(history=History(attempts=attempts), attempt=120)).dropped == 20


def test_a_task_of_celery_is_of_the_type_that_its_name_says() -> None:
    task = {"task": "transcode", "id": "t-1", "retries": 0}

    assert summary(Properties(headers=task).encode()).type == "transcode"
    assert letter(Properties(headers=task, type="Video").encode()).type == "Video"
    assert summary(Properties(headers={"task": "to do"}).encode()).type is None


def test_headers_may_have_the_names_of_other_people() -> None:
    names = HeaderNames(attempts="x-retries", reason="x-retry-reason")

    told = letter(parked(names=names), names=names)

    assert (told.attempts, told.reason) == (3, "exhausted")


def test_a_long_message_is_cut_in_a_summary_and_not_in_a_letter() -> None:
    raw = parked(failure=Failure("E", "x" * 500, "", "f", NOON))

    assert letter(raw).error_message == "x" * 500
    assert summary(raw).error_message == "x" * 199 + "…"


def test_one_that_was_parked_without_an_error_is_grouped_by_reason_and_source() -> None:
    crashed = letter(parked(failure=None, reason=ParkReason.CRASHED))
    another = letter(parked(Properties(message_id="m-2").encode(), failure=None, reason=ParkReason.CRASHED))
    elsewhere = Origin("domain.events", "order.new", "q.mail", app="shop", host="worker-1")

    assert len(crashed.fingerprint) == len(FAILURE.fingerprint)
    assert crashed.fingerprint == another.fingerprint
    assert crashed.fingerprint != letter(parked(failure=None, reason=ParkReason.REQUESTED)).fingerprint
    assert crashed.fingerprint != letter(parked(failure=None, reason=ParkReason.CRASHED, origin=elsewhere)).fingerprint


def test_what_the_broker_did_after_the_parking_changes_nothing_about_why() -> None:
    raw = patch_properties(
        parked(), set_headers={b"x-death": b"A" + join_table([])[:4], b"x-first-death-queue": raw_text("q.orders.dlq")}
    )
    late, _ = die_in(parked(), "q.orders.dlq", "maxlen")

    assert letter(raw).source == "q.orders"
    told = letter(late)
    assert (told.reason, told.source, told.dead_at) == ("exhausted", "q.orders", NOON + SECOND)
    assert [each.reason for each in told.deaths] == ["maxlen"]


def test_one_whose_story_had_no_room_tells_what_is_left_of_it() -> None:
    full = Properties(headers={"padding": "x" * 3_000}).encode()

    told = letter(parked(full, budget=3_400))

    assert (told.reason, told.fingerprint, told.source, told.dead_at) == ("exhausted", "0123456789ab", None, None)


# Put there by a broker --------------------------------------------------------------------------------------


def die_in(
    raw: bytes, queue: str, reason: str, deaths: tuple[Any, ...] = (), *, version: str = "4.3", after: int = 0
) -> tuple[bytes, tuple[Any, ...]]:
    """As the embedded broker does it, which does it as RabbitMQ does."""
    return dead_letter_of(
        raw,
        deaths,
        queue=queue,
        reason=reason,
        exchange="domain.events" if not deaths else "",
        routing_keys=("order.new",) if not deaths else (queue,),
        now=int(NOON.timestamp()) + after,
        dead_letter_key=None,
        dialect=DIALECTS[version],
    )


versions = pytest.mark.parametrize("version", ["3.10", "4.0", "4.3"])


@versions
@pytest.mark.parametrize("reason", ["rejected", "expired", "maxlen", "delivery_limit"])
def test_a_broker_made_one_is_told_from_x_death(version: str, reason: str) -> None:
    raw, _ = die_in(ORDER.encode(), "q.orders", reason, version=version)

    told = letter(raw)

    assert (told.reason, told.source) == (reason, "q.orders")
    assert (told.exchange, told.routing_key) == ("domain.events", "order.new")
    assert told.dead_at == NOON.replace(microsecond=0)
    assert told.attempts == (1 if reason == "rejected" else 0)
    assert (told.error, told.stack, told.app, told.history) == ("", "", "", ())
    assert not told.parked


@versions
def test_one_that_went_round_by_rejects_is_told_by_the_queue_that_rejected_it(version: str) -> None:
    raw, deaths = ORDER.encode(), ()
    for lap in range(3):
        raw, deaths = die_in(raw, "q.orders", "rejected", deaths, version=version, after=2 * lap)
        raw, deaths = die_in(raw, "q.orders.retry", "expired", deaths, version=version, after=2 * lap + 1)

    told = letter(raw)

    assert (told.source, told.reason, told.attempts) == ("q.orders", "rejected", 3)
    assert (told.exchange, told.routing_key) == ("domain.events", "order.new")
    assert {(each.queue, each.reason, each.times) for each in told.deaths} == {
        ("q.orders", "rejected", 3),
        ("q.orders.retry", "expired", 3),
    }


@versions
def test_a_queue_in_which_it_only_waited_is_not_where_it_failed(version: str) -> None:
    raw, deaths = die_in(ORDER.encode(), "redrive.delayed.3", "expired", version=version)
    raw, deaths = die_in(raw, "q.orders", "rejected", deaths, version=version, after=8)

    told = letter(raw)

    assert (told.source, told.reason) == ("q.orders", "rejected")
    assert told.exchange == "domain.events"
    assert told.dead_at == NOON.replace(microsecond=0) + 8 * SECOND


def test_without_a_first_death_the_oldest_says_where() -> None:
    raw = with_headers({"x-death": [death("q.b", "expired"), death("q.a", "expired")]})

    assert letter(raw).source == "q.a"


def test_one_that_failed_before_keeps_its_error_when_the_broker_ends_it() -> None:
    raw, _ = die_in(retried(), "q.orders", "delivery_limit")

    told = letter(raw)

    assert (told.reason, told.attempts, told.dead_at) == ("delivery_limit", 1, NOON.replace(microsecond=0))
    assert (told.error, told.error_message, told.fingerprint) == ("ValueError", "no such customer", "0123456789ab")
    assert (told.source, told.exchange) == ("q.orders", "domain.events")


def test_what_other_people_wrote_about_a_retry_is_its_message() -> None:
    raw = with_headers({"x-retries": 2, "x-retry-reason": "Broadway says no", "x-death": [death()]})

    told = letter(raw, names=HeaderNames(attempts="x-retries", reason="x-retry-reason"))

    assert (told.attempts, told.error, told.error_message) == (2, "", "Broadway says no")


def test_one_that_tells_nothing_has_an_unknown_reason() -> None:
    told = letter(Properties().encode())

    assert (told.reason, told.source, told.dead_at, told.attempts) == (UNKNOWN, None, None, 0)


def test_a_death_without_a_count_counts_once() -> None:
    assert letter(with_headers({"x-death": [{"queue": "q", "reason": "rejected"}]})).attempts == 1


def test_of_endless_deaths_the_newest_are_read_and_the_oldest() -> None:
    deaths = [death(f"q.{number}", "expired") for number in range(200)]

    told = letter(with_headers({"x-death": deaths})).deaths

    assert len(told) == MOST_DEATHS
    assert (told[0].queue, told[-1].queue) == ("q.0", "q.199")


# Re-driven before -------------------------------------------------------------------------------------------


def test_one_that_was_redriven_tells_how() -> None:
    raw = with_headers(
        {
            "x-redriven-count": 2,
            "x-redriven-op": "op_1",
            "x-redriven-by": "ann",
            "x-redriven-at": "2024-05-17T12:00:00.123Z",
            "x-redriven-from": "q.orders.dlq",
            "x-redriven-reason": "INC-42",
            "x-redriven-deaths": [death()],
        }
    )

    told = letter(raw)

    assert (told.redriven, told.last_operation) == (2, "op_1")
    assert told.last_redrive is not None
    assert told.last_redrive._asdict() == {
        "at": NOON,
        "by": "ann",
        "operation": "op_1",
        "from_queue": "q.orders.dlq",
        "reason": "INC-42",
    }
    assert told.past == (
        DeathRecord("q.orders", "rejected", 1, NOON.replace(microsecond=0), "domain.events", "order.new"),
    )


def test_its_past_is_not_how_it_died_now() -> None:
    raw = with_headers({"x-redriven-count": 1, "x-redriven-deaths": [death("q.orders", "rejected")]})

    told = letter(raw)

    assert (told.deaths, told.reason) == ((), UNKNOWN)


# Identity ---------------------------------------------------------------------------------------------------


def test_the_identity_begins_with_the_message_id_and_can_stand_in_a_url() -> None:
    assert letter(ORDER.encode()).id.startswith("m-1-")
    assert letter(Properties(message_id="../ü %#?&/x").encode()).id.startswith("x-")
    assert len(letter(Properties().encode()).id) == 16


def test_two_messages_that_share_a_message_id_are_told_apart() -> None:
    raw = ORDER.encode()
    seen = [
        summary(raw).id,
        summary(raw, b"another").id,
        summary(patch_properties(raw, set_headers={b"tenant": raw_text("other")})).id,
        summary(patch_properties(raw, set_headers={b"more": raw_text("")})).id,
        summary(parked(raw)).id,
        summary(parked(raw, at=NOON + 2 * SECOND)).id,
        summary(parked(raw, origin=Origin("e", "k", "q.mail", "shop", "worker-1"))).id,
        summary(Properties(**{**ORDER.__dict__, "priority": 3}).encode()).id,
    ]

    assert len(set(seen)) == len(seen)


def test_the_name_of_a_header_and_its_value_do_not_run_into_each_other() -> None:
    one = with_headers({"a": "b", "c": "d"})
    other = with_headers({"a": "d", "c": "b"})

    assert summary(one).id != summary(other).id


@pytest.mark.parametrize("raw", [ORDER.encode(), Properties().encode(), Properties(headers={"b": 1, "a": 2}).encode()])
def test_it_is_the_same_after_a_quorum_queue_has_counted_the_look(raw: bytes) -> None:
    counts = {b"x-delivery-count": raw_long(3), b"x-acquired-count": raw_long(4)}
    looked_at = patch_properties(raw, set_headers=counts, sort_headers=True)

    assert summary(looked_at).id == summary(raw).id


def test_it_is_the_same_for_a_summary_and_for_a_letter() -> None:
    assert summary(parked()).id == letter(parked()).id


def test_a_message_with_very_many_headers_has_one_too() -> None:
    headers = {f"h{number}": number for number in range(300)}

    assert summary(with_headers(headers)).id == summary(with_headers(dict(reversed(headers.items())))).id


# Nonsense ---------------------------------------------------------------------------------------------------


def test_properties_that_cannot_be_read_are_said_to_be() -> None:
    told = letter(b"\xff\xff garbage")

    assert told.unreadable
    assert (told.reason, told.message_id, told.headers, told.parked) == (UNKNOWN, None, {}, False)
    assert told.id != letter(b"\xff\xff garbage", b"another body").id
    assert told.size == len(BODY)


def test_a_header_that_is_nested_too_deep_hides_nothing_else() -> None:
    deep = b"V"
    for _ in range(40):
        deep = raw_table([(b"a", deep)])
    raw = patch_properties(parked(), set_headers={b"deep": deep})

    told = letter(raw)

    assert (told.reason, told.source, told.headers["deep"]) == ("exhausted", "q.orders", None)
    assert not told.unreadable


@pytest.mark.parametrize(
    "broken",
    [b"A\x00\x00\x00\x01?", b"A\x00\x00\x00\x08F\x00\x00\x00\x03\x01a?", b"S\x00\x00\x00\x00"],
    ids=["an array", "a table in it", "no array"],
)
def test_deaths_that_cannot_be_read_say_nothing(broken: bytes) -> None:
    told = letter(patch_properties(ORDER.encode(), set_headers={b"x-death": broken, b"x-redrive-history": broken}))

    assert (told.reason, told.source, told.error) == (UNKNOWN, None, "")
    assert told.message_id == "m-1"


def test_names_are_what_they_were_byte_for_byte_and_words_are_legible() -> None:
    odd = Origin("\udcff", "\x1b[2J", "q.\udcfe", app="shop", host="h")
    raw = parked(Properties(message_id="\x1b\udcff", type="\x00").encode(), origin=odd)

    told = letter(raw)

    assert (told.exchange, told.routing_key, told.source) == ("\udcff", "\x1b[2J", "q.\udcfe")
    assert (told.message_id, told.type) == ("\\x1b\\udcff", "\\x00")


def test_counts_are_normalised() -> None:
    raw = with_headers({"x-redriven-count": "-3", "x-redrive-attempts": 10**15, "x-redrive-reason": "exhausted"})

    assert (summary(raw).redriven, summary(raw).attempts) == (0, MOST)


def test_long_values_are_not_kept_in_caches() -> None:
    raw = with_headers(
        {
            "x-redrive-reason": "r" * 5_000,
            "x-redriven-op": "o" * 5_000,
            "x-redrive-queue": "q" * 5_000,
            "x-redriven-count": "1" * 5_000,
            "x-death": [death("q", "rejected", **{"routing-keys": ["k" * 250, "l" * 5_000]})],
        }
    )

    told = summary(raw)

    assert (told.source, told.routing_key, told.redriven) == ("q", "k" * 250, MOST)
    assert told.last_operation == "o" * 199 + "…"


@given(hostile_headers, st.binary(max_size=20))
def test_whatever_stands_in_the_headers_a_letter_comes_out(headers: dict[str, Any], body: bytes) -> None:
    told = letter(with_headers(headers), body)

    assert not told.unreadable
    for text in (told.reason, told.error, told.error_message, told.fingerprint, told.app, told.host, told.stack):
        text.encode()
    assert 0 <= told.attempts <= MOST
    assert told.dead_at is None or told.dead_at.utcoffset() == dt.timedelta(0)


@given(hostile_headers)
def test_a_summary_says_what_the_letter_says(headers: dict[str, Any]) -> None:
    raw = with_headers(headers)
    whole, short = letter(raw), summary(raw)

    for name in Summary.__struct_fields__:
        if name != "error_message":
            assert getattr(whole, name) == getattr(short, name), name


@given(st.binary(max_size=80))
def test_no_bytes_at_all_make_it_raise(raw: bytes) -> None:
    assert letter(raw).id == summary(raw).id


@given(st.data())
def test_a_story_that_was_damaged_is_read_as_far_as_it_goes(data: st.DataObject) -> None:
    raw = bytearray(parked(retried(), History(failed=1)))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))

    assert letter(bytes(raw)).id == summary(bytes(raw)).id
