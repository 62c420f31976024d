"""Arguments that no broker would take are left out before anything is drawn."""

from datetime import timedelta

import pytest
from hypothesis import given

from redrive.topology import Definitions, ExchangeDefinition
from redrive.topology.draw.tidying import length_of, tidied
from unit.topology.draw.topologies import any_definitions, queue


@pytest.mark.parametrize("value", [None, "15000", 1.5, True, -1, [], {}])
def test_what_is_no_number_of_milliseconds_is_no_length_of_time(value: object) -> None:
    assert length_of(value) is None


def test_a_number_of_milliseconds_is_a_length_of_time() -> None:
    assert length_of(15_000) == timedelta(seconds=15)


def test_a_length_that_no_clock_knows_is_as_long_as_can_be() -> None:
    assert length_of(10**40) == length_of(10**15)


@pytest.mark.parametrize("argument", ["dead_letter_exchange", "dead_letter_routing_key", "message_ttl"])
def test_a_queue_loses_arguments_of_the_wrong_type(argument: str) -> None:
    definitions = Definitions.of(queues=[queue("a", **{argument: 1.5}, max_length=5)])

    assert tidied(definitions).queues == (queue("a", max_length=5),)


def test_an_exchange_loses_an_alternate_that_is_no_name() -> None:
    definitions = Definitions.of([ExchangeDefinition("a", arguments={"alternate-exchange": 7})])

    assert tidied(definitions).exchanges == (ExchangeDefinition("a"),)


@given(any_definitions)
def test_tidying_twice_changes_nothing_more(definitions: Definitions) -> None:
    assert tidied(tidied(definitions)) == tidied(definitions)
