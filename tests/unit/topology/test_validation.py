"""Refused combinations: each with a sentence that says what to do."""

import pytest

from redrive.errors import ConfigurationError, TopologyError
from redrive.recovery.retry import Exponential, Retry, RetryRoute
from redrive.topology import Definitions, Exchange, Queue, QueueDefinition, QueueType, Server, Topology, expand
from redrive.topology.validation import expiring_cycles, problems_of_definitions, problems_of_queue

V3, V43 = Server.of("3.10"), Server.of("4.3")
QUORUM, CLASSIC, STREAM = QueueType.QUORUM, QueueType.CLASSIC, QueueType.STREAM


@pytest.mark.parametrize(
    ("queue", "server", "complaint"),
    [
        (Queue("q", arguments={"x-dead-letter-exchange": "x"}), V43, "x-dead-letter-exchange follows from its retry"),
        (Queue("q", arguments={"x-queue-type": "quorum"}), V43, "say its type as type='quorum'"),
        (Queue("q", delivery_limit=3), V43, "only quorum queues have a delivery_limit"),
        (Queue("q", type=QUORUM, delivery_limit=-1), V3, "drops messages at their first requeue on RabbitMQ 3.10"),
        (Queue("q", dead_lettering="at-least-once"), V43, "needs a quorum queue"),
        (
            Queue("q", type=QUORUM, dead_lettering="at-least-once", arguments={"x-overflow": "drop-head"}),
            V43,
            "works with x-overflow reject-publish only",
        ),
        (Queue("q", type=STREAM, retry=Retry()), V43, "a stream keeps its messages"),
        (Queue("q", retry=Retry(steps=["1s", "2s"], via=RetryRoute.REJECT)), V43, "via='reject' has one wait"),
        (
            Queue("q", retry=Retry(via=RetryRoute.REJECT), arguments={"x-max-length": 5}),
            V43,
            "drops what x-max-length removes",
        ),
        (
            Queue("q", retry=Retry(via=RetryRoute.REJECT), arguments={"x-message-ttl": 5}),
            V43,
            "drops what x-message-ttl",
        ),
        (
            Queue("q", type=QUORUM, retry=Retry(via=RetryRoute.REJECT), delivery_limit=3),
            V43,
            "what reaches delivery_limit",
        ),
        (Queue("q", retry=Retry(via=RetryRoute.QUORUM)), V43, "via='quorum' needs a quorum queue"),
        (
            Queue("q", type=QUORUM, retry=Retry(via=RetryRoute.QUORUM)),
            V3,
            "needs RabbitMQ 4.3 and this is RabbitMQ 3.10",
        ),
        (Queue("q", type=QUORUM, retry=Retry(via=RetryRoute.QUORUM, jitter=0.1)), V43, "has no jitter"),
        (
            Queue("q", type=QUORUM, retry=Retry(attempts=4, exponential=Exponential("1s"), via=RetryRoute.QUORUM)),
            V43,
            "this schedule differs at retry 3",
        ),
        (
            Queue("q" * 220, retry=Retry(via=RetryRoute.DELAYED)),
            V43,
            "its name is too long for delays: at most 211 bytes",
        ),
        (Queue("all.#", retry=Retry(via=RetryRoute.DELAYED)), V43, "matches others' delays"),
    ],
)
def test_a_combination_that_cannot_work_is_explained(queue: Queue, server: Server, complaint: str) -> None:
    assert complaint in "\n".join(problems_of_queue(queue, queue.type or CLASSIC, server))


