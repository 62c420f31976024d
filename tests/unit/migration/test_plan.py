"""Whether and how a queue can be migrated: decided from what is wanted and what a broker holds."""

from collections.abc import Mapping
from typing import Any

import pytest

from redrive.errors import MigrationRefused
from redrive.migration.plan import MigrationPlan, plan_migration
from redrive.migration.steps import MigrationNames, MigrationStep
from redrive.topology.definitions import BindingDefinition, Definitions, ExchangeDefinition, QueueDefinition
from redrive.topology.plan import Difference
from redrive.topology.snapshot import BrokerSnapshot, QueueState, Server

EVENTS = ExchangeDefinition("events", "topic")
OLD = QueueDefinition("orders", arguments={"x-queue-type": "classic"})
BOUND = BindingDefinition("events", "orders", "order.*")
NAMES = MigrationNames("orders")


def wanted(*others: QueueDefinition, **arguments: Any) -> Definitions:
    """The queue with these arguments (`message_ttl=5`), and others beside it."""
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    queue = QueueDefinition("orders", arguments={"x-queue-type": "classic", **named})
    return Definitions.of([EVENTS], [queue, *others], [BOUND])


def seen(
    *others: QueueDefinition | ExchangeDefinition | BindingDefinition,
    old: QueueDefinition = OLD,
    complete: bool = True,
    states: Mapping[str, QueueState] | None = None,
) -> BrokerSnapshot:
    definitions = Definitions.of(
        [EVENTS, *(one for one in others if isinstance(one, ExchangeDefinition))],
        [old, *(one for one in others if isinstance(one, QueueDefinition))],
        [BOUND, *(one for one in others if isinstance(one, BindingDefinition))],
    )
    return BrokerSnapshot(Server.of("4.3"), definitions, complete, states or {})


def plan(want: Definitions | None = None, snapshot: BrokerSnapshot | None = None) -> MigrationPlan:
    return plan_migration("orders", wanted(message_ttl=5) if want is None else want, snapshot or seen())


def waiting(name: str, **arguments: Any) -> QueueDefinition:
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return QueueDefinition(name, arguments={"x-queue-type": "classic", **named})


# What is planned --------------------------------------------------------------------------------------


def test_a_queue_that_differs_is_to_be_migrated() -> None:
    found = plan(snapshot=seen(states={"orders": QueueState(messages=7, consumers=1)}))

    assert found.is_needed
    assert found.differences == (Difference("x-message-ttl", None, 5),)
    assert (found.messages, found.consumers) == (7, 1)
    assert (found.record.step, found.record.old, found.record.bindings) == (MigrationStep.PREPARE, OLD, (BOUND,))
    assert not found.problems


def test_a_queue_that_is_as_wanted_needs_no_migration() -> None:
    assert not plan(wanted()).is_needed


def test_the_steps_are_told_but_for_the_one_that_is_hoped_to_be_needless() -> None:
    assert [step for step, _ in plan().steps] == [step for step in MigrationStep if step is not MigrationStep.RETREAT]


def test_bindings_that_are_wanted_and_missing_are_added_if_they_have_a_source() -> None:
    more = [BindingDefinition("events", "orders", "invoice.*"), BindingDefinition("missing", "orders")]
    want = wanted(message_ttl=5) | Definitions.of(bindings=more)

    assert plan(want).record.added == (more[0],)


def test_bindings_that_nobody_wants_are_kept() -> None:
    extra = BindingDefinition("events", "orders", "extra")

    assert plan(snapshot=seen(extra)).record.bindings == (extra, BOUND)


def test_queues_that_let_messages_go_to_it_by_name_are_emptied_too() -> None:
    back = {"dead_letter_exchange": "", "dead_letter_routing_key": "orders"}
    snapshot = seen(
        waiting("orders.retry", message_ttl=5, **back),
        waiting("by.policy"),
        waiting("own.keys", message_ttl=5, dead_letter_exchange=""),
        waiting("in.use", message_ttl=5, **back),
        waiting("elsewhere", message_ttl=5, dead_letter_exchange="", dead_letter_routing_key="invoices"),
        waiting("over.an.exchange", message_ttl=5, dead_letter_exchange="events"),
        waiting("never.lets.go", message_ttl=5),
        states={
            "by.policy": QueueState(
                effective_policy={
                    "message-ttl": 5,
                    "dead-letter-exchange": "",
                    "dead-letter-routing-key": "orders",
                }
            ),
            "in.use": QueueState(consumers=1),
        },
    )

    assert plan(snapshot=snapshot).record.feeders == ("by.policy", "orders.retry", "own.keys")


