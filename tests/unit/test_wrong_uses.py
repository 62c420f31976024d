"""Wrong uses of the public API, and the error that each gives at declaration.

A row is what a developer types on a bad day. Every error is a ConfigurationError that names the option and says what
would do; none is Python's own, from the depth of our functions.
"""

from typing import Any

import pytest

import redrive
from redrive import App, Queue, Retry
from redrive.errors import ConfigurationError


def handle(body: dict[str, Any]) -> None: ...


async def handle_async(body: dict[str, Any]) -> None: ...


def generate(body: dict[str, Any]) -> Any:
    yield body


async def generate_async(body: dict[str, Any]) -> Any:
    yield body


def consumer(*arguments: Any, of: Any = handle, **options: Any) -> None:
    App("shop").consumer(*arguments, **options)(of)


def batch_consumer(*arguments: Any, of: Any = handle, **options: Any) -> None:
    App("shop").batch_consumer(*arguments, **options)(of)


def dlq_consumer(*arguments: Any, **options: Any) -> None:
    App("shop").dlq_consumer(*arguments, **options)(handle)


class OwnClock:
    def now(self) -> float:
        return 0.0


# What is written, and its error: first names, then types, values and combinations.
TABLE = [
    ('consumer("orders", concurency=4)', "consumer of orders: unknown option concurency, did you mean concurrency?"),
    ('consumer("orders", retries=Retry())', "consumer of orders: unknown option retries, did you mean retry?"),
    ('consumer("orders", size=10)', "consumer of orders: unknown option size; there are arguments, auto_delete, bind"),
    ('batch_consumer("orders", max_size=10)', "consumer of orders: unknown option max_size"),
    ('dlq_consumer("orders", retry=Retry())', "dlq_consumer of orders: unknown option retry"),
    ("Retry(atempts=3)", "retry: unknown option atempts, did you mean attempts?"),
    ("Retry(3)", "Retry: too many positional arguments; want Retry(attempts=..., delay=...,"),
    ('Queue("orders", retries=3)', "queue orders: unknown option retries, did you mean retry?"),
    ("Queue(bind=[])", "Queue: missing a required argument: 'name'; want Queue(name, bind"),
    ('App("shop", brokr="amqp://")', "app shop: unknown option brokr, did you mean broker?"),
    ("App()", "App: missing a required argument: 'name'; want App(name, broker=..."),
    ('App("shop", "amqp://localhost")', "App: too many positional arguments; want App(name, broker=..."),
    ('Router(defaults={"retrry": Retry()})', "defaults: unknown option retrry, did you mean retry?"),
    ("Naming(dead_queue='{queue}.dead')", "naming: unknown option dead_queue"),
    ("HeaderNames(count='x-retries')", "headers: unknown option count; there are attempts, reason, wording"),
    ("BreakerPolicy(failures=5)", "breaker: unknown option failures, did you mean failure_rate?"),
    (
        'consumer("orders", retry=3)',
        "consumer of orders: retry 3: want a Retry or None, such as Retry(attempts=3), the first attempt included",
    ),
    (
        'consumer("orders", retry="30s")',
        "consumer of orders: retry '30s': want a Retry or None, such as Retry(delay='30s')",
    ),
    ('consumer("orders", retry=True)', "consumer of orders: retry True: want a Retry or None, such as Retry() or None"),
    (
        'consumer("orders", bind="order.*")',
        "consumer of orders: bind 'order.*': want a list of Bind objects, such as events.on('order.*') of an exchange",
    ),
    ('consumer("orders", bind=Exchange("events"))', "consumer of orders: bind Exchange("),
    ('consumer("orders", concurrency="4")', "consumer of orders: concurrency '4': want a whole number"),
    ('consumer("orders", concurrency=True)', "consumer of orders: concurrency True: want a whole number"),
    (
        'consumer("orders", timeout=30)',
        "consumer of orders: timeout 30: want a length of time with its unit, such as '15s'",
    ),
    ('consumer("orders", timeout=object())', "consumer of orders: timeout <object object"),
    (
        'consumer("orders", breaker=True)',
        "consumer of orders: breaker True: want a BreakerPolicy, a mapping of texts to BreakerPolicy objects or None",
    ),
    (
        'consumer("orders", inbox="yes")',
        "consumer of orders: inbox 'yes': want an InboxPolicy, true or false or None, such as InboxPolicy(keep='7d')",
    ),
    (
        'consumer("orders", headers={"attempts": "x-retries"})',
        "consumer of orders: headers {'attempts': 'x-retries'}: want a HeaderNames",
    ),
    (
        'consumer("orders", middleware=open)',
        "consumer of orders: middleware <built-in function open>: want a list of functions",
    ),
    (
        'consumer("orders", dlq=5)',
        "consumer of orders: dlq 5: want true, false, the name of its dead-letter queue, or a table",
    ),
    (
        'consumer("orders", arguments=["x-max-length"])',
        "consumer of orders: arguments ['x-max-length']: want a mapping of texts to values",
    ),
    ('consumer("orders", naming="{queue}.dead")', "consumer of orders: naming '{queue}.dead': want a Naming or None"),
    ("consumer(5)", "consumer: queue 5: want a queue's name or a Queue"),
    ('consumer("orders", of="handle")', "consumer of orders: function 'handle': want a function"),
    ('batch_consumer("orders", prepare="parse")', "consumer of orders: prepare 'parse': want a function or None"),
    (
        'batch_consumer("orders", max_wait=1000)',
        "consumer of orders: max_wait 1000: want a length of time with its unit",
    ),
    ('Retry(attempts="3")', "retry.attempts '3': want a whole number"),
    ("Retry(delay=30)", "retry.delay 30: want a length of time with its unit"),
    ('Retry(exponential="5s")', "retry.exponential '5s': want an Exponential or None, such as Exponential('5s')"),
    ('Retry(steps="30s")', "retry.steps '30s': want a list of values, each a length of time"),
    ('Retry(only="TimeoutError")', "retry.only 'TimeoutError': want an exception's class"),
    ("Exponential(5)", "exponential.first 5: want a length of time with its unit"),
    ('BreakerPolicy(failure_rate="50%")', "breaker.failure_rate '50%': want a number"),
    ("InboxPolicy(keep=7)", "inbox.keep 7: want a length of time with its unit"),
    ('InboxPolicy(key="id")', "inbox.key 'id': want a function or None"),
    ('OutboxPolicy(attempts="10")', "outbox_policy.attempts '10': want a whole number"),
    ("OutboxPolicy(keep=7)", "outbox_policy.keep 7: want a length of time with its unit"),
    (
        'App("shop", outbox="events")',
        "app shop: outbox 'events': want an OutboxNames or None, such as OutboxNames('my_outbox')",
    ),
    ('App("shop", clock=OwnClock())', "app shop: clock <"),
    ('App("shop", observers=print)', "app shop: observers <built-in function print>: want a list of Observer objects"),
    ('App("shop", patience=30)', "app shop: patience 30: want a length of time with its unit"),
    ("App(5)", "app 5: name 5: want a text"),
    ('Topology(queues=["orders"])', "topology.queues ['orders']: want a list of Queue objects"),
    ('Exchange("events", arguments=None)', "exchange events: arguments None: want a mapping"),
    ('Bind("events", ["a", "b"])', "binding.routing_key ['a', 'b']: want a text"),
    ('consumer("orders", concurrency=0)', "consumer of orders: concurrency 0: want at least 1"),
    ('consumer("orders", prefetch=70_000)', "consumer of orders: prefetch 70000: want 1 to 65535"),
    ('consumer("orders", processes=-1)', "consumer of orders: processes -1: want at least 0"),
    ('consumer("orders", park="drop")', "consumer of orders: park 'drop': want 'publish' or 'reject'"),
    ('consumer("orders", timeout="soon")', "timeout 'soon' is not a length of time: write it like '15s'"),
    ('consumer("orders", rate=0)', "consumer of orders: rate 0: want more than 0 messages a second"),
    ('consumer("orders", type="quorom")', "queue orders: queue type 'quorom': want one of classic, quorum, stream"),
    ('consumer("orders", dlq="yes")', "queue orders: dlq 'yes': want true, false or the name of its dead-letter queue"),
    (
        'consumer("orders", redrive_to="exchange:")',
        "queue orders: redrive_to: destination 'exchange:': want exchange:NAME:KEY",
    ),
    ("Retry(attempts=0)", "retry.attempts 0: want a number from 1"),
    ('Retry(via="requeue")', "retry.via 'requeue': want one of reject, republish, delayed, quorum"),
    ("Retry(jitter=2)", "retry.jitter 2: want a share from 0 to below 1"),
    ('Retry(delay="50d")', "retry.delay '50d': want 1ms to"),
    ('OutboxPolicy(transport="kafka")', "outbox.transport 'kafka': want RABBIT or LOCAL"),
    ("OutboxPolicy(attempts=0)", "outbox_policy.attempts 0: want at least 1"),
    ('App("shop", queue_type="quorom")', "app shop: queue type 'quorom': want one of classic"),
    ('App("")', "app: name is empty"),
    ('App("shop", broker="rabbit:5672")', "amqp"),
    ('OutboxNames("events", {"payload": "body"})', "outbox.columns: there is no column payload"),
    ('InboxNames("seen", {"id": "event_id"})', "inbox.columns: there is no column id"),
    ('Retry(delay="5s", steps=["5s"])', "retry: delay and steps exclude each other: give one of them"),
    (
        'consumer("orders", park="reject", retry=Retry(via="reject"))',
        "consumer of orders: with via='reject' a reject is a retry without end: use park='publish'",
    ),
    (
        'consumer("orders", breaker={"api": BreakerPolicy()}, depends_on="api")',
        "consumer of orders: breaker names the dependencies already: leave depends_on out",
    ),
    ('batch_consumer("orders", processors=8)', "batch processors 8: processors run prepare=, and there is none"),
    (
        'consumer("orders", processes=2, of=handle_async)',
        "consumer of orders: processes 2: processes are for plain functions, and",
    ),
    ('consumer("orders", of=generate)', "consumer of orders: tests.unit.test_wrong_uses.generate yields"),
    ('consumer("orders", of=generate_async)', "consumer of orders: tests.unit.test_wrong_uses.generate_async yields"),
    ('batch_consumer("orders", prepare=generate)', "batch prepare: tests.unit.test_wrong_uses.generate yields"),
    ("BreakerPolicy(window=5, minimum_calls=10)", "breaker.window 5 never holds breaker.minimum_calls 10"),
    ('Router(defaults={"bind": ()})', "defaults: bind belongs to one queue: give it to that consumer"),
]


