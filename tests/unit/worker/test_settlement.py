"""Verdicts carried out: what leaves the worker, without a broker."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from struct import pack
from typing import Any

import pytest

from redrive import App, Retry
from redrive.errors import ConfigurationError, PublishRefused
from redrive.protocol.messages import Delivery
from redrive.recovery.admission import Mark
from redrive.recovery.backoff import Backoff
from redrive.recovery.breaker import Breaker, BreakerPolicy, BreakerState
from redrive.recovery.handler_signals import Park
from redrive.recovery.history import NO_HISTORY, HeaderNames
from redrive.recovery.retry import RetryRoute
from redrive.recovery.verdict import Ending, RecoveryPolicy, RequeueVerdict
from redrive.topology.expansion import QueueLayout
from redrive.topology.snapshot import Server
from redrive.wire.properties import Properties, decode_properties
from redrive.wire.values import encode_short_string
from redrive.worker.breakers import Breakers
from redrive.worker.clock import SystemClock
from redrive.worker.codecs import Codecs
from redrive.worker.events import DeliveryOutcome, DeliverySettled, Observer, Observers
from redrive.worker.handlers import Handler
from redrive.worker.message import current_message
from redrive.worker.pipeline import DeliveryPipeline
from redrive.worker.ports import ConfirmCallback
from redrive.worker.settlement import FailedDelivery, VerdictExecutor

NAMES = HeaderNames()
BUDGET = 4096
MARK = Mark("0123456789ab", 7)


class Broker:
    """Remembers what it is told, and answers for what it gets: at once, unless it is told to hold back."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.published: list[tuple[str, str, Properties]] = []
        self.has_room = True
        self.holds_back = False
        self.refuses = False
        self.is_open = True  # the channel of its deliveries
        self._unanswered: list[ConfirmCallback] = []

    def publish_now(self, exchange: str, routing_key: str, _: bytes, properties: Any, waiter: ConfirmCallback) -> bool:
        if self.has_room:
            self.told.append("publish")
            self.published.append((exchange, routing_key, decode_properties(properties)))
            self._unanswered.append(waiter)
            if not self.holds_back:
                asyncio.get_running_loop().call_soon(self.answer)
        return self.has_room

    async def publish(
        self, exchange: str, routing_key: str, body: bytes, properties: Any = None, *, mandatory: bool = True
    ) -> None:
        assert mandatory
        self.told.append("wait")
        await asyncio.sleep(0)
        self.has_room = True
        confirmed = asyncio.get_running_loop().create_future()
        self.publish_now(exchange, routing_key, body, properties, confirmed)
        await confirmed

    def answer(self) -> None:
        waiters, self._unanswered = self._unanswered, []
        for waiter in waiters:
            if self.refuses:
                waiter.set_exception(PublishRefused("", "", "full"))
            else:
                waiter.set_result(None)

    def ack(self, _: int) -> bool:
        self.told.append("ack")
        return True

    def nack(self, _: int, requeue: bool) -> bool:
        self.told.append(f"nack requeue={requeue}")
        return True

    def reject(self, _: int, requeue: bool) -> bool:
        self.told.append(f"reject requeue={requeue}")
        return True

    def delivers(
        self, properties: Properties | None = None, *, body: bytes = b"{}", redelivered: bool = False
    ) -> Delivery:
        route = encode_short_string("") + encode_short_string("orders")
        payload = pack(">HH", 60, 60) + encode_short_string("tag") + pack(">QB", 1, redelivered) + route
        delivery = Delivery(1, payload, (properties or Properties()).encode(), body)
        delivery.attach(self)
        return delivery


@pytest.fixture
async def broker() -> Broker:
    return Broker()


async def busy() -> None:
    raise OSError("busy")


async def fine() -> None: ...


class Watcher(Observer):
    """Sees what is told, and which message is handled then."""

    def __init__(self) -> None:
        self.events: list[DeliverySettled] = []
        self.bodies: list[bytes | None] = []

    def settled(self, event: DeliverySettled) -> None:
        message = current_message.get()
        self.events.append(event)
        self.bodies.append(message.body if message is not None else None)


