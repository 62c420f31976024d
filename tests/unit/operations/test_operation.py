from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redrive.database.operator_tables import RUNNING_STATES
from redrive.errors import ConfigurationError
from redrive.operations.operation import (
    CanarySchedule,
    Counts,
    Destination,
    DestinationKind,
    Operation,
    OperationKind,
    OperationRequest,
    OperationState,
    Selection,
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("own", Destination(DestinationKind.OWN)),
        ("retry", Destination(DestinationKind.RETRY)),
        ("original", Destination(DestinationKind.ORIGINAL)),
        ("orders", Destination(DestinationKind.QUEUE, "orders")),
        ("queue:own", Destination(DestinationKind.QUEUE, "own")),
        ("exchange:events:order.new", Destination(DestinationKind.EXCHANGE, "events", "order.new")),
        ("exchange:events:", Destination(DestinationKind.EXCHANGE, "events", "")),
        ("exchange:events:a:b", Destination(DestinationKind.EXCHANGE, "events", "a:b")),
        ("a/b %#ü", Destination(DestinationKind.QUEUE, "a/b %#ü")),
    ],
)
def test_a_destination_is_read_and_written_in_the_same_words(text: str, wanted: Destination) -> None:
    assert Destination.parse(text) == wanted
    assert Destination.parse(str(wanted)) == wanted


@example("queue:")
@example("exchange:")
@given(st.text(min_size=1))
def test_every_queue_can_be_named(name: str) -> None:
    to = Destination(DestinationKind.QUEUE, name)
    assert Destination.parse(str(to)) == to


@pytest.mark.parametrize("text", ["", "queue:", "exchange:", "exchange:events", "exchange::key"])
def test_a_destination_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="want"):
        Destination.parse(text)


@pytest.mark.parametrize("steps", [(), (0,), (5, 1), (1, -1)])
def test_a_ramp_grows(steps: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match="growing numbers"):
        CanarySchedule(steps)


@pytest.mark.parametrize("share", [-1.0, 100.0, 250.0])
def test_a_share_is_one(share: float) -> None:
    with pytest.raises(ConfigurationError, match="returned_pct"):
        CanarySchedule(returned_pct=share)


def test_nobody_waits_less_than_no_time() -> None:
    with pytest.raises(ConfigurationError, match="wait"):
        CanarySchedule(wait=-1)


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"queue": ""}, "which queue"),
        ({"rate": 0.0}, "rate 0"),
        ({"rate": float("nan")}, "rate"),
        ({"most_redrives": 0}, "1 or more"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(said: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        OperationRequest(**{"kind": OperationKind.REDRIVE, "queue": "q", **said})  # type: ignore[arg-type]


def test_a_limit_is_at_least_one() -> None:
    with pytest.raises(ConfigurationError, match="limit 0"):
        Selection(limit=0)


@pytest.mark.parametrize(
    ("selection", "everything"),
    [
        (Selection(), True),
        (Selection(limit=3), True),
        (Selection("a"), False),
        (Selection(ids=("a",)), False),
        (Selection(group="3"), False),
    ],
)
def test_a_limit_alone_selects_everything(selection: Selection, everything: bool) -> None:
    assert selection.is_everything is everything


@pytest.mark.parametrize(
    ("selection", "planned", "total"),
    [
        (Selection(), None, 2000),
        (Selection(limit=10), None, 10),
        (Selection(limit=3000), None, 2000),
        (Selection(group="3fa9"), 7, 7),
        (Selection(group="3fa9"), None, None),
        (Selection(query="error:Timeout", limit=10), None, None),
    ],
)
def test_the_total_is_what_was_planned_or_the_whole_queue_if_all_of_it_is_selected(
    selection: Selection, planned: int | None, total: int | None
) -> None:
    order = OperationRequest(OperationKind.REDRIVE, "orders.dlq", selection)
    operation = Operation("op_1", order, datetime.now(UTC), counts=Counts(planned=planned), scope=2000)

    assert operation.total == total
    assert replace(operation, scope=None).total == planned


def test_five_states_are_the_end() -> None:
    assert {state for state in OperationState if state.is_over} == {
        OperationState.CANCELLED,
        OperationState.SUCCEEDED,
        OperationState.PARTIAL,
        OperationState.STOPPED_BY_GUARD,
        OperationState.FAILED,
    }


def test_counts_are_told_by_name() -> None:
    assert Counts(5, 4, 3, 2, 1, 6).as_dict() == {
        "planned": 5,
        "moved": 4,
        "skipped": 3,
        "failed": 2,
        "returned": 1,
        "possibly_duplicated": 6,
    }


def test_the_table_knows_which_states_are_not_over() -> None:
    assert set(RUNNING_STATES) == {str(state) for state in OperationState if not state.is_over}