@pytest.mark.parametrize(("use", "error"), TABLE, ids=[use for use, _ in TABLE])
def test_a_wrong_use_is_an_error_at_declaration_that_says_what_would_do(use: str, error: str) -> None:
    names = {name: getattr(redrive, name) for name in redrive.__all__} | globals()
    with pytest.raises(ConfigurationError) as caught:
        eval(use, names)
    assert error in str(caught.value)
    assert "object has no attribute" not in str(caught.value)


def test_the_table_has_at_least_sixty_wrong_uses() -> None:
    assert len(dict(TABLE)) == len(TABLE) >= 60


def test_two_consumers_of_one_queue_are_refused() -> None:
    app = App("shop")
    app.consumer("orders")(handle)
    with pytest.raises(ConfigurationError, match="queue orders has a consumer already"):
        app.consumer("orders")(handle_async)


def test_a_refused_declaration_leaves_nothing_behind() -> None:
    app = App("shop")
    for options in ({"retry": 3}, {"concurrency": 0}, {"park": "reject", "retry": Retry(via="reject")}):
        with pytest.raises(ConfigurationError):
            app.consumer("orders", **options)  # type: ignore[arg-type]

    assert (app.queues, app.consumers) == ([], [])


def test_a_secret_in_a_wrong_value_is_not_quoted() -> None:
    with pytest.raises(ConfigurationError) as caught:
        App("shop", broker=["amqp://guest:hunter2@localhost"])  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)


def test_a_value_whose_repr_fails_is_named_by_its_type() -> None:
    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError

    with pytest.raises(ConfigurationError, match=r"retry\.attempts of type Hostile: want a whole number"):
        Retry(attempts=Hostile())  # type: ignore[arg-type]


def test_texts_of_enumerations_and_subclasses_are_taken() -> None:
    class Own(str):
        __slots__ = ()

    assert Queue(Own("orders"), type="quorum").type == "quorum"  # type: ignore[arg-type]
    assert Retry(attempts=True + 1).attempts == 2
    assert Retry(max_age="1d", jitter=0).jitter == 0
