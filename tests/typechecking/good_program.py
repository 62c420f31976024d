"""A program that uses every option as it is meant: a type checker accepts all of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from redrive import (
    App,
    Batch,
    BatchConsumerOptions,
    BreakerPolicy,
    CloudEvent,
    ConsumerOptions,
    Discard,
    Envelope,
    Exponential,
    HandlerOptions,
    HeaderNames,
    InboxNames,
    InboxPolicy,
    Message,
    Naming,
    OutboxNames,
    OutboxPolicy,
    Park,
    Publisher,
    Queue,
    QueueType,
    Retry,
    RetryLater,
    RetryRoute,
    Router,
    Snooze,
    http_status,
)


@dataclass
class Order:
    id: int


@asynccontextmanager
async def traced(message: Message) -> AsyncIterator[None]:
    assert_type(message.message_id, str | None)
    assert_type(message.attempt, int)
    yield


defaults: ConsumerOptions = {"retry": Retry(attempts=5), "concurrency": 4, "timeout": "30s"}
app = App(
    "shop",
    broker="amqp://guest:guest@localhost/",
    outbox=OutboxNames("events", {"body": "payload"}),
    outbox_policy=OutboxPolicy(keep="1d", transport="LOCAL"),
    inbox_table=InboxNames("seen"),
    naming=Naming(dlq_queue="{queue}.dead"),
    queue_type="quorum",
    defaults=defaults,
    patience=timedelta(seconds=5),
)
router = Router(defaults={"retry": Retry(exponential=Exponential("5s", factor=3), via=RetryRoute.DELAYED)})
events = app.exchange("events", "topic", durable=True, arguments={"alternate-exchange": "lost"})
bills = app.queue("bills", bind=events.on("bill.*"), retry=None, dlq="bills.dead", type=QueueType.QUORUM)
assert_type(bills, Queue)


@app.consumer(
    "orders",
    bind=events.on("order.placed", "order.changed"),
    retry=Retry(
        steps=["30s", timedelta(minutes=2)], jitter=0.2, max_age="1d", only=(TimeoutError, http_status(500, 599))
    ),
    dlq={ValueError: "orders.invalid", http_status(422): "orders.refused"},
    type="quorum",
    arguments={"x-max-length": 1000},
    redrive_to="retry",
    concurrency=10,
    prefetch=20,
    park="publish",
    crash_limit=None,
    crash_grace="1m",
    breaker={"api": BreakerPolicy(window="1m", only=(TimeoutError, OSError))},
    rate=2.5,
    headers=HeaderNames(attempts="x-retries"),
    middleware=[traced],
    inbox=InboxPolicy(key=lambda body, message: message.message_id, keep="7d"),
    database_outage="wait",
)
async def charge(order: Order, message: Message, publisher: Publisher, session: AsyncSession) -> None:
    if message.redelivered:
        raise Snooze("1m")
    if order.id == 1:
        raise Park("not payable")
    if order.id == 2:
        raise Discard("paid")
    if order.id == 3:
        raise RetryLater(after="5m")
    assert_type(await publisher.publish(events, "order.charged", order, after="5s", priority=3), str)
    await app.publish(events, "order.charged", order, headers={"x": 1}, correlation_id="a")
    await app.publish(events, "order.charged", order, session=session, ordering_key="1", envelope=Envelope("Order"))
    await app.outbox.add(session, events, "order.charged", order, envelope=CloudEvent(source="shop"))


def add(session: Session, order: Order) -> str:
    return app.outbox.add(session, "events", "order.placed", order, message_id="1")


def add_to(order: Order) -> int:
    return order.id


@app.batch_consumer(
    bills, size=1000, max_wait="1s", batchers=2, prepare=add_to, processors=8, isolate=ValueError, timeout="1m"
)
async def insert(batch: Batch[int]) -> None:
    for item in batch:
        batch.fail(item, "odd")
    assert_type(batch.bodies, list[int])


@app.dlq_consumer("orders", concurrency=2)
async def look_at(order: Order) -> None: ...


@app.dlq_batch_consumer("orders", size=10, max_wait="5s")
async def look_at_many(orders: list[Order]) -> None: ...


slow: HandlerOptions = {"timeout": "1h", "processes": 2}
batches: BatchConsumerOptions = {"size": 10, "retry": None}


@router.consumer("thumbnails", **slow)
def draw(body: dict[str, Any]) -> None: ...


app.include(router)
assert_type(app.connected is None, bool)
# What is decorated keeps its type.
assert_type(add_to(Order(1)), int)
