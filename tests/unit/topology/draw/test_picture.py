"""A picture says which queues there are, what they are for, and how a message gets from one to the next."""

import re
from datetime import timedelta

import pytest
from hypothesis import given

from redrive.recovery.retry import Retry, RetryRoute
from redrive.topology import Definitions, Exchange, ExchangeDefinition, Queue, QueueType, Server, Topology, expand
from redrive.topology.draw.picture import EdgeKind, NodeKind, Tone, picture_of
from unit.topology.draw.topologies import (
    any_definitions,
    bound,
    dying,
    edges,
    expanded,
    named,
    node,
    orders,
    queue,
    topic,
)


def kinds(definitions: Definitions) -> dict[str, NodeKind]:
    return {node.name: node.kind for node in picture_of(definitions).nodes}


# The routes of retries ----------------------------------------------------------------------------


def test_by_reject_a_failure_goes_round_in_a_loop_and_a_worker_parks_it() -> None:
    definitions = orders(Retry(attempts=3, delay="15s", via=RetryRoute.REJECT))

    assert edges(definitions) == {
        "events → orders: order.*",
        "orders → orders.retry: rejected",
        "orders.retry → orders: after 15s",
        "orders → orders.dlq: parked",
    }


def test_by_republish_a_worker_publishes_to_the_rung_for_the_attempt() -> None:
    definitions = orders(Retry(steps=["30s", "2m"]))

    assert edges(definitions) == {
        "events → orders: order.*",
        "orders → orders.retry.30s: retry",
        "orders → orders.retry.2m: retry",
        "orders.retry.30s → orders: after 30s",
        "orders.retry.2m → orders: after 2m",
        "orders → orders.dlq: dead",
    }


def test_the_ladder_of_delays_is_one_node() -> None:
    definitions = orders(Retry(attempts=3, delay="15s", via=RetryRoute.DELAYED))

    assert len(definitions.queues) > 20
    assert kinds(definitions) == {
        "events": NodeKind.EXCHANGE,
        "delays up to 48d": NodeKind.DELAYS,
        "orders": NodeKind.MAIN,
        "orders.dlq": NodeKind.DEAD,
    }
    assert edges(definitions) >= {"orders → delays up to 48d: retry", "delays up to 48d → orders: after its delay"}


def test_a_ladder_that_nobody_uses_yet_is_there_all_the_same() -> None:
    definitions = expand(Topology(delays=True), Server.of("4.3"))

    assert kinds(definitions) == {"delays up to 48d": NodeKind.DELAYS}


def test_a_delayed_exchange_brings_retries_back() -> None:
    queue = Queue(
        "orders", Exchange("events").on("order.*"), retry=Retry(attempts=3, delay="15s", via=RetryRoute.DELAYED)
    )

    definitions = expanded(queue, server=Server.of("3.10", delayed_exchanges=True))

    assert kinds(definitions)["redrive.delayed"] is NodeKind.DELAYS
    assert edges(definitions) >= {"orders → redrive.delayed: retry", "redrive.delayed → orders: after its delay"}


def test_a_delayed_exchange_may_also_be_one_for_events() -> None:
    later = ExchangeDefinition("later", "x-delayed-message", arguments={"x-delayed-type": "topic"})

    definitions = Definitions.of([later], [queue("reminders")], bound("later", "reminders", "remind.*"))

    assert edges(definitions) == {"later → reminders: remind.*"}
    assert node(definitions, "later").caption == "delays, then topic"


def test_a_quorum_queue_that_delays_by_itself_has_a_loop_of_its_own() -> None:
    retry = Retry(steps=["5s", "10s"], via=RetryRoute.QUORUM)

    assert "orders → orders: after 5s to 10s" in edges(orders(retry, type=QueueType.QUORUM))


def test_one_delay_is_said_once() -> None:
    retry = Retry(attempts=2, delay="5s", via=RetryRoute.QUORUM)

    assert "orders → orders: after 5s" in edges(orders(retry, type=QueueType.QUORUM))


# Nodes --------------------------------------------------------------------------------------------


