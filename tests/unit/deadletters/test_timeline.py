"""A dead letter explained to a person: what happened, in order, and nothing that a terminal would obey."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.deadletters.dead_letter import read_dead_letter
from redrive.deadletters.redrive_headers import properties_for_redrive
from redrive.deadletters.timeline import EventKind, TimelineEvent, explain
from redrive.recovery.failure import Failure
from redrive.recovery.failure_headers import Origin, ParkReason, properties_for_parking, properties_for_retry
from redrive.recovery.history import History, read_history
from redrive.wire.properties import Properties, decode_properties

NOON = dt.datetime(2024, 5, 17, 12, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
ORIGIN = Origin("domain.events", "order.new", "q.orders", app="shop", host="worker-1")
ORDER = Properties(timestamp=NOON - 2 * SECOND, message_id="m-1").encode()


def told(raw: bytes) -> list[str]:
    return [event.text for event in events(raw)]


def events(raw: bytes) -> list[TimelineEvent]:
    return explain(read_dead_letter(raw, b"", queue="q.orders.dlq", position=0))


def failure(after: int = 0, message: str = "no answer") -> Failure:
    return Failure("TimeoutError", message, "stack", "0123456789ab", NOON + after * SECOND)


def known(raw: bytes) -> History:
    return read_history(decode_properties(raw).headers or {}, "q.orders", via_reject=False)


def retried(raw: bytes = ORDER) -> bytes:
    return properties_for_retry(raw, known(raw), failure(), origin=ORIGIN, attempt=1, delay=15 * SECOND)


def parked(raw: bytes = ORDER, after: int = 15, attempt: int = 2, **other: Any) -> bytes:
    given: dict[str, Any] = {"failure": failure(after), "reason": ParkReason.EXHAUSTED, "origin": ORIGIN, **other}
    return properties_for_parking(
        raw, known(raw), given.pop("failure"), attempt=attempt, at=NOON + after * SECOND, **given
    )


def died(*deaths: dict[str, Any], **headers: Any) -> bytes:
    return Properties(headers={"x-death": list(deaths), **headers}).encode()


def death(queue: str, reason: str, after: int | None = 0, count: int = 1) -> dict[str, Any]:
    time = {} if after is None else {"time": NOON + after * SECOND}
    return {"queue": queue, "reason": reason, "count": count, "exchange": "in", "routing-keys": ["order.new"], **time}


def test_every_event_has_a_kind_and_its_time() -> None:
    assert [(event.kind, event.at) for event in events(parked(retried()))] == [
        (EventKind.PUBLISHED, NOON - 2 * SECOND),
        (EventKind.FAILED, NOON),
        (EventKind.WAITED, NOON),
        (EventKind.FAILED, NOON + 15 * SECOND),
        (EventKind.DIED, NOON + 15 * SECOND),
    ]
    assert [event.kind for event in events(ORDER)] == [EventKind.UNKNOWN]
    assert [event.kind for event in events(died(death("q.orders", "rejected")))][-1] is EventKind.DIED


def test_a_parked_message_is_told_from_its_publish_to_its_parking() -> None:
    assert told(parked(retried())) == [
        "published to exchange domain.events with key order.new at 2024-05-17 11:59:58 UTC",
        "attempt 1 failed at 2024-05-17 12:00:00 UTC with TimeoutError: no answer",
        "waited 15s",
        "attempt 2 failed at 2024-05-17 12:00:15 UTC with TimeoutError: no answer",
        "parked by shop on worker-1 at 2024-05-17 12:00:15 UTC after 2 attempts, because its last attempt failed",
    ]


@pytest.mark.parametrize("reason", ParkReason)
def test_every_reason_for_parking_has_a_sentence(reason: ParkReason) -> None:
    last = told(parked(reason=reason))[-1]

    assert last.startswith("parked by shop on worker-1")
    assert ", because " in last


def test_attempts_of_which_only_the_number_is_known_are_mentioned() -> None:
    raw = parked(retried(), budget=650, attempt=2)

    assert any("of which nothing more is told" in line for line in told(raw))


def test_without_attempts_the_parking_names_the_error() -> None:
    raw = Properties(headers={"x-redrive-reason": "permanent", "x-redrive-error": "ValueError"}).encode()

    assert told(raw) == ["parked, because its error is one that does not pass (ValueError)"]


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("expired", "expired in q.orders after its TTL at 2024-05-17 12:00:00 UTC"),
        ("maxlen", "pushed out of q.orders: the queue was full (maxlen) at 2024-05-17 12:00:00 UTC"),
        (
            "delivery_limit",
            "delivery limit reached in q.orders: it came back to the queue too often at 2024-05-17 12:00:00 UTC",
        ),
        ("rejected", "rejected by a consumer of q.orders at 2024-05-17 12:00:00 UTC"),
        ("eaten", "dead in q.orders: eaten at 2024-05-17 12:00:00 UTC"),
    ],
)
def test_what_the_broker_did_is_explained(reason: str, sentence: str) -> None:
    assert told(died(death("q.orders", reason))) == ["published to exchange in with key order.new", sentence]


def test_deaths_are_told_in_the_order_of_their_times_not_in_that_of_the_header() -> None:
    raw = died(death("r3", "expired", 3), death("r1", "expired", 1), death("r2", "expired", 2))

    assert [line.split()[2] for line in told(raw)[1:]] == ["r1", "r2", "r3"]


def test_deaths_without_a_time_are_told_from_the_end_of_the_header() -> None:
    raw = died(death("newest", "expired", 1), death("oldest", "expired", None))

    assert [line.split()[2] for line in told(raw)[1:]] == ["oldest", "newest"]


def test_deaths_that_came_again_and_again_say_how_often() -> None:
    raw = died(death("q.retry", "expired", 1, count=3), death("q.orders", "rejected", 0, count=3))

    assert told(raw)[1:] == [
        "rejected by a consumer of q.orders, 3 times, for the first time at 2024-05-17 12:00:00 UTC",
        "expired in q.retry after its TTL, 3 times, for the first time at 2024-05-17 12:00:01 UTC",
    ]


def test_a_message_that_was_redriven_tells_of_its_earlier_lives() -> None:
    raw = parked(retried())
    for number in (1, 2):
        letter = read_dead_letter(raw, b"", queue="q.orders.dlq", position=0)
        raw = properties_for_redrive(
            raw,
            letter,
            operation=f"op_{number}",
            by="ann",
            at=NOON + 100 * number * SECOND,
            reason="INC-42",
            from_queue="q.orders.dlq",
        )
        raw = parked(raw, after=100 * number + 50, attempt=1)

    assert told(raw) == [
        "published to exchange domain.events with key order.new at 2024-05-17 11:59:58 UTC",
        "failed in q.orders with TimeoutError, and parked as exhausted after 2 attempts at 2024-05-17 12:00:15 UTC",
        "re-driven from q.orders.dlq by ann in operation op_1 at 2024-05-17 12:01:40 UTC: INC-42",
        "failed in q.orders with TimeoutError, and parked as exhausted after 1 attempt at 2024-05-17 12:02:30 UTC",
        "re-driven from q.orders.dlq by ann in operation op_2 at 2024-05-17 12:03:20 UTC: INC-42",
        "attempt 1 failed at 2024-05-17 12:04:10 UTC with TimeoutError: no answer",
        "parked by shop on worker-1 at 2024-05-17 12:04:10 UTC after 1 attempt, because its last attempt failed",
    ]


def test_of_two_deaths_before_a_redrive_both_are_told() -> None:
    first = {**death("q.orders", "rejected"), "redriven-at": "2024-05-17T12:01:00Z", "redriven-op": "op_1"}
    headers = {"x-redriven-count": 1, "x-redriven-op": "op_1", "x-redriven-deaths": [first, death("q.wait", "expired")]}

    assert [line.split()[0] for line in told(Properties(headers=headers).encode())[:3]] == [
        *("expired", "rejected", "re-driven")
    ]


def test_a_redrive_whose_deaths_were_forgotten_is_told_from_its_headers() -> None:
    headers = {"x-redriven-count": 1, "x-redriven-by": "ann", "x-redriven-op": "op_1"}

    assert "re-driven by ann in operation op_1" in told(Properties(headers=headers).encode())


def test_one_that_tells_nothing_says_so() -> None:
    assert told(Properties().encode()) == ["how it came here is not known: it has no story and no x-death"]
    assert told(b"\xff") == ["its properties cannot be read, so nothing is known of how it came here"]


def test_a_message_to_the_default_exchange_says_so() -> None:
    raw = parked(origin=Origin("", "q.orders", "q.orders", app="", host=""))

    assert told(raw)[0].startswith("published to the default exchange with key q.orders")


@given(st.text(max_size=30))
def test_no_sentence_holds_anything_that_a_terminal_obeys(hostile: str) -> None:
    safe = hostile.encode("utf-8", "replace").decode()
    headers = {"x-redrive-reason": "exhausted", "x-redrive-app": safe, "x-redrive-exchange": safe, "x-death": []}
    headers |= {"x-death": [{"queue": safe, "reason": safe}], "x-redriven-count": 1, "x-redriven-by": safe}

    for line in told(Properties(headers=headers).encode()):
        assert all(char.isprintable() or char.isspace() for char in line)
        assert not {"\n", "\r", "\x1b", "\u202e", "\u2066"} & set(line)


def test_where_header_and_broker_differ_the_broker_counts() -> None:
    raw = died(death("q.orders", "rejected"), **{"x-redrive-queue": "payments.work", "x-redrive-reason": "exhausted"})

    assert told(raw)[-1] == (
        "its header says that it failed in payments.work, and x-death that it died in q.orders: x-death counts"
    )
    assert read_dead_letter(raw, b"", queue="q.orders.dlq", position=0).source == "q.orders"


def test_a_record_that_was_evicted_from_its_dead_letter_queue_may_be_right() -> None:
    raw = died(death("q.orders.dlq", "maxlen"), **{"x-redrive-queue": "q.orders", "x-redrive-reason": "exhausted"})

    assert told(raw)[-1].endswith("x-death counts, unless q.orders.dlq is a dead-letter queue of q.orders")


def test_where_they_agree_nothing_is_said_about_it() -> None:
    raw = died(death("q.retry", "expired"), death("q.orders", "rejected"), **{"x-redrive-queue": "q.orders"})

    assert not [line for line in told(raw) if "header" in line]
