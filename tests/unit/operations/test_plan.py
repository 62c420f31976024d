from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive.operations.operation import Destination, OperationKind, OperationRequest, Selection
from redrive.operations.plan import MOST_SAMPLES, PlanTally, PlanTarget, RedrivePlan, also_receives, scan, warnings
from redrive.operations.selector import MessageSelector
from redrive.protocol.messages import Delivery
from redrive.topology import BindingDefinition, Definitions, ExchangeDefinition, QueueDefinition, Server
from redrive.topology.snapshot import BrokerSnapshot
from redrive.wire.properties import Properties

NOW = datetime(2024, 5, 17, 12, tzinfo=UTC)
DLQ = "orders.dlq"


def order(to: str = "own", **said: Any) -> OperationRequest:
    return OperationRequest(**{"kind": OperationKind.REDRIVE, "queue": DLQ, "to": Destination.parse(to), **said})


class Shelf:
    """A queue that holds these messages."""

    def __init__(self, *letters: bytes) -> None:
        self.letters = letters
        self.taken = 0
        self.released = False

    async def depth(self, queue: str) -> int:
        assert queue == DLQ
        return len(self.letters)

    async def browse(self, queue: str, at_most: int) -> "Shelf":  # noqa: ARG002
        return self

    async def next(self, patience: float) -> Sequence[Any]:  # noqa: ARG002
        self.taken, before = len(self.letters), self.taken
        return [_Delivery(raw) for raw in self.letters[before:]]

    def ack(self, deliveries: Iterable[Delivery]) -> bool:  # noqa: ARG002
        raise AssertionError("a plan changes nothing")

    async def release(self) -> int:
        self.released = True
        return self.taken


class _Delivery:
    def __init__(self, raw: bytes) -> None:
        self.raw_properties = raw
        self.body = b"{}"


def dead(number: int, source: str = "orders", **headers: Any) -> bytes:
    story = {
        "x-redrive-queue": source,
        "x-redrive-exchange": "events",
        "x-redrive-routing-key": "order.new",
        "x-redrive-reason": "exhausted",
        "x-redrive-parked-at": (NOW - timedelta(hours=number)).isoformat(),
    }
    return Properties(message_id=f"m-{number}", headers=story | headers).encode()


async def counted(shelf: Shelf, wanted: OperationRequest) -> PlanTally:
    found = await scan(shelf, wanted, MessageSelector(wanted, operation="", began=NOW, budget=100_000))  # type: ignore[arg-type]
    assert shelf.released
    return found


async def test_what_would_be_moved_is_counted_by_destination_and_reason() -> None:
    shelf = Shelf(
        dead(1), dead(2, "payments"), dead(3), dead(4, **{"x-redriven-count": 3}), dead(5, **{"x-redriven-count": 9})
    )
    found = await counted(shelf, order())

    assert (found.depth, found.scanned, found.matched, found.eligible) == (5, 5, 5, 3)
    assert found.ineligible == {"re-driven 3 times already": 2}
    assert found.routes == {("", "orders"): 2, ("", "payments"): 1}
    assert found.sources == {"orders": 2, "payments": 1}
    assert found.oldest == NOW - timedelta(hours=3)
    assert [letter.message_id for letter in found.sample] == ["m-1", "m-2", "m-3"]


async def test_a_plan_with_a_limit_looks_no_further_than_it_must() -> None:
    found = await counted(Shelf(*map(dead, range(10))), order(selection=Selection(limit=2)))
    assert (found.scanned, found.eligible, found.depth) == (2, 2, 10)


async def test_a_plan_shows_a_few_samples() -> None:
    found = await counted(Shelf(*map(dead, range(50))), order())
    assert len(found.sample) == MOST_SAMPLES


async def test_an_empty_queue_is_planned_without_being_held() -> None:
    shelf = Shelf()
    wanted = order()
    found = await scan(shelf, wanted, MessageSelector(wanted, operation="", began=NOW, budget=1))  # type: ignore[arg-type]
    assert (found.matched, found.oldest, shelf.released) == (0, None, False)


# Who else gets them -------------------------------------------------------------------------------


