from redrive.topology import BindingDefinition, Definitions, ExchangeDefinition, QueueDefinition, Server
from redrive.topology.plan import Action, Difference, make_plan
from redrive.topology.snapshot import BrokerSnapshot

EVENTS = ExchangeDefinition("events", "topic")
ORDERS = QueueDefinition("orders", arguments={"x-queue-type": "classic", "x-message-ttl": 1000})
BOUND = BindingDefinition("events", "orders", "order.*")
WANTED = Definitions.of([EVENTS], [ORDERS], [BOUND])


def snapshot(definitions: Definitions = Definitions(), *, complete: bool = True) -> BrokerSnapshot:  # noqa: B008 - frozen
    return BrokerSnapshot(Server.of("4.3"), definitions, complete)


def actions(have: BrokerSnapshot, wanted: Definitions = WANTED) -> list[str]:
    return [f"{step.action} {step.definition}" for step in make_plan(wanted, have).steps]


def test_an_empty_broker_needs_everything() -> None:
    plan = make_plan(WANTED, snapshot())
    assert [step.action for step in plan.steps] == [Action.CREATE] * 3
    assert not plan.is_empty


def test_a_broker_that_has_everything_needs_nothing() -> None:
    plan = make_plan(WANTED, snapshot(WANTED))
    assert plan.is_empty
    assert plan.count(Action.UNCHANGED) == 3


def test_a_difference_is_a_conflict_that_tells_have_and_want() -> None:
    have = Definitions.of(
        [EVENTS], [QueueDefinition("orders", arguments={"x-message-ttl": 5, "x-max-length": 9})], [BOUND]
    )
    (conflict,) = make_plan(WANTED, snapshot(have)).conflicts
    assert conflict.differences == (Difference("x-max-length", 9, None), Difference("x-message-ttl", 5, 1000))
    assert str(conflict.differences[0]) == "x-max-length: has 9, wanted nothing"


def test_everything_that_cannot_be_changed_in_place_counts() -> None:
    have = Definitions.of(
        [ExchangeDefinition("events", "fanout", internal=True, arguments={"alternate-exchange": "x"})],
        [QueueDefinition("orders", durable=False, arguments={"x-queue-type": "quorum", "x-message-ttl": 1000})],
        [BOUND],
    )
    exchange, queue = make_plan(WANTED, snapshot(have)).conflicts
    assert {one.what for one in exchange.differences} == {"type", "internal", "alternate-exchange"}
    assert {one.what for one in queue.differences} == {"durable", "x-queue-type"}


def test_a_queue_that_does_not_say_its_type_is_classic() -> None:
    have = Definitions.of([EVENTS], [QueueDefinition("orders", arguments={"x-message-ttl": 1000})], [BOUND])
    assert make_plan(WANTED, snapshot(have)).is_empty


def test_arguments_that_rabbitmq_does_not_know_it_does_not_compare() -> None:
    queue = QueueDefinition("orders", arguments={**ORDERS.arguments, "x-team": "payments"})
    assert make_plan(WANTED, snapshot(Definitions.of([EVENTS], [queue], [BOUND]))).is_empty


def test_what_nobody_asked_for_is_extra_and_no_work() -> None:
    more = Definitions.of(
        [ExchangeDefinition("other"), ExchangeDefinition("amq.topic", "topic")],
        [QueueDefinition("other")],
        [BindingDefinition("events", "orders", "invoice.*")],
    )
    plan = make_plan(WANTED, snapshot(WANTED | more))
    assert plan.is_empty
    assert [str(step.definition) for step in plan.steps_by(Action.EXTRA)] == [
        "exchange other (direct)", "queue other", "binding events → orders [invoice.*]",
    ]  # fmt: skip


def test_over_plain_amqp_bindings_are_unseen_unless_an_end_is_missing() -> None:
    both_ends = Definitions.of([EVENTS], [ORDERS])
    assert actions(snapshot(both_ends, complete=False))[-1] == "unseen binding events → orders [order.*]"
    assert actions(snapshot(Definitions.of([EVENTS]), complete=False))[-1] == "create binding events → orders [order.*]"


def test_the_order_of_a_bindings_arguments_means_nothing() -> None:
    wanted = Definitions.of([EVENTS], [ORDERS], [BindingDefinition("events", "orders", arguments={"a": 1, "b": 2})])
    have = Definitions.of([EVENTS], [ORDERS], [BindingDefinition("events", "orders", arguments={"b": 2, "a": 1})])
    assert make_plan(wanted, snapshot(have)).is_empty
