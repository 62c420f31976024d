"""The flows of the example systems, by their own names, headers and counts. Only the waits are shorter."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from redrive import App, Batch, Message, Retry
from redrive.client import Properties
from redrive.recovery.history import HeaderNames
from redrive.recovery.retry import Exponential
from redrive.topology import Queue
from redrive.worker.events import DeliveryOutcome
from topology_systems import system
from working import depth, take, working


def declared(amqp_url: str, name: str) -> App:
    """An application with the exchanges and names of a system, whose queues get their consumers in the test."""
    topology = system(name)
    app = App(name, broker=amqp_url, naming=topology.naming)
    app.exchanges += topology.exchanges
    return app


def queue_of(name: str, queue: str, **changes: Any) -> Queue:
    found = system(name).queue(queue)
    assert found is not None
    assert found.retry is not None
    return replace(found, retry=replace(found.retry, **changes))


# 000: uploads -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cleanliness")
async def test_uploads_retries_by_reject_counts_by_x_death_and_parks_by_publishing(amqp_url: str) -> None:
    app = declared(amqp_url, "uploads")
    seen: list[tuple[str, int]] = []

    @app.consumer(queue_of("uploads", "q.thumbnail", delay="50ms"))
    async def thumbnail(message: Message) -> None:
        seen.append(("thumbnail", message.attempt))
        raise OSError("no space")

    @app.consumer(queue_of("uploads", "q.extractor", delay="50ms"))
    async def extractor(message: Message) -> None:
        seen.append(("extractor", message.attempt))

    async with working(app) as (running, watcher):
        properties = Properties(correlation_id="up-1", type="FileValidated", delivery_mode=2)
        await running.publishing.publish("domain.events", "files.validated.png", b"{}", properties)
        (event,) = await watcher.seen(DeliveryOutcome.PARKED)
        dead = await take(running.consuming, "q.thumbnail.dlq")
    assert sorted(seen) == [("extractor", 1), ("thumbnail", 1), ("thumbnail", 2), ("thumbnail", 3)]
    assert (dead.exchange, dead.routing_key) == ("dlq.q.thumbnail", "parking")
    assert dead.properties.correlation_id == "up-1"
    assert (event.attempt, event.max_attempts, event.correlation_id) == (3, 3, "up-1")
    headers = dead.properties.headers or {}
    assert (headers["x-redrive-exchange"], headers["x-redrive-routing-key"]) == ("domain.events", "files.validated.png")


# 002: errorfilter ---------------------------------------------------------------------------------


class UnprocessableEntityException(Exception):
    pass


@pytest.mark.usefixtures("cleanliness")
async def test_errorfilter_republishes_with_a_delay_a_number_and_the_same_correlation(amqp_url: str) -> None:
    app = declared(amqp_url, "errorfilter")
    retry = Retry(attempts=3, exponential=Exponential("1s", 2, "1s"), via="delayed")
    queue = replace(queue_of("errorfilter", "minha.fila", attempts=2), retry=retry)
    seen: list[tuple[Any, str, str | None]] = []

    @app.consumer(queue, headers=HeaderNames(attempts="x-retry-count"), park="reject")
    async def handle(message: Message) -> None:
        seen.append((message.headers.get("x-retry-count"), message.routing_key, message.correlation_id))
        if len(seen) == 3:
            raise UnprocessableEntityException
        raise TimeoutError

    async with working(app) as (running, _):
        properties = Properties(correlation_id="c-9", delivery_mode=2, headers={"x-retry-count": "0"})
        await running.publishing.publish("minha.exchange", "minha.chave", b"{}", properties)
        dead = await take(running.consuming, "minha.fila.dlq")
    assert seen == [("0", "minha.chave", "c-9"), (1, "minha.chave", "c-9"), (2, "minha.chave", "c-9")]
    assert (dead.exchange, dead.routing_key) == ("dlx.exchange", "minha.fila.dlq")


# 003: nfe -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cleanliness")
async def test_nfe_goes_round_over_one_exchange_and_ends_in_its_dlq(amqp_url: str) -> None:
    app = declared(amqp_url, "nfe")
    attempts = []

    @app.consumer(queue_of("nfe", "sagnus.nfe.events.q", delay="50ms"))
    async def handle(message: Message) -> None:
        attempts.append((message.attempt, message.routing_key))
        raise OSError("SEFAZ is down")

    async with working(app) as (running, watcher):
        await running.publishing.publish("sagnus.nfe.events", "nfe.event", b'{"eventId": "e-1"}')
        await watcher.seen(DeliveryOutcome.PARKED)
        dead = await take(running.consuming, "sagnus.nfe.events.dlq")
    assert attempts == [(number, "nfe.event") for number in (1, 2, 3, 4, 5)]
    assert (dead.exchange, dead.routing_key, dead.body) == ("sagnus.nfe.events", "nfe.event.dlq", b'{"eventId": "e-1"}')


# 004: raffle --------------------------------------------------------------------------------------


class User(msgspec.Struct):
    id: str
    name: str
    email: str


@pytest.mark.usefixtures("cleanliness")
async def test_raffle_inserts_in_batches_counts_in_x_retries_and_rejects_into_its_dlq(amqp_url: str) -> None:
    app = declared(amqp_url, "raffle")
    names = HeaderNames(attempts="x-retries", reason="x-retry-reason", wording="db_error: {message}")
    inserted: list[str] = []
    seen: list[tuple[Any, Any]] = []
    rescued: list[str] = []

    async def check(user: User) -> User:
        return user

    @app.batch_consumer(
        queue_of("raffle", "raffle_queue", delay="50ms"),
        size=1000, max_wait="100ms", prepare=check, processors=8, batchers=2, headers=names, park="reject",
    )  # fmt: skip
    async def insert(batch: Batch[User]) -> None:
        for item in batch:
            if item.body.name == "bad":
                seen.append((item.message.headers.get("x-retries"), item.message.headers.get("x-retry-reason")))
                batch.fail(item, OSError("connection timeout"))
            else:
                inserted.append(item.body.id)

    @app.dlq_consumer("raffle_queue")
    async def last_resort(body: bytes) -> None:
        rescued.append(body.decode())

    async with working(app) as (running, watcher):
        for number in range(20):
            user = {"id": f"u{number}", "name": "bad" if number == 7 else "good", "email": "x@y"}
            await running.publishing.publish("raffle_exchange", "raffle_queue", msgspec.json.encode(user))
        await running.publishing.publish("raffle_exchange", "raffle_queue", b"not JSON")
        await watcher.until(lambda: len(rescued) == 2)
        assert await depth(running.consuming, "raffle_dlq") == 0
    assert sorted(inserted) == sorted(f"u{number}" for number in range(20) if number != 7)
    reason = "db_error: connection timeout"
    assert seen == [(None, None), (1, reason), (2, reason)]
    assert sorted(text[:6] for text in rescued) == ["not JS", '{"id":']