def pipeline_of(
    broker: Broker, function: Any = busy, watcher: Observer | None = None, **options: Any
) -> DeliveryPipeline:
    app = App("shop", broker="amqp://nowhere")
    app.consumer("orders", **options)(function)
    (spec,) = app.consumers
    observer, clock = Observers([watcher] if watcher is not None else []), SystemClock()
    names = QueueLayout(app.topology, spec.queue, Server((3, 10, 8)))
    settlement = VerdictExecutor(spec, names, broker, observer, clock, app="shop", host="here", budget=lambda: BUDGET)
    handler = Handler(spec.function, codecs=Codecs(), given={}, threads=1)
    return DeliveryPipeline(spec, handler, settlement, observer, clock, policy=RecoveryPolicy(spec.retry), quorum=False)


async def settle(pipeline: DeliveryPipeline, *deliveries: Delivery) -> None:
    for delivery in deliveries:
        await pipeline(delivery)
    await pipeline.wait_until_settled()


def headers(broker: Broker) -> dict[str, Any]:
    return dict(broker.published[-1][2].headers or {})


# Retries ------------------------------------------------------------------------------------------


async def test_a_retry_tells_what_happened_but_no_stack(broker: Broker) -> None:
    await settle(pipeline_of(broker, retry=Retry(attempts=2, delay="1s")), broker.delivers())

    assert broker.told == ["publish", "ack"]
    assert broker.published[0][:2] == ("retry.orders", "retry")
    assert headers(broker)[NAMES.reason] == "OSError: busy"
    assert NAMES.STACK not in headers(broker)


async def test_the_rung_is_that_of_the_attempt(broker: Broker) -> None:
    pipeline = pipeline_of(broker, retry=Retry(steps=["1s", "2s"]))
    counted = [Properties(headers={NAMES.attempts: count, NAMES.DROPPED: count}) for count in (0, 1, 0)]

    await settle(pipeline, *(broker.delivers(properties) for properties in counted))

    assert [key for _, key, _ in broker.published] == ["retry.1s", "retry.2s", "retry.1s"]


async def test_a_parked_message_tells_its_stack(broker: Broker) -> None:
    await settle(pipeline_of(broker, retry=None), broker.delivers())

    assert broker.published[0][0] == "dlq.orders"
    assert "in busy\nOSError: busy" in headers(broker)[NAMES.STACK]


# Handing over -------------------------------------------------------------------------------------


async def test_nothing_is_acked_before_its_copy_is_confirmed(broker: Broker) -> None:
    pipeline, broker.holds_back = pipeline_of(broker), True

    await pipeline(broker.delivers())
    await turns()
    assert broker.told == ["publish"]
    broker.answer()

    assert broker.told == ["publish", "ack"]


async def test_the_next_message_does_not_wait_for_the_confirm_and_draining_does(broker: Broker) -> None:
    pipeline, broker.holds_back = pipeline_of(broker), True

    await pipeline(broker.delivers())
    await pipeline(broker.delivers())
    drained = asyncio.create_task(pipeline.wait_until_settled())
    await turns()
    assert broker.told == ["publish", "publish"]
    assert not drained.done()
    assert "settling=2" in repr(pipeline)
    broker.answer()
    await drained

    assert broker.told == ["publish", "publish", "ack", "ack"]


async def test_a_copy_that_cannot_be_sent_at_once_waits_its_turn(broker: Broker) -> None:
    pipeline, broker.has_room = pipeline_of(broker), False

    await settle(pipeline, broker.delivers())

    assert broker.told == ["wait", "publish", "ack"]