def test_each_node_says_what_it_is() -> None:
    definitions = expanded(Queue("orders", retry=Retry(attempts=3, delay="15s"), type=QueueType.QUORUM))

    captions = {node.name: node.caption for node in picture_of(definitions).nodes}

    assert captions == {
        "events": "topic exchange",
        "orders": "quorum queue",
        "orders.retry": "waits 15s",
        "orders.dlq": "dead letters",
    }


def test_a_dead_letter_queue_that_forgets_says_so() -> None:
    definitions = Definitions.of(queues=[queue("orders"), queue("orders.dlq", message_ttl=7 * 86_400_000)])

    assert node(definitions, "orders.dlq").caption == "dead letters, dropped after 7d"


def test_a_queue_with_a_time_limit_says_so() -> None:
    definitions = Definitions.of(queues=[queue("orders", message_ttl=3_600_000)])

    assert node(definitions, "orders").caption == "queue, at most 1h"


def test_a_time_limit_longer_than_any_calendar_is_drawn_as_the_longest() -> None:
    captions = [
        node(Definitions.of(queues=[queue("orders", message_ttl=length)]), "orders").caption
        for length in (10**15, 10**40)
    ]

    assert captions[0] == captions[1]


def test_a_stream_is_called_one() -> None:
    assert node(Definitions.of(queues=[queue("log", queue_type="stream")]), "log").caption == "stream"


def test_an_exchange_that_only_leads_into_a_part_is_told_there() -> None:
    definitions = orders(Retry(attempts=3, delay="15s"))

    assert node(definitions, "orders.retry").entrances == ("retry.orders [retry]",)
    assert node(definitions, "orders.dlq").entrances == ("dlq.orders [parking]",)
    assert "retry.orders" not in kinds(definitions)


def test_an_exchange_that_also_brings_work_is_drawn_and_told() -> None:
    definitions = Definitions.of(
        [ExchangeDefinition("nfe")],
        [
            dying("nfe.q", "nfe", "retry"),
            dying("nfe.retry", "nfe", "event", message_ttl=30_000),
            queue("nfe.dlq"),
        ],
        [*bound("nfe", "nfe.q", "event"), *bound("nfe", "nfe.retry", "retry"), *bound("nfe", "nfe.dlq", "dead")],
    )

    assert edges(definitions) == {
        "nfe → nfe.q: event",
        "nfe.q → nfe.retry: rejected",
        "nfe.retry → nfe.q: after 30s, via nfe",
        "nfe.q → nfe.dlq: parked",
    }
    assert node(definitions, "nfe.dlq").entrances == ("nfe [dead]",)


def test_an_exchange_for_events_that_also_feeds_a_dead_letter_queue_is_no_workers_way() -> None:
    definitions = Definitions.of(
        [topic("events")],
        [queue("orders"), queue("orders.dlq")],
        [*bound("events", "orders", "order.*"), *bound("events", "orders.dlq", "#.failed")],
    )

    assert "events → orders.dlq: #.failed" in edges(definitions)


def test_an_exchange_that_another_feeds_is_drawn() -> None:
    definitions = Definitions.of(
        [topic("events"), ExchangeDefinition("parking")],
        [queue("orders"), queue("orders.dlq")],
        [*bound("events", "parking", "#", kind="exchange"), *bound("parking", "orders.dlq", "p")],
    )

    assert edges(definitions) == {"events → parking: #", "parking → orders.dlq: p"}


def test_an_exchange_to_which_nothing_is_bound_is_drawn() -> None:
    assert kinds(Definitions.of([topic("events")])) == {"events": NodeKind.EXCHANGE}


def test_the_brokers_own_exchanges_need_not_be_defined() -> None:
    definitions = Definitions.of(queues=[queue("orders")], bindings=bound("amq.topic", "orders", "#"))

    assert node(definitions, "amq.topic").caption == "topic exchange"


def test_an_exchange_and_a_queue_may_share_a_name() -> None:
    definitions = Definitions.of([topic("orders")], [queue("orders")], bound("orders", "orders", "new"))

    assert [node.kind for node in named(picture_of(definitions), "orders")] == [NodeKind.EXCHANGE, NodeKind.PLAIN]


