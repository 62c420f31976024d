"""A worker whose side effects are numbered, and which dies by SIGKILL before one of them.

    prepare    what the preparation of a message writes
    handle     what a handler writes, as if it were its database
    publish    a copy leaves the worker
    confirm    the copy has left, and the broker's answer has not been heard
    ack, nack, reject

The numbers go on from life to life: a journal on disk keeps them, together with everything that is to be known
afterwards. A life ends by itself when there is nothing left to do. To know that, it sends a probe after the messages,
which fails once and so walks the way of a retry: whatever waited when it was sent is through when it is.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from redrive import App, Batch, Message, Retry
from redrive.client import Connection, Delivery
from redrive.connected_app import ConnectedApp
from redrive.errors import PublishError
from redrive.protocol.messages import Settler
from redrive.recovery.retry import RetryRoute
from redrive.worker.batch import BatchItem
from redrive.worker.ports import ConfirmCallback

DELAY, NATIVE_DELAY = "30ms", "1s"
_PATIENCE = 25  # seconds for one life: nothing here takes so long unless it hangs


# What is played -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    """Messages, how their handling goes, and the side effects of a run in which nobody dies."""

    effects: str
    bodies: Sequence[bytes] = (b'{"id": 1}',)
    attempts: int = 3
    fails: int = 0  # so many attempts at `culprit` fail
    culprit: int = 1
    via: RetryRoute = RetryRoute.REPUBLISH
    # "marks" its culprit, or "stumbles" over it; "fine" if there is none. "prepares": it fails while it is prepared
    batch: str = ""
    poisonous: bool = False  # who handles it dies
    options: dict[str, Any] = field(default_factory=dict)


FOUR = tuple(b'{"id": %d}' % number for number in range(1, 5))
HANDED_OVER = "publish confirm ack "
CRASH_LIMIT = 2
CRASH_GRACE = timedelta(seconds=0.1)
# Watched; then, twice, checked and handled alone; then parked.
GUARDED = {"crash_limit": CRASH_LIMIT, "crash_grace": CRASH_GRACE}

SCENARIOS = {
    "handle": Scenario("handle ack"),
    "retry by republish": Scenario(HANDED_OVER * 2 + "handle ack", fails=2),
    "retry by reject": Scenario("reject reject handle ack", fails=2, via=RetryRoute.REJECT),
    "retry by delay": Scenario(HANDED_OVER * 2 + "handle ack", fails=2, via=RetryRoute.DELAYED),
    "park by publish": Scenario(HANDED_OVER * 2, attempts=2, fails=2),
    "park by reject": Scenario(HANDED_OVER + "reject", attempts=2, fails=2, options={"park": "reject"}),
    "park the malformed": Scenario(HANDED_OVER, bodies=[b"[1]"]),
    "batch, all done": Scenario("handle ack ack ack ack", bodies=FOUR, batch="fine"),
    "batch, one failed": Scenario(
        "handle ack publish ack ack confirm ack handle ack", bodies=FOUR, fails=1, culprit=2, batch="marks"
    ),
    "batch, the culprit found by halves": Scenario(
        "handle ack ack publish handle ack confirm ack " + HANDED_OVER,
        bodies=FOUR,
        attempts=2,
        fails=2,
        culprit=3,
        batch="stumbles",
    ),
    "batch, prepared": Scenario("prepare prepare handle ack ack", bodies=FOUR[:2], batch="prepares"),
    "batch, one cannot be prepared": Scenario(
        "prepare " + HANDED_OVER + "prepare handle ack", fails=1, batch="prepares"
    ),
    "crash guard": Scenario(HANDED_OVER * 6, poisonous=True, options=GUARDED),
    "crash guard, prepared": Scenario(HANDED_OVER * 6, poisonous=True, batch="prepares", options=GUARDED),
    "quorum queue, retry": Scenario(HANDED_OVER * 2 + "handle ack", fails=2, options={"type": "quorum"}),
    "quorum queue, retry by reject": Scenario(
        "reject reject handle ack", fails=2, via=RetryRoute.REJECT, options={"type": "quorum"}
    ),
    "quorum queue, crash guard": Scenario(HANDED_OVER * 6, poisonous=True, options={"type": "quorum", **GUARDED}),
}
NATIVE = "quorum queue, retry by the broker"
SCENARIOS_OF_43 = {
    NATIVE: Scenario("reject reject handle ack", fails=2, via=RetryRoute.QUORUM, options={"type": "quorum"}),
}


# The journal --------------------------------------------------------------------------------------------


class Fate:
    """Numbers the side effects of all lives, and ends this one before the chosen one."""

    def __init__(self, journal: Path, die_before: int) -> None:
        known = journal.read_text().splitlines() if journal.exists() else []
        self.is_first_life = not known
        self._effects = sum('"effect"' in line for line in known)
        self._die_before = die_before
        self._file = os.open(journal, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def tell(self, **facts: Any) -> None:
        os.write(self._file, json.dumps(facts).encode() + b"\n")

    def before(self, effect: str, *ids: int) -> None:
        self._effects += 1
        self.tell(effect=effect, ids=ids)
        if self._effects == self._die_before:
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# The ports ----------------------------------------------------------------------------------------------


class MortalPublishes:
    """The connection that hands messages over. All it has that is no publish is the connection's own."""

    def __init__(self, inner: Connection, fate: Fate) -> None:
        self._inner = inner
        self._fate = fate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def publish_now(
        self, exchange: str, routing_key: str, body: bytes, properties: Any, waiter: ConfirmCallback
    ) -> bool:
        if not is_probe(body):
            self._fate.before("publish", id_of(body))
            waiter = MortalWaiter(waiter, self._fate, id_of(body))
        sent = self._inner.publish_now(exchange, routing_key, body, properties, waiter)
        assert sent, "there is room for these few"
        return True

    async def publish(self, exchange: str, routing_key: str, body: bytes, properties: Any) -> None:
        if is_probe(body):
            await self._inner.publish(exchange, routing_key, body, properties)
            return
        self._fate.before("publish", id_of(body))
        await self._inner.publish(exchange, routing_key, body, properties)
        self._fate.before("confirm", id_of(body))


