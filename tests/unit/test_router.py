"""What is declared, before anything is connected."""

from collections.abc import Callable
from typing import Any

import pytest

from redrive import App, Batch, BreakerPolicy, Retry, Router
from redrive.errors import ConfigurationError
from redrive.recovery.history import HeaderNames
from redrive.topology import Queue, Server, dlq_detection, expand
from redrive.worker.consumer_spec import ConsumerSpec

OFTEN, ONCE = Retry(attempts=11, delay="5s"), Retry(attempts=2, delay="1s")


async def handle() -> None: ...


async def handle_many(batch: Batch[int]) -> None: ...


def declared(router: Router) -> dict[str, ConsumerSpec]:
    return {spec.queue.name: spec for spec in router.consumers}


def test_defaults_hold_for_every_consumer_that_does_not_say_otherwise() -> None:
    app = App("shop", defaults={"retry": OFTEN, "concurrency": 4, "timeout": "30s", "park": "reject"})
    app.consumer("plain")(handle)
    app.consumer("other", retry=ONCE, concurrency=1)(handle)
    app.consumer("never", retry=None)(handle)
    app.batch_consumer("many", size=10, max_wait="1s")(handle_many)
    app.batch_consumer("quick", timeout="2s")(handle_many)
    found = declared(app)

    assert {name: spec.queue.retry for name, spec in found.items()} == {
        "plain": OFTEN, "other": ONCE, "never": None, "many": OFTEN, "quick": OFTEN,
    }  # fmt: skip
    assert {name: spec.concurrency for name, spec in found.items() if name != "other"} == dict.fromkeys(
        ("plain", "never", "many", "quick"), 4
    )
    assert found["other"].concurrency == 1
    assert {spec.park for spec in found.values()} == {"reject"}
    assert (found["plain"].timeout, found["many"].timeout, found["quick"].timeout) == ("30s", "30s", "2s")
    assert found["many"].batch is not None
    assert found["many"].batch.max_wait == "1s"


def test_without_defaults_there_are_three_attempts_and_no_time_limit() -> None:
    app = App("shop")
    app.consumer("plain")(handle)
    app.batch_consumer("many")(handle_many)

    assert [spec.queue.retry for spec in app.consumers] == [Retry(), Retry()]
    assert [spec.timeout for spec in app.consumers] == [None, None]


@pytest.mark.parametrize(
    ("options", "prefetched"),
    [({}, 10), ({"concurrency": 5}, 10), ({"concurrency": 20}, 40), ({"concurrency": 20, "prefetch": 1}, 1)],
)
def test_the_prefetch_is_twice_the_concurrency_and_at_least_10(options: dict[str, int], prefetched: int) -> None:
    app = App("shop")
    app.consumer("orders", **options)(handle)
    assert declared(app)["orders"].prefetched == prefetched


def test_a_consumer_of_dead_letters_prefetches_at_least_50() -> None:
    """Each that fails waits here for its turn: with few of them nothing else would be handled."""
    app = App("shop")
    app.queue("orders")
    app.dlq_consumer("orders")(handle)
    [spec] = app.select_consumers(["orders.dlq"])
    assert spec.prefetched == 50


async def prepare(order: int) -> int:
    return order


def test_processors_are_those_of_prepare() -> None:
    app = App("shop")
    app.batch_consumer("prepared", size=10, prepare=prepare)(handle_many)
    app.batch_consumer("by many", size=10, prepare=prepare, processors=8)(handle_many)
    app.batch_consumer("plain", size=10)(handle_many)
    found = declared(app)

    at_a_time = {name: spec.batch.prepared_at_a_time for name, spec in found.items() if spec.batch is not None}
    assert at_a_time == {"prepared": 1, "by many": 8, "plain": 0}
    assert {name: spec.prefetched for name, spec in found.items()} == {"prepared": 21, "by many": 28, "plain": 20}


@pytest.mark.parametrize("declare", [App.batch_consumer, App.dlq_batch_consumer], ids=["queue", "dead-letters"])
def test_processors_without_prepare_are_refused(declare: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"batch processors 8: processors run prepare=, and there is none"):
        declare(App("shop"), "orders", processors=8)
    with pytest.raises(ConfigurationError, match="batch processors 0: want at least 1"):
        declare(App("shop"), "orders", processors=0, prepare=prepare)


