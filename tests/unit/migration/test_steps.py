"""A migration as values: its steps, its records, and what it puts beside the queue."""

import pytest

from redrive.migration.steps import (
    FOLLOWING,
    MigrationNames,
    MigrationRecord,
    MigrationStep,
    detour,
    direct_bindings,
    entrance,
    explain,
    helpers,
    is_switched,
    policy_risk,
    wait_queue_arguments,
    was_carried,
)
from redrive.topology.definitions import BindingDefinition, Definitions, ExchangeDefinition, QueueDefinition
from redrive.topology.snapshot import BrokerSnapshot, QueueState, Server

OLD = QueueDefinition("orders", arguments={"x-queue-type": "classic"})
WANTED = QueueDefinition("orders", arguments={"x-queue-type": "classic", "x-message-ttl": 1000, "x-max-length": 9})
BOUND = BindingDefinition("events", "orders", "order.*", arguments={"x-match": "all", "priority": 3})
NAMES = MigrationNames("orders")
SERVER = Server.of("4.3")


def record(
    step: MigrationStep = MigrationStep.PREPARE, wanted: QueueDefinition = WANTED, feeders: tuple[str, ...] = ()
) -> MigrationRecord:
    return MigrationRecord(step, OLD, wanted, bindings=(BOUND,), feeders=feeders)


# Steps ------------------------------------------------------------------------------------------------


def test_every_step_says_what_may_follow() -> None:
    assert set(FOLLOWING) == set(MigrationStep)


def test_every_step_is_reached_and_leads_to_the_end() -> None:
    def reached(start: MigrationStep) -> set[MigrationStep]:
        found, waiting = {start}, [start]
        while waiting:
            new = FOLLOWING[waiting.pop()] - found
            found |= new
            waiting += new
        return found

    assert reached(MigrationStep.PREPARE) == set(MigrationStep)
    assert all(MigrationStep.CLEAN in reached(step) for step in MigrationStep)


def test_before_the_queue_is_replaced_no_step_leads_back_further_than_to_empty_it() -> None:
    order = list(MigrationStep)
    back = {
        (step, after) for step in MigrationStep for after in FOLLOWING[step] if order.index(after) < order.index(step)
    }

    assert back == {(MigrationStep.REPLACE, MigrationStep.EMPTY), (MigrationStep.RETREAT, MigrationStep.RETURN)}


def test_the_next_record_has_the_next_number() -> None:
    after = record(MigrationStep.RETREAT).next_record(MigrationStep.RETURN, gate=1)

    assert (after.step, after.sequence, after.gate) == (MigrationStep.RETURN, 2, 1)


@pytest.mark.parametrize("step", MigrationStep)
def test_steps_that_do_not_follow_are_refused(step: MigrationStep) -> None:
    for after in set(MigrationStep) - FOLLOWING[step]:
        with pytest.raises(ValueError, match=f"no migration goes from {step} to {after}"):
            record(step).next_record(after)


@pytest.mark.parametrize("step", MigrationStep)
def test_every_step_explains_itself(step: MigrationStep) -> None:
    words = explain(step, record(feeders=("orders.retry",)))

    assert "{" not in words


def test_the_step_that_empties_names_every_queue_it_empties() -> None:
    assert (
        explain(MigrationStep.EMPTY, record(feeders=("orders.retry",))) == "carry what is in orders, orders.retry aside"
    )


# Records ----------------------------------------------------------------------------------------------


def test_a_record_survives_its_way_through_the_broker() -> None:
    whole = MigrationRecord(
        MigrationStep.SWITCH,
        OLD,
        WANTED,
        bindings=(BOUND,),
        added=(BindingDefinition("news", "orders"),),
        feeders=("orders.retry.15s",),
        needs=Definitions.of(
            [ExchangeDefinition("dlq")], [QueueDefinition("dead")], [BindingDefinition("dlq", "dead")]
        ),
        hidden=400,
        gate=1,
        sequence=17,
    )

    assert MigrationRecord.decode(whole.encode()) == whole


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"\xff", b'{"step": "dance"}', b'"prepare"'])
def test_what_is_no_record_is_none(body: bytes) -> None:
    assert MigrationRecord.decode(body) is None


def test_a_record_of_another_version_is_none() -> None:
    assert MigrationRecord.decode(record().encode().replace(b'"version":1', b'"version":2')) is None


def test_bindings_that_somebody_made_meanwhile_are_kept_beside_the_others() -> None:
    late = BindingDefinition("news", "orders", "sport")

    after = record(MigrationStep.DETOUR).with_adopted((late,))

    assert (after.step, after.bindings, after.sequence) == (MigrationStep.DETOUR, (BOUND, late), 2)


def test_the_two_gates_take_turns() -> None:
    first = record()
    second = MigrationRecord(MigrationStep.SWITCH, OLD, WANTED, gate=1)

    assert (first.open_gate, first.other_gate) == ("orders.migrating", "orders.migrating.2")
    assert (second.open_gate, second.other_gate) == ("orders.migrating.2", "orders.migrating")


# What is put beside the queue -------------------------------------------------------------------------


