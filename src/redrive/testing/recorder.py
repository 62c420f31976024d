"""A record of what happened to messages, on which a test can wait.

    recorder = Recorder(app)
    async with app.worker():
        await app.publish("events", "order.placed", {"id": 7})
        [parked] = await recorder.parked("orders")
        assert parked.reason == "exhausted"

A test that waits for a fact takes as long as the fact does; one that sleeps takes longer, or fails on a busy machine. A
wait that ends in vain says what did happen.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from redrive.errors import ConfigurationError
from redrive.recovery.durations import format_duration
from redrive.text import pluralise
from redrive.worker.events import (
    BreakerChanged,
    BreakerState,
    ConnectionChanged,
    DeliveryOutcome,
    DeliverySettled,
    Observer,
)

if TYPE_CHECKING:
    from redrive.app import App

_WITHIN = 20.0  # seconds
_MOST_SHOWN = 20  # events
_VERBS = {DeliveryOutcome.DUPLICATE: "skipped as duplicates"}


class Recorder(Observer):
    """Records what happens to an application's messages: `<Recorder orders: done=3 parked=1>`.

    All counts are from the beginning: `await recorder.retried("orders", 2)` returns when two have been retried, now or
    before. `within` is a limit in seconds of real time; an AssertionError then says what happened.
    """

    def __init__(self, app: App | None = None) -> None:
        """`app`: the application to record. Without, pass the recorder as one of `App(observers=)`."""
        self.events: list[DeliverySettled] = []  # all but those that were simply handled
        self.breakers: list[BreakerChanged] = []
        self.connections: list[ConnectionChanged] = []
        self.batches: list[int] = []  # the sizes of the batches that were handled
        self.counts: Counter[DeliveryOutcome] = Counter()
        self._started: Counter[str] = Counter()  # by queue
        self._handled: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._app = app
        if app is not None:
            if app.connected is not None:
                raise ConfigurationError(f"Recorder({app!r}): it is connected already; record it from its start")
            app.observers.append(self)

    @property
    def breaker_states(self) -> list[str]:
        """The states of the breakers, in the order of their changes."""
        return [str(event.state) for event in self.breakers]

    # Waiting ------------------------------------------------------------------------------------------

    async def handled(self, queue: str | None = None, count: int = 1, within: float = _WITHIN) -> None:
        """Wait until `count` messages of the queue, or of all queues, were handled and acknowledged."""
        await self._wait(lambda: _total(self._handled, queue) >= count, queue, count, "handled", within)

    async def retried(self, queue: str | None = None, count: int = 1, within: float = _WITHIN) -> list[DeliverySettled]:
        """Wait until as many failed and wait for another attempt; return all of them. They are in the retry queue."""
        return await self.seen(DeliveryOutcome.RETRIED, count, within, queue=queue)

    async def parked(self, queue: str | None = None, count: int = 1, within: float = _WITHIN) -> list[DeliverySettled]:
        """Wait until as many were parked; return all of them. They are in the dead-letter queue."""
        return await self.seen(DeliveryOutcome.PARKED, count, within, queue=queue)

    async def discarded(
        self, queue: str | None = None, count: int = 1, within: float = _WITHIN
    ) -> list[DeliverySettled]:
        """Wait until as many were discarded; return all of them."""
        return await self.seen(DeliveryOutcome.DISCARDED, count, within, queue=queue)

    async def seen(
        self, outcome: DeliveryOutcome | str, count: int = 1, within: float = _WITHIN, *, queue: str | None = None
    ) -> list[DeliverySettled]:
        """Wait until as many were settled in that way ("snoozed", "duplicate", "released", ...); return all of them."""
        outcome = DeliveryOutcome(_one_of(outcome, list(DeliveryOutcome), "seen"))
        if outcome is DeliveryOutcome.DONE:
            await self.handled(queue, count, within)
            return []

        def found() -> list[DeliverySettled]:
            return [event for event in self.events if event.outcome is outcome and queue in (None, event.queue)]

        await self._wait(lambda: len(found()) >= count, queue, count, _VERBS.get(outcome, outcome), within)
        return found()

    async def taken(self, queue: str | None = None, count: int = 1, within: float = _WITHIN) -> None:
        """Wait until the worker has taken as many messages: they are being handled, or gathered for a batch, or wait
        for a breaker or a rate limit.
        """
        await self._wait(lambda: _total(self._started, queue) >= count, queue, count, "taken", within)

    async def breaker_is(self, state: BreakerState | str, queue: str | None = None, within: float = _WITHIN) -> None:
        """Wait until the breaker of the queue is "open", "probing" or "closed". One that never changed is closed."""
        wanted = _one_of(state, list(BreakerState), "breaker_is")

        def current() -> BreakerState:
            changes = [event.state for event in self.breakers if queue in (None, event.queue)]
            return changes[-1] if changes else BreakerState.CLOSED

        await self.until(lambda: current() == wanted, within, lambda: f"the breaker to be {wanted}; it is {current()}")

    async def database_is(self, state: str, within: float = _WITHIN) -> None:
        """Wait until the database of the consumers is "unavailable", or "open" again."""
        _one_of(state, ("open", "unavailable"), "database_is")

        def current() -> str:
            changes = [event.state for event in self.connections if event.name == "database"]
            return changes[-1] if changes else "open"

        await self.until(lambda: current() == state, within, lambda: f"the database to be {state}; it is {current()}")

    async def until(
        self,
        condition: Callable[[], bool],
        within: float = _WITHIN,
        describe: Callable[[], str] = lambda: "a condition to be true",
    ) -> None:
        """Wait until the condition is true. It is evaluated whenever something happened."""
        try:
            async with asyncio.timeout(within):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"waited {within:g} s for {describe()}; {self.report()}") from None

    async def _wait(
        self, condition: Callable[[], bool], queue: str | None, count: int, verb: str, within: float
    ) -> None:
        where = f" of {queue}" if queue is not None else ""
        was = "was" if count == 1 else "were"
        await self.until(condition, within, lambda: f"{pluralise(count, 'message')}{where} that {was} {verb}")

    def report(self) -> str:
        """Return what has happened so far, in a line for each queue and each event."""
        lines = [f"  {line}" for line in self._summary()] or ["  no message was taken"]
        lines += [f"  {_line(event)}" for event in self.events[-_MOST_SHOWN:]]
        lines += [f"  breaker {event.name} of {event.queue}: {event.state}" for event in self.breakers]
        lines += [f"  {event.name}: {event.state} ({event.reason})" for event in self.connections]
        if self._app is not None:
            lines.append(f"  clock: {self._app.clock!r}")
        return "\n".join(["what happened:", *lines])

    def _summary(self) -> list[str]:
        found = []
        for queue in sorted({*self._started, *self._handled, *(event.queue for event in self.events)}):
            counts = Counter({"taken": self._started[queue], "handled": self._handled[queue]})
            counts.update(str(event.outcome) for event in self.events if event.queue == queue)
            found.append(f"{queue}: " + ", ".join(f"{count} {verb}" for verb, count in counts.items() if count))
        return found

    # Recording: the hooks of an Observer --------------------------------------------------------------

    def started(self, queue: str) -> None:
        self._started[queue] += 1
        self._changed.set()

    def done(self, queue: str, seconds: float) -> None:  # noqa: ARG002
        self._handled[queue] += 1
        self.counts[DeliveryOutcome.DONE] += 1
        self._changed.set()

    def settled(self, event: DeliverySettled) -> None:
        self.events.append(event)
        self.counts[event.outcome] += 1
        self._changed.set()

    def batch(self, queue: str, size: int, seconds: float) -> None:  # noqa: ARG002
        self.batches.append(size)
        self._changed.set()

    def breaker(self, event: BreakerChanged) -> None:
        self.breakers.append(event)
        self._changed.set()

    def connection(self, event: ConnectionChanged) -> None:
        self.connections.append(event)
        self._changed.set()

    def __repr__(self) -> str:
        counted = "".join(f" {outcome}={count}" for outcome, count in self.counts.items())
        return f"<Recorder{counted}>"


def _one_of(word: str, known: Sequence[str], method: str) -> str:
    if word not in known:
        raise ConfigurationError(f"Recorder.{method}({word!r}): want one of {', '.join(known)}")
    return word


def _total(counts: Counter[str], queue: str | None) -> int:
    return counts.total() if queue is None else counts[queue]


def _line(event: DeliverySettled) -> str:
    error = f" ({event.error})" if event.error else ""
    again = f", again in {format_duration(event.delay)}" if event.delay is not None else ""
    return (
        f"{event.queue}: {event.outcome} after attempt {event.attempt} of {event.max_attempts}{again}: "
        f"{event.reason}{error}"
    )