@pytest.mark.parametrize("has_room", [True, False])
async def test_what_the_broker_refuses_goes_back_to_its_queue(
    broker: Broker, has_room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.worker.transfers._PAUSES", Backoff(first=timedelta(milliseconds=1)))
    watcher = Watcher()
    pipeline, broker.has_room, broker.refuses = pipeline_of(broker, watcher=watcher), has_room, True

    await settle(pipeline, broker.delivers())

    assert broker.told[-2:] == ["publish", "nack requeue=True"]
    (event,) = watcher.events
    assert (event.outcome, event.delay) == (DeliveryOutcome.RELEASED, None)
    assert event.reason.startswith("not handed over: ")
    assert event.error == "OSError: busy"


async def test_what_was_abandoned_is_not_acked_by_a_late_confirm(broker: Broker) -> None:
    watcher = Watcher()
    pipeline, broker.holds_back = pipeline_of(broker, watcher=watcher), True

    await pipeline(broker.delivers())
    drained = asyncio.create_task(pipeline.wait_until_settled())
    await turns()
    pipeline.settlement.transfers.abandon()
    await drained
    broker.answer()

    assert broker.told == ["publish"]
    assert watcher.events == []


async def test_what_waits_its_turn_can_be_abandoned(broker: Broker) -> None:
    pipeline, broker.has_room, broker.holds_back = pipeline_of(broker), False, True

    await pipeline(broker.delivers())
    await turns()
    pipeline.settlement.transfers.abandon()
    await pipeline.wait_until_settled()

    assert broker.told == ["wait", "publish"]


@pytest.mark.parametrize("has_room", [True, False])
async def test_observers_hear_of_it_in_the_context_of_the_message_that_failed(broker: Broker, has_room: bool) -> None:
    watcher = Watcher()
    pipeline, broker.has_room, broker.holds_back = pipeline_of(broker, watcher=watcher), has_room, True

    await pipeline(broker.delivers(body=b"1"))
    await pipeline(broker.delivers(body=b"2"))
    await turns()
    broker.answer()
    await pipeline.wait_until_settled()

    assert sorted(body or b"" for body in watcher.bodies) == [b"1", b"2"]


async def test_a_bug_is_reported_and_harms_neither_the_connection_nor_the_others(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline, broker.holds_back = pipeline_of(broker), True
    first, second = broker.delivers(), broker.delivers()

    await pipeline(first)
    await pipeline(second)
    first.ack()  # which nobody should do
    broker.answer()
    await pipeline.wait_until_settled()

    assert broker.told == ["publish", "publish", "ack", "ack"]
    assert "settling a message of orders failed: a bug" in caplog.text


@pytest.mark.parametrize("redelivered", [False, True])
async def test_a_copy_that_cannot_be_made_is_reported_and_its_original_goes_back(
    broker: Broker, redelivered: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("redrive.worker.settlement.properties_for_retry", lambda *_, **__: 1 / 0)
    monkeypatch.setattr("redrive.worker.transfers._PAUSES", Backoff(first=timedelta(milliseconds=1)))

    await settle(pipeline_of(broker), broker.delivers(redelivered=redelivered))

    assert broker.told == ["nack requeue=True"]
    assert "ZeroDivisionError" in caplog.text


async def test_a_handler_that_was_cancelled_from_within_has_failed(broker: Broker) -> None:
    async def waits_for_another() -> None:
        other = asyncio.create_task(asyncio.sleep(60))
        other.cancel()
        await other

    await settle(pipeline_of(broker, waits_for_another), broker.delivers())

    assert broker.told == ["publish", "ack"]
    assert headers(broker)[NAMES.reason].startswith("asyncio.exceptions.CancelledError")


class Panic(BaseException):
    """As libraries written in Rust raise it."""


async def test_an_error_that_is_no_exception_is_a_failure_all_the_same(broker: Broker) -> None:
    async def panics() -> None:
        raise Panic("at the disco")

    await settle(pipeline_of(broker, panics), broker.delivers())

    assert broker.told == ["publish", "ack"]
    assert headers(broker)[NAMES.reason].endswith("Panic: at the disco")


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_who_ends_the_process_settles_nothing(broker: Broker, kind: type[BaseException]) -> None:
    async def ends() -> None:
        raise kind

    with pytest.raises(kind):
        await pipeline_of(broker, ends)(broker.delivers())

    assert broker.told == []


async def test_a_handler_that_is_cancelled_has_not_failed(broker: Broker) -> None:
    began, watcher = asyncio.Event(), Watcher()

    async def waits() -> None:
        began.set()
        await asyncio.sleep(60)

    walking = asyncio.create_task(pipeline_of(broker, waits, watcher)(broker.delivers()))
    await began.wait()
    walking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await walking

    assert broker.told == ["nack requeue=True"]
    assert [(event.outcome, event.reason) for event in watcher.events] == [(DeliveryOutcome.RELEASED, "cancelled")]


@pytest.mark.parametrize("body", [b"no JSON", b"{}"])
async def test_a_probe_that_says_nothing_of_the_dependency_leaves_room_for_another(broker: Broker, body: bytes) -> None:
    async def handle(_: dict[str, int]) -> None:
        raise Park("unknown customer")

    pipeline = pipeline_of(broker, handle)
    breaker = Breaker(BreakerPolicy(window=1, minimum_calls=1, pause="1s"))
    pipeline.breaker = Breakers("orders", {"orders": breaker}, pipeline.observer, pipeline.clock)
    breaker.record_failure(0.0)
    assert breaker.permits(2.0) == 0
    assert breaker.permits(2.0) > 0  # one at a time

    await settle(pipeline, broker.delivers(body=body))

    assert breaker.permits(2.0) == 0


def cannot_say(_: BaseException) -> bool:
    raise ZeroDivisionError("a mistake in the settings")


@pytest.mark.parametrize("policy", [Retry(classify=cannot_say), Retry(never=cannot_say), Retry(only=cannot_say)])
async def test_an_error_of_which_nobody_can_say_what_it_means_may_pass(
    broker: Broker, policy: Retry, caplog: pytest.LogCaptureFixture
) -> None:
    await settle(pipeline_of(broker, retry=policy), broker.delivers())

    assert broker.told == ["publish", "ack"]
    assert "the retry policy raised while classifying OSError; treating it as transient" in caplog.text


async def test_a_breaker_that_cannot_say_whom_it_blames_blames_nobody(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = pipeline_of(broker)
    breaker = Breaker(BreakerPolicy(only=cannot_say, window=1, minimum_calls=1))
    pipeline.breaker = Breakers("orders", {"orders": breaker}, pipeline.observer, pipeline.clock)

    await settle(pipeline, broker.delivers(), broker.delivers())

    assert broker.told == ["publish", "publish", "ack", "ack"]
    assert breaker.state is BreakerState.CLOSED
    assert "the breaker policy raised while classifying OSError; not counting it" in caplog.text


# By reject ----------------------------------------------------------------------------------------


BY_REJECT = Retry(attempts=3, delay="1s", via=RetryRoute.REJECT)


async def test_a_retry_by_reject_is_one_word(broker: Broker) -> None:
    await settle(pipeline_of(broker, retry=BY_REJECT), broker.delivers())

    assert broker.told == ["reject requeue=False"]


async def test_once_the_worker_has_counted_it_goes_on_counting(broker: Broker) -> None:
    """A copy begins the broker's count anew: were it believed, attempts would be forgotten."""
    known = Properties(headers={NAMES.attempts: 1, NAMES.DROPPED: 1, NAMES.CRASHES: 1})

    await settle(pipeline_of(broker, retry=BY_REJECT), broker.delivers(known))

    assert broker.told == ["publish", "ack"]
    assert broker.published[0][:2] == ("retry.orders", "retry")
    assert headers(broker)[NAMES.attempts] == 2


FORGED = Properties(headers={"x-death": {"k": [1]}})


async def test_what_the_broker_could_not_count_is_counted_in_the_message(broker: Broker) -> None:
    """RabbitMQ 3.10 leaves an x-death that is no list as it is: the message would be retried for ever."""
    await settle(pipeline_of(broker, retry=BY_REJECT), broker.delivers(FORGED))

    assert broker.told == ["publish", "ack"]
    assert broker.published[0][:2] == ("retry.orders", "retry")
    assert headers(broker)[NAMES.attempts] == 1
    assert "x-death" not in headers(broker)


async def test_what_no_broker_could_dead_letter_is_parked_by_publishing(broker: Broker) -> None:
    """Over some an x-death the process of its queue ends, and the message with it."""
    pipeline = pipeline_of(broker, retry=None, park="reject")

    await settle(pipeline, broker.delivers(Properties(headers={"x-death": [[7]]})), broker.delivers())

    assert broker.told == ["publish", "reject requeue=False", "ack"]
    assert broker.published[0][:2] == ("dlq.orders", "parking")


async def test_the_last_attempt_of_a_queue_without_dead_letters_is_the_end(broker: Broker) -> None:
    """A reject would lead back into the loop."""
    last = Properties(headers={"x-death": [{"queue": "orders", "reason": "rejected", "count": 2}]})

    await settle(pipeline_of(broker, retry=BY_REJECT, dlq=False), broker.delivers(last))

    assert broker.told == ["ack"]


def test_parking_by_reject_where_a_reject_is_a_retry_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a reject is a retry without end"):
        App("shop").consumer("orders", retry=BY_REJECT, park="reject")(busy)


# Quarantine ---------------------------------------------------------------------------------------


def case_of(delivery: Delivery) -> FailedDelivery:
    return FailedDelivery(delivery, NO_HISTORY, None, None)


async def move(pipeline: DeliveryPipeline, delivery: Delivery) -> bool:
    case = case_of(delivery)
    return await pipeline.settlement.quarantine(
        case, "orders.quarantine.w", pipeline.settlement.marked_properties(case, MARK)
    )


async def test_a_watched_message_is_acked_when_its_marked_copy_is_confirmed(broker: Broker) -> None:
    pipeline = pipeline_of(broker)

    assert await move(pipeline, broker.delivers())

    assert broker.told == ["wait", "publish", "ack"]
    assert broker.published[0][:2] == ("", "orders.quarantine.w")
    assert headers(broker)[NAMES.QUARANTINE] == str(MARK)


async def test_a_move_comes_to_its_end_though_the_handler_is_cancelled(broker: Broker) -> None:
    pipeline, delivery = pipeline_of(broker), broker.delivers()
    broker.holds_back = True
    moving = asyncio.create_task(move(pipeline, delivery))
    await turns()
    moving.cancel()
    await turns()
    assert pipeline.settlement.transfers.is_moving(delivery)

    broker.answer()
    await pipeline.settlement.transfers.finish_moves()

    assert broker.told == ["wait", "publish", "ack"]


async def test_what_has_no_room_for_a_mark_is_parked_as_uncountable(broker: Broker) -> None:
    watcher, full = Watcher(), Properties(headers={"padding": "x" * (BUDGET - 40)})
    pipeline = pipeline_of(broker, watcher=watcher)
    delivery = broker.delivers(full)
    assert NAMES.QUARANTINE.encode() not in pipeline.settlement.marked_properties(case_of(delivery), MARK)

    pipeline.settle_ending(delivery, Ending.UNMARKABLE)
    await pipeline.wait_until_settled()

    assert [exchange for exchange, _, _ in broker.published] == ["dlq.orders"]
    assert [(event.outcome, event.reason) for event in watcher.events] == [(DeliveryOutcome.PARKED, "uncountable")]


async def test_a_message_that_the_broker_took_back_is_not_copied(broker: Broker) -> None:
    """Its connection was lost while its handler ran: the broker delivers it again, and with a copy there were two."""
    watcher = Watcher()
    pipeline, delivery = pipeline_of(broker, watcher=watcher, retry=Retry(attempts=3)), broker.delivers()
    broker.is_open = False

    await settle(pipeline, delivery)

    assert broker.published == []
    assert delivery.settled
    assert [(event.outcome, event.reason) for event in watcher.events] == [
        (DeliveryOutcome.RELEASED, "its connection was lost")
    ]


async def test_a_message_that_the_broker_took_back_is_not_moved(broker: Broker) -> None:
    pipeline, delivery = pipeline_of(broker), broker.delivers()
    broker.is_open = False

    assert not await move(pipeline, delivery)

    assert broker.published == []
    assert delivery.settled


async def test_pauses_go_on_growing_while_messages_are_only_moved(broker: Broker) -> None:
    """A move into or out of quarantine says nothing about the retry exchange that refuses."""
    pipeline = pipeline_of(broker)
    broker.refuses = True
    await pipeline(broker.delivers())
    await turns()
    broker.refuses = False
    pipeline.settlement.settle(case_of(broker.delivers()), RequeueVerdict("its worker lost the connection", 0))
    await turns()
    assert repr(pipeline.settlement.transfers.trouble) == "<Spell pauses=1>"

    await pipeline(broker.delivers())
    await turns()

    assert repr(pipeline.settlement.transfers.trouble) == "<Spell pauses=0>", "the retry exchange has taken one"
    await pipeline.settlement.transfers.close()


async def test_a_failed_message_without_room_for_the_count_is_parked_as_uncountable(broker: Broker) -> None:
    watcher, full = Watcher(), Properties(headers={"padding": "x" * (BUDGET - 40)})

    await settle(pipeline_of(broker, watcher=watcher, retry=Retry(attempts=3)), broker.delivers(full))

    assert [exchange for exchange, _, _ in broker.published] == ["dlq.orders"]
    assert [(event.outcome, event.reason) for event in watcher.events] == [(DeliveryOutcome.PARKED, "uncountable")]


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
