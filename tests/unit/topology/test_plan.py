from redrive.topology import BindingDefinition, Definitions, ExchangeDefinition, QueueDefinition, Server
from redrive.topology.plan import Action, Difference, make_plan, own_part
from redrive.topology.snapshot import BrokerSnapshot, QueueState

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
    assert [str(step.definition) for step in plan.steps_by(Action.OTHER)] == ["exchange other (direct)", "queue other"]
    assert [str(step.definition) for step in plan.steps_by(Action.EXTRA)] == ["binding events → orders [invoice.*]"]


def test_bindings_that_touch_nothing_of_ours_are_those_of_others() -> None:
    more = Definitions.of(
        [ExchangeDefinition("other")],
        [QueueDefinition("other"), QueueDefinition("shared")],
        [
            BindingDefinition("events", "other", "order.*"),  # of our exchange, to a queue of others
            BindingDefinition("other", "shared", "a"),  # of an existing queue, which is not ours to judge
            BindingDefinition("events", "shared", "a"),
            BindingDefinition("other", "events", "a", "exchange"),
        ],
    )
    wanted = WANTED | Definitions.of(queues=[QueueDefinition("shared", existing=True)])
    plan = make_plan(wanted, snapshot(WANTED | more))
    assert [str(step.definition) for step in plan.steps_by(Action.EXTRA)] == [
        "binding events → shared [a]", "binding other → events [a]",
    ]  # fmt: skip
    hidden = [step for step in plan.steps if step not in plan.shown()]
    assert {step.action for step in hidden} == {Action.OTHER}
    assert plan.shown(everything=True) == plan.steps


def test_what_is_of_an_application_are_its_queues_what_feeds_them_and_where_their_dead_letters_go() -> None:
    held = WANTED | Definitions.of(
        [ExchangeDefinition("other"), ExchangeDefinition("old.dlx")],
        [
            QueueDefinition("orders", arguments={"x-dead-letter-exchange": "old.dlx"}),
            QueueDefinition("other"),
            QueueDefinition("old.dead"),
        ],
        [BindingDefinition("old.dlx", "old.dead", "#"), BindingDefinition("other", "other"), BOUND,
         BindingDefinition("old.dlx", "old.dead", "order.*")],
    )  # fmt: skip
    mine = own_part(held, Definitions.of(queues=[QueueDefinition("orders", existing=True)]))
    assert [one.name for one in mine.exchanges] == ["events", "old.dlx"]
    assert [one.name for one in mine.queues] == ["old.dead", "orders"]
    assert {bind.source for bind in mine.bindings} == {"events", "old.dlx"}


def test_over_plain_amqp_bindings_are_unseen_unless_an_end_is_missing() -> None:
    both_ends = Definitions.of([EVENTS], [ORDERS])
    assert actions(snapshot(both_ends, complete=False))[-1] == "unseen binding events → orders [order.*]"
    assert actions(snapshot(Definitions.of([EVENTS]), complete=False))[-1] == "create binding events → orders [order.*]"


def test_the_order_of_a_bindings_arguments_means_nothing() -> None:
    wanted = Definitions.of([EVENTS], [ORDERS], [BindingDefinition("events", "orders", arguments={"a": 1, "b": 2})])
    have = Definitions.of([EVENTS], [ORDERS], [BindingDefinition("events", "orders", arguments={"b": 2, "a": 1})])
    assert make_plan(wanted, snapshot(have)).is_empty


# Existing queues ----------------------------------------------------------------------------------


def note(have: BrokerSnapshot) -> str:
    (step,) = make_plan(Definitions.of(queues=[QueueDefinition("orders", existing=True)]), have).steps_by(
        Action.EXISTING
    )
    return step.note


def test_an_existing_queue_is_taken_with_whatever_arguments_it_has() -> None:
    plan = make_plan(Definitions.of(queues=[QueueDefinition("orders", existing=True)]), snapshot(WANTED))
    assert plan.is_empty
    assert not plan.conflicts
    (step,) = plan.steps_by(Action.EXISTING)
    assert step.definition.arguments == ORDERS.arguments


def test_an_existing_queue_that_is_not_there_is_missing_and_not_created() -> None:
    plan = make_plan(Definitions.of(queues=[QueueDefinition("orders", existing=True)]), snapshot())
    assert not plan.is_empty
    assert [str(step) for step in plan.steps] == ["missing: queue orders"]


def test_a_plan_says_what_becomes_of_what_the_broker_removes_from_an_existing_queue() -> None:
    plain = Definitions.of(queues=[QueueDefinition("orders")])
    assert note(snapshot(plain)) == (
        "it has no dead-letter exchange: what expires in it, overflows or is rejected by others is dropped"
    )
    assert "unless a policy sets one, what expires in it" in note(snapshot(plain, complete=False))
    by_policy = QueueState(effective_policy={"dead-letter-exchange": "", "dead-letter-routing-key": "old.dead"})
    led = Definitions.of(queues=[QueueDefinition("orders"), QueueDefinition("old.dead")])
    found = BrokerSnapshot(Server.of("4.3"), led, complete=True, queues={"orders": by_policy})
    assert note(found).endswith("goes to its own dead-letter exchange (default exchange), to old.dead")
    nowhere = QueueDefinition("orders", arguments={"x-dead-letter-exchange": "gone"})
    assert note(snapshot(Definitions.of(queues=[nowhere]))).endswith(
        "goes to its own dead-letter exchange gone, which leads to no queue: it is dropped"
    )
    assert note(snapshot(Definitions.of(queues=[nowhere]), complete=False)).endswith("dead-letter exchange gone")
