"""The table in the README that compares Redrive to its peers is true of the versions that are installed.

`CHECKS` says which tests are responsible for a row. Retries, failures and publishing are tried on a broker. What is
there or is not (schedules, batches, an outbox) is looked for in the code, where it would be: that finds a name that has
appeared, and would not find a thing under another name. "Comes again, for ever" follows from two facts: an
unacknowledged message comes again, and nobody reads a count of deliveries; no worker is killed here. "As you write it"
of aio-pika needs no check: it is a client, and decides nothing. Redrive's own cells beyond those rows are what the rest
of the test suite is about.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aio_pika
import celery
import dramatiq
import faststream
import faststream.rabbit
import kombu.transport
import pamqp.commands
import pika
import pytest
from celery.contrib.testing.worker import start_worker
from dramatiq.brokers import rabbitmq as dramatiq_rabbitmq
from dramatiq.middleware import Retries
from faststream import AckPolicy
from faststream.rabbit import RabbitBroker, RabbitQueue

from redrive import App, Retry
from redrive.errors import Unroutable
from redrive.testing.broker import ThreadedBroker

README = Path(__file__).parents[2] / "README.md"
PEERS = {"Celery": "celery", "FastStream": "faststream", "dramatiq": "dramatiq", "aio-pika": "aio-pika"}
WITHIN = 30.0

# Rows of the table, and the tests that are responsible for their cells.
CHECKS = {
    "a retry waits": [
        "test_celery_holds_what_waits_in_a_workers_memory",
        "test_dramatiq_holds_what_waits_in_a_workers_memory",
        "test_faststream_has_it_again_at_once_or_never",
        "test_redrive_lets_it_wait_in_the_broker_and_parks_it_with_its_story",
    ],
    "what fails for good": [
        "test_celery_acknowledges_what_fails",
        "test_faststream_rejects_what_fails",
        "test_dramatiq_keeps_what_fails_for_seven_days_with_its_last_stack",
        "test_redrive_lets_it_wait_in_the_broker_and_parks_it_with_its_story",
    ],
    "dead letters": ["test_nobody_else_has_commands_or_modules_for_dead_letters"],
    "a message that kills its worker": [
        "test_nobody_else_counts_deliveries",
        "test_celery_acknowledges_before_it_runs",
    ],
    "publishing": [
        "test_celery_and_dramatiq_do_not_ask_for_confirms",
        "test_faststream_and_aio_pika_confirm_and_return_what_is_unroutable_without_an_error",
        "test_redrive_says_that_a_message_is_unroutable",
    ],
    "a commit and its event": ["test_nobody_else_has_an_outbox_or_an_inbox"],
    "many messages in one call": ["test_batches_are_for_kafka_in_faststream_and_for_nobody_else"],
    "topology": ["test_nobody_else_compares_a_topology_to_a_broker"],
    "tests without a broker": ["test_what_the_others_have_for_tests"],
    "results, chains, groups": ["test_who_has_results_chains_and_groups"],
    "schedules": ["test_who_has_schedules"],
    "other brokers": ["test_who_has_other_brokers"],
    "AsyncAPI": ["test_who_has_asyncapi"],
}


# The table ----------------------------------------------------------------------------------------


def table() -> dict[str, dict[str, str]]:
    text = README.read_text().partition("<!-- comparison -->")[2].partition("<!-- end of comparison -->")[0]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().split("\n")]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def test_every_row_is_checked_by_tests_that_exist() -> None:
    assert set(table()) == set(CHECKS)
    assert [name for names in CHECKS.values() for name in names if name not in globals()] == []


def test_the_versions_that_are_named_are_those_that_are_installed() -> None:
    sentence = re.search(r"Beside (.*?), as they come", README.read_text(), re.DOTALL)
    assert sentence is not None
    named = dict(re.findall(r"([\w-]+) (\d+\.\d+)", sentence[1]))
    assert named == {name: ".".join(version(package).split(".")[:2]) for name, package in PEERS.items()}


# The broker they are tried on ---------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker() as broker:
        yield broker


def counts(broker: ThreadedBroker, queue: str) -> int:
    """Messages in the queue that no consumer has in its hands."""
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)


def until(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN
    while not fact():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


@pytest.fixture
def celery_app(broker: ThreadedBroker) -> Iterator[celery.Celery]:
    app = celery.Celery("compared", broker=broker.url, set_as_current=False)
    app.conf.task_default_queue = "tasks"
    yield app
    app.close()


def nothing() -> None:
    """What is never run."""


def working(app: celery.Celery) -> Any:
    return start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=WITHIN)


@pytest.fixture
def actors(broker: ThreadedBroker) -> Iterator[dramatiq_rabbitmq.RabbitmqBroker]:
    found = dramatiq_rabbitmq.RabbitmqBroker(url=broker.url)
    yield found
    found.close()


# Retries and failures -----------------------------------------------------------------------------


def test_celery_holds_what_waits_in_a_workers_memory(broker: ThreadedBroker, celery_app: celery.Celery) -> None:
    """As many as it may prefetch; beyond that only where RabbitMQ has a prefetch for the channel, which 4.3 has not."""
    task = celery_app.task(name="later")(nothing)
    with working(celery_app):
        for _ in range(3):
            task.apply_async(countdown=3600)
        until(lambda: counts(broker, "tasks") == 0)
    until(lambda: counts(broker, "tasks") == 3)  # it ended, and they were never acknowledged


def test_dramatiq_holds_what_waits_in_a_workers_memory(
    broker: ThreadedBroker, actors: dramatiq_rabbitmq.RabbitmqBroker
) -> None:
    actor = dramatiq.actor(lambda: None, broker=actors, queue_name="tasks", actor_name="later")
    for _ in range(20):
        actor.send_with_options(delay=3_600_000)
    worker = dramatiq.Worker(actors, worker_timeout=50, worker_threads=1)
    worker.start()
    try:
        until(lambda: counts(broker, "tasks.DQ") == 0)
        until(lambda: any(consumer.delay_queue.qsize() == 20 for consumer in worker.consumers.values()))
    finally:
        worker.stop()


async def test_faststream_has_it_again_at_once_or_never(broker: ThreadedBroker) -> None:
    """The two ways it has for an error: to give the message back, which brings it at once, and to reject it."""
    assert {policy.name for policy in AckPolicy} == {"ACK_FIRST", "ACK", "REJECT_ON_ERROR", "NACK_ON_ERROR", "MANUAL"}
    tries, often = 0, threading.Event()

    async def fail(body: str) -> None:
        nonlocal tries
        tries += 1
        if tries == 50:
            often.set()
        if tries < 60:
            raise ValueError(body)

    async with RabbitBroker(broker.url, logger=None) as stream:
        stream.subscriber(RabbitQueue("tasks", durable=True), ack_policy=AckPolicy.NACK_ON_ERROR)(fail)
        await stream.start()
        await stream.publish("x", queue="tasks")
        await _eventually(often.is_set)


async def test_redrive_lets_it_wait_in_the_broker_and_parks_it_with_its_story(tmp_path: Path) -> None:
    from redrive.testing.clock import ManualClock

    app = App("compared", data=tmp_path)
    with ThreadedBroker(clock=ManualClock()) as broker:
        app.broker = broker.url

        @app.consumer("tasks", retry=Retry(attempts=2, delay="1h"))
        async def fail(body: str) -> None:
            raise ValueError(body)

        async with app, app.worker():
            await app.publish("", "tasks", "x")
            await _eventually(lambda: counts(broker, "tasks.retry") == 1)
            broker.advance(timedelta(hours=1))
            await _eventually(lambda: counts(broker, "tasks.dlq") == 1)
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            _, properties, _ = connection.channel().basic_get("tasks.dlq", auto_ack=True)
    story = str(properties.headers)
    assert "ValueError" in story
    assert "test_comparison.py" in story  # the stack


def test_celery_acknowledges_what_fails(broker: ThreadedBroker, celery_app: celery.Celery) -> None:
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise ValueError

    task = celery_app.task(name="fail")(fail)
    assert celery_app.conf.task_acks_on_failure_or_timeout  # also with late acknowledgements
    with working(celery_app):
        task.delay()
        assert failed.wait(WITHIN)
    assert counts(broker, "tasks") == 0


async def test_faststream_rejects_what_fails(broker: ThreadedBroker) -> None:
    failed = threading.Event()

    async def fail(body: str) -> None:
        failed.set()
        raise ValueError(body)

    async with RabbitBroker(broker.url, logger=None) as stream:
        subscriber = stream.subscriber(RabbitQueue("tasks", durable=True))
        subscriber(fail)
        assert subscriber.ack_policy is AckPolicy.REJECT_ON_ERROR
        await stream.start()
        await stream.publish("x", queue="tasks")
        await _eventually(failed.is_set)
    assert counts(broker, "tasks") == 0


def test_dramatiq_keeps_what_fails_for_seven_days_with_its_last_stack(
    broker: ThreadedBroker, actors: dramatiq_rabbitmq.RabbitmqBroker
) -> None:
    assert timedelta(milliseconds=dramatiq_rabbitmq.DEAD_MESSAGE_TTL) == timedelta(days=7)

    def fail() -> None:
        raise ZeroDivisionError

    actor = dramatiq.actor(
        fail, broker=actors, queue_name="tasks", actor_name="fail", max_retries=1, min_backoff=1, max_backoff=2
    )
    worker = dramatiq.Worker(actors, worker_timeout=50, worker_threads=1)
    worker.start()
    try:
        actor.send()
        until(lambda: counts(broker, "tasks.XQ") == 1)
    finally:
        worker.stop()
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        _, _, body = connection.channel().basic_get("tasks.XQ", auto_ack=True)
    options = dramatiq.Message.decode(body).options
    assert "ZeroDivisionError" in options["traceback"]
    assert {name for name in options if "trace" in name or "error" in name} == {"traceback"}  # of earlier ones: nothing


def test_celery_acknowledges_before_it_runs(celery_app: celery.Celery) -> None:
    """So that a task which kills its worker is gone; `task_acks_late` has it come again."""
    assert celery_app.conf.task_acks_late is False


def test_nobody_else_counts_deliveries() -> None:
    """Whoever counted how often a message came, although nobody settled it, would read the broker's count."""
    for package in (celery, dramatiq, faststream.rabbit, aio_pika):
        assert not mentions(package, r"""["']x-delivery-count|["']x-acquired-count|crash_limit"""), package.__name__


