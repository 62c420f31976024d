"""Whatever somebody wrote into the headers, a history comes out of it, and never a wrong kind of value."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigurationError
from redrive.recovery.history import (
    MOST,
    MOST_ATTEMPTS,
    NO_HISTORY,
    Attempt,
    HeaderNames,
    History,
    broker_can_count,
    read_count,
    read_history,
    read_moment,
    read_name,
    read_text,
)

QUEUE = "q.orders"
NOON = datetime(2024, 5, 17, 12, 0, tzinfo=UTC)


def history(headers: Mapping[str, object], **how: Any) -> History:
    return read_history(headers, QUEUE, **{"via_reject": False, **how})


def counted(attempts: int) -> dict[str, object]:
    """As a worker counts where there is no room for a history."""
    return {"x-redrive-attempts": attempts, "x-redrive-attempts-dropped": attempts}


def death(queue: object = QUEUE, reason: object = "rejected", count: object = 1, **more: object) -> dict[str, object]:
    return {"queue": queue, "reason": reason, "count": count, **more}


# Numbers ------------------------------------------------------------------------------------------------

ODD_COUNTS: list[tuple[object, int]] = [
    (0, 0),
    (3, 3),
    (-1, 0),
    (-(10**30), 0),
    (MOST, MOST),
    (MOST + 1, MOST),
    (10**30, MOST),
    (10**5000, MOST),
    (True, 0),
    (False, 0),
    (3.0, 3),
    (3.9, 3),
    (-0.5, 0),
    (1e300, MOST),
    (float("nan"), 0),
    (float("inf"), MOST),
    (float("-inf"), 0),
    (Decimal("3"), 3),
    (Decimal("-3"), 0),
    (Decimal("NaN"), 0),
    (Decimal("sNaN"), 0),
    (Decimal("Infinity"), MOST),
    ("3", 3),
    (" 3 ", 3),
    ("\t3\n", 3),
    ("+3", 3),
    ("003", 3),
    ("0", 0),
    ("3.0", 3),
    ("-3", 0),
    ("abc", 0),
    ("3abc", 0),
    ("0x3", 0),
    ("1e3", 0),
    ("٣", 0),
    ("²", 0),
    ("", 0),
    (" ", 0),
    (".", 0),
    ("NaN", 0),
    ("9" * 10, MOST),
    ("9" * 10_000, MOST),
    ("0" * 900 + "3", 3),
    (b"3", 3),
    (b" 3 ", 3),
    (b"\xff", 0),
    (b"", 0),
    (bytearray(b"3"), 3),
    (None, 0),
    ([], 0),
    ([3], 0),
    ({}, 0),
    ({"count": 3}, 0),
    (datetime(2024, 1, 1, tzinfo=UTC), 0),
    (object(), 0),
]
odd_counts = pytest.mark.parametrize(("value", "count"), ODD_COUNTS, ids=lambda value: f"{type(value).__name__}")


@odd_counts
def test_a_count_is_a_number_whatever_it_was(value: object, count: int) -> None:
    assert read_count(value) == count


@odd_counts
def test_every_counter_is_read_in_the_same_way(value: object, count: int) -> None:
    names = ("attempts", "snoozes", "crashes", "attempts-dropped")
    known = history({**{f"x-redrive-{name}": value for name in names}, "x-redriven-count": value})

    assert (known.failed, known.snoozes, known.crashes, known.dropped, known.redriven) == (count,) * 5


@odd_counts
def test_a_death_counts_at_least_once_since_it_is_there(value: object, count: int) -> None:
    assert history({"x-death": [death(count=value)]}, via_reject=True).failed == max(1, count)


# Attempts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [{}, {"tenant": "a"}, {"x-death": []}, {"x-redrive-queue": QUEUE}])
def test_a_message_that_never_failed_has_no_history(headers: dict[str, object]) -> None:
    assert history(headers, via_reject=True, delivery_count=True) == NO_HISTORY == History()


DEATHS: list[tuple[str, object, int]] = [
    ("nothing", None, 0),
    ("one", [death(count=2)], 2),
    ("a tuple", (death(count=2),), 2),
    ("after three laps", [death("q.orders.retry", "expired", 3), death(count=3)], 3),
    ("another queue's", [death("q.other", count=9)], 0),
    ("another reason", [death(reason="expired", count=9), death(reason="delivery_limit", count=9)], 0),
    ("twice the same", [death(count=2), death(count=3), death(count=1)], 3),
    ("without a queue", [{"reason": "rejected", "count": 9}], 0),
    ("without a reason", [{"queue": QUEUE, "count": 9}], 0),
    ("without a count", [{"queue": QUEUE, "reason": "rejected"}], 1),
    ("a queue that is no text", [death(queue=17, count=9), death(queue=[QUEUE], count=9)], 0),
    ("a reason that is no text", [death(reason=b"rejected", count=9), death(reason={}, count=9)], 0),
    ("a queue in bytes", [death(queue=QUEUE.encode(), count=2)], 2),
    ("text", "rejected", 0),
    ("bytes", b"rejected", 0),
    ("a table", death(count=9), 0),
    ("a number", 9, 0),
    ("garbage in the list", [None, 3, "x", [death(count=9)], death(count=2), b"", {}], 2),
    ("thousands", [death(f"q.{number}", count=9) for number in range(5000)] + [death(count=4)], 4),
]


@pytest.mark.parametrize(("value", "count"), [case[1:] for case in DEATHS], ids=[case[0] for case in DEATHS])
def test_rejections_from_this_queue_are_attempts_where_a_retry_is_a_reject(value: object, count: int) -> None:
    assert history({"x-death": value}, via_reject=True).failed == count


@pytest.mark.parametrize("value", [case[1] for case in DEATHS], ids=[case[0] for case in DEATHS])
def test_deaths_are_no_attempts_where_a_retry_is_published_again(value: object) -> None:
    known = history({"x-death": value, **counted(1)})

    assert (known.failed, known.first_failed_at) == (1, None)


def test_of_own_header_and_deaths_the_larger_wins() -> None:
    assert history({**counted(5), "x-death": [death(count=2)]}, via_reject=True).failed == 5
    assert history({"x-redrive-attempts": "2", "x-death": [death(count=5)]}, via_reject=True).failed == 5


def test_deliveries_are_attempts_where_a_retry_is_a_return() -> None:
    headers = {"x-delivery-count": 4, **counted(1)}

    assert history(headers).failed == 1
    assert history(headers, delivery_count=True).failed == 4


def test_attempts_can_be_counted_by_another_header() -> None:
    headers = {"x-retries": "2", "x-redrive-attempts": 7}

    assert history(headers, count_header="x-retries").failed == 2


# What is told of each -----------------------------------------------------------------------------------


def test_a_count_that_no_worker_can_have_written_is_not_believed() -> None:
    """It has a history of all its attempts, or their number, beside it."""
    old = {"x-redrive-first-failed-at": NOON}
    assert history({"x-redrive-attempts": 99, **old}).failed == 0
    assert history({"x-redrive-attempts": 99, **old}).first_failed_at is None
    assert history({"x-redrive-attempts": 99, "x-redrive-history": "forged"}).failed == 0
    assert history({"x-redrive-attempts": 99, "x-redrive-history": [attempt(99)]}).failed == 1
    assert history({"x-redrive-attempts": 2, "x-redrive-history": [attempt(1), attempt(2)], **old}).failed == 2
    assert (
        history({"x-redrive-attempts": 5, "x-redrive-history": [attempt(5)], "x-redrive-attempts-dropped": 4}).failed
        == 5
    )


def test_a_counter_of_other_consumers_is_believed_without_a_history() -> None:
    assert history({"x-retry-count": 2}, count_header="x-retry-count").failed == 2


def attempt(number: int) -> dict[str, object]:
    return {
        "number": number,
        "at": "2024-05-17T12:00:00.000Z",
        "error": "ValueError",
        "message": "no",
        "fingerprint": "0123456789ab",
        "delay-ms": 1500,
    }


def test_attempts_are_told_oldest_first() -> None:
    known = history({"x-redrive-history": [attempt(1), attempt(2)]})

    delay = timedelta(seconds=1.5)
    assert known.attempts == (
        Attempt(1, NOON, "ValueError", "no", "0123456789ab", delay),
        Attempt(2, NOON, "ValueError", "no", "0123456789ab", delay),
    )


def test_of_endless_attempts_the_newest_are_told_and_the_others_counted() -> None:
    known = history(
        {"x-redrive-history": [attempt(number) for number in range(1, 3001)], "x-redrive-attempts-dropped": 5}
    )

    assert [told.number for told in known.attempts] == list(range(3001 - MOST_ATTEMPTS, 3001))
    assert known.dropped == 3000 - MOST_ATTEMPTS + 5


@pytest.mark.parametrize("value", [None, 3, "x", b"x", {}, attempt(1), [], [None, 3, "x", [attempt(1)]]], ids=str)
def test_what_is_no_list_of_attempts_tells_of_none(value: object) -> None:
    assert history({"x-redrive-history": value}).attempts == ()


def test_an_attempt_without_anything_is_one_of_which_nothing_is_known() -> None:
    assert history({"x-redrive-history": [{}]}).attempts == (Attempt(0, None, "", "", ""),)


def test_an_attempt_made_of_garbage_is_one_of_which_nothing_is_known() -> None:
    odd = {"number": -1, "at": 17, "error": 3, "message": None, "fingerprint": [], "delay-ms": "soon"}

    assert history({"x-redrive-history": [odd]}).attempts == (Attempt(0, None, "", "", "", timedelta(0)),)


# Times --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        (NOON, NOON),
        ("2024-05-17T12:00:00Z", NOON),
        ("2024-05-17T12:00:00.000Z", NOON),
        ("2024-05-17T14:00:00+02:00", NOON),
        ("2024-05-17 12:00:00", NOON),
        (datetime(2024, 5, 17, 12), NOON),  # noqa: DTZ001
        (datetime(2024, 5, 17, 14, tzinfo=timezone(timedelta(hours=2))), NOON),
        ("0001-01-01T00:00:00+23:59", None),
        ("9999-12-31T23:59:59-23:59", None),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=2))), None),
        ("noon", None),
        ("", None),
        ("2024-13-45T99:99:99Z", None),
        ("2" * 10_000, None),
        (1_715_947_200, None),
        (1.5, None),
        (True, None),
        (b"2024-05-17T12:00:00Z", None),
        ([NOON], None),
        (None, None),
    ],
    ids=str,
)
def test_a_time_is_aware_or_unknown(value: object, moment: datetime | None) -> None:
    assert read_moment(value) == moment
    known = history({"x-redrive-first-failed-at": value, "x-redrive-not-before": value, **counted(1)})
    assert (known.first_failed_at, known.not_before) == (moment, moment)


def test_the_first_rejection_was_the_first_failure_unless_our_own_header_says_so() -> None:
    later = NOON + timedelta(hours=1)
    rejected = {"x-death": [death(time=later), death(time=NOON), death("q.other", time=NOON), death(time="x")]}

    assert history(rejected, via_reject=True).first_failed_at == NOON
    own = {**rejected, "x-redrive-first-failed-at": later}
    assert history(own, via_reject=True).first_failed_at == later


# The original publish -----------------------------------------------------------------------------------


def test_where_it_was_first_published_is_in_our_own_headers() -> None:
    known = history({"x-redrive-exchange": "", "x-redrive-routing-key": "order.new", "x-death": [death(exchange="x")]})

    assert (known.exchange, known.routing_key) == ("", "order.new")


def test_else_in_the_oldest_death() -> None:
    oldest = death(exchange="domain.events", **{"routing-keys": ["order.new", "cc"]})
    known = history({"x-death": [death("q.orders.retry", "expired", exchange="retry"), oldest]})

    assert (known.exchange, known.routing_key) == ("domain.events", "order.new")


def test_which_the_broker_names_where_the_order_is_not_that_of_time() -> None:
    first = death("q.first", exchange="domain.events", **{"routing-keys": ["order.new"]})
    headers = {"x-first-death-queue": "q.first", "x-first-death-reason": "rejected"}
    known = history({**headers, "x-death": [death("q.third"), first, death("q.second", exchange="other")]})

    assert (known.exchange, known.routing_key) == ("domain.events", "order.new")


@pytest.mark.parametrize("keys", [None, [], "order.new", [3], [None], ["k" * 256], {"0": "k"}], ids=str)
@pytest.mark.parametrize("exchange", [None, 3, ["x"], "e" * 256, "\ud800"], ids=ascii)
def test_else_it_is_unknown(exchange: object, keys: object) -> None:
    known = history({"x-death": [death(exchange=exchange, **{"routing-keys": keys})]})

    assert (known.exchange, known.routing_key) == (None, None)


def test_names_that_are_not_utf8_keep_their_bytes() -> None:
    assert read_name(b"\xff" * 255) == "\udcff" * 255
    assert read_name(b"\xff" * 256) is None
    assert read_name("ä" * 127) == "ä" * 127
    assert read_name("ä" * 128) is None


# Words --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("no", "no"),
        (b"n\xff", "n�"),
        ("\0\x1b[2J", "\\x00\\x1b[2J"),
        ("x" * 5000, "x" * 999 + "…"),
        (b"x" * 5000, "x" * 999 + "…"),
        (3, ""),
        (None, ""),
        (["no"], ""),
    ],
)
def test_words_can_be_shown_to_a_person(value: object, text: str) -> None:
    assert read_text(value) == text


# Everything at once -------------------------------------------------------------------------------------

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.decimals()
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
    | st.datetimes(timezones=st.none() | st.timezones())
    | st.sampled_from([QUEUE, "rejected", "3"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["queue", "reason", "count", "time", "number", "at", "delay-ms"]), inner)
    ),
    max_leaves=8,
)
names = st.sampled_from(
    [
        *("x-death", "x-delivery-count", "x-first-death-queue", "x-first-death-reason", "x-redriven-count"),
        *(name for key, name in vars(HeaderNames).items() if key.isupper()),
        *("x-redrive-attempts", "x-redrive-reason", "tenant"),
    ]
)


@given(st.dictionaries(names, values), st.booleans(), st.booleans())
def test_no_headers_at_all_can_break_the_reading(headers: dict[str, object], rejects: bool, counts: bool) -> None:
    known = history(headers, via_reject=rejects, delivery_count=counts)

    numbers = (known.failed, known.snoozes, known.crashes, known.dropped, known.redriven)
    assert all(type(number) is int and 0 <= number <= MOST for number in numbers)
    for moment in (known.first_failed_at, known.not_before, *(told.at for told in known.attempts)):
        assert moment is None or moment.tzinfo is UTC
    hash(known)


# Going on -----------------------------------------------------------------------------------------------


def test_snoozes_and_crashes_are_counted_beside_the_attempts() -> None:
    known = History(failed=2, snoozes=1, crashes=3, redriven=4)

    assert known.with_another_snooze() == History(failed=2, snoozes=2, crashes=3, redriven=4)
    assert known.with_crashes(4) == History(failed=2, snoozes=1, crashes=4, redriven=4)


def test_no_count_grows_beyond_what_can_be_written() -> None:
    known = History(snoozes=MOST, crashes=MOST)

    assert known.with_another_snooze().with_crashes(MOST + 1) == known


# Names --------------------------------------------------------------------------------------------------


def test_other_peoples_names_can_be_used() -> None:
    names = HeaderNames(attempts="x-retries", reason="x-retry-reason")

    assert (names.attempts, names.reason, names.HISTORY) == ("x-retries", "x-retry-reason", "x-redrive-history")


@pytest.mark.parametrize("name", ["", "x" * 65, "zähler", "a\n", None, 3, "x-death", "x-redrive-stack", "CC"], ids=repr)
@pytest.mark.parametrize("which", ["attempts", "reason"])
def test_names_that_cannot_be_are_refused_when_they_are_made(which: str, name: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"header name {which}|headers\.{which} .*: want a text"):
        HeaderNames(**{which: name})


@pytest.mark.parametrize(
    "wording",
    ["", "x" * 65, None, 3, "{", "{reason}", "{}", "{message!r}", "{message:>80}", "{message.x}", "a\n"],
    ids=repr,
)
def test_words_that_cannot_be_are_refused_when_they_are_made(wording: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"header wording|headers\.wording .*: want a text"):
        HeaderNames(wording=wording)


def test_two_headers_need_two_names() -> None:
    with pytest.raises(ConfigurationError, match="give them two"):
        HeaderNames(attempts="x-retry", reason="x-retry")


# Whether a broker can count on --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [{}, {"x-death": [death()]}, {"x-death": [death(), death(reason="expired", count=2**40)]}],
)
def test_in_an_x_death_of_its_own_a_broker_counts_on(headers: dict[str, object]) -> None:
    assert broker_can_count(headers)


@pytest.mark.parametrize(
    "forged",
    [
        None, "rejected", 7, {"k": []}, [], [[[7]]], [7], [None], [{}], [death(count="1")], [death(count=None)],
        [death(count=1.5)], [death(count=True)], [death(count=-(2**63))], [death(queue=7)], [death(reason=[])],
        [death(), death()], [death(), "x"], [death(**{"routing-keys": "k"})],
    ],
)  # fmt: skip
def test_in_one_that_somebody_forged_it_does_not(forged: object) -> None:
    assert not broker_can_count({"x-death": forged})
