import pytest

from redrive.topology import BindingDefinition, Definitions, ExchangeDefinition, QueueDefinition
from redrive.topology.routing import dead_letter_targets, matches_topic, targets


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("#", "", True),
        ("#", "a.b", True),
        ("*", "", True),
        ("*", "a", True),
        ("*", "a.b", False),
        ("a.*", "a.b", True),
        ("a.#", "a", True),
        ("a.#.z", "a.b.c.z", True),
        ("a.#.z", "a.b", False),
        ("#.b.#", "a.b.c", True),
        ("a", "b", False),
        (".".join(["#"] * 20) + ".x", ".".join(["a"] * 200), False),
    ],
)
def test_a_topic_matches_by_words(pattern: str, key: str, matches: bool) -> None:
    assert matches_topic(pattern.split("."), key.split(".")) is matches


DEFINITIONS = Definitions.of(
    [
        ExchangeDefinition("in", "topic", arguments={"alternate-exchange": "lost"}),
        ExchangeDefinition("all", "fanout"),
        ExchangeDefinition("lost", "fanout"),
        ExchangeDefinition("ring.a", "fanout"),
        ExchangeDefinition("ring.b", "fanout"),
    ],
    [QueueDefinition(name) for name in ("a", "b", "unrouted")],
    [
        BindingDefinition("in", "a", "x.*"),
        BindingDefinition("in", "all", "y", "exchange"),
        BindingDefinition("all", "b"),
        BindingDefinition("lost", "unrouted"),
        BindingDefinition("ring.a", "ring.b", "", "exchange"),
        BindingDefinition("ring.b", "ring.a", "", "exchange"),
        BindingDefinition("ring.b", "b"),
    ],
)


@pytest.mark.parametrize(
    ("exchange", "key", "reached"),
    [
        ("in", "x.1", {"a"}),
        ("in", "y", {"b"}),
        ("in", "z", {"unrouted"}),
        ("in", None, {"a", "b", "unrouted"}),
        ("", "a", {"a"}),
        ("", "missing", set()),
        ("", None, set()),
        ("ring.a", "k", {"b"}),
        ("missing", "k", set()),
    ],
)
def test_a_message_is_followed_to_its_queues(exchange: str, key: str | None, reached: set[str]) -> None:
    assert targets(DEFINITIONS, exchange, key) == reached


def test_dead_letters_are_followed_too() -> None:
    queue = QueueDefinition("q", arguments={"x-dead-letter-exchange": "in", "x-dead-letter-routing-key": "y"})
    assert dead_letter_targets(DEFINITIONS, queue) == {"b"}
    assert dead_letter_targets(DEFINITIONS, QueueDefinition("q")) == set()