# Publishing ---------------------------------------------------------------------------------------


def test_celery_and_dramatiq_do_not_ask_for_confirms(
    celery_app: celery.Celery, actors: dramatiq_rabbitmq.RabbitmqBroker
) -> None:
    with celery_app.connection_for_write() as connection:
        connection.connect()
        assert connection.connection.confirm_publish is False
    assert actors.confirm_delivery is False


async def test_faststream_and_aio_pika_confirm_and_return_what_is_unroutable_without_an_error(
    broker: ThreadedBroker,
) -> None:
    async with await aio_pika.connect(broker.url) as connection:
        channel = await connection.channel()
        answer = await channel.default_exchange.publish(aio_pika.Message(b"x"), "nowhere")
        assert isinstance(answer.delivery, pamqp.commands.Basic.Return)  # type: ignore[union-attr]
    async with RabbitBroker(broker.url, logger=None) as stream:
        returned = await stream.publish("x", queue="nowhere")
        assert isinstance(returned.delivery, pamqp.commands.Basic.Return)  # type: ignore[union-attr]


async def test_redrive_says_that_a_message_is_unroutable(tmp_path: Path) -> None:
    async with App("compared", data=tmp_path) as app:
        with pytest.raises(Unroutable):
            await app.publish("", "nowhere", "x")


