"""Call the handler of a consumer: within its time limit, its middleware and its transaction.

A handler with an inbox or a session runs in a transaction, which commits before the message is acknowledged. While the
database is unavailable, the call is repeated (`worker.outage`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar

from redrive.errors import ConfigurationError
from redrive.recovery.durations import duration
from redrive.worker.batch import Batch
from redrive.worker.clock import Clock
from redrive.worker.consumer_spec import ConsumerSpec
from redrive.worker.handlers import Handler
from redrive.worker.message import Message
from redrive.worker.outage import Outage
from redrive.worker.transactions import DatabaseLost, Transaction, Transactions

T = TypeVar("T")


# Neither is an Exception: middleware that turns every Exception into another error must not catch these.


class AlreadyProcessed(BaseException):
    """The message is a duplicate."""


class PartlyFailed(BaseException):
    """Some messages of a batch failed, in its handler or before it; the others must be handled without them."""

    def __init__(self, failures: Mapping[int, BaseException]) -> None:
        super().__init__(f"{len(failures)} messages of a batch failed")
        self.failures = dict(failures)


class Invocation:
    """Calls the handler of one consumer."""

    def __init__(
        self, spec: ConsumerSpec, handler: Handler, clock: Clock, transactions: Transactions | None, outage: Outage
    ) -> None:
        """`outage`: that of the database, shared by all consumers of the worker."""
        self._queue = spec.queue.name
        self._handler = handler
        self._clock = clock
        self._timeout = duration(spec.timeout).total_seconds() if spec.timeout is not None else None
        self._limit = f"timeout={spec.timeout}"  # as it was written
        self._middleware = spec.middleware
        self._inbox = spec.inbox_policy
        self._waits_for_database = spec.database_outage == "wait"
        self._transactions = transactions
        self._outage = outage
        self.is_transactional = self._inbox is not None or handler.wants_session
        if self.is_transactional and transactions is None:
            raise ConfigurationError(f"consumer of {self._queue}: an inbox or a session needs App(database=...)")
        # Nothing surrounds the call.
        self.is_plain = self._timeout is None and not self._middleware and not self.is_transactional

    async def call(self, body: Any, message: Message, began: list[float]) -> None:
        """Call the handler, and note in `began` when its last attempt began. Raises AlreadyProcessed."""
        await self._repeat_after_outage(partial(self._attempt, body, message, began))

    async def _attempt(self, body: Any, message: Message, began: list[float]) -> None:
        began[0] = self._clock.monotonic()
        await self.within_limits(lambda: self._call(body, message), (message,))

    async def call_with_batch(self, batch: Batch[Any]) -> frozenset[int]:
        """Call the handler with a batch. Returns the positions of messages that were processed before, or are in the
        batch twice: the handler does not see them. Raises PartlyFailed.
        """
        messages = batch.messages if self._middleware else ()
        return await self._repeat_after_outage(
            lambda: self.within_limits(lambda: self._call_with_batch(batch), messages, of="the handler of a batch")
        )

    async def within_limits(
        self, work: Callable[[], Awaitable[T]], messages: Sequence[Message], *, of: str = "the handler"
    ) -> T:
        """Do the work, `of` this function, within the time limit and the middleware."""
        limit: asyncio.Timeout | None = None
        try:
            async with AsyncExitStack() as stack:
                if self._timeout is not None:
                    limit = await stack.enter_async_context(self._clock.timeout(self._timeout))
                for middleware in self._middleware:
                    for message in messages:
                        await stack.enter_async_context(middleware(message))
                return await work()
        except TimeoutError as error:
            # A handler that is cancelled at the limit may raise a TimeoutError of its own.
            if limit is not None and limit.expired() and isinstance(error.__cause__, asyncio.CancelledError):
                error.args = (f"{of} of {self._queue} took longer than {self._limit}",)
            raise

    async def _repeat_after_outage(self, work: Callable[[], Awaitable[T]]) -> T:
        if not self.is_transactional:
            return await work()
        if self._waits_for_database:
            return await self._outage.ride_out(work)
        try:
            return await work()
        except DatabaseLost as unavailable:
            raise (unavailable.__cause__ or OSError(str(unavailable))) from None

    async def _call(self, body: Any, message: Message) -> None:
        handler = self._handler
        if self._transactions is None or not self.is_transactional:
            await handler.finish(await handler.call(body, message))
            return
        identity = self._inbox.identity(body, message) if self._inbox is not None else None
        async with self._outage.transaction(self._transactions, blocking=not handler.is_async) as transaction:
            if identity is None:
                await self._connect(transaction)
            elif not await transaction.note(self._queue, [identity]):
                raise AlreadyProcessed
            await handler.finish(await handler.call(body, message, transaction.session))

    async def _call_with_batch(self, batch: Batch[Any]) -> frozenset[int]:
        handler = self._handler
        if self._transactions is None or not self.is_transactional:
            await handler.finish(await handler.call_with_batch(batch))
            return frozenset()
        batch.failures.clear()  # of a call before this one that an outage ended
        async with self._outage.transaction(self._transactions, blocking=not handler.is_async) as transaction:
            known = await self._note_processed(batch, transaction)
            unknown = [position for position in range(len(batch)) if position not in known]
            fresh = batch.part(unknown)
            if unknown:
                await handler.finish(await handler.call_with_batch(fresh, transaction.session))
            for position, error in fresh.failures.items():
                batch.failures[unknown[position]] = error
            if batch.failures:
                raise PartlyFailed(batch.failures)  # which rolls back: what failed must not be noted as processed
        return known

    async def _connect(self, transaction: Transaction) -> None:
        """Begin in the database before the handler does, to find out whether it is available: an error after that may
        be the handler's. Where outages are failures, the handler meets them itself.
        """
        if self._waits_for_database:
            await transaction.connect()

    async def _note_processed(self, batch: Batch[Any], transaction: Transaction) -> frozenset[int]:
        if self._inbox is None:
            await self._connect(transaction)
            return frozenset()
        firsts: dict[str, int] = {}
        known = set()
        for position, item in enumerate(batch.items):
            try:
                identity = self._inbox.identity(item.body, item.message)
            except Exception as error:
                batch.failures[position] = error
                continue
            if identity is not None and firsts.setdefault(identity, position) != position:
                known.add(position)
        if batch.failures:
            raise PartlyFailed(batch.failures)
        fresh = await transaction.note(self._queue, list(firsts))
        return frozenset(known | {position for identity, position in firsts.items() if identity not in fresh})