def test_what_its_dead_letters_need_is_made_if_it_is_missing() -> None:
    dead = Definitions.of(
        [ExchangeDefinition("dlq.orders")],
        [QueueDefinition("orders.dlq"), QueueDefinition("other")],
        [BindingDefinition("dlq.orders", "orders.dlq", "parking"), BindingDefinition("events", "other")],
    )
    want = wanted(dead_letter_exchange="dlq.orders") | dead

    needs = plan(want).record.needs

    assert [str(one) for one in needs] == [
        "exchange dlq.orders (direct)",
        "queue orders.dlq",
        "binding dlq.orders → orders.dlq [parking]",
    ]


def test_what_its_dead_letters_need_by_name_is_made_too() -> None:
    want = wanted(QueueDefinition("orders.dlq"), dead_letter_exchange="", dead_letter_routing_key="orders.dlq")

    assert [str(one) for one in plan(want).record.needs] == ["queue orders.dlq"]


def test_what_its_dead_letters_need_is_left_alone_if_it_is_there() -> None:
    there = (
        ExchangeDefinition("dlq.orders", "fanout"),
        QueueDefinition("orders.dlq", arguments={"x-max-length": 1}),
        BindingDefinition("dlq.orders", "orders.dlq"),
    )
    want = wanted(QueueDefinition("orders.dlq"), dead_letter_exchange="dlq.orders") | Definitions.of(
        [ExchangeDefinition("dlq.orders")], bindings=[there[2]]
    )

    assert len(plan(want, seen(*there)).record.needs) == 0


@pytest.mark.parametrize(
    ("arguments", "policy", "hidden"),
    [
        ({}, {}, 0),
        ({"delayed_retry_type": "failed", "delayed_retry_min": 400, "delayed_retry_max": 900}, {}, 900),
        ({"delayed_retry_type": "all", "delayed_retry_min": 400}, {}, 400),
        ({"delayed_retry_type": "disabled", "delayed_retry_min": 400}, {}, 0),
        ({}, {"delayed-retry-type": "all", "delayed-retry-min": 300}, 300),
    ],
)
def test_messages_that_the_broker_holds_back_for_a_retry_are_waited_for(
    arguments: dict[str, Any], policy: dict[str, Any], hidden: int
) -> None:
    snapshot = seen(old=waiting("orders", **arguments), states={"orders": QueueState(effective_policy=policy)})

    assert plan(snapshot=snapshot).record.hidden == hidden


# What cannot be judged --------------------------------------------------------------------------------


def test_without_its_bindings_a_queue_is_not_touched() -> None:
    with pytest.raises(MigrationRefused, match="plain AMQP cannot list them: give the management API's URL"):
        plan(snapshot=seen(complete=False))


def test_a_queue_that_nobody_wants_is_not_touched() -> None:
    with pytest.raises(MigrationRefused, match="queue orders was not migrated: nobody wants such a queue"):
        plan(Definitions())


def test_a_queue_that_does_not_exist_is_for_apply_to_make() -> None:
    with pytest.raises(MigrationRefused, match=r"there is no such queue: `redrive topology apply` makes it"):
        plan(snapshot=BrokerSnapshot(Server.of("4.3"), Definitions(), complete=True))


# What cannot be done ----------------------------------------------------------------------------------


def test_streams_are_refused() -> None:
    (problem,) = plan(snapshot=seen(old=QueueDefinition("orders", arguments={"x-queue-type": "stream"}))).problems

    assert problem.startswith("a stream keeps what was read")