# Bindings -----------------------------------------------------------------------------------------


def test_the_bindings_of_a_pair_are_one_edge_with_all_their_keys() -> None:
    definitions = Definitions.of([topic("events")], [queue("q")], bound("events", "q", "b", "a"))

    assert [edge.keys for edge in picture_of(definitions).edges] == [("a", "b")]


def test_many_keys_are_told_as_a_few() -> None:
    definitions = Definitions.of([topic("events")], [queue("q")], bound("events", "q", *"abcdefg"))

    assert edges(definitions) == {"events → q: a, b, c, and 4 more"}


def test_a_fanout_exchange_has_no_keys_to_tell() -> None:
    definitions = Definitions.of([ExchangeDefinition("all", "fanout")], [queue("q")], bound("all", "q", "ignored"))

    assert edges(definitions) == {"all → q"}


def test_a_headers_exchange_tells_the_headers() -> None:
    bind = bound("docs", "q")[0]
    bind = type(bind)("docs", "q", arguments={"x-match": "all", "type": "pdf", "pages": 3})

    assert edges(Definitions.of([ExchangeDefinition("docs", "headers")], [queue("q")], [bind])) == {
        "docs → q: pages=3 type=pdf"
    }


def test_an_empty_key_is_called_one() -> None:
    definitions = Definitions.of([ExchangeDefinition("events")], [queue("q")], bound("events", "q"))

    assert edges(definitions) == {"events → q: (empty key)"}


def test_what_no_binding_takes_goes_to_the_alternate_exchange() -> None:
    events = ExchangeDefinition("events", "topic", arguments={"alternate-exchange": "unrouted"})

    definitions = Definitions.of([events, ExchangeDefinition("unrouted", "fanout")])

    assert edges(definitions) == {"events → unrouted: otherwise"}


def test_the_bindings_of_the_default_exchange_go_without_saying() -> None:
    assert edges(Definitions.of(queues=[queue("q")], bindings=bound("", "q", "q"))) == set()


# Dead letters -------------------------------------------------------------------------------------


def test_dead_letters_through_an_exchange_lead_straight_to_the_queue() -> None:
    definitions = Definitions.of(
        [ExchangeDefinition("dlx", "fanout")], [dying("orders", "dlx"), queue("graveyard")], bound("dlx", "graveyard")
    )

    assert edges(definitions) == {"orders → graveyard: dead"}
    assert node(definitions, "graveyard").entrances == ("dlx",)


def test_a_missing_dead_letter_exchange_is_seen() -> None:
    definitions = Definitions.of(queues=[dying("orders", "nowhere", "x")])

    assert edges(definitions) == {"orders → nowhere: dead"}
    assert node(definitions, "nowhere").caption == "missing exchange"


def test_a_queue_that_nobody_made_is_seen() -> None:
    definitions = Definitions.of(queues=[dying("orders", "", "gone")])

    assert edges(definitions) == {"orders → gone: dead"}
    assert node(definitions, "gone").caption == "missing queue"


def test_a_dead_letter_exchange_that_leads_nowhere_is_an_end() -> None:
    definitions = Definitions.of([ExchangeDefinition("dlx")], [dying("orders", "dlx", "x")])

    assert edges(definitions) == {"orders → dlx: dead"}


def test_dead_letters_that_keep_any_key_go_back_to_the_exchange() -> None:
    definitions = Definitions.of(
        [topic("events"), topic("retry")],
        [queue("a"), queue("b"), dying("wait", "events", message_ttl=60_000)],
        [*bound("events", "a", "a.#"), *bound("events", "b", "b.#"), *bound("retry", "wait", "#")],
    )

    assert "wait → events: after 1m" in edges(definitions)


def test_by_the_default_exchange_a_key_that_is_not_known_leads_to_whichever_queue_it_names() -> None:
    definitions = Definitions.of([topic("events")], [dying("orders", "")], bound("events", "orders", "#"))

    assert "orders → default exchange: dead" in edges(definitions)


def test_a_queue_may_be_its_own_end() -> None:
    assert edges(Definitions.of(queues=[dying("a", "", "a", message_ttl=1000)])) == {"a → a: after 1s"}