# What is there, and what is not -------------------------------------------------------------------


def sources(package: Any) -> Iterator[tuple[Path, str]]:
    for path in Path(package.__file__).parent.rglob("*.py"):
        yield path, path.read_text(errors="replace")


def mentions(package: Any, pattern: str) -> list[str]:
    return [path.name for path, text in sources(package) if re.search(pattern, text, re.IGNORECASE)]


def test_nobody_else_has_commands_or_modules_for_dead_letters() -> None:
    from celery.bin.celery import celery as command

    names = {
        *command.commands,
        *(path.stem for peer in (celery, dramatiq, faststream, aio_pika) for path, _ in sources(peer)),
    }
    assert [name for name in names if re.search(r"dlq|dead|redrive|re_drive|parking", name)] == []


def test_nobody_else_has_an_outbox_or_an_inbox() -> None:
    """In FastStream an inbox is where NATS sends answers."""
    for peer in (celery, dramatiq, faststream.rabbit, aio_pika):
        assert mentions(peer, r"\b(outbox|inbox)\b") == [], peer.__name__
    assert mentions(faststream, r"\boutbox\b") == []


def test_batches_are_for_kafka_in_faststream_and_for_nobody_else() -> None:
    kafka = importlib.util.find_spec("faststream.kafka")
    assert kafka is not None
    assert kafka.submodule_search_locations is not None
    registrator = Path(kafka.submodule_search_locations[0]) / "broker" / "registrator.py"
    assert "batch: " in registrator.read_text()
    assert "batch" not in inspect.signature(RabbitBroker.subscriber).parameters
    assert "batch" not in inspect.signature(dramatiq.actor).parameters
    assert mentions(celery, r"batch_size|flush_every") == []
    assert mentions(aio_pika, r"batch") == []


