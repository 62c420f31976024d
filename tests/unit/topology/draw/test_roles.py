"""What a queue is for shows in its arguments, in who sends dead letters to whom, and at last in its name."""

import pytest

from redrive.topology import Definitions, ExchangeDefinition
from redrive.topology.draw.roles import QueueRole, Roles, roles_of
from unit.topology.draw.topologies import bound, dying, queue, topic


def roles(definitions: Definitions) -> dict[str, QueueRole]:
    return dict(roles_of(definitions).roles)


def of(*queues: object, exchanges: tuple[ExchangeDefinition, ...] = (), bindings: tuple[object, ...] = ()) -> Roles:
    return roles_of(Definitions.of(exchanges, queues, bindings))  # type: ignore[arg-type]


def test_a_queue_without_dead_letters_is_plain() -> None:
    assert of(queue("orders")).roles == {"orders": QueueRole.PLAIN}


def test_where_another_queue_rejects_to_is_a_dead_letter_queue() -> None:
    found = of(dying("orders", "", "graveyard"), queue("graveyard"))

    assert found.roles == {"graveyard": QueueRole.DEAD, "orders": QueueRole.MAIN}
    assert found.owners == {"graveyard": "orders"}


def test_a_dead_letter_queue_of_several_belongs_to_none() -> None:
    found = of(dying("a", "", "graveyard"), dying("b", "", "graveyard"), queue("graveyard"))

    assert found.roles["graveyard"] is QueueRole.DEAD
    assert found.owners == {}


def test_a_queue_with_a_ttl_and_a_way_on_waits() -> None:
    found = of(queue("orders"), dying("orders.later", "", "orders", message_ttl=15_000))

    assert found.roles == {"orders": QueueRole.MAIN, "orders.later": QueueRole.WAITING}
    assert found.owners == {"orders.later": "orders"}


def test_a_queue_for_work_with_a_time_limit_does_not_wait() -> None:
    found = of(dying("orders", "", "orders.dlq", message_ttl=3_600_000), queue("orders.dlq"))

    assert found.roles == {"orders": QueueRole.MAIN, "orders.dlq": QueueRole.DEAD}


def test_a_queue_with_a_ttl_and_no_way_on_is_plain() -> None:
    assert of(queue("cache", message_ttl=1000)).roles == {"cache": QueueRole.PLAIN}


@pytest.mark.parametrize(
    ("main", "dead"),
    [
        ("q.orders", "q.orders.dlq"),
        ("orders", "dlq.orders"),
        ("sagnus.nfe.events.q", "sagnus.nfe.events.dlq"),
        ("raffle_queue", "raffle_dlq"),
        ("OrderQueue", "OrderDeadLetterQueue"),
        ("orders", "orders_error"),
        ("orders", "orders.parkingLot"),
    ],
)
def test_a_dead_letter_queue_that_only_workers_fill_is_known_by_its_name(main: str, dead: str) -> None:
    assert of(queue(main), queue(dead)).owners == {dead: main}


def test_of_two_queues_that_a_name_could_mean_it_means_the_one_it_contains() -> None:
    assert of(queue("orders"), queue("q.orders"), queue("q.orders.dlq")).owners == {"q.orders.dlq": "q.orders"}


def test_a_queue_called_dead_that_is_called_after_nobody_stands_alone() -> None:
    found = of(queue("orders"), queue("payments.dlq"))

    assert found.roles["payments.dlq"] is QueueRole.DEAD
    assert found.owners == {}


def test_who_makes_a_loop_with_a_waiting_queue_owns_it() -> None:
    found = of(
        dying("orders", "", "wait"),
        dying("wait", "all", message_ttl=1000),
        queue("audit"),
        exchanges=(ExchangeDefinition("all", "fanout"),),
        bindings=(*bound("all", "orders"), *bound("all", "audit")),
    )

    assert found.owners["wait"] == "orders"


def test_a_waiting_queue_that_several_make_loops_with_is_nobodys() -> None:
    found = of(
        dying("a", "", "wait"),
        dying("b", "", "wait"),
        dying("wait", "all", message_ttl=1000),
        exchanges=(ExchangeDefinition("all", "fanout"),),
        bindings=(*bound("all", "a"), *bound("all", "b")),
    )

    assert "wait" not in found.owners


def test_a_waiting_queue_that_leads_to_several_belongs_to_the_one_it_is_called_after() -> None:
    found = of(
        queue("orders"),
        queue("audit"),
        dying("orders.retry.15s", "events", message_ttl=15_000),
        exchanges=(topic("events"),),
        bindings=(
            *bound("events", "orders", "#"),
            *bound("events", "audit", "#"),
            *bound("in", "orders.retry.15s", "#"),
        ),
    )

    assert found.owners == {"orders.retry.15s": "orders"}


def test_a_message_that_keeps_its_key_goes_where_that_key_leads() -> None:
    found = of(
        queue("video"),
        queue("audio"),
        dying("wait", "media", message_ttl=1000),
        exchanges=(ExchangeDefinition("media"), ExchangeDefinition("retry")),
        bindings=(*bound("media", "video", "v"), *bound("media", "audio", "a"), *bound("retry", "wait", "v")),
    )

    assert found.dead_letters["wait"].targets == ("video",)
    assert found.dead_letters["wait"].certain


def test_where_a_message_of_any_key_goes_is_uncertain() -> None:
    found = of(
        queue("video"),
        queue("audio"),
        dying("wait", "media", message_ttl=1000),
        exchanges=(topic("media"), topic("retry")),
        bindings=(*bound("media", "video", "v"), *bound("media", "audio", "a"), *bound("retry", "wait", "#")),
    )

    assert found.dead_letters["wait"].targets == ("audio", "video")
    assert not found.dead_letters["wait"].certain


def test_what_a_fanout_exchange_gets_everybody_gets() -> None:
    found = of(
        queue("a"),
        queue("b"),
        dying("c", "all"),
        exchanges=(topic("events"), ExchangeDefinition("all", "fanout")),
        bindings=(*bound("all", "a"), *bound("all", "b"), *bound("events", "c", "#")),
    )

    assert found.dead_letters["c"].certain
