from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigurationError
from redrive.topology import BindingDefinition, Definitions, QueueDefinition, ladder
from redrive.topology.routing import targets

DESTINATIONS = ("q", "orders", "x.orders", "a.b.c", "1", "0.1", "1.0.orders")
LADDER = Definitions.of(
    ladder.exchanges(),
    [*ladder.queues({}), *map(QueueDefinition, DESTINATIONS)],
    [*ladder.bindings(), *(BindingDefinition(ladder.ARRIVAL, name, ladder.arrival_key(name)) for name in DESTINATIONS)],
)


def journey(delay: timedelta, destination: str) -> tuple[int, str]:
    """How long a message waits in all, and where it arrives."""
    key, exchange, waited = ladder.routing_key(delay, destination), ladder.ENTRANCE, 0
    for _ in range(ladder.LEVELS + 1):
        (place,) = targets(LADDER, exchange, key)
        queue = LADDER.queue(place)
        assert queue is not None
        if queue.ttl is None:
            return waited, place
        waited += queue.ttl
        exchange = str(queue.dead_letter_exchange)
    raise AssertionError("it never arrives")


@given(st.integers(0, 2**ladder.LEVELS - 1), st.sampled_from(DESTINATIONS))
def test_a_message_waits_as_long_as_it_should_and_arrives_in_its_queue_alone(seconds: int, queue: str) -> None:
    assert journey(timedelta(seconds=seconds), queue) == (seconds * 1000, queue)


def test_a_fraction_of_a_second_is_waited_for_in_full() -> None:
    assert journey(timedelta(milliseconds=1200), "q") == (2000, "q")


def test_a_delay_beyond_the_ladder_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is more than the ladder's 48d"):
        ladder.routing_key(timedelta(days=60), "q")


def test_no_message_waits_twice_in_one_queue() -> None:
    """RabbitMQ drops what expires twice in the same queue: on the way down no level is passed again."""
    for number in range(ladder.LEVELS):
        assert ladder.below(number) < ladder.level(number) or ladder.below(number) == ladder.ARRIVAL
