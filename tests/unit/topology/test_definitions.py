"""What definitions say about themselves, as far as it can be relied on: a file is not yet a broker."""

import pytest

from redrive.topology import ExchangeDefinition, QueueDefinition


@pytest.mark.parametrize("value", [None, "15000", 1.5, True, -1, [], {}])
def test_a_ttl_that_is_no_number_of_milliseconds_means_nothing(value: object) -> None:
    assert QueueDefinition("q", arguments={"x-message-ttl": value}).ttl is None


def test_a_ttl_is_a_number_of_milliseconds() -> None:
    assert QueueDefinition("q", arguments={"x-message-ttl": 15_000}).ttl == 15_000


def test_dead_letter_arguments_of_the_wrong_type_mean_nothing() -> None:
    queue = QueueDefinition("q", arguments={"x-dead-letter-exchange": 1.5, "x-dead-letter-routing-key": 7})

    assert (queue.dead_letter_exchange, queue.dead_letter_key) == (None, None)


@pytest.mark.parametrize(("value", "alternate"), [("unrouted", "unrouted"), (7, None), (None, None)])
def test_an_alternate_exchange_that_is_no_name_means_nothing(value: object, alternate: str | None) -> None:
    assert ExchangeDefinition("a", arguments={"alternate-exchange": value}).alternate == alternate


def test_a_delayed_exchange_routes_as_the_type_it_was_given() -> None:
    assert ExchangeDefinition("a", "x-delayed-message", arguments={"x-delayed-type": "topic"}).routing_type == "topic"
    assert ExchangeDefinition("a", "fanout").routing_type == "fanout"