def test_the_router_leads_to_the_gate_when_it_leads_nowhere_else() -> None:
    made = helpers(record(), SERVER)

    router = made.exchange("migrating.orders")
    assert router is not None
    assert (router.type, dict(router.arguments)) == ("fanout", {"alternate-exchange": "migrating.orders.gate"})
    assert made.bindings_from("migrating.orders") == ()
    assert [bind.destination for bind in made.bindings_from("migrating.orders.gate")] == ["orders.migrating"]


def test_each_queue_has_a_lane_but_that_of_the_queue_itself_waits_for_the_new_one() -> None:
    made = helpers(record(feeders=("orders.retry",)), SERVER)

    lanes = {bind.source: bind.destination for bind in made.bindings if ".into." in bind.source}
    assert lanes == {
        NAMES.route_exchange(target): target
        for target in (*NAMES.gates, NAMES.store, "orders.retry", "orders.retry.migrating")
    }
    assert made.exchange(NAMES.route_exchange("orders")) is not None


def test_nothing_is_made_under_a_name_that_is_in_use_anyway() -> None:
    made = helpers(record(feeders=("orders.retry",)), SERVER)

    assert made.queue("orders") is None
    assert made.queue("orders.retry") is None


def test_messages_wait_in_queues_that_let_none_go() -> None:
    made = helpers(record(), SERVER)

    assert {queue.name: dict(queue.arguments) for queue in made.queues} == {
        name: {"x-queue-type": "classic"} for name in (*NAMES.gates, NAMES.store)
    }


@pytest.mark.parametrize(
    ("version", "arguments"),
    [("3.10", {"x-queue-type": "quorum"}), ("4.0", {"x-queue-type": "quorum", "x-delivery-limit": -1})],
)
def test_quorum_queues_may_deliver_as_often_as_it_takes(version: str, arguments: dict[str, object]) -> None:
    assert wait_queue_arguments("quorum", Server.of(version)) == arguments


def test_what_expires_at_the_gate_dies_as_it_would_have_in_the_queue() -> None:
    dying = {
        "x-dead-letter-exchange": "dlq",
        "x-dead-letter-routing-key": "parking",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    wanted = QueueDefinition("orders", arguments={"x-queue-type": "quorum", "x-max-length": 5, **dying})

    made = helpers(record(wanted=wanted), SERVER)

    gate, store = made.queue("orders.migrating"), made.queue("orders.migrating.old")
    assert gate is not None
    assert store is not None
    assert dict(gate.arguments) == {"x-queue-type": "quorum", "x-delivery-limit": -1, **dying}
    assert dict(store.arguments) == {"x-queue-type": "quorum", "x-delivery-limit": -1}


# What is seen on the way ------------------------------------------------------------------------------


def test_a_detour_has_the_key_and_the_arguments_of_the_way_it_replaces() -> None:
    assert detour(BOUND, NAMES) == BindingDefinition(
        "events", "migrating.orders", "order.*", "exchange", BOUND.arguments
    )


def test_bindings_of_the_queue_that_are_not_ours_are_direct() -> None:
    ours = (entrance(NAMES), BindingDefinition(NAMES.route_exchange("orders"), "orders"), detour(BOUND, NAMES))
    others = BindingDefinition("events", "invoices", "order.*")

    assert direct_bindings(Definitions.of(bindings=[*ours, others, BOUND]), NAMES) == (BOUND,)


def test_the_router_leads_into_the_queue_or_not() -> None:
    assert is_switched(Definitions.of(bindings=[entrance(NAMES)]), NAMES)
    assert not is_switched(Definitions.of(bindings=[BOUND, detour(BOUND, NAMES)]), NAMES)


@pytest.mark.parametrize(
    ("exchange", "carried"), [(NAMES.route_exchange("orders"), True), ("", True), ("events", False)]
)
def test_a_message_tells_by_its_exchange_how_it_came(exchange: str, carried: bool) -> None:
    assert was_carried(exchange, NAMES) is carried


@pytest.mark.parametrize("key", ["message-ttl", "max-length", "max-length-bytes", "expires", "delivery-limit"])
@pytest.mark.parametrize("queue", [*NAMES.gates, NAMES.store, NAMES.journal, "orders.retry.migrating"])
def test_a_policy_that_would_take_waiting_messages_away_is_found(queue: str, key: str) -> None:
    state = QueueState(policy="everything", effective_policy={key: 1})
    snapshot = BrokerSnapshot(SERVER, Definitions(), complete=True, queues={queue: state})

    (problem,) = policy_risk(record(feeders=("orders.retry",)), snapshot)

    assert f"policy everything sets {key} on queue {queue}" in problem


def test_policies_that_do_no_harm_and_those_of_other_queues_are_left_in_peace() -> None:
    states = {
        "orders.migrating": QueueState(effective_policy={"ha-mode": "all"}),
        "orders": QueueState(effective_policy={"message-ttl": 1}),
    }

    assert policy_risk(record(), BrokerSnapshot(SERVER, Definitions(), complete=True, queues=states)) == []
