import pytest

from redrive.errors import TopologyError
from redrive.recovery.retry import Exponential, Retry, RetryRoute
from redrive.topology import Definitions, Exchange, Naming, Queue, QueueType, Server, Topology, expand
from redrive.topology.expansion import QueueLayout
from redrive.topology.ladder import ARRIVAL, LEVELS, arrival_key
from redrive.topology.routing import dead_letter_targets, targets
from topology_systems import SYSTEMS, VERSIONS, orders, routes, system

V3, V40, V43 = map(Server.of, VERSIONS)


def arguments(definitions: Definitions, queue: str) -> dict[str, object]:
    found = definitions.queue(queue)
    assert found is not None
    return dict(found.arguments)


# The parts of a queue -----------------------------------------------------------------------------


def test_a_line_becomes_main_retry_and_dead_letter_queue() -> None:
    made = expand(orders(), V43)
    assert [queue.name for queue in made.queues] == ["orders", "orders.dlq", "orders.retry"]
    assert [exchange.name for exchange in made.exchanges] == ["dlq.orders", "events", "retry.orders"]
    assert [str(binding) for binding in made.bindings] == [
        "binding dlq.orders → orders.dlq [parking]",
        "binding events → orders [order.*]",
        "binding retry.orders → orders.retry [retry]",
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_retry_comes_back_to_the_failing_queue_alone(version: str) -> None:
    server = Server.of(version)
    for kind, via in routes(server):
        made = expand(orders(kind, via), server)
        for queue in made.queues:
            if queue.name.startswith("orders.retry"):
                assert dead_letter_targets(made, queue) == {"orders"}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_broker_kills_is_parked_except_where_rejecting_is_retrying(version: str) -> None:
    server = Server.of(version)
    for kind, via in routes(server):
        made = expand(orders(kind, via), server)
        main = made.queue("orders")
        assert main is not None
        expected = "orders.retry" if via is RetryRoute.REJECT else "orders.dlq"
        assert dead_letter_targets(made, main) == {expected}


def test_several_waits_are_several_queues_named_by_their_delay() -> None:
    topology = Topology(queues=[Queue("orders", retry=Retry(steps=["30s", "2m"]))])
    made = expand(topology, V43)
    assert [queue.name for queue in made.queues if queue.ttl] == ["orders.retry.2m", "orders.retry.30s"]
    assert arguments(made, "orders.retry.30s") == {
        "x-queue-type": "classic",
        "x-message-ttl": 30_000,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "orders",
    }
    assert targets(made, "retry.orders", "retry.2m") == {"orders.retry.2m"}


def test_a_queue_without_retry_still_has_a_dead_letter_queue() -> None:
    assert [queue.name for queue in expand(Topology(queues=[Queue("a")]), V43).queues] == ["a", "a.dlq"]


def test_a_queue_can_do_without() -> None:
    made = expand(Topology(queues=[Queue("a", dlq=False)]), V43)
    assert [queue.name for queue in made.queues] == ["a"]
    assert arguments(made, "a") == {"x-queue-type": "classic"}


@pytest.mark.parametrize("queue", [Queue("a", auto_delete=True), Queue("a", type=QueueType.STREAM)])
def test_what_comes_and_goes_or_forgets_nothing_has_no_dead_letters(queue: Queue) -> None:
    assert len(expand(Topology(queues=[queue]), V43).queues) == 1


def test_one_attempt_has_a_dead_letter_queue_and_no_retry_queue() -> None:
    made = expand(Topology(queues=[Queue("a", retry=Retry(attempts=1))]), V43)
    assert [queue.name for queue in made.queues] == ["a", "a.dlq"]
    assert [exchange.name for exchange in made.exchanges] == ["dlq.a"]


# What versions want -------------------------------------------------------------------------------


def test_a_quorum_dead_letter_queue_is_safe_to_look_at_on_every_version() -> None:
    assert "x-delivery-limit" not in arguments(expand(orders("quorum"), V3), "orders.dlq")  # -1 drops there
    assert arguments(expand(orders("quorum"), V40), "orders.dlq")["x-delivery-limit"] == -1
    assert arguments(expand(orders("quorum"), V43), "orders.dlq")["x-delivery-limit"] == -1


def test_quorum_queues_hand_dead_letters_over_at_least_once() -> None:
    made = expand(orders("quorum"), V3)
    for queue in ("orders", "orders.retry"):
        assert arguments(made, queue)["x-dead-letter-strategy"] == "at-least-once"
        assert arguments(made, queue)["x-overflow"] == "reject-publish"


def test_at_most_once_is_for_those_who_ask() -> None:
    made = expand(orders("quorum", dead_lettering="at-most-once"), V43)
    assert "x-dead-letter-strategy" not in arguments(made, "orders")


def test_a_crash_loop_ends_in_the_dead_letter_queue() -> None:
    assert arguments(expand(orders("quorum"), V3), "orders")["x-delivery-limit"] == 20
    assert arguments(expand(orders("quorum", delivery_limit=5), V3), "orders")["x-delivery-limit"] == 5


def test_in_a_reject_loop_no_limit_may_drop_a_message() -> None:
    assert "x-delivery-limit" not in arguments(expand(orders("quorum", "reject"), V3), "orders")
    assert arguments(expand(orders("quorum", "reject"), V43), "orders")["x-delivery-limit"] == -1


def test_the_quorum_route_waits_in_the_main_queue() -> None:
    made = expand(orders("quorum", "quorum"), V43)
    assert [queue.name for queue in made.queues] == ["orders", "orders.dlq"]
    main = arguments(made, "orders")
    assert main["x-delayed-retry-type"] == "all"
    assert (main["x-delayed-retry-min"], main["x-delayed-retry-max"]) == (15_000, 15_000)
    assert main["x-delivery-limit"] == 2  # three attempts: the first delivery does not count


def test_delays_use_a_delayed_exchange_where_there_is_one() -> None:
    made = expand(orders(via="delayed"), Server.of("3.10", delayed_exchanges=True))
    delayed = made.exchange("redrive.delayed")
    assert delayed is not None
    assert (delayed.type, dict(delayed.arguments)) == ("x-delayed-message", {"x-delayed-type": "direct"})
    assert targets(made, "redrive.delayed", "orders") == {"orders"}


def test_a_delayed_message_finds_its_way_back_whatever_key_it_had() -> None:
    events = Exchange("events", "topic")
    own = events.on("order.*", "order.paid")
    retry, naming = Retry(attempts=2, via="delayed"), Naming(delayed_key="")
    topology = Topology([events], [Queue("orders", own, retry=retry)], naming=naming)
    server = Server.of("3.10", delayed_exchanges=True)
    made, names = expand(topology, server), QueueLayout(topology, topology.queues[0], server)

    assert names.delayed_key("order.paid") == "order.paid"
    assert names.delayed_key("order.new") == "orders"  # a delayed exchange knows no patterns
    assert names.delayed_key("orders") == "orders"  # it came by the default exchange
    for key in ("order.paid", "order.new", "orders", ""):
        assert targets(made, "redrive.delayed", names.delayed_key(key)) == {"orders"}


def test_a_key_that_others_have_too_brings_no_delayed_message_back() -> None:
    events = Exchange("events")
    retry, naming = Retry(attempts=2, via="delayed"), Naming(delayed_key="")
    queues = [Queue("orders", events.on("order"), retry=retry), Queue("audit", events.on("order", "orders", "audit"))]
    topology = Topology([events], queues, naming=naming, delays=True)
    server = Server.of("3.10", delayed_exchanges=True)
    made = expand(topology, server)

    for queue in queues:
        for key in ("order", "orders", "audit"):
            back = QueueLayout(topology, queue, server).delayed_key(key)
            assert targets(made, "redrive.delayed", back) == {queue.name}


def test_delays_use_the_ladder_where_there_is_none() -> None:
    made = expand(orders(via="delayed"), V43)
    assert len([queue for queue in made.queues if queue.name.startswith("redrive.delay.")]) == LEVELS
    assert (ARRIVAL, arrival_key("orders")) in {(one.source, one.routing_key) for one in made.bindings_to("orders")}


def test_with_delays_every_queue_can_be_published_to_for_later() -> None:
    made = expand(Topology(queues=[Queue("a"), Queue("b", retry=Retry())], delays=True), V43)
    assert all(any(one.source == ARRIVAL for one in made.bindings_to(name)) for name in "ab")


def test_there_is_one_ladder_for_all() -> None:
    one = expand(Topology(delays=True), V43)
    two = expand(Topology(queues=[Queue(name, retry=Retry(via=RetryRoute.DELAYED)) for name in "ab"]), V43)
    assert {queue.name for queue in one.queues} < {queue.name for queue in two.queues}


# The five systems ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("version", VERSIONS)
def test_each_system_expands_on_each_version(name: str, version: str) -> None:
    assert expand(system(name), Server.of(version))


@pytest.mark.parametrize(
    "queue",
    ["q.upload.commands", "q.validator", "q.thumbnail", "q.extractor", "q.projection", "q.notification", "q.audit"],
)
def test_uploads_has_its_names(queue: str) -> None:
    made = expand(system("uploads"), V3)
    main = arguments(made, queue)
    assert (main["x-dead-letter-exchange"], main["x-dead-letter-routing-key"]) == (f"retry.{queue}", "retry")
    waiting = arguments(made, f"{queue}.retry")
    assert waiting["x-message-ttl"] == 15_000
    assert (waiting["x-dead-letter-exchange"], waiting["x-dead-letter-routing-key"]) == ("", queue)
    assert targets(made, f"retry.{queue}", "retry") == {f"{queue}.retry"}
    assert targets(made, f"dlq.{queue}", "parking") == {f"{queue}.dlq"}


def test_uploads_routes_as_its_document_says() -> None:
    made = expand(system("uploads"), V3)
    assert targets(made, "domain.events", "files.validated.png") == {
        "q.thumbnail", "q.extractor", "q.projection", "q.audit",
    }  # fmt: skip
    assert targets(made, "domain.commands", "commands.file.reprocess.7") == {"q.upload.commands"}


def test_video_has_its_names() -> None:
    made = expand(system("video"), V3)
    main = arguments(made, "video_tasks")
    assert (main["x-dead-letter-exchange"], main["x-dead-letter-routing-key"]) == ("video-dlx", "video.dlq")
    assert arguments(made, "video_retry_60s") == {
        "x-queue-type": "classic", "x-message-ttl": 60_000, "x-dead-letter-exchange": "video",
    }  # fmt: skip
    assert [queue.name for queue in made.queues if queue.ttl] == [
        "video_retry_10m", "video_retry_2m", "video_retry_30s", "video_retry_60s",
    ]  # fmt: skip
    assert targets(made, "video-retry", "video") == {"video_retry_60s"}
    assert targets(made, "video", "video") == {"video_tasks"}
    assert targets(made, "video", "video_retry_60s") == {"video_tasks"}  # published by the queue's name
    assert targets(made, "video-dlx", "video.dlq") == {"video_dlq"}


def without_back_key(**names: str) -> Definitions:
    work = Exchange("work", "direct")
    naming = Naming(**{"retry_exchange": "waits", "back_exchange": "work", "back_key": "", **names})
    return expand(Topology([work], [Queue("q", work.on("q"), retry=Retry(attempts=3, delay="5s"))], naming=naming), V3)


def test_a_rung_without_a_back_key_leads_back_by_its_key_and_by_its_name() -> None:
    made = without_back_key()

    assert "x-dead-letter-routing-key" not in arguments(made, "q.retry")
    assert targets(made, "waits", "retry") == {"q.retry"}
    assert [targets(made, "work", key) for key in ("q", "retry", "q.retry")] == [{"q"}] * 3


def test_a_rung_without_a_back_key_that_returns_through_the_default_exchange_is_not_bound_there() -> None:
    made = without_back_key(back_exchange="", retry_key="{queue}")

    assert {bind.source for bind in made.bindings} == {"work", "waits", "dlq.q"}
    assert targets(made, "", "q") == {"q"}


def test_a_rung_without_a_back_key_on_the_exchange_it_returns_to_is_refused_as_a_cycle() -> None:
    with pytest.raises(TopologyError, match=r"dead-letter cycle q\.retry → q\.retry"):
        without_back_key(retry_exchange="work")


def test_errorfilter_delays_by_the_key_a_message_had() -> None:
    made = expand(system("errorfilter"), Server.of("3.10", delayed_exchanges=True))
    delayed = made.exchange("direct.delayed")
    assert delayed is not None
    assert delayed.type == "x-delayed-message"
    assert targets(made, "direct.delayed", "minha.chave") == {"minha.fila"}
    main = arguments(made, "minha.fila")
    assert (main["x-dead-letter-exchange"], main["x-dead-letter-routing-key"]) == ("dlx.exchange", "minha.fila.dlq")


def test_nfe_does_everything_over_one_exchange() -> None:
    made = expand(system("nfe"), V3)
    assert [exchange.name for exchange in made.exchanges] == ["sagnus.nfe.events"]
    assert targets(made, "sagnus.nfe.events", "nfe.event") == {"sagnus.nfe.events.q"}
    assert targets(made, "sagnus.nfe.events", "nfe.event.retry") == {"sagnus.nfe.events.retry.q"}
    assert targets(made, "sagnus.nfe.events", "nfe.event.dlq") == {"sagnus.nfe.events.dlq"}
    assert arguments(made, "sagnus.nfe.events.retry.q")["x-dead-letter-routing-key"] == "nfe.event"


def test_raffle_has_its_names() -> None:
    made = expand(system("raffle"), V3)
    main, waiting = arguments(made, "raffle_queue"), arguments(made, "raffle_retry_10s")
    assert (main["x-dead-letter-exchange"], main["x-dead-letter-routing-key"]) == ("raffle_dlx", "raffle_dlq")
    assert waiting["x-message-ttl"] == 10_000
    assert (waiting["x-dead-letter-exchange"], waiting["x-dead-letter-routing-key"]) == (
        "raffle_exchange", "raffle_queue",
    )  # fmt: skip


# Names that meet ----------------------------------------------------------------------------------


def test_a_declared_exchange_can_be_the_retry_exchange() -> None:
    naming = Naming(retry_exchange="shared", dlq_exchange="shared")
    made = expand(Topology([Exchange("shared", "topic")], [Queue("a", retry=Retry())], naming=naming), V43)
    assert [(exchange.name, exchange.type) for exchange in made.exchanges] == [("shared", "topic")]


def test_an_exchange_that_ignores_keys_cannot_be_the_retry_exchange() -> None:
    topology = Topology(
        [Exchange("shared", "fanout")], [Queue("a", retry=Retry())], naming=Naming(retry_exchange="shared")
    )
    with pytest.raises(TopologyError, match="exchange shared and queue a both want exchange shared"):
        expand(topology, V43)


def test_everything_wrong_is_told_at_once() -> None:
    events = Exchange("events", "topc")
    topology = Topology(
        [events],
        [
            Queue("amq.mine", Exchange("evnts").on("x"), dlq=False),
            Queue("twice"),
            Queue("twice"),
            Queue("a"),
            Queue("a.dlq"),
            Queue("n" * 256, dlq=False),
            Queue("ttl", arguments={"x-message-ttl": 2**32}, dlq=False),
            Queue("typo", arguments={"x-mesage-ttl": 5}),
            Queue("waits", retry=Retry(attempts=5, exponential=Exponential(), via=RetryRoute.REJECT)),
        ],
    )
    with pytest.raises(TopologyError) as caught:
        expand(topology, V43)
    said = "\n".join(caught.value.problems)
    for complaint in (
        "unknown type 'topc', did you mean 'topic'?",
        "names that begin with 'amq.' are the broker's",
        "there is no exchange 'evnts', did you mean 'events'?",
        "queue twice is there twice",
        "queue a and queue a.dlq both want queue a.dlq",
        "its name has 256 bytes and AMQP knows 255",
        "x-message-ttl 4294967296: want a number from 0 to 4294967295",
        "unknown argument x-mesage-ttl, did you mean x-message-ttl?",
        "via='reject' has one wait",
    ):
        assert complaint in said
    assert len(caught.value.problems) == 9


def test_a_problem_with_a_name_of_a_megabyte_can_be_read_all_the_same() -> None:
    with pytest.raises(TopologyError) as refused:
        expand(Topology(queues=[Queue("q" * 1_000_000, type=QueueType.STREAM, dlq=True)]), Server())
    assert [len(problem) <= 1_001 for problem in refused.value.problems] == [True] * len(refused.value.problems)