def test_a_declared_queue_gets_the_defaults_it_says_nothing_about() -> None:
    app = App("shop", defaults={"retry": OFTEN, "durable": False})
    own = app.queue("own", retry=ONCE)
    bare = app.queue("bare")
    app.consumer(own)(handle)
    app.consumer(bare)(handle)

    assert {queue.name: (queue.retry, queue.durable) for queue in app.queues} == {
        "own": (ONCE, False), "bare": (OFTEN, False),
    }  # fmt: skip


def test_the_application_knows_who_has_other_names_for_headers() -> None:
    app, own = App("shop"), HeaderNames(attempts="x-retry-count")
    app.consumer("orders", headers=own)(handle)
    app.consumer("others")(handle)

    assert app.header_names == {"orders": own}


def test_an_included_router_has_its_own_defaults() -> None:
    router = Router(defaults={"retry": ONCE, "breaker": BreakerPolicy()})
    router.consumer("orders")(handle)
    app = App("shop", defaults={"retry": OFTEN})
    app.include(router)
    app.consumer("others")(handle)

    assert {name: spec.queue.retry for name, spec in declared(app).items()} == {"orders": ONCE, "others": OFTEN}
    assert declared(app)["others"].breaker is None


def test_dead_letters_are_handled_without_defaults() -> None:
    app = App("shop", defaults={"retry": OFTEN, "concurrency": 4})
    app.consumer("orders")(handle)
    app.dlq_consumer("orders")(handle)

    ((_, spec),) = app.dead_letter_consumers
    assert (spec.concurrency, spec.queue) == (1, Queue("orders"))


@pytest.mark.parametrize(
    ("defaults", "told"),
    [
        ({"retrry": OFTEN}, "defaults: unknown option retrry, did you mean retry?"),
        ({"bind": ()}, "defaults: bind belongs to one queue: give it to that consumer"),
        ({"dead_ends": ()}, "defaults: unknown option dead_ends"),
    ],
)
def test_defaults_that_cannot_be_are_refused_when_they_are_said(defaults: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told.replace("?", r"\?")):
        Router(defaults=defaults)


# Dead-letter queues ---------------------------------------------------------------------------------


def test_a_text_names_the_dead_letter_queue() -> None:
    app = App("shop", defaults={"dlq": "{queue}.grave"})
    app.consumer("orders")(handle)
    app.consumer("mail", dlq="lost.mail")(handle)
    app.consumer(app.queue("bills", dlq="bills.dead"), dlq={KeyError: "bills.unknown"})(handle)
    app.dlq_consumer("mail")(handle)

    known = dlq_detection.declared_dlqs(app.topology, Server.of("3.10"))
    assert known == {
        "orders.grave": "orders", "lost.mail": "mail", "bills.dead": "bills", "bills.unknown": "bills",
    }  # fmt: skip
    assert {queue.name for queue in expand(app.topology, Server.of("3.10")).queues} >= set(known)
    assert {spec.queue.name for spec in app.select_consumers(()) if spec.for_dead_letters} == {"lost.mail"}


def test_two_errors_may_share_a_dead_letter_queue() -> None:
    app = App("shop")
    app.consumer("orders", dlq={KeyError: "orders.odd", ValueError: "orders.odd"})(handle)

    expand(app.topology, Server.of("3.10"))
    assert set(dlq_detection.declared_dlqs(app.topology, Server.of("3.10"))) == {"orders.dlq", "orders.odd"}


@pytest.mark.parametrize(
    ("dlq", "told"),
    [
        ("", "want true, false(,| or) the name"),
        ("yes", "want true, false(,| or) the name"),
        (5, "want true, false(,| or) the name"),
        ("{qeue}.dlq", "{qeue} is unknown"),
        ({"KeyError": "orders.odd"}, r"or a table {error class or http_status\(422\): dead-letter queue}"),
        ({KeyError: ""}, "want a queue's name"),
    ],
)
def test_what_cannot_be_a_dead_letter_queue_is_refused(dlq: object, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        App("shop").consumer("orders", dlq=dlq)(handle)


def test_a_table_of_errors_belongs_to_the_consumer() -> None:
    with pytest.raises(ConfigurationError, match=r"dlq {.*}: want true, false or the name of its dead-letter queue"):
        App("shop").queue("orders", dlq={KeyError: "orders.odd"})