def test_queues_may_reject_into_each_other() -> None:
    definitions = Definitions.of(queues=[dying("a", "", "b"), dying("b", "", "a")])

    assert edges(definitions) == {"a → b: rejected", "b → a: rejected"}


# The whole ----------------------------------------------------------------------------------------


def test_a_queue_and_its_parts_belong_together_in_the_order_of_their_delays() -> None:
    picture = picture_of(orders(Retry(steps=["2m", "30s", "10m"])))

    (group,) = picture.groups

    names = {node.id: node.name for node in picture.nodes}
    assert [names[id] for id in group.members] == [
        "orders",
        "orders.retry.30s",
        "orders.retry.2m",
        "orders.retry.10m",
        "orders.dlq",
    ]


def test_a_queue_without_parts_is_in_no_group() -> None:
    assert picture_of(Definitions.of(queues=[queue("q")])).groups == ()


@pytest.mark.parametrize(
    ("edge", "tone"),
    [
        ("rejected", Tone.RETRY),
        ("after 15s", Tone.RETRY),
        ("parked", Tone.DEAD),
        ("order.*", Tone.FLOW),
    ],
)
def test_an_edge_has_the_tone_of_what_it_is_about(edge: str, tone: Tone) -> None:
    picture = picture_of(orders(Retry(attempts=3, delay="15s", via=RetryRoute.REJECT)))

    (found,) = [tone for each, tone in zip(picture.edges, picture.tones, strict=True) if each.lines == (edge,)]

    assert found is tone


def test_nothing_makes_an_empty_picture() -> None:
    assert picture_of(Definitions()).nodes == ()


def test_names_become_ids_that_can_be_read() -> None:
    assert node(Definitions.of(queues=[queue("q.orders_10s")]), "q.orders_10s").id == "queueQOrders10S"


def test_ids_of_names_that_differ_in_punctuation_only_differ_too() -> None:
    picture = picture_of(Definitions.of(queues=[queue("a.b"), queue("a-b"), queue("a_b"), queue("…")]))

    assert len({node.id for node in picture.nodes}) == 4


@given(any_definitions)
def test_ids_are_letters_and_digits_and_each_is_there_once(definitions: Definitions) -> None:
    ids = [node.id for node in picture_of(definitions).nodes]

    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9]*(_\d+)?", id) for id in ids)


@given(any_definitions)
def test_edges_and_groups_are_made_of_nodes_of_the_picture(definitions: Definitions) -> None:
    picture = picture_of(definitions)
    ids = {node.id for node in picture.nodes}

    assert {id for edge in picture.edges for id in edge.ends} <= ids
    assert {id for group in picture.groups for id in group.members} <= ids


@given(any_definitions)
def test_a_queue_belongs_to_one_group_at_most(definitions: Definitions) -> None:
    members = [id for group in picture_of(definitions).groups for id in group.members]

    assert len(set(members)) == len(members)


@given(any_definitions)
def test_every_queue_is_seen(definitions: Definitions) -> None:
    seen = {node.name for node in picture_of(definitions).nodes}

    assert {queue.name for queue in definitions.queues if not queue.name.startswith("redrive.delay.")} <= seen


@given(any_definitions)
def test_the_order_of_definitions_does_not_matter(definitions: Definitions) -> None:
    turned = Definitions(definitions.exchanges[::-1], definitions.queues[::-1], definitions.bindings[::-1])

    assert picture_of(turned) == picture_of(definitions)


def test_a_picture_introduces_itself() -> None:
    assert repr(picture_of(Definitions.of(queues=[queue("q")]))) == "<Picture nodes=1 edges=0 groups=0>"


def test_a_wait_is_told_as_people_tell_it() -> None:
    length = timedelta(hours=1, minutes=30) // timedelta(milliseconds=1)

    definitions = Definitions.of(queues=[queue("q"), dying("later", "", "q", message_ttl=length)])

    assert edges(definitions) == {"later → q: after 1h30m"}
    assert [edge.kind for edge in picture_of(definitions).edges] == [EdgeKind.RETURN]
