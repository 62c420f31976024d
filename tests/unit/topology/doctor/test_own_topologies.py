"""What Redrive makes is healthy: every route, every queue type, every version, with and without consumers."""

from itertools import product

import pytest

from redrive.recovery.retry import Retry, RetryRoute
from redrive.topology import Exchange, Queue, QueueType, Server, Topology, expand
from redrive.topology.doctor import examine
from redrive.topology.snapshot import BrokerSnapshot, QueueState

VERSIONS = ["3.10", "4.0", "4.3"]
POSSIBLE = [
    (version, kind, via)
    for version, kind, via in product(VERSIONS, (QueueType.CLASSIC, QueueType.QUORUM), (*RetryRoute, None))
    if via is not RetryRoute.QUORUM or (kind is QueueType.QUORUM and version == "4.3")  # others are refused
]


def topology(kind: QueueType, retry: Retry | None) -> Topology:
    events = Exchange("events", "topic")
    queues = [
        Queue("q.validator", bind=events.on("files.uploaded.*"), retry=retry),
        Queue("q.thumbnails", bind=events.on("files.#"), retry=retry),
    ]
    return Topology(exchanges=[events], queues=queues, queue_type=kind)


def snapshot(wanted: Topology, server: Server, *, consumers: int = 1, complete: bool = True) -> BrokerSnapshot:
    definitions = expand(wanted, server)
    mains = {queue.name for queue in wanted.queues}
    states = {
        queue.name: QueueState(messages=0, consumers=consumers if queue.name in mains else 0)
        for queue in definitions.queues
    }
    return BrokerSnapshot(server, definitions, complete, states)


def unhealthy(seen: BrokerSnapshot, wanted: Topology | None) -> set[str]:
    return {finding.id for finding in examine(seen, wanted) if finding.id != "not-examined"}


@pytest.mark.parametrize(("version", "kind", "via"), POSSIBLE)
@pytest.mark.parametrize("way", ["seen from outside", "with the topology", "without consumers", "over plain AMQP"])
def test_nothing_is_found(version: str, kind: QueueType, via: RetryRoute | None, way: str) -> None:
    wanted = topology(kind, None if via is None else Retry(attempts=3, delay="15s", via=via))
    server = Server.of(version)
    complete = way != "over plain AMQP"
    seen = snapshot(wanted, server, consumers=0 if way == "without consumers" else 1, complete=complete)

    found = unhealthy(seen, None if way == "seen from outside" else wanted)

    price = via is RetryRoute.REJECT and kind is QueueType.CLASSIC and version != "3.10"
    assert found == ({"reject-classic"} if price else set())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", [QueueType.CLASSIC, QueueType.QUORUM])
def test_a_ladder_of_waits_and_delays_for_publishing(version: str, kind: QueueType) -> None:
    queues = [
        Queue("q", retry=Retry(steps=["1s", "30s", "10m"], jitter=0.2)),
        Queue("later", retry=Retry(via=RetryRoute.DELAYED)),
        Queue("no.retry"),
        Queue("bare", dlq=False),
    ]
    wanted, server = Topology(queues=queues, queue_type=kind, delays=True), Server.of(version)

    assert unhealthy(snapshot(wanted, server), wanted) == set()


@pytest.mark.parametrize(("version", "found"), [("3.10", set()), ("4.0", {"delayed-ending"})])
def test_with_the_delayed_message_plugin_only_its_end_is_told(version: str, found: set[str]) -> None:
    wanted = topology(QueueType.QUORUM, Retry(via=RetryRoute.DELAYED))

    assert unhealthy(snapshot(wanted, Server.of(version, delayed_exchanges=True)), wanted) == found