def test_auto_delete_is_refused_on_either_side() -> None:
    want = Definitions.of([EVENTS], [QueueDefinition("orders", auto_delete=True)], [BOUND])
    snapshot = seen(old=QueueDefinition("orders", auto_delete=True))

    assert [problem.split(",")[0] for problem in plan(want, snapshot).problems] == [
        "it is auto-delete",
        "it is wanted auto-delete",
    ]


@pytest.mark.parametrize("kind", ["x-consistent-hash", "x-random", "x-recent-history"])
def test_exchanges_that_route_by_their_bindings_number_are_refused(kind: str) -> None:
    snapshot = seen(ExchangeDefinition("shards", kind), BindingDefinition("shards", "orders", "1"))

    (problem,) = plan(snapshot=snapshot).problems

    assert f"exchange shards is of type {kind}" in problem


@pytest.mark.parametrize(
    "leftover",
    [
        *(QueueDefinition(name) for name in (*NAMES.gates, NAMES.store, NAMES.trial)),
        *(ExchangeDefinition(name) for name in (NAMES.router, NAMES.gatehouse, NAMES.route_exchange("orders"))),
        QueueDefinition(NAMES.journal, arguments={"x-queue-type": "classic", "x-message-ttl": 5}),
    ],
    ids=str,
)
def test_what_bears_one_of_our_names_and_is_not_ours_is_not_touched(
    leftover: QueueDefinition | ExchangeDefinition,
) -> None:
    (problem,) = plan(snapshot=seen(leftover)).problems

    assert problem.endswith(
        f"{leftover.name} exists, and no migration is recorded that made it: look into it, and delete it"
    )


def test_an_empty_journal_of_ours_is_no_hindrance() -> None:
    assert not plan(snapshot=seen(waiting(NAMES.journal))).problems


def test_a_name_that_leaves_no_room_for_others_is_refused() -> None:
    long = QueueDefinition("q" * 150, arguments={"x-message-ttl": 5})
    snapshot = BrokerSnapshot(Server.of("4.3"), Definitions.of(queues=[QueueDefinition(long.name)]), complete=True)

    problems = plan_migration(long.name, Definitions.of(queues=[long]), snapshot).problems

    assert problems
    assert all("is longer than 255 bytes" in problem for problem in problems)


def test_a_queue_that_would_drop_what_is_in_it_is_refused() -> None:
    states = {"orders": QueueState(messages=11)}

    (problem,) = plan(wanted(max_length=10), seen(states=states)).problems

    assert "it holds 11 messages and is wanted with x-max-length 10" in problem
    assert not plan(wanted(max_length=11), seen(states=states)).problems
    assert not plan(wanted(max_length=10, overflow="reject-publish"), seen(states=states)).problems


def test_arguments_that_cannot_be_written_down_are_refused() -> None:
    (problem,) = plan(wanted(team=b"\xff")).problems

    assert "values that JSON cannot carry" in problem


# What one should know ---------------------------------------------------------------------------------


def test_producers_who_publish_by_name_are_always_warned_of() -> None:
    (warning,) = plan().warnings

    assert "published straight to orders by its name" in warning


def test_waits_that_start_again_are_reported() -> None:
    snapshot = seen(waiting("orders.retry", message_ttl=5, dead_letter_exchange="", dead_letter_routing_key="orders"))

    assert "the waits of the messages in orders.retry start again" in plan(snapshot=snapshot).warnings


def test_other_queues_whose_dead_letters_come_by_name_are_told() -> None:
    snapshot = seen(waiting("upstream", dead_letter_exchange="", dead_letter_routing_key="orders"))

    assert any(
        "queue upstream dead-letters to orders by its name" in warning for warning in plan(snapshot=snapshot).warnings
    )


def test_dead_letters_that_would_go_nowhere_are_told() -> None:
    found = plan(wanted(dead_letter_exchange="nowhere"))

    assert any("dead-letter exchange nowhere does not exist" in warning for warning in found.warnings)


def test_a_limit_in_bytes_cannot_be_judged_and_is_told() -> None:
    assert any("x-max-length-bytes" in warning for warning in plan(wanted(max_length_bytes=10)).warnings)
