"""Arguments and policies together, as RabbitMQ takes them."""

from typing import Any

import pytest

from redrive.topology import QueueDefinition
from redrive.topology.definitions import effective


def arguments(own: dict[str, Any], policy: dict[str, Any]) -> dict[str, Any]:
    return dict(effective(QueueDefinition("q", arguments=own), policy).arguments)


def test_a_policy_says_what_the_arguments_do_not() -> None:
    assert arguments({"x-queue-type": "quorum"}, {"dead-letter-exchange": "dlx", "message-ttl": 5}) == {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "dlx",
        "x-message-ttl": 5,
    }


@pytest.mark.parametrize("key", ["message-ttl", "max-length", "max-length-bytes", "expires"])
@pytest.mark.parametrize(("own", "policy"), [(3, 7), (7, 3)])
def test_of_two_numbers_the_smaller_holds(key: str, own: int, policy: int) -> None:
    assert arguments({f"x-{key}": own}, {key: policy}) == {f"x-{key}": 3}


@pytest.mark.parametrize("key", ["dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy", "overflow"])
def test_of_two_words_the_argument_holds(key: str) -> None:
    assert arguments({f"x-{key}": "mine"}, {key: "theirs"}) == {f"x-{key}": "mine"}


@pytest.mark.parametrize(("own", "policy", "holds"), [(5, 9, 5), (9, 5, 5), (-1, 9, 9), (5, -1, 5), (-1, -1, -1)])
def test_any_delivery_limit_is_smaller_than_none(own: int, policy: int, holds: int) -> None:
    assert arguments({"x-delivery-limit": own}, {"delivery-limit": policy}) == {"x-delivery-limit": holds}


def test_what_is_no_argument_stays_a_policy() -> None:
    assert arguments({}, {"ha-mode": "all", "queue-master-locator": "min-masters"}) == {}
