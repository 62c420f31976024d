import pytest

from redrive.recovery.retry import Retry, RetryRoute
from redrive.topology import BindingDefinition, Definitions, ExchangeDefinition, QueueDefinition, Server, expand
from redrive.topology.dlq_detection import Feeders, dead_letter_queues, declared_dlqs, feeders, is_named_after, sources
from redrive.topology.model import Queue, Topology


def dead(*queues: QueueDefinition, bindings: tuple[BindingDefinition, ...] = ()) -> set[str]:
    exchanges = {bind.source for bind in bindings}
    return set(dead_letter_queues(Definitions.of(map(ExchangeDefinition, exchanges), queues, bindings)))


def to(target: str, **arguments: object) -> dict[str, object]:
    own = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target, **own}


@pytest.mark.parametrize(
    "name",
    [
        "q.dlq",
        "q_dlq",
        "q-dlq",
        "q.DLQ",
        "dlq.q",
        "dlq-q",
        "DLQ",
        "nfe.events.dlq",
        "q.dead",
        "q_error",
        "error",
        "deadletter",
        "q.dead-letter",
        "dead-letters.q",
        "OrdersDeadLetterQueue",
        "default.XQ",
        "q.parkingLot",
    ],
)
def test_names_that_say_it(name: str) -> None:
    assert dead(QueueDefinition(name)) == {name}


@pytest.mark.parametrize(
    "name", ["q", "log.error", "payment.failed", "deadlines", "q.retry", "terror", "undead", "dlqs"]
)
def test_names_that_do_not(name: str) -> None:
    assert dead(QueueDefinition(name)) == set()


def test_where_dead_letters_arrive_and_stay() -> None:
    assert dead(QueueDefinition("q", arguments=to("graveyard")), QueueDefinition("graveyard")) == {"graveyard"}


def test_through_an_exchange_that_also_feeds_queues_for_work() -> None:
    main = QueueDefinition("q", arguments={"x-dead-letter-exchange": "app", "x-dead-letter-routing-key": "parked"})
    keys = {"q": "q", "graveyard": "parked", "elsewhere": "other"}
    bindings = tuple(BindingDefinition("app", queue, key) for queue, key in keys.items())

    assert dead(main, QueueDefinition("graveyard"), QueueDefinition("elsewhere"), bindings=bindings) == {"graveyard"}