class MortalWaiter:
    """Dies when the confirm has been read and nobody has been told."""

    def __init__(self, inner: ConfirmCallback, fate: Fate, number: int) -> None:
        self._inner = inner
        self._fate = fate
        self._number = number

    def done(self) -> bool:
        return self._inner.done()

    def set_result(self, _: None, /) -> None:
        self._fate.before("confirm", self._number)
        self._inner.set_result(None)

    def set_exception(self, error: PublishError, /) -> None:
        self._inner.set_exception(error)


class MortalConsumes:
    """The connection that consumes, with deliveries whose settling is a side effect."""

    def __init__(self, inner: Connection, fate: Fate) -> None:
        self._inner = inner
        self._fate = fate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def consume(self, queue: str, handler: Callable[[Delivery], Awaitable[None]], **options: Any) -> Any:
        async def deliver(delivery: Delivery) -> None:
            self._make_mortal(delivery)
            await handler(delivery)

        return await self._inner.consume(queue, deliver, **options)

    async def consume_many(
        self, queue: str, handler: Callable[[Sequence[Delivery]], Awaitable[None]], **options: Any
    ) -> Any:
        async def deliver(deliveries: Sequence[Delivery]) -> None:
            for delivery in deliveries:
                self._make_mortal(delivery)
            await handler(deliveries)

        return await self._inner.consume_many(queue, deliver, **options)

    def _make_mortal(self, delivery: Delivery) -> None:
        if not is_probe(delivery.body):
            assert delivery._settler is not None
            delivery.attach(MortalSettler(delivery._settler, self._fate, id_of(delivery.body)))


class MortalSettler:
    def __init__(self, inner: Settler, fate: Fate, number: int) -> None:
        self._inner = inner
        self._fate = fate
        self._number = number

    @property
    def is_open(self) -> bool:
        return self._inner.is_open

    def ack(self, delivery_tag: int) -> bool:
        self._fate.before("ack", self._number)
        return self._inner.ack(delivery_tag)

    def ack_all(self, delivery_tags: list[int]) -> bool:
        """There is one of these for each delivery, so they still die before each."""
        self._fate.before("ack", self._number)
        return self._inner.ack_all(delivery_tags)

    def nack(self, delivery_tag: int, requeue: bool) -> bool:
        self._fate.before("nack", self._number)
        return self._inner.nack(delivery_tag, requeue)

    def reject(self, delivery_tag: int, requeue: bool) -> bool:
        self._fate.before("reject", self._number)
        return self._inner.reject(delivery_tag, requeue)


def id_of(body: bytes) -> int:
    told = json.loads(body)
    return int(told["id"] if isinstance(told, dict) else told[0])


def is_probe(body: bytes) -> bool:
    return b"probe" in body


# The application ----------------------------------------------------------------------------------------


