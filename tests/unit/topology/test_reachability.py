import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.topology import BindingDefinition, Definitions, ExchangeDefinition, QueueDefinition
from redrive.topology.reachability import PublishRoutes, Reachability, is_pattern, literal, overlap, written
from redrive.topology.routing import matches_topic, targets

EVENTS = ExchangeDefinition("events", "topic")


def flows(*definitions: ExchangeDefinition | QueueDefinition | BindingDefinition) -> Reachability:
    return Reachability(
        Definitions.of(
            (one for one in definitions if isinstance(one, ExchangeDefinition)),
            (one for one in definitions if isinstance(one, QueueDefinition)),
            (one for one in definitions if isinstance(one, BindingDefinition)),
        )
    )


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("a.b", "a.b", True),
        ("a.*", "*.b", True),
        ("a.*", "b.*", False),
        ("a.#", "#.z", True),
        ("a.#", "a", True),
        ("a.*", "a", False),
        ("#", "", True),
        ("*", "", False),
        ("*.1.#", "*.*.0.#", True),
        ("1.#.0", "*.0", True),
    ],
)
def test_patterns_that_some_key_matches_both(one: str, other: str, both: bool) -> None:
    assert overlap(one, other) is both
    assert overlap(other, one) is both


keys = st.lists(st.sampled_from("ab"), min_size=1, max_size=5).map(".".join)
patterns = st.lists(st.sampled_from("ab*#"), min_size=1, max_size=5).map(".".join)


@given(patterns, patterns, keys)
def test_if_a_key_matches_both_they_overlap(one: str, other: str, key: str) -> None:
    words = key.split(".")
    if matches_topic(one.split("."), words) and matches_topic(other.split("."), words):
        assert overlap(one, other)


@given(patterns, keys)
def test_a_key_overlaps_what_it_matches_and_nothing_else(pattern: str, key: str) -> None:
    assert overlap(pattern, key) is matches_topic(pattern.split("."), key.split("."))


@given(st.lists(patterns, max_size=4), keys)
def test_of_one_key_both_ways_of_following_say_the_same(bound: list[str], key: str) -> None:
    queues = [QueueDefinition(f"q{number}") for number in range(len(bound))]
    bindings = [BindingDefinition("events", queue.name, pattern) for queue, pattern in zip(queues, bound, strict=True)]
    definitions = Definitions.of([EVENTS], queues, bindings)

    assert Reachability(definitions).reach("events", key) == targets(definitions, "events", key)


def test_a_queue_without_bindings_is_reached_by_its_name() -> None:
    assert flows(QueueDefinition("q")).arrivals("q") == {"q"}


def test_bindings_say_which_keys_come() -> None:
    seen = flows(
        EVENTS, ExchangeDefinition("all", "fanout"), QueueDefinition("q"), BindingDefinition("events", "q", "a.*")
    )

    assert seen.arrivals("q") == {"a.*"}


def test_exchanges_that_do_not_look_at_keys_let_any_key_come() -> None:
    seen = flows(ExchangeDefinition("all", "fanout"), QueueDefinition("q"), BindingDefinition("all", "q", "x"))

    assert seen.arrivals("q") == {"#"}


def test_dead_letters_keep_their_keys_from_exchange_to_exchange() -> None:
    seen = flows(
        EVENTS,
        ExchangeDefinition("dlx", "topic"),
        ExchangeDefinition("inner", "topic"),
        QueueDefinition("q", arguments={"x-dead-letter-exchange": "dlx"}),
        BindingDefinition("events", "q", "order.*"),
        BindingDefinition("dlx", "inner", "order.#", "exchange"),
        BindingDefinition("inner", "orders.dlq", "#"),
        BindingDefinition("inner", "users.dlq", "user.#"),
    )
    queue = QueueDefinition("q", arguments={"x-dead-letter-exchange": "dlx"})

    assert seen.of_dead_letters(queue) == {"orders.dlq"}


def test_exchanges_that_lead_to_each_other_end() -> None:
    seen = flows(
        EVENTS,
        ExchangeDefinition("other", "topic"),
        BindingDefinition("events", "other", "#", "exchange"),
        BindingDefinition("other", "events", "#", "exchange"),
        BindingDefinition("other", "q", "a"),
    )

    assert seen.reach("events", "a") == {"q"}


def test_a_delayed_exchange_routes_as_its_type() -> None:
    delayed = ExchangeDefinition("later", "x-delayed-message", arguments={"x-delayed-type": "topic"})
    seen = flows(delayed, BindingDefinition("later", "q", "a.*"))

    assert seen.reach("later", "a.b") == {"q"}
    assert seen.reach("later", "b.a") == set()