def test_every_queue_of_an_exchange_for_dead_letters_is_one_whatever_its_key() -> None:
    main = QueueDefinition("q", arguments={"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "parked"})
    bindings = (BindingDefinition("dlx", "graveyard", "parked"), BindingDefinition("dlx", "invalid", "invalid"))
    queues = (main, QueueDefinition("graveyard"), QueueDefinition("invalid"))

    assert dead(*queues, bindings=bindings) == {"graveyard", "invalid"}
    assert sources(Definitions.of([ExchangeDefinition("dlx")], queues, bindings)) == {
        "graveyard": ["q"],
        "invalid": ["q"],
    }


def test_an_exchange_that_gets_messages_from_another_one_is_not_for_dead_letters() -> None:
    main = QueueDefinition("q", arguments={"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "parked"})
    bindings = (
        BindingDefinition("dlx", "graveyard", "parked"),
        BindingDefinition("dlx", "mail", "mail"),
        BindingDefinition("events", "dlx", "mail", "exchange"),
    )

    assert dead(main, QueueDefinition("graveyard"), QueueDefinition("mail"), bindings=bindings) == {"graveyard"}


def test_queues_that_share_an_exchange_for_dead_letters_keep_their_own() -> None:
    def dying(name: str) -> QueueDefinition:
        return QueueDefinition(name, arguments={"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": name})

    bindings = (BindingDefinition("dlx", "a.dead", "a"), BindingDefinition("dlx", "b.dead", "b"))
    queues = (dying("a"), dying("b"), QueueDefinition("a.dead"), QueueDefinition("b.dead"))

    assert sources(Definitions.of([ExchangeDefinition("dlx")], queues, bindings)) == {"a.dead": ["a"], "b.dead": ["b"]}


def test_a_queue_in_which_messages_only_wait_is_none_whatever_its_name() -> None:
    assert dead(QueueDefinition("q.dlq", arguments=to("q", message_ttl=5)), QueueDefinition("q")) == set()


def test_a_queue_for_work_to_which_retries_come_back_is_none() -> None:
    assert dead(QueueDefinition("q"), QueueDefinition("q.retry", arguments=to("q", message_ttl=5))) == set()


def test_a_retry_queue_that_lost_its_way_back_is_none() -> None:
    main, lost = QueueDefinition("q", arguments=to("q.retry")), {"x-message-ttl": 5}

    assert dead(main, QueueDefinition("q.retry", arguments=lost)) == set()
    assert dead(QueueDefinition("q", arguments=to("old")), QueueDefinition("old", arguments=lost)) == {"old"}


def test_a_queue_that_passes_dead_letters_on_is_none() -> None:
    chain = QueueDefinition("q", arguments=to("second")), QueueDefinition("second", arguments=to("last"))

    assert dead(*chain, QueueDefinition("last")) == {"last"}


@pytest.mark.parametrize("via", [RetryRoute.REJECT, RetryRoute.REPUBLISH, RetryRoute.DELAYED])
def test_redrives_own(via: RetryRoute) -> None:
    wanted = Topology(queues=[Queue("q", retry=Retry(via=via)), Queue("bare", retry=Retry(via=via), dlq=False)])

    assert dead_letter_queues(expand(wanted, Server.of("4.3"))) == {"q.dlq"}


@pytest.mark.parametrize("via", [RetryRoute.REJECT, RetryRoute.REPUBLISH, RetryRoute.DELAYED])
def test_queues_for_some_errors_only_are_known_by_declaration_and_by_shape(via: RetryRoute) -> None:
    wanted = Topology(queues=[Queue("q", retry=Retry(via=via), dead_ends=["q.invalid"])])

    assert declared_dlqs(wanted, Server.of("4.3")) == {"q.dlq": "q", "q.invalid": "q"}
    assert dead_letter_queues(expand(wanted, Server.of("4.3"))) == {"q.dlq", "q.invalid"}


SERVER = Server.of("4.3.6")


def fed_by(*queues: QueueDefinition, topology: Topology | None = None) -> Feeders:
    return feeders(topology or Topology(), SERVER, [Definitions.of((), queues)])


def test_feeders_are_found_directly_and_through_queues_that_messages_only_pass() -> None:
    found = fed_by(
        QueueDefinition("orders", arguments=to("orders.wait")),
        QueueDefinition("orders.wait", arguments=to("orders.dlq", message_ttl=1)),
        QueueDefinition("orders.dlq", arguments=to("graveyard")),
        QueueDefinition("graveyard"),
        QueueDefinition("mail", arguments=to("orders")),
    )

    assert found.of("orders.dlq") == {"orders.wait"}
    assert found.behind("orders.dlq") == {"orders.wait", "orders"}  # what dies in mail goes to orders, to be handled
    assert found.behind("graveyard") == {"orders.dlq", "orders.wait", "orders"}
    assert found.behind("mail") == frozenset()


def test_an_application_may_have_one_dead_letter_queue_for_several_queues() -> None:
    shop = Topology(queues=[Queue("orders", dlq="dead"), Queue("mail", dlq="dead")])

    assert fed_by(topology=shop).of("dead") == {"orders", "mail"}


@pytest.mark.parametrize(
    ("queue", "source", "expected"),
    [
        ("orders.dlq", "orders", True),
        ("orders_error", "orders", True),
        ("dlq.orders", "orders", True),
        ("OrdersDeadLetterQueue", "Orders", True),
        ("q.orders.dlq", "q.orders", True),
        ("orders.dlq", "payments", False),
        ("orders.dlq", "", False),
        ("dlq", "", False),
        ("orders.dlq", "q.orders", False),
        ("orders", "orders", False),
    ],
)
def test_a_dead_letter_queue_may_be_named_after_its_queue(queue: str, source: str, expected: bool) -> None:
    assert is_named_after(queue, source) is expected
