"""dramatiq, unmodified, against the embedded broker: its delay queues, its retries, its dead-letter queues."""

import threading
from collections.abc import Iterator

import dramatiq
import pika
import pytest
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.errors import ActorNotFound, ConnectionClosed
from dramatiq.middleware import (
    AgeLimit,
    Callbacks,
    CurrentMessage,
    Pipelines,
    Retries,
    ShutdownNotifications,
    TimeLimit,
)
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend

from interop.conftest import Names
from interop.embedded import EmbeddedBroker

WITHIN = 20
pytestmark = pytest.mark.usefixtures("litter")


def middleware() -> list[dramatiq.Middleware]:
    return [AgeLimit(), TimeLimit(), ShutdownNotifications(), Callbacks(), Pipelines(), Retries(), CurrentMessage()]


@pytest.fixture
def broker(broker_url: str) -> Iterator[RabbitmqBroker]:
    broker = RabbitmqBroker(url=broker_url, confirm_delivery=True, middleware=middleware())
    yield broker
    broker.close()


@pytest.fixture
def worker(broker: RabbitmqBroker) -> Iterator[dramatiq.Worker]:
    """Not started: actors are declared first."""
    worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=2)
    yield worker
    worker.stop()


def test_an_actor_runs(broker: RabbitmqBroker, worker: dramatiq.Worker, names: Names) -> None:
    done = threading.Event()
    actor = dramatiq.actor(done.set, broker=broker, queue_name=names("q"), actor_name=names("actor"))
    worker.start()

    actor.send()

    assert done.wait(WITHIN)
    broker.join(actor.queue_name, timeout=WITHIN * 1000)


def test_a_message_for_later_waits_in_the_delay_queue(
    broker: RabbitmqBroker, worker: dramatiq.Worker, names: Names
) -> None:
    done = threading.Event()
    actor = dramatiq.actor(done.set, broker=broker, queue_name=names("q"), actor_name=names("actor"))
    actor.send_with_options(delay=300)
    assert broker.get_queue_message_counts(actor.queue_name)[:2] == (0, 1)  # none at work, one in .DQ

    worker.start()

    assert done.wait(WITHIN)


def test_an_actor_that_fails_is_retried_and_dead_lettered(
    broker: RabbitmqBroker, broker_url: str, worker: dramatiq.Worker, names: Names
) -> None:
    attempts: list[int] = []

    def fail() -> None:
        attempts.append(1)
        raise ZeroDivisionError

    actor = dramatiq.actor(
        fail,
        broker=broker,
        queue_name=names("q"),
        actor_name=names("actor"),
        max_retries=2,
        min_backoff=1,
        max_backoff=5,
    )
    worker.start()
    message = actor.send()

    broker.join(actor.queue_name, timeout=WITHIN * 1000, min_successes=2)

    assert len(attempts) == 3
    with pika.BlockingConnection(pika.URLParameters(broker_url)) as connection:
        dead = connection.channel().consume(f"{actor.queue_name}.XQ", auto_ack=True, inactivity_timeout=WITHIN)
        _, properties, body = next(dead)
        assert dramatiq.Message.decode(body).message_id == message.message_id
        [death] = properties.headers["x-death"]
        assert (death["queue"], death["reason"]) == (actor.queue_name, "rejected")


def test_results_and_priorities_work(broker: RabbitmqBroker, worker: dramatiq.Worker, names: Names) -> None:
    backend = StubBackend()
    broker.add_middleware(Results(backend=backend))
    actor = dramatiq.actor(
        lambda number: number * 2,
        broker=broker, queue_name=names("q"), actor_name=names("actor"), store_results=True, priority=3,
    )  # fmt: skip
    worker.start()

    assert actor.send(21).get_result(backend=backend, block=True, timeout=WITHIN * 1000) == 42


def test_a_queue_that_exists_with_other_arguments_is_refused(
    broker: RabbitmqBroker, broker_url: str, names: Names
) -> None:
    queue = names("q")
    with pika.BlockingConnection(pika.URLParameters(broker_url)) as connection:
        connection.channel().queue_declare(queue, durable=True)
    actor = dramatiq.actor(lambda: None, broker=broker, queue_name=queue, actor_name=names("actor"))

    with pytest.raises(ConnectionClosed, match="406"):
        actor.send()


def test_an_unknown_actor_is_dead_lettered_not_lost(
    broker: RabbitmqBroker, broker_url: str, worker: dramatiq.Worker, names: Names
) -> None:
    actor = dramatiq.actor(lambda: None, broker=broker, queue_name=names("q"), actor_name=names("actor"))
    worker.start()
    stranger = actor.message().copy(actor_name="nobody")
    with pytest.raises(ActorNotFound):
        broker.get_actor("nobody")

    broker.enqueue(stranger)

    with pika.BlockingConnection(pika.URLParameters(broker_url)) as connection:
        dead = connection.channel().consume(f"{actor.queue_name}.XQ", auto_ack=True, inactivity_timeout=WITHIN)
        assert dramatiq.Message.decode(next(dead)[2]).actor_name == "nobody"


def test_a_worker_goes_on_after_the_broker_was_killed(own_broker: EmbeddedBroker) -> None:
    broker = RabbitmqBroker(url=own_broker.url, confirm_delivery=True, middleware=middleware())
    runs: list[str] = []
    ran = threading.Condition()

    def note(text: str) -> None:
        with ran:
            runs.append(text)
            ran.notify_all()

    actor = dramatiq.actor(note, broker=broker, queue_name="orders")
    worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=1)
    worker.start()
    actor.send("before")
    with ran:
        assert ran.wait_for(lambda: "before" in runs, WITHIN)

    own_broker.kill()
    own_broker.start()
    actor.send("after")

    with ran:
        assert ran.wait_for(lambda: "after" in runs, WITHIN)
    worker.stop()
    broker.close()