@pytest.mark.parametrize(
    "queue",
    [
        Queue("q", type=QUORUM, retry=Retry(attempts=4, steps=["1s", "2s", "3s"], via=RetryRoute.QUORUM)),
        Queue("q", type=QUORUM, retry=Retry(attempts=9, steps=["1s", "2s", "3s"], via=RetryRoute.QUORUM)),
        Queue("q", type=QUORUM, delivery_limit=-1),
        Queue("q", retry=Retry(via=RetryRoute.REJECT), arguments={"x-max-length": 5, "x-overflow": "reject-publish"}),
        Queue("q", dlq=False, arguments={"x-dead-letter-exchange": "x"}),
        Queue("q", arguments={"x-my-own": 1}),
    ],
)
def test_a_combination_that_works_passes(queue: Queue) -> None:
    assert list(problems_of_queue(queue, queue.type or CLASSIC, V43)) == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"x-message-ttl": "15s"}, "x-message-ttl '15s': want a number from 0"),
        ({"x-message-ttl": True}, "x-message-ttl True"),
        ({"x-expires": 0}, "x-expires 0: want a number from 1"),
        ({"x-dead-letter-exchange": [], "x-message-ttl": 1}, "x-dead-letter-exchange []: want a text"),
        ({"x-overflow": "drop"}, "x-overflow 'drop': want one of drop-head"),
        ({"x-queue-type": "quorum", "x-max-priority": 5}, "quorum queues refuse x-max-priority"),
        ({"x-delivery-limit": 5}, "classic queues refuse x-delivery-limit"),
    ],
)
def test_arguments_that_a_broker_refuses_are_told(arguments: dict[str, object], complaint: str) -> None:
    definitions = Definitions.of(queues=[QueueDefinition("q", arguments=arguments)])
    assert complaint in "\n".join(problems_of_definitions(definitions))


def _expiring(name: str, to: str, ttl: int | None = 5) -> QueueDefinition:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": to}
    return QueueDefinition(name, arguments=arguments | ({"x-message-ttl": ttl} if ttl is not None else {}))


def test_a_cycle_of_ttls_alone_is_dropped_by_rabbitmq_and_refused_here() -> None:
    definitions = Definitions.of(queues=[_expiring("a", "b"), _expiring("b", "a")])
    assert expiring_cycles(definitions) == [("a", "b")]
    assert "dead-letter cycle a → b → a" in "\n".join(problems_of_definitions(definitions))


def test_a_cycle_with_a_queue_that_must_reject_is_a_retry_loop() -> None:
    assert expiring_cycles(Definitions.of(queues=[_expiring("main", "retry", None), _expiring("retry", "main")])) == []


# Where a re-drive goes by default -----------------------------------------------------------------

EVENTS = Exchange("events", "topic")


def problems_of(queue: Queue) -> str:
    other = Queue("other", EVENTS.on("order.#"))
    with pytest.raises(TopologyError) as caught:
        expand(Topology([EVENTS], [queue, other]), V43)
    return "\n".join(caught.value.problems)


@pytest.mark.parametrize(
    ("queue", "problem"),
    [
        (
            Queue("q", redrive_to="exchange:event:order.new"),
            "queue q: redrive_to 'exchange:event:order.new': there is no exchange 'event', did you mean 'events'?",
        ),
        (
            Queue("q", redrive_to="exchange:other.people:k"),
            "queue q: redrive_to 'exchange:other.people:k': there is no exchange 'other.people': declare it",
        ),
        (
            Queue("q", retry=Retry(), redrive_to="exchange:retry.q:"),
            "queue q: redrive_to 'exchange:retry.q:': the routing key is empty, and no queue is bound to exchange "
            "'retry.q' by that: add the key",
        ),
        (
            Queue("q", retry=Retry(), redrive_to="exchange:retry.q:rety"),
            "queue q: redrive_to 'exchange:retry.q:rety': no queue is bound to exchange 'retry.q' by the key 'rety', "
            "did you mean 'retry'?",
        ),
        (
            Queue("q", redrive_to="othr"),
            "queue q: redrive_to 'othr': there is no queue 'othr', did you mean 'other'?",
        ),
        (
            Queue("q", redrive_to="q.dlq"),
            "queue q: redrive_to 'q.dlq': that is its own dead-letter queue: name another destination",
        ),
        (
            Queue("q", redrive_to="exchange:dlq.q:parking"),
            "queue q: redrive_to 'exchange:dlq.q:parking': that is its own dead-letter queue: name another destination",
        ),
        (
            Queue("q", dlq=False, redrive_to="own"),
            "queue q: redrive_to: it has no dead-letter queue: leave redrive_to out",
        ),
        (
            Queue("q", redrive_to="retry"),
            "queue q: redrive_to 'retry': it has no retry queue: add one (retry=Retry(...)), or write redrive_to='own'",
        ),
        (
            Queue("q", retry=Retry(via="delayed"), redrive_to="retry"),
            "queue q: redrive_to 'retry': it has no retry queue: add one (retry=Retry(...)), or write redrive_to='own'",
        ),
    ],
    ids=lambda value: value.redrive_to if isinstance(value, Queue) else "",
)
def test_a_default_destination_that_leads_nowhere_is_explained(queue: Queue, problem: str) -> None:
    assert problems_of(queue) == problem


