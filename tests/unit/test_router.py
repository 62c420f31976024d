"""What is declared, before anything is connected."""

import pytest

from redrive import App, Batch, BreakerPolicy, Retry, Router
from redrive.errors import ConfigurationError
from redrive.recovery.history import HeaderNames
from redrive.runtime.specs import ConsumerSpec
from redrive.topology import Queue

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
    app.batch_consumer("many", size=10, timeout="1s")(handle_many)
    app.batch_consumer("quick", call_timeout="2s")(handle_many)
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
    assert found["many"].batch.timeout == "1s"


def test_without_defaults_there_are_three_attempts_and_no_time_limit() -> None:
    app = App("shop")
    app.consumer("plain")(handle)
    app.batch_consumer("many")(handle_many)

    assert [spec.queue.retry for spec in app.consumers] == [Retry(), Retry()]
    assert [spec.timeout for spec in app.consumers] == [None, None]


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
        ({"bind": ()}, "defaults: unknown option bind"),
        ({"dead_ends": ()}, "defaults: unknown option dead_ends"),
    ],
)
def test_defaults_that_cannot_be_are_refused_when_they_are_said(defaults: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told.replace("?", r"\?")):
        Router(defaults=defaults)
