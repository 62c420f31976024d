from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive.deadletters.dead_letter import Summary, read_summary
from redrive.operations.operation import Destination, OperationKind, OperationRequest, Selection
from redrive.operations.selector import (
    IGNORED,
    NO_ORIGIN,
    NO_RETRY,
    NO_ROOM,
    NO_SOURCE,
    Ignored,
    MessageSelector,
    Selected,
    Skipped,
    route_of,
)
from redrive.wire.properties import Properties

NOW = datetime(2024, 5, 17, 12, tzinfo=UTC)
BODY = b'{"order": 7}'


def properties(**headers: Any) -> bytes:
    story = {
        "x-redrive-queue": "orders",
        "x-redrive-exchange": "events",
        "x-redrive-routing-key": "order.new",
        "x-redrive-reason": "exhausted",
        "x-redrive-error": "TimeoutError",
        "x-redrive-fingerprint": "3fa9c0ffee",
        "x-redrive-parked-at": NOW.isoformat(),
    }
    said = {name: value for name, value in (story | headers).items() if value is not None}
    return Properties(message_id="m-7", headers=said).encode()


def letter(raw: bytes | None = None) -> Summary:
    return read_summary(raw if raw is not None else properties(), BODY, "orders.dlq", 1)


def choose(raw: bytes | None = None, *, budget: int = 100_000, mixed: bool = False, **said: Any) -> Any:
    raw = raw if raw is not None else properties()
    retries = said.pop("retries", {})
    began = said.pop("began", NOW)
    order = OperationRequest(**{"kind": OperationKind.REDRIVE, "queue": "orders.dlq", **said})
    chooser = MessageSelector(order, operation="op_1", began=began, mixed=mixed, retries=retries, budget=budget)
    return chooser.choose(letter(raw), BODY, raw)


@pytest.mark.parametrize(
    "selection",
    [
        Selection(),
        Selection(ids=("m-7",)),
        Selection(ids=("other", "m-7")),
        Selection(group="3fa9"),
        Selection("error:Timeout body.order:7"),
        Selection("since:1h", now=NOW + timedelta(minutes=30)),
        Selection("error:Timeout", ids=("m-7",), group="3fa9"),
    ],
)
def test_what_is_selected_is_taken(selection: Selection) -> None:
    assert choose(selection=selection) == Selected("", "orders", "orders")


@pytest.mark.parametrize(
    "selection",
    [
        Selection(ids=("m-8",)),
        Selection(group="77d1"),
        Selection("error:Value"),
        Selection("since:1h", now=NOW + timedelta(hours=2)),
        Selection("error:Timeout", group="77d1"),
    ],
)
def test_what_is_not_selected_is_passed_over(selection: Selection) -> None:
    assert choose(selection=selection) is IGNORED


def test_its_own_id_selects_a_message() -> None:
    assert isinstance(choose(selection=Selection(ids=(letter().id,))), Selected)


def test_what_came_back_from_this_operation_is_passed_over() -> None:
    assert choose(properties(**{"x-redriven-op": "op_1", "x-redriven-count": 1})) is IGNORED
    assert isinstance(choose(properties(**{"x-redriven-op": "op_0", "x-redriven-count": 1})), Selected)


@pytest.mark.parametrize(
    ("mixed", "began", "wanted"),
    [
        (False, NOW - timedelta(hours=1), Selected),  # never reached if it is newer: it stands behind
        (True, NOW - timedelta(hours=1), Ignored),
        (True, NOW, Selected),
        (True, NOW + timedelta(hours=1), Selected),
    ],
)
def test_in_a_queue_that_mixes_the_time_of_death_decides(mixed: bool, began: datetime, wanted: type) -> None:
    assert type(choose(mixed=mixed, began=began)) is wanted


def test_who_was_re_driven_too_often_is_skipped() -> None:
    often = properties(**{"x-redriven-count": 3})
    assert choose(often) == Skipped("re-driven 3 times already")
    assert choose(properties(**{"x-redriven-count": 1}), most_redrives=1) == Skipped("re-driven once already")
    assert isinstance(choose(often, most_redrives=None), Selected)
    assert isinstance(choose(often, kind=OperationKind.DISCARD), Selected)  # that is no re-drive


def test_without_room_for_the_mark_it_is_skipped() -> None:
    assert choose(budget=100) == Skipped(NO_ROOM)


def test_a_discard_needs_no_destination() -> None:
    nowhere = properties(**{"x-redrive-queue": None})
    assert choose(nowhere) == Skipped(NO_SOURCE)
    assert isinstance(choose(nowhere, kind=OperationKind.DISCARD), Selected)


@pytest.mark.parametrize(
    ("to", "wanted"),
    [
        ("own", ("", "orders")),
        ("elsewhere", ("", "elsewhere")),
        ("retry", ("orders.retry", "retry")),
        ("original", ("events", "order.new")),
        ("exchange:x:k", ("x", "k")),
    ],
)
def test_where_to(to: str, wanted: tuple[str, str]) -> None:
    choice = choose(to=Destination.parse(to), retries={"orders": ("orders.retry", "retry")})
    assert isinstance(choice, Selected)
    assert (choice.exchange, choice.routing_key) == wanted


@pytest.mark.parametrize(("to", "why"), [("own", NO_SOURCE), ("retry", NO_RETRY), ("original", NO_ORIGIN)])
def test_a_message_without_a_story_has_no_way_of_its_own(to: str, why: str) -> None:
    bare = letter(Properties(message_id="m-7").encode())
    assert route_of(Destination.parse(to), bare, lambda _: None) == why


def test_the_way_to_retry_must_be_known() -> None:
    assert choose(to=Destination.parse("retry"), retries={"payments": ("r", "k")}) == Skipped(NO_RETRY)
