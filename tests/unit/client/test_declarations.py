"""What was declared is remembered as it is now, and told in an order in which it can be declared again."""

import pytest

from redrive.client.declarations import Declaration, Declarations
from redrive.wire.methods.exchange import ExchangeBind, ExchangeDeclare, ExchangeUnbind
from redrive.wire.methods.queue import QueueBind, QueueDeclare, QueueUnbind

EXCHANGE = ExchangeDeclare(exchange="news", type="topic")
QUEUE = QueueDeclare(queue="paper", durable=True)
UNNAMED = QueueDeclare(exclusive=True)
BINDING = QueueBind(queue="paper", exchange="news", routing_key="sport.#")
EXCHANGE_BINDING = ExchangeBind(destination="news", source="world", routing_key="#")


@pytest.fixture
def declarations() -> Declarations:
    return Declarations()


def recorded(*these: Declaration) -> Declarations:
    declarations = Declarations()
    for declaration in these:
        match declaration:
            case ExchangeDeclare():
                declarations.exchange(declaration)
            case QueueDeclare():
                declarations.queue(declaration, declaration.queue or "amq.gen-1")
            case _:
                declarations.bind(declaration)
    return declarations


def test_exchanges_come_before_queues_and_bindings_come_last() -> None:
    declarations = recorded(BINDING, QUEUE, EXCHANGE_BINDING, EXCHANGE)

    assert list(declarations) == [EXCHANGE, QUEUE, BINDING, EXCHANGE_BINDING]


def test_the_same_declared_twice_is_remembered_once() -> None:
    assert len(list(recorded(EXCHANGE, QUEUE, BINDING, EXCHANGE, QUEUE, BINDING))) == 3


def test_the_last_declaration_of_a_name_counts() -> None:
    other = QueueDeclare(queue="paper", durable=False)

    assert list(recorded(QUEUE, other)) == [other]


def test_bindings_with_other_keys_or_arguments_are_other_bindings() -> None:
    other_key = QueueBind(queue="paper", exchange="news", routing_key="art.#")
    other_arguments = QueueBind(queue="paper", exchange="news", routing_key="sport.#", arguments={"x-match": "any"})

    assert list(recorded(BINDING, other_key, other_arguments)) == [BINDING, other_key, other_arguments]


# Forgetting -------------------------------------------------------------------------------------------


def test_an_unbound_binding_is_forgotten() -> None:
    declarations = recorded(BINDING)

    declarations.unbind(QueueUnbind(queue="paper", exchange="news", routing_key="sport.#"))

    assert list(declarations) == []


def test_an_unbound_binding_between_exchanges_is_forgotten() -> None:
    declarations = recorded(EXCHANGE_BINDING)

    declarations.unbind(ExchangeUnbind(destination="news", source="world", routing_key="#"))

    assert list(declarations) == []


def test_the_order_of_a_bindings_arguments_does_not_matter() -> None:
    """RabbitMQ sorts them, so to it the binding is the same and is gone."""
    bind = QueueBind(queue="paper", exchange="news", arguments={"x-match": "all", "kind": "sport"})
    declarations = recorded(bind)

    declarations.unbind(QueueUnbind(queue="paper", exchange="news", arguments={"kind": "sport", "x-match": "all"}))

    assert list(declarations) == []


def test_unbinding_what_was_not_bound_here_changes_nothing() -> None:
    declarations = recorded(BINDING)

    declarations.unbind(QueueUnbind(queue="paper", exchange="news", routing_key="art.#"))

    assert list(declarations) == [BINDING]


def test_a_deleted_queue_is_forgotten_with_its_bindings() -> None:
    declarations = recorded(EXCHANGE, QUEUE, BINDING, EXCHANGE_BINDING)

    declarations.forget_queue("paper")

    assert list(declarations) == [EXCHANGE, EXCHANGE_BINDING]


def test_a_deleted_exchange_is_forgotten_with_the_bindings_from_it() -> None:
    declarations = recorded(EXCHANGE, QUEUE, BINDING)

    declarations.forget_exchange("news")

    assert list(declarations) == [QUEUE]


def test_a_deleted_exchange_is_forgotten_with_the_bindings_to_it() -> None:
    declarations = recorded(EXCHANGE, EXCHANGE_BINDING)

    declarations.forget_exchange("news")

    assert list(declarations) == []