def a_tally(**changes: Any) -> PlanTally:
    usual: dict[str, Any] = {
        "depth": 1,
        "scanned": 1,
        "matched": 1,
        "eligible": 1,
        "ineligible": Counter(),
        "routes": Counter({("events", "order.new"): 1}),
        "sources": Counter({"orders": 1}),
        "sample": (),
        "oldest": NOW - timedelta(days=2),
    }
    return PlanTally(**usual | changes)


def a_survey(complete: bool = True) -> BrokerSnapshot:
    bindings = [BindingDefinition("events", queue, "order.new") for queue in ("orders", "mails", "ledger")]
    queues = map(QueueDefinition, ("orders", "mails", "ledger"))
    return BrokerSnapshot(Server(), Definitions.of([ExchangeDefinition("events")], queues, bindings), complete)


@pytest.mark.parametrize("to", ["own", "elsewhere", "retry"])
def test_a_queue_or_its_retry_exchange_has_no_audience(to: str) -> None:
    assert also_receives(a_tally(), order(to), a_survey()) == ()


def test_the_original_exchange_has_one() -> None:
    assert also_receives(a_tally(), order("original"), a_survey()) == ("ledger", "mails")


def test_everybody_at_a_named_exchange_receives_it() -> None:
    assert also_receives(a_tally(), order("exchange:events:order.new"), a_survey()) == ("ledger", "mails", "orders")


def test_without_the_bindings_nobody_knows() -> None:
    assert also_receives(a_tally(), order("original"), a_survey(complete=False)) is None


def test_what_is_discarded_goes_to_nobody() -> None:
    assert also_receives(a_tally(), order("original", kind=OperationKind.DISCARD), a_survey()) == ()


# What to mind -------------------------------------------------------------------------------------


def warned(wanted: OperationRequest | None = None, found: PlanTally | None = None, **said: Any) -> tuple[str, ...]:
    usual: dict[str, Any] = {"targets": (), "also": (), "consumers": 0, "inbox_windows": {}, "now": NOW}
    return warnings(found or a_tally(), wanted or order(), **usual | said)


def test_a_plan_without_a_catch_warns_of_nothing() -> None:
    assert warned(targets=(PlanTarget("", "orders", 1, True, 2),)) == ()


def test_a_missing_destination_and_one_without_a_consumer() -> None:
    gone, idle, unseen = (
        PlanTarget("", "gone", 1, False),
        PlanTarget("", "idle", 1, True, 0),
        PlanTarget("", "who knows", 1),
    )
    assert warned(targets=(gone, idle, unseen)) == (
        "gone does not exist: nothing can be moved there",
        "idle has no consumer: messages will wait there",
    )


def test_others_that_receive_it_are_named_or_said_to_be_unknown() -> None:
    assert "ledger, mails will receive these messages, too" in warned(also=("ledger", "mails"))[0]
    assert "cannot be seen without the management API" in warned(also=None)[0]


def test_somebody_who_consumes_the_dead_letters() -> None:
    assert "a consumer takes messages out of orders.dlq" in warned(consumers=1)[0]
    assert "2 consumers take messages out of orders.dlq" in warned(consumers=2)[0]


def test_an_inbox_that_remembers_less_than_the_oldest_is_old() -> None:
    short = warned(inbox_windows={"orders": timedelta(days=1)})
    assert "the oldest died 2d ago, and the inbox of orders remembers 1d" in short[0]
    assert warned(inbox_windows={"orders": timedelta(days=3)}) == ()
    assert warned(inbox_windows={"payments": timedelta(days=1)}) == ()
    assert warned(found=a_tally(oldest=None), inbox_windows={"orders": timedelta(days=1)}) == ()


def test_a_plan_that_stopped_early_says_so() -> None:
    def plan(scanned: int) -> RedrivePlan:
        return RedrivePlan(order(), NOW, 10, scanned, 0, 0, (), (), (), (), ())

    assert plan(10).is_complete
    assert not plan(2).is_complete


def test_a_target_reads_as_what_it_is() -> None:
    assert str(PlanTarget("", "orders", 1)) == "orders"
    assert str(PlanTarget("events", "order.new", 1)) == "events (order.new)"