def test_nobody_else_compares_a_topology_to_a_broker() -> None:
    """It would have to ask the management API for it."""
    for peer in (celery, dramatiq, faststream.rabbit, aio_pika):
        assert mentions(peer, r"/api/(definitions|queues|bindings)") == [], peer.__name__


def test_what_the_others_have_for_tests() -> None:
    from dramatiq.brokers.stub import StubBroker
    from faststream.rabbit import TestRabbitBroker

    assert StubBroker
    assert TestRabbitBroker
    assert "memory" in kombu.transport.TRANSPORT_ALIASES
    assert celery.Celery("x", set_as_current=False).conf.task_always_eager is False
    assert not [path for path, _ in sources(aio_pika) if "test" in path.stem]


def test_who_has_results_chains_and_groups() -> None:
    from celery import chain, chord, group
    from dramatiq import group as dramatiq_group
    from dramatiq import pipeline
    from dramatiq.results import Results

    assert all((chain, chord, group, dramatiq_group, pipeline, Results))
    assert not hasattr(dramatiq, "chord")
    assert hasattr(RabbitBroker, "request")
    assert hasattr(aio_pika.patterns, "RPC")


def test_who_has_schedules() -> None:
    assert importlib.util.find_spec("celery.beat")
    assert not [
        path for peer in (dramatiq, faststream.rabbit, aio_pika) for path, _ in sources(peer) if "schedul" in path.stem
    ]


def test_who_has_other_brokers() -> None:
    assert {"redis", "sqs"} <= {*kombu.transport.TRANSPORT_ALIASES}
    assert all(importlib.util.find_spec(f"faststream.{name}") for name in ("kafka", "nats", "redis", "mqtt"))
    assert {path.stem for path in (Path(dramatiq.__file__).parent / "brokers").glob("[a-z]*.py")} == {
        "rabbitmq",
        "redis",
        "stub",
    }


def test_who_has_asyncapi() -> None:
    from faststream.specification import AsyncAPI

    assert AsyncAPI
    for peer in (celery, dramatiq, aio_pika):
        assert mentions(peer, "asyncapi") == [], peer.__name__


def test_dramatiq_retries_by_its_own_middleware() -> None:
    """And it does so by delaying the message, which the test above shows to be held in memory."""
    assert "delay=" in inspect.getsource(Retries)


async def _eventually(fact: Callable[[], bool]) -> None:
    """`until`, for a loop in which something else goes on."""
    await asyncio.to_thread(until, fact)