@pytest.mark.parametrize(
    "to", ["own", "retry", "original", "other", "queue:other", "exchange:retry.q:retry", "exchange:events:order.new"]
)
def test_a_default_destination_that_leads_to_a_queue_is_accepted(to: str) -> None:
    queue = Queue("q", retry=Retry(), redrive_to=to)
    plain = Queue("q", retry=Retry())
    other = Queue("other", EVENTS.on("order.#"))

    # The broker holds none of it: the definitions are the same.
    assert expand(Topology([EVENTS], [queue, other]), V43) == expand(Topology([EVENTS], [plain, other]), V43)


@pytest.mark.parametrize("to", ["", "exchange:", "exchange:events", "queue:"])
def test_a_default_destination_that_cannot_be_read_is_an_error_of_its_queue(to: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^queue q: redrive_to: destination"):
        Queue("q", redrive_to=to)


# Existing queues ----------------------------------------------------------------------------------


def test_what_would_change_an_existing_queue_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="takes it as it is, and type, arguments would change it: leave them"):
        Queue("orders", existing=True, type="quorum", arguments={"x-max-length": 5})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="and delivery_limit would change it: leave it out"):
        Queue("orders", existing=True, delivery_limit=5)
    with pytest.raises(ConfigurationError, match="existing 'yes': want true or false"):
        Queue("orders", existing="yes")  # type: ignore[arg-type]


def held_with(arguments: dict[str, object], retry: Retry) -> Topology:
    topology = Topology(queues=[Queue("orders", existing=True, retry=retry)])
    return topology.with_held(Definitions.of(queues=[QueueDefinition("orders", arguments=arguments)]))


def test_arguments_of_an_existing_queue_that_nobody_may_change_are_not_judged() -> None:
    foreign = {"x-mesage-ttl": 5, "x-queue-mode": "lazy", "x-queue-type": "quorum", "x-delivery-limit": -1}
    wanted = expand(held_with(foreign, Retry(delay="15s")), Server.of("3.10"))
    assert wanted.queue("orders") == QueueDefinition("orders", arguments=foreign, existing=True)
    retry = wanted.queue("orders.retry")
    assert retry is not None
    assert retry.type == "quorum"


def test_a_route_is_judged_by_the_arguments_that_the_existing_queue_has() -> None:
    route = {"x-dead-letter-exchange": "retry.orders", "x-dead-letter-routing-key": "retry"}
    with pytest.raises(TopologyError, match="RabbitMQ drops what x-message-ttl removes, as a cycle"):
        expand(held_with({**route, "x-message-ttl": 5}, Retry(delay="15s", via="reject")), Server.of("4.3"))
    quorum = {**route, "x-queue-type": "quorum", "x-delivery-limit": 5}
    with pytest.raises(TopologyError, match="RabbitMQ drops, as a cycle, what reaches delivery_limit"):
        expand(held_with(quorum, Retry(delay="15s", via="reject")), Server.of("4.3"))
    with pytest.raises(TopologyError, match="via='quorum' needs x-delivery-limit 2 and x-delayed-retry-type 'all'"):
        expand(held_with({"x-queue-type": "quorum"}, Retry(delay="15s", via="quorum")), Server.of("4.3"))
    with pytest.raises(TopologyError, match="a stream keeps its messages and has no dead letters"):
        expand(held_with({"x-queue-type": "stream"}, Retry(delay="15s")), Server.of("4.3"))


def test_an_existing_queue_that_the_broker_was_not_asked_for_is_not_judged() -> None:
    topology = Topology(queues=[Queue("orders", existing=True, retry=Retry(delay="15s", via="reject"))])
    wanted = expand(topology, Server.of("4.3")).queue("orders")
    assert wanted == QueueDefinition("orders", arguments={"x-queue-type": "classic"}, existing=True)
