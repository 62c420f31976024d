from typing import Any

import pytest

from redrive.inspection.policies import is_silent, with_policies

QUORUM: dict[str, Any] = {"name": "orders.dlq", "arguments": {"x-queue-type": "quorum"}}


def policy(
    name: str, pattern: str = "dlq$", priority: int = 0, to: str = "queues", **definition: Any
) -> dict[str, Any]:
    said = {key.replace("_", "-"): value for key, value in definition.items()}
    return {"name": name, "pattern": pattern, "priority": priority, "apply-to": to, "definition": said}


def effective(*policies: dict[str, Any], operator: tuple[dict[str, Any], ...] = ()) -> tuple[Any, Any]:
    row = with_policies(QUORUM, policies, operator)
    return row["policy"], row["effective_policy_definition"]


def test_a_quorum_queue_of_3_x_says_nothing_of_its_policy() -> None:
    assert is_silent(QUORUM)
    assert not is_silent(QUORUM | {"effective_policy_definition": []})
    assert not is_silent({"name": "q", "arguments": {}})


def test_without_policies_there_is_none() -> None:
    assert effective() == (None, {})


def test_the_highest_priority_that_matches_counts_alone() -> None:
    low, high = policy("low", delivery_limit=5, max_length=9), policy("high", priority=1, delivery_limit=7)
    other = policy("other", "^payments", priority=9, delivery_limit=1)
    assert effective(low, high, other) == ("high", {"delivery-limit": 7})


@pytest.mark.parametrize(
    ("to", "applies"), [("all", True), ("queues", True), ("quorum_queues", True), ("exchanges", False)]
)
def test_a_policy_for_exchanges_is_none_for_queues(to: str, applies: bool) -> None:
    assert bool(effective(policy("p", to=to, delivery_limit=5))[1]) is applies


def test_of_an_operators_limit_and_another_the_lower_counts() -> None:
    operators = (policy("theirs", delivery_limit=3, max_length=100),)
    assert effective(policy("ours", delivery_limit=5), operator=operators)[1] == {
        "delivery-limit": 3,
        "max-length": 100,
    }
    assert effective(policy("ours", delivery_limit=2), operator=operators)[1]["delivery-limit"] == 2


def test_a_pattern_that_cannot_be_read_is_taken_to_match() -> None:
    assert effective(policy("odd", "(?|dlq)", delivery_limit=5)) == ("odd", {"delivery-limit": 5})
