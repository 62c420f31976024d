"""A broker and what is known about it."""

import pickle
from datetime import timedelta
from typing import Any, cast

import pytest

from redrive import Retry
from redrive.admin.target import BrokerTarget, ConnectedTarget
from redrive.recovery.history import HeaderNames
from redrive.recovery.retry import Exponential
from redrive.topology import Definitions, Exchange, Queue, QueueDefinition, Server, Topology
from redrive.topology.snapshot import BrokerSnapshot, QueueState

QUEUE = {"arguments": {"x-max-priority": 10}}, {}
POLICY = {}, {"effective_policy": {"max-priority": 10}}
PLAIN = {}, {}
QUORUM = {"arguments": {"x-queue-type": "quorum"}}, {}


@pytest.mark.parametrize(
    ("told", "keeps_order", "prefers_urgent"),
    [(PLAIN, True, False), (QUORUM, False, False), (QUEUE, False, True), (POLICY, False, True)],
)
async def test_a_priority_or_quorum_queue_keeps_no_order(
    told: tuple[dict[str, Any], dict[str, Any]], keeps_order: bool, prefers_urgent: bool
) -> None:
    definition, state = QueueDefinition("q.dlq", **told[0]), QueueState(**told[1])
    snapshot = BrokerSnapshot(Server("4.1.0"), Definitions.of([], [definition]), True, {"q.dlq": state})
    view = ConnectedTarget(Topology(), cast("Any", None), cast("Any", None), snapshot)

    assert await view.keeps_order("q.dlq") is keeps_order
    assert await view.prefers_urgent("q.dlq") is prefers_urgent


@pytest.mark.parametrize(
    ("redrive_to", "destination"),
    [
        (None, "own"),
        ("own", "own"),
        ("retry", "retry"),
        ("exchange:retry.orders:retry", "retry"),  # its own retry exchange, where messages can be followed
        ("exchange:retry.orders:other", "exchange:retry.orders:other"),
        ("bills", "bills"),
    ],
    ids=str,
)
def test_a_re_drive_goes_where_the_topology_says(redrive_to: str | None, destination: str) -> None:
    orders = Queue("orders", retry=Retry(), redrive_to=redrive_to, dead_ends=["orders.invalid"])
    target = BrokerTarget(topology=Topology(queues=[orders, Queue("bills")]))

    assert str(target.redrive_to("orders.dlq")) == str(target.redrive_to("orders.invalid")) == destination
    assert str(target.redrive_to("bills.dlq")) == "own"
    assert str(target.redrive_to("unknown.dlq")) == "own"


def test_a_target_can_be_sent_to_another_process_though_functions_classify_errors() -> None:
    class Refused(Exception):
        """Known here alone."""

    waits = {"attempts": 11, "exponential": Exponential("5s"), "via": "delayed"}
    judging = Retry(**waits, never=lambda error: "no" in str(error), classify=lambda _: None)
    stepping = Retry(steps=["1s", "2s"], only=(Refused,))
    events = Exchange("events")
    queues = [Queue("orders", events.on("order"), retry=judging), Queue("bills", retry=stepping), Queue("plain")]
    names = {"orders": HeaderNames(attempts="x-retry-count")}
    target = BrokerTarget("amqp://there", None, None, Topology([events], queues), {"orders": timedelta(days=1)}, names)

    sent = pickle.loads(pickle.dumps(target.for_another_process()))

    schedules = [Retry(**waits), Retry(steps=["1s", "2s"]), None]
    assert [queue.retry for queue in sent.topology.queues] == schedules
    assert sent.topology.queues[0].bind == queues[0].bind
    assert (sent.broker, sent.inbox_windows, sent.header_names) == (target.broker, target.inbox_windows, names)