def test_a_queue_and_an_exchange_of_the_same_name_are_not_confused() -> None:
    to_exchange = ExchangeBind(destination="paper", source="world")
    declarations = recorded(QUEUE, to_exchange)

    declarations.forget_queue("paper")

    assert list(declarations) == [to_exchange]


def test_forgetting_what_is_not_known_changes_nothing() -> None:
    declarations = recorded(QUEUE)

    declarations.forget_queue("other")
    declarations.forget_exchange("other")

    assert list(declarations) == [QUEUE]


# One queue --------------------------------------------------------------------------------------------


def test_a_queue_needs_itself_its_bindings_and_their_exchanges() -> None:
    elsewhere = QueueBind(queue="other", exchange="news")
    declarations = recorded(
        EXCHANGE, ExchangeDeclare(exchange="unrelated"), QUEUE, QueueDeclare(queue="other"), BINDING, elsewhere
    )

    assert declarations.queue_declarations("paper") == [EXCHANGE, QUEUE, BINDING]


def test_a_queue_that_was_not_declared_here_is_not_ours_to_make() -> None:
    assert recorded(EXCHANGE, BINDING).queue_declarations("paper") == []


# Names that the broker chose --------------------------------------------------------------------------


def test_a_queue_keeps_its_name_unless_the_broker_chose_it(declarations: Declarations) -> None:
    assert declarations.current_name("paper") == "paper"


def test_a_server_named_queue_is_known_by_the_name_that_the_broker_gave() -> None:
    declarations = recorded(UNNAMED)

    assert declarations.name_of(UNNAMED) == "amq.gen-1"
    assert declarations.queue_declarations("amq.gen-1") == [UNNAMED]


def test_a_declaration_that_is_not_recorded_has_the_name_it_says(declarations: Declarations) -> None:
    assert declarations.name_of(QUEUE) == "paper"


def test_after_a_rename_the_old_name_leads_to_the_new_one() -> None:
    declarations = recorded(UNNAMED)

    declarations.rename("amq.gen-1", "amq.gen-2")

    assert declarations.current_name("amq.gen-1") == "amq.gen-2"


def test_after_many_renames_every_old_name_leads_to_the_newest() -> None:
    declarations = recorded(UNNAMED)

    declarations.rename("amq.gen-1", "amq.gen-2")
    declarations.rename("amq.gen-2", "amq.gen-3")

    assert [declarations.current_name(f"amq.gen-{number}") for number in (1, 2, 3)] == ["amq.gen-3"] * 3


def test_a_renamed_queue_takes_its_bindings_along() -> None:
    binding = QueueBind(queue="amq.gen-1", exchange="news", routing_key="sport.#")
    declarations = recorded(EXCHANGE, UNNAMED, QUEUE, binding, BINDING, EXCHANGE_BINDING)

    declarations.rename("amq.gen-1", "amq.gen-2")

    moved = QueueBind(queue="amq.gen-2", exchange="news", routing_key="sport.#")
    assert list(declarations) == [EXCHANGE, UNNAMED, QUEUE, moved, BINDING, EXCHANGE_BINDING]


def test_a_binding_read_before_the_rename_is_led_to_the_new_name() -> None:
    binding = QueueBind(queue="amq.gen-1", exchange="news")
    declarations = recorded(UNNAMED, binding)

    declarations.rename("amq.gen-1", "amq.gen-2")

    assert declarations.current_binding(binding) == QueueBind(queue="amq.gen-2", exchange="news")


def test_two_queues_that_the_broker_named_are_told_apart() -> None:
    one, other = QueueDeclare(exclusive=True), QueueDeclare(exclusive=True)
    declarations = Declarations()
    declarations.queue(one, "amq.gen-1")
    declarations.queue(other, "amq.gen-2")

    declarations.rename(declarations.name_of(other), "amq.gen-3")

    assert (declarations.name_of(one), declarations.name_of(other)) == ("amq.gen-1", "amq.gen-3")


def test_a_queue_that_kept_its_name_is_not_renamed() -> None:
    declarations = recorded(QUEUE, BINDING)

    declarations.rename("paper", "paper")

    assert declarations.current_name("paper") == "paper"
    assert list(declarations) == [QUEUE, BINDING]
