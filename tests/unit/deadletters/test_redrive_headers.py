"""A re-driven copy starts anew, remembers, and is otherwise what the publisher wrote, byte for byte."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.broker.deadletter import dead_letter_of
from redrive.broker.dialect import DIALECTS
from redrive.deadletters.dead_letter import read_dead_letter, read_summary
from redrive.deadletters.redrive_headers import (
    MOST_DEATHS,
    has_room_for_lineage,
    properties_for_import,
    properties_for_move,
    properties_for_redrive,
    without_stamps,
)
from redrive.recovery.failure import Failure
from redrive.recovery.failure_headers import Origin, ParkReason, properties_for_parking, properties_for_retry
from redrive.recovery.history import NO_HISTORY, HeaderNames, History, read_history
from redrive.wire.properties import Properties, decode_properties
from redrive.wire.property_scan import skim
from redrive.wire.raw_properties import (
    check_properties,
    find_header,
    join_table,
    patch_properties,
    raw_table,
    raw_text,
    split_array,
    split_table,
)
from redrive.wire.values import encode_value

NOON = dt.datetime(2024, 5, 17, 12, 0, 0, 123_000, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
ORIGIN = Origin("domain.events", "order.new", "q.orders", app="shop", host="worker-1")
FAILURE = Failure("ValueError", "no such customer", "Traceback: here\nValueError\n", "0123456789ab", NOON)
ORDER = Properties(
    content_type="application/json",
    headers={"tenant": "acme"},
    delivery_mode=2,
    priority=7,
    correlation_id="c-1",
    message_id="m-1",
    timestamp=NOON.replace(microsecond=0),
    type="OrderPlaced",
)
LINEAGE = {
    *("x-redriven-count", "x-redriven-at", "x-redriven-by", "x-redriven-op", "x-redriven-from", "x-redriven-reason"),
    *("x-redriven-deaths",),
}
EVERY_TYPE = [
    *(b"t\x01", b"b\x80", b"B\x80", b"s\x80\x00", b"u\x80\x00", b"I\x80\x00\x00\x00", b"i\x80\x00\x00\x00", b"V"),
    *(b"l" + bytes(8), b"L" + bytes(8), b"f" + bytes(4), b"d" + bytes(8), b"D\x02" + bytes(4), b"T" + bytes(8)),
    *(b"S\x00\x00\x00\x02ab", b"x\x00\x00\x00\x01\xff", b"A\x00\x00\x00\x01V", b"F\x00\x00\x00\x03\x01aV"),
]
texts = st.none() | st.text(max_size=10)


def parked(raw: bytes = ORDER.encode(), history: History | None = None, **other: Any) -> bytes:
    given: dict[str, Any] = {"origin": ORIGIN, "attempt": 3, "at": NOON, "failure": FAILURE, **other}
    given.setdefault("reason", ParkReason.EXHAUSTED)
    return properties_for_parking(raw, history or History(), given.pop("failure"), **given)


def died(raw: bytes = ORDER.encode(), reason: str = "rejected", queue: str = "q.orders", version: str = "4.3") -> bytes:
    return dead_letter_of(
        raw,
        (),
        queue=queue,
        reason=reason,
        exchange="domain.events",
        routing_keys=("order.new",),
        now=int(NOON.timestamp()),
        dead_letter_key=None,
        dialect=DIALECTS[version],
    )[0]


def copy(raw: bytes, **other: Any) -> bytes:
    how: dict[str, Any] = {"operation": "op_1", "by": "ann", "at": NOON + SECOND, "reason": "INC-42"}
    names = other.get("names", HeaderNames())
    letter = read_summary(raw, b"body", "q.orders.dlq", 0, names)
    return properties_for_redrive(raw, letter, **{**how, "from_queue": "q.orders.dlq", **other})


def headers(raw: bytes) -> dict[str, Any]:
    return dict(decode_properties(raw).headers or {})


def deaths(raw: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = headers(raw)["x-redriven-deaths"]
    return found


# Starting anew ----------------------------------------------------------------------------------------------


def test_a_parked_message_loses_its_story_and_gets_its_lineage() -> None:
    assert headers(copy(parked())) == {
        "tenant": "acme",
        "x-redrive-exchange": "domain.events",
        "x-redrive-routing-key": "order.new",
        "x-redriven-count": 1,
        "x-redriven-op": "op_1",
        "x-redriven-at": "2024-05-17T12:00:01.123Z",
        "x-redriven-by": "ann",
        "x-redriven-from": "q.orders.dlq",
        "x-redriven-reason": "INC-42",
        "x-redriven-deaths": [
            {
                "count": 3,
                "reason": "exhausted",
                "queue": "q.orders",
                "time": NOON.replace(microsecond=0),
                "exchange": "domain.events",
                "routing-keys": ["order.new"],
                "error": "ValueError",
                "fingerprint": "0123456789ab",
                "redriven-at": "2024-05-17T12:00:01.123Z",
                "redriven-by": "ann",
                "redriven-op": "op_1",
                "redriven-from": "q.orders.dlq",
                "redriven-reason": "INC-42",
            }
        ],
    }


def test_it_has_all_its_attempts_again() -> None:
    raw = properties_for_retry(
        ORDER.encode(), History(snoozes=2, crashes=1), FAILURE, origin=ORIGIN, attempt=1, delay=SECOND
    )
    before = read_history(headers(raw), "q.orders", via_reject=True)

    again = read_history(headers(copy(parked(raw, before))), "q.orders", via_reject=True)

    assert again == History(exchange="domain.events", routing_key="order.new", redriven=1)


def test_counters_are_kept_on_request() -> None:
    raw = properties_for_retry(ORDER.encode(), History(crashes=1), FAILURE, origin=ORIGIN, attempt=1, delay=SECOND)
    before = read_history(headers(raw), "q.orders", via_reject=False)

    again = read_history(headers(copy(parked(raw, before), keep_counters=True)), "q.orders", via_reject=False)

    assert (again.failed, again.crashes, len(again.attempts)) == (3, 1, 2)


def test_attempts_that_the_broker_counted_are_kept_in_a_header_of_ours() -> None:
    found = headers(copy(died(), keep_counters=True))

    assert found["x-redrive-attempts"] == 1
    assert "x-death" not in found


def test_headers_with_the_names_of_other_people_go_too() -> None:
    names = HeaderNames(attempts="x-retries", reason="x-retry-reason")

    found = headers(copy(parked(names=names), names=names))

    assert not {"x-retries", "x-retry-reason"} & found.keys()


@pytest.mark.parametrize(("said", "kept"), [(10, 10), ("10", 10), (0, 1), ("nonsense", 1)])
def test_counts_in_a_header_of_other_people_are_kept_on_request(said: object, kept: int) -> None:
    raw = died(Properties(headers={"x-retry-count": said}).encode())

    found = headers(copy(raw, keep_counters=True, names=HeaderNames(attempts="x-retry-count")))

    assert found["x-retry-count"] == kept  # the broker has counted one rejection


@pytest.mark.parametrize("version", ["3.10", "4.0", "4.3"])
def test_what_the_broker_wrote_goes_and_is_kept_as_it_wrote_it(version: str) -> None:
    raw = died(version=version)
    written = find_header(raw, b"x-death")
    assert written is not None

    found = copy(raw)

    assert not any(name.startswith(("x-death", "x-first-death", "x-last-death")) for name in headers(found))
    kept = find_header(found, b"x-redriven-deaths")
    assert kept is not None
    old, new = split_table(split_array(written)[0][1:]), split_table(split_array(kept)[0][1:])
    assert new[: len(old)] == old
    assert [name for name, _ in new[len(old) :]] == [
        *(b"redriven-at", b"redriven-by", b"redriven-op", b"redriven-from", b"redriven-reason")
    ]


def test_the_key_by_which_it_was_published_outlives_its_x_death() -> None:
    found = headers(copy(died()))

    assert (found["x-redrive-exchange"], found["x-redrive-routing-key"]) == ("domain.events", "order.new")


@pytest.mark.parametrize("name", ["CC", "BCC", "x-delivery-count", "x-acquired-count"])
def test_what_would_send_copies_or_was_counted_elsewhere_goes(name: str) -> None:
    raw = Properties(headers={name: ["q.other"], "tenant": "acme"}).encode()

    found = headers(copy(raw))

    assert name not in found
    assert found["tenant"] == "acme"


def test_the_user_becomes_a_header() -> None:
    found = copy(Properties(user_id="alice", message_id="m-1").encode())

    assert decode_properties(found).user_id is None
    assert headers(found)["x-redrive-user-id"] == "alice"


def test_a_user_who_is_a_header_already_stays_one() -> None:
    raw = parked(Properties(user_id="alice").encode())

    assert headers(copy(raw))["x-redrive-user-id"] == "alice"


def test_it_does_not_expire_again() -> None:
    assert decode_properties(copy(Properties(expiration="5000").encode())).expiration is None


def test_the_copy_passes_the_door_of_a_broker() -> None:
    check_properties(copy(parked()))
    check_properties(copy(died()))


# Remembering ------------------------------------------------------------------------------------------------


def test_every_redrive_counts_on() -> None:
    raw = parked()
    for _ in range(3):
        raw = parked(copy(raw))

    assert headers(copy(raw))["x-redriven-count"] == 4


def test_the_deaths_of_every_life_are_remembered_newest_first() -> None:
    raw = copy(parked(), operation="op_1")
    raw = copy(died(raw, reason="delivery_limit"), operation="op_2")

    assert [(death["reason"], death["redriven-op"]) for death in deaths(raw)] == [
        ("delivery_limit", "op_2"),
        ("exhausted", "op_1"),
    ]


def test_a_message_that_died_in_its_dead_letter_queue_has_two_deaths_of_which_the_newest_was_redriven() -> None:
    raw = copy(died(parked(), reason="maxlen", queue="q.orders.dlq"))

    assert [(death["reason"], death.get("redriven-op")) for death in deaths(raw)] == [
        ("maxlen", "op_1"),
        ("exhausted", None),
    ]


def test_of_many_deaths_the_oldest_are_forgotten() -> None:
    raw = parked()
    for number in range(MOST_DEATHS + 5):
        raw = parked(copy(raw, operation=f"op_{number}"))

    kept = deaths(copy(raw))

    assert len(kept) == MOST_DEATHS
    assert kept[-1]["redriven-op"] == f"op_{5 + 1}"


def test_deaths_that_are_no_deaths_are_forgotten() -> None:
    raw = Properties(headers={"x-redriven-deaths": "none", "x-death": 7, "x-redriven-count": "many"}).encode()

    found = headers(copy(raw))

    assert "x-redriven-deaths" not in found
    assert found["x-redriven-count"] == 1


def test_lineage_comes_back_out() -> None:
    letter = read_dead_letter(parked(copy(parked())), b"body", queue="q.orders.dlq", position=0)

    assert (letter.redriven, letter.last_operation) == (1, "op_1")
    assert [(death.parked, death.error, death.times) for death in letter.past] == [(True, "ValueError", 3)]
    assert letter.past[0].redrive == letter.last_redrive


def test_words_are_legible_and_bounded() -> None:
    found = headers(copy(parked(), by="\x1b[31mann", reason="x" * 5_000))

    assert found["x-redriven-by"] == "\\x1b[31mann"
    assert len(found["x-redriven-reason"]) == 200


# Fitting ----------------------------------------------------------------------------------------------------


def test_it_fits_into_its_budget_and_tells_as_much_as_does() -> None:
    raw = parked()
    for number in range(10):
        raw = parked(copy(raw, operation=f"op_{number}"))
    told = []
    for budget in range(2_500, 200, -50):
        found = copy(raw, budget=budget)
        assert len(found) <= budget
        told.append(len(headers(found).get("x-redriven-deaths", ())))

    assert told == sorted(told, reverse=True)
    assert len(set(told)) > 3


def test_the_count_and_the_operation_are_the_last_to_go() -> None:
    raw = Properties(headers={"padding": "x" * 3_000}).encode()

    found = headers(copy(raw, budget=len(raw) + 60))

    assert found.keys() & LINEAGE == {"x-redriven-count", "x-redriven-op"}


def test_a_message_without_any_room_is_sent_back_unmarked_and_said_to_be_untraceable() -> None:
    raw = Properties(headers={"padding": "x" * 3_000}).encode()
    letter = read_summary(raw, b"", "q.dlq", 0)

    assert copy(raw, budget=len(raw)) == raw
    assert not has_room_for_lineage(raw, letter, budget=len(raw))
    assert has_room_for_lineage(raw, letter, budget=len(raw) + 200)


def test_a_message_that_was_parked_always_has_room() -> None:
    full = parked(Properties(headers={"padding": "x" * 3_000}).encode(), budget=3_800)
    letter = read_summary(full, b"", "q.dlq", 0)

    assert has_room_for_lineage(full, letter, budget=3_800)


# What cannot be read ----------------------------------------------------------------------------------------


def test_properties_that_cannot_be_read_become_a_header_of_new_ones() -> None:
    found = decode_properties(copy(b"\xff\xffgarbage"))

    assert found.delivery_mode == 2
    assert found.headers is not None
    assert found.headers["x-redrive-raw-properties"] == b"\xff\xffgarbage"
    assert (found.headers["x-redriven-count"], found.headers["x-redriven-op"]) == (1, "op_1")


def test_of_unreadable_properties_that_are_too_large_the_beginning_is_kept_and_their_size() -> None:
    found = copy(b"\xff\xff" + b"x" * 5_000, budget=2_000)

    assert len(found) <= 2_000
    assert headers(found)["x-redrive-raw-properties-size"] == 5_002
    assert has_room_for_lineage(b"\xff", read_summary(b"\xff", b"", "q", 0))


def test_a_header_that_is_nested_too_deep_to_be_decoded_survives() -> None:
    deep = b"V"
    for _ in range(40):
        deep = raw_table([(b"a", deep)])
    raw = patch_properties(parked(), set_headers={b"deep": deep})

    assert find_header(copy(raw), b"deep") == deep


# Byte for byte ----------------------------------------------------------------------------------------------

own_headers = st.lists(
    st.tuples(st.binary(min_size=1, max_size=8).map(lambda name: b"own-" + name), st.sampled_from(EVERY_TYPE)),
    max_size=5,
    unique_by=lambda field: field[0],
)
properties = st.builds(
    Properties,
    content_type=texts,
    content_encoding=texts,
    delivery_mode=st.sampled_from([None, 1, 2]),
    priority=st.sampled_from([None, 0, 9, 255]),
    correlation_id=texts,
    reply_to=texts,
    expiration=st.none() | st.just("5000"),
    message_id=texts,
    timestamp=st.none() | st.integers(0, (1 << 64) - 1),
    type=texts,
    user_id=st.none() | st.just("alice"),
    app_id=texts,
    cluster_id=texts,
)


def with_fields(properties: Properties, fields: list[tuple[bytes, bytes]]) -> bytes:
    marked = patch_properties(properties.encode(), set_headers={b"mark": b"V"})
    return marked.replace(join_table([(b"mark", b"V")]), join_table(fields), 1)


def untouched(raw: bytes) -> tuple[Any, ...]:
    found = decode_properties(raw)
    names = ("content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to")
    names += ("message_id", "timestamp", "type", "app_id", "cluster_id")
    return tuple(getattr(found, name) for name in names)


@given(properties, own_headers, st.sampled_from(["parked", "died", "neither"]))
def test_all_else_survives_byte_for_byte(properties: Properties, own: list[tuple[bytes, bytes]], end: str) -> None:
    original = with_fields(properties, own)
    raw = {"parked": parked, "died": lambda raw: died(raw, version="3.10"), "neither": lambda raw: raw}[end](original)

    found = copy(raw)

    before, after = skim(original), skim(found)
    assert [(name, value) for name, value in after.headers.items() if name.startswith(b"own-")] == (
        sorted(own) if end == "died" else own
    )
    assert untouched(found) == untouched(original)
    assert after.before == before.before
    lost = patch_properties(original, drop_expiration=True, drop_user_id=True)
    assert after.after == skim(lost).after
    check_properties(found)


@given(properties, own_headers)
def test_redriving_without_a_story_and_taking_the_lineage_out_again_gives_the_original(
    properties: Properties, own: list[tuple[bytes, bytes]]
) -> None:
    raw = patch_properties(with_fields(properties, own), drop_expiration=True, drop_user_id=True)

    assert patch_properties(copy(raw), remove_headers=[name.encode() for name in LINEAGE]) == raw


@given(st.binary(max_size=80))
def test_no_bytes_at_all_make_it_raise(raw: bytes) -> None:
    copy(raw)


@given(st.data())
def test_a_damaged_story_is_redriven_as_far_as_it_can_be_read(data: st.DataObject) -> None:
    raw = bytearray(died(parked()))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))

    copy(bytes(raw))


def test_a_name_that_is_not_utf8_is_kept() -> None:
    raw = parked(origin=Origin("\udcff", "\udcfe", "q.orders", "shop", "h"))

    assert find_header(copy(raw), b"x-redrive-exchange") == raw_text("\udcff")


# Tasks of Celery's ------------------------------------------------------------------------------------

TASK = {"task": "transcode", "id": "t-1", "retries": 4, "expires": "2024-05-17T12:00:00+00:00", "eta": None}


def test_a_task_of_celery_has_all_its_retries_again_and_is_not_over_its_time() -> None:
    found = headers(copy(parked(replace(ORDER, headers=TASK).encode())))

    assert {name: found[name] for name in TASK} == {**TASK, "retries": 0, "expires": None}


def test_a_task_of_celery_goes_on_with_the_retries_it_has_had_if_counters_are_kept() -> None:
    found = headers(copy(parked(replace(ORDER, headers=TASK).encode()), keep_counters=True))

    assert {name: found[name] for name in TASK} == TASK


@pytest.mark.parametrize("missing", ["task", "id"])
def test_other_peoples_headers_of_the_same_names_stay_as_they_are(missing: str) -> None:
    others = {name: value for name, value in TASK.items() if name != missing} | {"about": missing}

    found = headers(copy(parked(replace(ORDER, headers=others).encode())))

    assert {name: found[name] for name in others} == others


# Put back among the dead ------------------------------------------------------------------------------


def test_a_dead_letter_that_is_put_back_is_as_it_was_but_for_what_would_do_harm() -> None:
    raw = parked()
    hurtful = patch_properties(raw, set_headers={b"CC": b"A\x00\x00\x00\x00", b"BCC": b"V"})
    whole = decode_properties(hurtful)

    restored = decode_properties(properties_for_import(replace(whole, expiration="60000", user_id="ada").encode()))

    headers = {**(decode_properties(raw).headers or {}), HeaderNames.USER_ID: "ada"}
    assert restored == replace(whole, headers=headers)


def test_a_dead_letter_that_does_no_harm_is_put_back_byte_for_byte() -> None:
    raw = parked()
    assert properties_for_import(raw) == raw


def test_a_dead_letter_that_is_moved_keeps_its_record_and_loses_what_was_counted_where_it_was() -> None:
    raw = parked()
    counted = patch_properties(
        raw, set_headers={b"x-delivery-count": b"I\x00\x00\x00\x07", b"CC": b"A\x00\x00\x00\x00"}
    )
    letter = read_summary(counted, b"", "q.dlq", 1)

    assert properties_for_move(counted, letter) == raw
    assert properties_for_move(raw, letter) == raw


def test_a_dead_letter_that_cannot_be_read_is_moved_with_its_old_properties_in_a_header() -> None:
    broken = b"\xff\xff"
    letter = read_summary(broken, b"", "q.dlq", 1)

    assert letter.unreadable
    assert (decode_properties(properties_for_move(broken, letter)).headers or {})[HeaderNames.RAW_PROPERTIES] == broken


FAR = {"x-opt-delivery-time": 4_102_444_800_000, "tenant": "acme"}


@pytest.mark.parametrize(
    "make",
    [
        copy,
        lambda raw: copy(raw, keep_counters=True),
        lambda raw: properties_for_move(raw, read_summary(raw, b"", "q.dlq", 1)),
        properties_for_import,
        lambda raw: without_stamps(raw, "q.orders"),
        parked,
        lambda raw: properties_for_retry(raw, History(), FAILURE, origin=ORIGIN, attempt=1, delay=SECOND),
        lambda raw: properties_for_retry(raw, NO_HISTORY, FAILURE, origin=ORIGIN, attempt=1, delay=SECOND),
        lambda raw: properties_for_retry(raw, History(), None, origin=ORIGIN, attempt=1, delay=SECOND),
    ],
    ids=["re-drive", "keep counters", "move", "import", "restamp", "park", "retry", "first retry", "snooze"],
)
def test_a_time_of_delivery_in_the_far_future_survives_no_copy(make: Any) -> None:
    headers = decode_properties(make(Properties(headers=dict(FAR)).encode())).headers or {}

    assert "x-opt-delivery-time" not in headers
    assert headers["tenant"] == "acme"


def test_what_is_kept_of_a_count_is_explained() -> None:
    """Else the worker that gets it would not believe it."""
    raw = copy(died(), keep_counters=True)

    assert read_history(decode_properties(raw).headers or {}, "q.orders", via_reject=False).failed == 1


def test_a_restamped_message_belongs_where_it_is_put_and_begins_anew() -> None:
    deaths = {
        "x-death": [{"queue": "payments", "reason": "rejected"}],
        "x-first-death-queue": "payments",
        "x-retries": 9,
    }
    raw = patch_properties(parked(), set_headers={name.encode(): encode_value(value) for name, value in deaths.items()})

    told = decode_properties(without_stamps(raw, "q.mail", HeaderNames(attempts="x-retries"))).headers or {}
    unknown = decode_properties(without_stamps(raw, None)).headers or {}

    assert told["x-redrive-queue"] == "q.mail"
    assert (told["x-redrive-reason"], told["x-redrive-error"], told["tenant"]) == ("exhausted", "ValueError", "acme")
    gone = {*deaths, "x-redrive-attempts", "x-redrive-exchange", "x-redrive-routing-key", "x-redrive-attempts-dropped"}
    assert not gone & told.keys()
    assert not {"x-redrive-queue", "x-redrive-attempts", "x-redrive-first-failed-at"} & unknown.keys()
