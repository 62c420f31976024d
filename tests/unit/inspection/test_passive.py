"""The sentences are RabbitMQ's own, recorded from 3.10 and 4.3."""

import pytest

from redrive.inspection.passive import correct
from redrive.topology import ExchangeDefinition, QueueDefinition

PREFIX = "PRECONDITION_FAILED - inequivalent arg "


def refusal(name: str, received: str, current: str, queue: str = "q") -> str:
    return f"{PREFIX}'{name}' for queue '{queue}' in vhost '/': received {received} but current is {current}"


@pytest.mark.parametrize(
    ("asked", "said", "right"),
    [
        ({"x-message-ttl": 2}, refusal("x-message-ttl", "'2'", "'1000'"), {"x-message-ttl": 1000}),
        ({"x-message-ttl": 2}, refusal("x-message-ttl", "the value '2' of type 'signedint'", "none"), {}),
        ({}, refusal("x-expires", "none", "the value '1000' of type 'signedint'"), {"x-expires": 1000}),
        (
            {},
            refusal("x-single-active-consumer", "none", "the value 'true' of type 'bool'"),
            {"x-single-active-consumer": True},
        ),
        ({}, refusal("x-overflow", "none", "the value 'drop-head' of type 'longstr'"), {"x-overflow": "drop-head"}),
        ({"x-queue-type": "quorum"}, refusal("x-queue-type", "'quorum'", "'classic'"), {"x-queue-type": "classic"}),
        ({"x-delivery-limit": 3}, refusal("x-delivery-limit", "'3'", "'-1'", "o's, it's"), {"x-delivery-limit": -1}),
    ],
)
def test_the_argument_that_a_broker_names_is_put_right(
    asked: dict[str, object], said: str, right: dict[str, object]
) -> None:
    found = correct(QueueDefinition("q", arguments=asked), said)
    assert found == QueueDefinition("q", arguments=right)


def test_what_is_no_argument_is_put_right_too() -> None:
    queue = correct(QueueDefinition("g"), refusal("durable", "'true'", "'false'"))
    assert queue == QueueDefinition("g", durable=False)
    said = "'type' for exchange 'ex' in vhost '/': received 'topic' but current is 'direct'"
    assert correct(ExchangeDefinition("ex", "topic"), PREFIX + said) == ExchangeDefinition("ex", "direct")


@pytest.mark.parametrize("said", ["", "PRECONDITION_FAILED - invalid arg 'x-delivery-limit' for queue 'q'", "nonsense"])
def test_any_other_refusal_teaches_nothing(said: str) -> None:
    assert correct(QueueDefinition("q"), said) is None


def test_a_broker_that_repeats_itself_is_not_asked_for_ever() -> None:
    said = refusal("x-max-length", "'5'", "'5'")
    assert correct(QueueDefinition("q", arguments={"x-max-length": 5}), said) is None