class Play:
    """The application of a scenario, and its handlers."""

    def __init__(self, scenario: Scenario, app: App, queue: str, fate: Fate) -> None:
        self.app = app
        self.queue = queue
        self.calls = 0
        self._scenario = scenario
        self._fate = fate
        self._probe, self._probed = "", asyncio.Event()
        delay = NATIVE_DELAY if scenario.via is RetryRoute.QUORUM else DELAY
        retry = Retry(attempts=scenario.attempts, delay=delay, via=scenario.via)
        # With a prefetch below 8 every ack is written at once, and not with the next ones.
        options: dict[str, Any] = {"retry": retry, "prefetch": 7, **scenario.options}
        if scenario.batch == "prepares":
            app.batch_consumer(queue, size=2, max_wait="50ms", prepare=self.prepare, **options)(self.handle_prepared)
        elif scenario.batch:
            app.batch_consumer(queue, size=4, max_wait="50ms", **options)(self.handle_batch)
        else:
            app.consumer(queue, **options)(self.handle)

    async def probe(self, connection: Connection) -> None:
        self._probe, self._probed = secrets.token_hex(4), asyncio.Event()
        await connection.publish("", self.queue, json.dumps({"id": 0, "probe": self._probe}).encode())

    async def until_probed(self) -> None:
        await self._probed.wait()

    async def handle(self, body: dict[str, int | str], message: Message) -> None:
        if "probe" in body:
            self._touch_probe(body, message)
            return
        number = int(body["id"])
        self._called(number, message)
        if self._fails(number, message):
            raise OSError("busy")
        self._done(number)

    async def handle_batch(self, batch: Batch[dict[str, int | str]]) -> None:
        work: list[BatchItem[dict[str, int | str]]] = []
        for item in batch:
            if "probe" in item.body:
                try:
                    self._touch_probe(item.body, item.message)
                except OSError as error:
                    batch.fail(item, error)
            else:
                self._called(int(item.body["id"]), item.message)
                work.append(item)
        failing = [item for item in work if self._fails(int(item.body["id"]), item.message)]
        if failing and self._scenario.batch == "stumbles":
            raise OSError("busy")
        for item in failing:
            batch.fail(item, OSError("busy"))
        if done := [int(item.body["id"]) for item in work if item not in failing]:
            self._done(*done)

    async def prepare(self, body: dict[str, int | str], message: Message) -> int:
        """Returns the number of a message, and 0 for a probe."""
        if "probe" in body:
            self._touch_probe(body, message)
            return 0
        number = int(body["id"])
        self._called(number, message)
        self._fate.before("prepare", number)
        if self._fails(number, message):
            raise OSError("busy")
        return number

    async def handle_prepared(self, numbers: list[int]) -> None:
        if done := [number for number in numbers if number]:
            self._done(*done)

    def _called(self, number: int, message: Message) -> None:
        self.calls += 1
        self._fate.tell(called=number, attempt=message.attempt)
        if self._scenario.poisonous:
            die()

    def _fails(self, number: int, message: Message) -> bool:
        return number == self._scenario.culprit and message.attempt <= self._scenario.fails

    def _done(self, *numbers: int) -> None:
        self._fate.before("handle", *numbers)
        for number in numbers:
            self._fate.tell(done=number)

    def _touch_probe(self, body: dict[str, int | str], message: Message) -> None:
        if message.attempt == 1:
            raise OSError("a probe fails once")
        if body["probe"] == self._probe:
            self._probed.set()


# A life -------------------------------------------------------------------------------------------------


def live(scenario: str, url: str, queue: str, journal: Path, die_before: int) -> None:
    """Work until nothing is left to do, or until the side effect before which to die."""
    asyncio.run(_live((SCENARIOS | SCENARIOS_OF_43)[scenario], url, queue, Fate(journal, die_before)))


async def _live(scenario: Scenario, url: str, queue: str, fate: Fate) -> None:
    app = App("mortal", broker=url)
    play = Play(scenario, app, queue, fate)
    async with asyncio.timeout(_PATIENCE), app.connect() as running:
        await _nobody_consumes(running.publishing, queue)
        if scenario.poisonous:  # what a dead worker watched is back when its TTL is over
            await asyncio.sleep(2 * CRASH_GRACE.total_seconds())
        if fate.is_first_life:
            for body in scenario.bodies:
                await running.publishing.publish("", queue, body)
            fate.tell(published=len(scenario.bodies))
        running.consuming = MortalConsumes(running.consuming, fate)  # type: ignore[assignment]
        running.settling = MortalPublishes(running.settling, fate)  # type: ignore[assignment]
        while await _round(play, running):
            pass
        await _tell_parked(running.publishing, f"{queue}.dlq", fate)


async def _nobody_consumes(connection: Connection, queue: str) -> None:
    """Wait until the broker has noticed the death of the life before, and has its messages back."""
    while (await connection.queue_info(queue)).consumers:  # noqa: ASYNC110 - the broker is the one to ask
        await asyncio.sleep(0.005)


async def _round(play: Play, running: ConnectedApp) -> bool:
    """Work until a probe is through. Whether there was, or is, anything but the probe."""
    before = play.calls
    worker = running.worker(play.app.select_consumers(()))
    await worker.start()
    await play.probe(running.publishing)
    await play.until_probed()
    for walk in worker._pipelines.values():
        await walk.wait_until_settled()  # a stop would end the check of a dead worker
    await worker.stop()
    return play.calls > before or (await running.publishing.queue_info(play.queue)).messages > 0


async def _tell_parked(connection: Connection, queue: str, fate: Fate) -> None:
    while (delivery := await connection.get(queue)) is not None:
        if not is_probe(delivery.body):  # one that was there when somebody died is parked as a suspect itself
            headers = json.loads(json.dumps(delivery.properties.headers or {}, default=str))
            fate.tell(parked=id_of(delivery.body), headers=headers)
        delivery.ack()