def test_examples_of_a_pattern_pass_the_bindings_that_it_can_pass() -> None:
    seen = flows(EVENTS, BindingDefinition("events", "q", "a.*.c"), BindingDefinition("events", "r", "b.#"))

    assert set(seen.examples("events", "a.#")) == {"a.x", "a.x.c"}


DIRECT = ExchangeDefinition("tasks", "direct")


def test_a_direct_exchange_takes_wildcards_for_ordinary_words() -> None:
    seen = flows(DIRECT, BindingDefinition("tasks", "q", "a.*"), BindingDefinition("tasks", "all", "#"))

    assert seen.reach("tasks", "a.b") == set()
    assert seen.reach("tasks", "a") == set()


def test_a_key_that_came_through_a_direct_exchange_is_no_pattern() -> None:
    seen = flows(
        DIRECT,
        ExchangeDefinition("dlx", "topic"),
        BindingDefinition("tasks", "q", "a.*"),
        BindingDefinition("dlx", "others.dlq", "a.b"),
        BindingDefinition("dlx", "q.dlq", "a.*"),
    )
    queue = QueueDefinition("q", arguments={"x-dead-letter-exchange": "dlx"})

    assert seen.of_dead_letters(queue) == {"q.dlq"}
    assert not any(map(is_pattern, seen.dead_letter_keys(queue)))


def test_a_dead_letter_key_is_no_pattern() -> None:
    seen = flows(ExchangeDefinition("dlx", "topic"), BindingDefinition("dlx", "others.dlq", "a.b"))
    arguments = {"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "a.*"}

    assert seen.of_dead_letters(QueueDefinition("q", arguments=arguments)) == set()


def test_a_pattern_meets_a_wildcard_of_a_direct_exchange_as_a_word() -> None:
    """The topic exchange lets any second word pass, and "*" is one."""
    seen = flows(
        EVENTS,
        DIRECT,
        BindingDefinition("events", "q", "a.*"),
        BindingDefinition("tasks", "q.dlq", "a.*"),
        BindingDefinition("tasks", "others.dlq", "b.*"),
    )
    queue = QueueDefinition("q", arguments={"x-dead-letter-exchange": "tasks"})

    assert seen.of_dead_letters(queue) == {"q.dlq"}
    assert {written(example) for example in seen.examples("tasks", "a.*")} == {"a.x", "a.*"}


def test_a_queue_with_a_wildcard_in_its_name_is_reached_by_its_name() -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a.*"}
    seen = flows(QueueDefinition("a.*"), QueueDefinition("a.b"), QueueDefinition("q", arguments=arguments))

    assert seen.of_dead_letters(QueueDefinition("q", arguments=arguments)) == {"a.*"}


@given(patterns, patterns)
def test_of_a_direct_exchange_both_ways_of_following_say_the_same(bound: str, key: str) -> None:
    definitions = Definitions.of([DIRECT], [QueueDefinition("q")], [BindingDefinition("tasks", "q", bound)])

    assert Reachability(definitions).reach("tasks", literal(key)) == targets(definitions, "tasks", key)


# Publishes ----------------------------------------------------------------------------------------------

WAITING = {"x-message-ttl": 50, "x-dead-letter-exchange": "events", "x-dead-letter-routing-key": "order.new"}
SHOP = Definitions.of(
    [EVENTS],
    [
        QueueDefinition("orders"),
        QueueDefinition("mails", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}),
        QueueDefinition("wait", arguments=WAITING),
    ],
    [BindingDefinition("events", "orders", "order.*"), BindingDefinition("events", "mails", "mail.*")],
)


@pytest.mark.parametrize(
    ("exchange", "key", "leads"),
    [
        ("events", "order.new", True),
        ("", "orders", True),
        ("", "wait", True),  # and on, when its time is over
        ("events", "mail.new", False),  # it gets there only if it fails in mails
        ("events", "order.*", True),  # a word as any other, which the wildcard matches
        ("events", "#", False),
        ("nowhere", "order.new", False),
    ],
)
def test_a_publish_leads_to_the_queues_that_it_reaches_at_once_or_after_a_wait(
    exchange: str, key: str, leads: bool
) -> None:
    assert PublishRoutes([SHOP], complete=True).leads(exchange, key, "orders") is leads


def test_where_a_publish_does_not_lead_is_known_of_a_whole_broker_or_of_a_queue_whose_bindings_are_known() -> None:
    assert PublishRoutes([SHOP], complete=False).leads("elsewhere", "a", "orders") is None
    assert PublishRoutes([SHOP], complete=False, bound=["mails"]).leads("elsewhere", "a", "orders") is None
    assert PublishRoutes([SHOP], complete=False, bound=["orders"]).leads("elsewhere", "a", "orders") is False
    assert PublishRoutes([SHOP], complete=False).leads("events", "order.new", "orders") is True
