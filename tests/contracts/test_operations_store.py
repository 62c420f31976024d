"""What the memory of operations promises, on SQLite and on PostgreSQL."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, StatementError

from redrive.database.engine import Database
from redrive.database.schema import Schema
from redrive.errors import ConfigurationError, OperationConflict, OperationNotFound
from redrive.operations.operation import (
    CanarySchedule,
    ControlRequest,
    Counts,
    Destination,
    DestinationKind,
    ItemOutcome,
    Operation,
    OperationItem,
    OperationKind,
    OperationRequest,
    OperationState,
    Selection,
)
from redrive.operations.repository import OperationRepository

NOON = datetime(2024, 5, 17, 12, 0, 0, 123456, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ORDER = OperationRequest(OperationKind.REDRIVE, "q.orders.dlq")


@pytest.fixture
def store(fresh_database: Database) -> OperationRepository:
    Schema().upgrade(fresh_database)
    return OperationRepository(fresh_database)


def operation(identity: str = "op_1", minutes: int = 0, order: OperationRequest = ORDER, **options: Any) -> Operation:
    return Operation(identity, order, NOON + minutes * MINUTE, **options)


def item(number: int, outcome: ItemOutcome = ItemOutcome.MOVED, **options: Any) -> OperationItem:
    return OperationItem(f"m-{number}", outcome, NOON + number * MINUTE, **options)


def ids(found: list[Operation]) -> list[str]:
    return [one.id for one in found]


def together(*acts: Callable[[], Any]) -> list[Any]:
    """Each in a thread of its own, all at the same moment."""
    barrier, results = threading.Barrier(len(acts)), [None] * len(acts)

    def run(place: int, act: Callable[[], Any]) -> None:
        barrier.wait()
        results[place] = act()

    threads = [threading.Thread(target=run, args=one) for one in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


# Operations ---------------------------------------------------------------------------------------


EVERYTHING = OperationRequest(
    OperationKind.EDIT,
    "q/ü #%",
    selection=Selection('error:Timeout "free text"', NOON, ("m-1", "m\0\udcff"), "3fa9", 10),
    to=Destination(DestinationKind.EXCHANGE, "events", "order.#"),
    rate=0.1,
    ramp=CanarySchedule((1, 5), 2.5, 0.5),
    by="ann",
    reason="INC-42",
    keep_counters=True,
    most_redrives=None,
    spend_deliveries=True,
    transform="set body.total to 5",
    archive="/var/lib/archive.ndjson",
)


@pytest.mark.parametrize("order", [ORDER, EVERYTHING, OperationRequest(OperationKind.DISCARD, "q.dlq")])
def test_what_was_added_is_there_to_the_last_field(store: OperationRepository, order: OperationRequest) -> None:
    added = operation(
        order=order,
        state=OperationState.RUNNING,
        counts=Counts(planned=10, moved=5, skipped=3, failed=2, returned=1),
        scope=3_000_000_000,
        step=2,
        started_at=NOON,
        beat_at=NOON + MINUTE,
        ended_at=NOON + 2 * MINUTE,
        owner="host:17",
        note="so far, so good",
    )
    store.add(added)
    assert store.get("op_1") == added


def test_what_nobody_added_is_not_there(store: OperationRepository) -> None:
    assert store.get("op_1") is None
    assert store.get("op\0\udcff" * 1000) is None
    with pytest.raises(OperationNotFound, match="there is no operation op_1: `redrive ops ls`"):
        store.save(operation())
    with pytest.raises(OperationNotFound):
        store.control_request("op_1")


def test_an_id_is_given_once(store: OperationRepository) -> None:
    store.add(operation())
    with pytest.raises(IntegrityError):
        store.add(operation())


def test_moments_come_back_in_utc_from_whatever_zone_they_were_in(store: OperationRepository) -> None:
    local = NOON.astimezone(timezone(timedelta(hours=-3)))
    store.add(replace(operation(), created_at=local, started_at=local))
    found = store.get("op_1")
    assert found is not None
    assert found.created_at == found.started_at == NOON
    assert found.created_at.tzinfo is found.started_at.tzinfo is UTC


def test_a_moment_without_a_zone_is_refused(store: OperationRepository) -> None:
    with pytest.raises(StatementError, match="has no time zone"):
        store.add(operation(started_at=NOON.replace(tzinfo=None)))


def test_progress_is_saved_and_what_was_asked_for_stays(store: OperationRepository) -> None:
    store.add(operation(order=EVERYTHING))
    begun = operation(order=EVERYTHING, state=OperationState.RUNNING, owner="host:17", started_at=NOON, scope=7)
    store.save(begun)
    assert store.get("op_1") == begun
    ended = replace(
        begun, state=OperationState.PARTIAL, counts=Counts(7, 5, 1, 1, 0), ended_at=NOON, note="no route\0\udcff"
    )
    store.save(replace(ended, order=ORDER))
    assert store.get("op_1") == replace(ended, note="no route\\x00\\udcff")


def test_a_note_is_as_long_as_a_person_reads(store: OperationRepository) -> None:
    store.add(operation(note="é" * 20_000))
    found = store.get("op_1")
    assert found is not None
    assert found.note == "é" * 9_999 + "…"


# Finding ------------------------------------------------------------------------------------------


def test_an_operation_is_found_by_the_beginning_of_its_id(store: OperationRepository) -> None:
    for place, identity in enumerate(("op_1", "op_1a", "op_2b", "OP_2c")):
        store.add(operation(identity, place))
    assert ids(store.find("op_2")) == ["op_2b"]
    assert ids(store.find("op_")) == ["op_2b", "op_1a", "op_1"]
    assert ids(store.find("op_1")) == ["op_1"], "whole, it is not the beginning of another"
    assert ids(store.find("%")) == ids(store.find("op_3")) == ids(store.find("\0")) == []


def test_the_newest_are_listed_first_page_by_page(store: OperationRepository) -> None:
    for identity, minutes in (("op_d", 2), ("op_a", 0), ("op_c", 1), ("op_b", 1)):
        store.add(operation(identity, minutes))
    assert ids(store.list_operations()) == ["op_d", "op_c", "op_b", "op_a"]
    assert ids(store.list_operations(limit=2)) == ["op_d", "op_c"]
    assert ids(store.list_operations(limit=2, before="op_c")) == ["op_b", "op_a"]
    assert store.list_operations(before="op_a") == []
    with pytest.raises(OperationNotFound):
        store.list_operations(before="op_x")


def test_operations_are_listed_by_queue_and_by_state(store: OperationRepository) -> None:
    other = OperationRequest(OperationKind.DISCARD, "q.other.dlq")
    store.add(operation("op_a", 0, state=OperationState.FAILED))
    store.add(operation("op_b", 1, state=OperationState.RUNNING))
    store.add(operation("op_c", 2, other, state=OperationState.FAILED))
    assert ids(store.list_operations("q.orders.dlq")) == ["op_b", "op_a"]
    assert ids(store.list_operations(states=[OperationState.FAILED])) == ["op_c", "op_a"]
    assert ids(store.list_operations("q.orders.dlq", {OperationState.FAILED, OperationState.RUNNING})) == [
        "op_b",
        "op_a",
    ]
    assert ids(store.list_operations("q.orders.dlq", [OperationState.FAILED], before="op_b")) == ["op_a"]
    assert store.list_operations(states=[]) == []


def test_those_that_are_not_over_are_running(store: OperationRepository) -> None:
    for minutes, state in enumerate(OperationState):
        store.add(operation(f"op_{state}", minutes, state=state))
    assert [one.state for one in store.running_operations()] == [
        OperationState.CANCELLING,
        OperationState.PAUSED,
        OperationState.RUNNING,
        OperationState.PENDING,
    ]


# Rows of other versions ---------------------------------------------------------------------------


def rewrite(store: OperationRepository, **columns: str) -> None:
    with store.database.engine.begin() as connection:
        connection.execute(sa.update(store.table).values(**columns))


def test_fields_of_another_version_are_left_aside_and_missing_ones_have_their_defaults(
    store: OperationRepository,
) -> None:
    store.add(operation())
    rewrite(store, asked='{"kind": "re-drive", "queue": "q.dlq", "colour": 1, "ramp": {"steps": [1, 2], "shape": "s"}}')
    found = store.get("op_1")
    assert found is not None
    assert found.order == OperationRequest(OperationKind.REDRIVE, "q.dlq", ramp=CanarySchedule((1, 2)))


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"asked": "{"}, "operation op_1 cannot be read: "),
        ({"asked": '{"kind": "re-drive"}'}, "operation op_1 cannot be read: .*missing required field `queue`"),
        ({"asked": '{"kind": "levitate", "queue": "q"}'}, "op_1 cannot be read: Invalid enum value 'levitate'"),
        ({"asked": '{"kind": "re-drive", "queue": "q", "rate": "1"}'}, r"op_1 cannot be read: .*at `\$.rate`"),
        ({"asked": '{"kind": "re-drive", "queue": ""}'}, "op_1 cannot be read: which queue"),
        ({"state": "FLOATING"}, "op_1 cannot be read: .*FLOATING.*If a newer Redrive wrote it, upgrade this one"),
    ],
)
def test_a_row_that_makes_no_sense_is_named(
    store: OperationRepository, columns: dict[str, str], complaint: str
) -> None:
    store.add(operation())
    rewrite(store, **columns)
    with pytest.raises(ConfigurationError, match=complaint):
        store.list_operations()


# Owners -------------------------------------------------------------------------------------------


def test_whoever_expects_the_right_owner_takes_over(store: OperationRepository) -> None:
    store.add(operation(state=OperationState.RUNNING, owner="dead:1"))
    assert store.take_over("op_1", "me:2", NOON, "somebody:3") is False
    assert store.take_over("op_1", "me:2", NOON, "dead:1") is True
    assert store.take_over("op_1", "late:4", NOON, "dead:1") is False
    assert store.get("op_1") == operation(state=OperationState.RUNNING, owner="me:2", beat_at=NOON)


def test_nobody_takes_over_what_is_over_or_was_never_there(store: OperationRepository) -> None:
    store.add(operation(state=OperationState.SUCCEEDED, owner="dead:1"))
    assert store.take_over("op_1", "me:2", NOON, "dead:1") is False
    assert store.take_over("op_2", "me:2", NOON, "") is False


def test_of_many_who_take_over_at_the_same_moment_one_succeeds(store: OperationRepository) -> None:
    store.add(operation(state=OperationState.RUNNING, owner="dead:1"))

    def taking(owner: str) -> Callable[[], bool]:
        return lambda: store.take_over("op_1", owner, NOON, "dead:1")

    won = together(*(taking(f"new:{number}") for number in range(5)))
    assert sorted(won) == [False] * 4 + [True]
    found = store.get("op_1")
    assert found is not None
    assert found.owner == f"new:{won.index(True)}"


def test_a_runner_that_was_thought_dead_cannot_save_any_more(store: OperationRepository) -> None:
    mine = operation(state=OperationState.RUNNING, owner="slow:1")
    store.add(mine)
    store.take_over("op_1", "new:2", NOON, "slow:1")
    with pytest.raises(OperationConflict, match="held by operation op_1, which new:2 has taken over") as caught:
        store.save(replace(mine, state=OperationState.SUCCEEDED))
    assert caught.value.queue == "q.orders.dlq"
    found = store.get("op_1")
    assert found is not None
    assert (found.state, found.owner) == (OperationState.RUNNING, "new:2")


# Wishes -------------------------------------------------------------------------------------------


def test_nothing_is_wished_at_first(store: OperationRepository) -> None:
    store.add(operation())
    assert store.control_request("op_1") == ControlRequest()


def test_the_newest_wish_for_a_state_and_the_newest_for_a_rate_count(store: OperationRepository) -> None:
    store.add(operation(state=OperationState.RUNNING))
    assert store.request_control("op_1", ControlRequest(OperationState.PAUSED))
    assert store.request_control("op_1", ControlRequest(rate=0.1))
    assert store.control_request("op_1") == ControlRequest(OperationState.PAUSED, 0.1)
    assert store.request_control("op_1", ControlRequest(OperationState.RUNNING, 20))
    assert store.control_request("op_1") == ControlRequest(OperationState.RUNNING, 20)
    assert store.request_control("op_1", ControlRequest())
    assert store.control_request("op_1") == ControlRequest(OperationState.RUNNING, 20)


@pytest.mark.parametrize("state", [state for state in OperationState if state.is_over])
def test_what_is_over_grants_no_wishes(store: OperationRepository, state: OperationState) -> None:
    store.add(operation(state=state))
    assert store.request_control("op_1", ControlRequest(OperationState.PAUSED)) is False
    assert store.control_request("op_1") == ControlRequest()
    assert store.request_control("op_2", ControlRequest(OperationState.PAUSED)) is False


@pytest.mark.parametrize(
    "wish",
    [
        ControlRequest(OperationState.SUCCEEDED),
        ControlRequest(OperationState.PENDING),
        ControlRequest(rate=0),
        ControlRequest(rate=float("nan")),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(store: OperationRepository, wish: ControlRequest) -> None:
    store.add(operation())
    with pytest.raises(ConfigurationError, match=r"want PAUSED, RUNNING, CANCELLING|want messages a second"):
        store.request_control("op_1", wish)


def test_nobody_takes_back_a_cancel(store: OperationRepository) -> None:
    store.add(operation(state=OperationState.RUNNING))
    store.request_control("op_1", ControlRequest(OperationState.CANCELLING))
    assert store.request_control("op_1", ControlRequest(OperationState.RUNNING, 5)) is True
    assert store.control_request("op_1") == ControlRequest(OperationState.CANCELLING, 5)
    store.save(operation(state=OperationState.CANCELLING))
    store.clear_request("op_1", ControlRequest(OperationState.CANCELLING, 5))
    assert store.request_control("op_1", ControlRequest(OperationState.PAUSED))
    assert store.control_request("op_1") == ControlRequest()


def test_saving_leaves_wishes_alone(store: OperationRepository) -> None:
    store.add(operation(state=OperationState.RUNNING))
    store.request_control("op_1", ControlRequest(OperationState.PAUSED, 5))
    store.save(operation(state=OperationState.RUNNING, counts=Counts(moved=1)))
    assert store.control_request("op_1") == ControlRequest(OperationState.PAUSED, 5)


def test_a_granted_wish_is_gone(store: OperationRepository) -> None:
    store.add(operation(state=OperationState.RUNNING))
    store.request_control("op_1", ControlRequest(OperationState.PAUSED, 0.1))
    store.clear_request("op_1", store.control_request("op_1"))
    assert store.control_request("op_1") == ControlRequest()


def test_a_rate_that_was_granted_is_the_rate_of_the_operation(store: OperationRepository) -> None:
    was = operation(state=OperationState.RUNNING)
    store.add(was)
    store.request_control("op_1", ControlRequest(rate=0.1))
    assert store.get("op_1") == was
    store.clear_request("op_1", ControlRequest(rate=0.1))
    assert store.get("op_1") == replace(was, order=replace(was.order, rate=0.1))


def test_what_was_changed_while_a_wish_was_granted_is_still_wished(store: OperationRepository) -> None:
    store.add(operation(state=OperationState.RUNNING))
    store.request_control("op_1", ControlRequest(OperationState.PAUSED, 5))
    seen = store.control_request("op_1")
    store.request_control("op_1", ControlRequest(OperationState.RUNNING))
    store.clear_request("op_1", seen)
    assert store.control_request("op_1") == ControlRequest(OperationState.RUNNING)
    store.request_control("op_1", ControlRequest(rate=7))
    store.clear_request("op_1", ControlRequest(OperationState.RUNNING))
    assert store.control_request("op_1") == ControlRequest(rate=7)


def test_wishes_and_progress_at_the_same_moment_are_both_kept(store: OperationRepository) -> None:
    rounds = 30
    store.add(operation(state=OperationState.RUNNING, owner="me:1"))
    granted: list[float | None] = []

    def run() -> None:
        for number in range(1, rounds + 1):
            store.save(operation(state=OperationState.RUNNING, owner="me:1", counts=Counts(moved=number)))
            wish = store.control_request("op_1")
            store.clear_request("op_1", wish)
            granted.append(wish.rate)

    def want() -> None:
        for number in range(1, rounds + 1):
            assert store.request_control("op_1", ControlRequest(rate=number))

    together(run, want)
    found = store.get("op_1")
    assert found is not None
    assert found.counts.moved == rounds
    seen = [rate for rate in [*granted, store.control_request("op_1").rate] if rate is not None]
    assert seen == sorted(set(seen)), "each is granted once"
    assert seen[-1] == rounds, "and the last is not lost"


# Items --------------------------------------------------------------------------------------------


def test_items_come_back_numbered_in_the_order_in_which_they_were_added(store: OperationRepository) -> None:
    store.add(operation())
    store.add(operation("op_2"))
    first = [item(1, message_id="m/1", to="q.orders"), item(2, ItemOutcome.SKIPPED, why="re-driven 3 times already")]
    store.add_items("op_1", first)
    store.add_items("op_2", [item(9)])
    store.add_items("op_1", [item(3, ItemOutcome.FAILED, why="no route"), item(4, ItemOutcome.RETURNED)])
    store.add_items("op_1", [])
    found = store.items("op_1")
    assert [one for _, one in found][:2] == first
    assert [one.id for _, one in found] == ["m-1", "m-2", "m-3", "m-4"]
    assert [one for _, one in store.items("op_2")] == [item(9)]
    assert found[0][1].at.tzinfo is UTC


def test_progress_and_items_are_saved_together(store: OperationRepository) -> None:
    store.add(operation())
    items = [item(number, message_id=f"m/{number}" if number % 2 else None) for number in range(1001)]
    store.save(operation(state=OperationState.RUNNING, counts=Counts(moved=1001)), items)
    saved = store.get("op_1")
    assert saved is not None
    assert saved.counts.moved == 1001
    assert [one for _, one in store.items("op_1", limit=2000)] == items


def test_what_became_of_messages_is_kept_although_somebody_else_took_the_operation_over(
    store: OperationRepository,
) -> None:
    store.add(operation(state=OperationState.RUNNING, owner="other:2"))
    with pytest.raises(OperationConflict):
        store.save(operation(state=OperationState.RUNNING, owner="me:1"), [item(1)])
    assert [one for _, one in store.items("op_1")] == [item(1)]


def test_items_are_read_page_by_page_and_by_outcome(store: OperationRepository) -> None:
    store.add(operation())
    store.add_items(
        "op_1", [item(number, ItemOutcome.FAILED if number % 2 else ItemOutcome.MOVED) for number in range(6)]
    )
    page = store.items("op_1", limit=4)
    assert [one.id for _, one in store.items("op_1", after=page[-1][0])] == ["m-4", "m-5"]
    failed = store.items("op_1", ItemOutcome.FAILED, limit=2)
    assert [one.id for _, one in failed] == ["m-1", "m-3"]
    assert [one.id for _, one in store.items("op_1", ItemOutcome.FAILED, after=failed[-1][0])] == ["m-5"]
    assert store.items("op_1", ItemOutcome.RETURNED) == []


def test_moved_messages_are_read_in_chunks_as_often_as_they_have_an_item(
    store: OperationRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.operations.repository._CHUNK", 2)
    store.add(operation())
    store.add(operation("op_2"))
    store.add_items("op_1", [item(1), item(2), item(2), item(3, ItemOutcome.POSSIBLY_DUPLICATED), item(4)])
    store.add_items("op_2", [item(9)])

    assert [*store.moved_ids("op_1")] == ["m-1", "m-2", "m-2", "m-4"]
    assert [*store.moved_ids("op_3")] == []


def test_an_item_may_be_named_like_anything_a_message_can_hold(store: OperationRepository) -> None:
    store.add(operation())
    store.add_items("op_1", [item(1, message_id="a\0b\udcffü\U0001f600", why="x" * 5000)])
    ((_, found),) = store.items("op_1")
    assert found.message_id == "a\\x00b\\udcffü\U0001f600"
    assert found.why == "x" * 999 + "…"


def test_items_of_no_operation_are_refused_as_a_whole(store: OperationRepository) -> None:
    with pytest.raises(IntegrityError):
        store.add_items("op_1", [item(1), item(2)])


def test_a_hundred_thousand_items_are_added_and_read_in_pages(store: OperationRepository) -> None:
    store.add(operation())
    for start in range(0, 100_000, 1000):
        store.add_items("op_1", [item(number) for number in range(start, start + 1000)])
    store.add_items("op_1", [item(100_000, ItemOutcome.FAILED)])
    assert [one.id for _, one in store.items("op_1", ItemOutcome.FAILED)] == ["m-100000"]
    last, _ = store.items("op_1", limit=100_000)[-1]
    assert [one.id for _, one in store.items("op_1", after=last)] == ["m-100000"]


# Forgetting ---------------------------------------------------------------------------------------


def test_what_is_over_for_long_enough_is_forgotten_with_its_items(store: OperationRepository) -> None:
    now, hour = datetime.now(UTC), timedelta(hours=1)
    store.add(operation("op_old", state=OperationState.SUCCEEDED, ended_at=now - 3 * hour))
    store.add(operation("op_untold", state=OperationState.FAILED))
    store.add(operation("op_new", state=OperationState.SUCCEEDED, ended_at=now - hour))
    store.add(operation("op_running", state=OperationState.RUNNING, beat_at=now - 3 * hour))
    for identity in ("op_old", "op_untold", "op_new", "op_running"):
        store.add_items(identity, [item(number) for number in range(5)])
    assert store.prune(2 * hour, batch=2) == 2
    assert sorted(ids(store.list_operations())) == ["op_new", "op_running"]
    with store.database.reading_connection() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(store.items_table)).scalar() == 10
    assert store.prune(2 * hour) == 0
