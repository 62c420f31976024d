"""Find operations whose process is gone, and go on with them.

A server recovers the operations of servers of the same broker, and no others: the operation of a command belongs to the
operator who ran it. Only re-drives and moves are gone on with. A discard or an edit has an archive on the machine that
began it: it is closed, and its note says what to do about the rest.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
from datetime import datetime

from redrive.admin.executor import OperationExecutor
from redrive.admin.service import STALE, Service
from redrive.admin.target import BrokerTarget
from redrive.client import BrokerURL
from redrive.errors import OperationConflict, RedriveError
from redrive.operations.operation import Operation

log = logging.getLogger("redrive.admin")

_INTERVAL = 3.0  # seconds


def server_mark(place: BrokerTarget) -> str:
    """Return the text by which the servers of one broker know each other's operations."""
    if place.broker is None:
        where = f"{socket.gethostname()}:{place.data}"
    else:
        url = BrokerURL.parse(place.broker)
        where = f"{sorted(map(str, url.hosts))}{url.virtual_host}"
    return f"server:{hashlib.sha256(where.encode()).hexdigest()[:12]}"


def owner_name(mark: str) -> str:
    """Return a name for this process as the owner of operations. No other process gets the same."""
    return f"{mark}:{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"


def process_is_gone(owner: str) -> bool:
    """Return whether the process is known not to exist any more. Of another machine that is not known."""
    _, host, pid, _ = owner.rsplit(":", 3)
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    if int(pid) == os.getpid():  # an earlier process had this number
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


class OrphanRecovery:
    def __init__(self, service: Service, mark: str, executor: OperationExecutor, *others: OperationExecutor) -> None:
        """`executor` goes on with what is found. `others` run operations of this server as well."""
        self._service = service
        self._mark = mark
        self._executor = executor
        self._executors = (executor, *others)
        self._loop: asyncio.Task[None] | None = None
        self._not_before: dict[str, datetime] = {}  # by id of an operation that could not go on

    def start(self) -> None:
        self._loop = asyncio.create_task(self._recovery_loop(), name="redrive-recovery")

    async def stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)

    async def _recovery_loop(self) -> None:
        while True:
            try:
                await self.recover()
            except Exception as error:  # the database is unavailable: the next round may succeed
                log.warning("cannot look for operations whose process is gone: %s", error)
            await asyncio.sleep(_INTERVAL)

    async def recover(self) -> None:
        """Look once, and go on with what is found."""
        running = await asyncio.to_thread(self._service.store.running_operations)
        self._not_before = {one.id: self._not_before[one.id] for one in running if one.id in self._not_before}
        for operation in filter(self._is_orphan, running):
            now = await asyncio.to_thread(self._service.store.get, operation.id)  # the one before may have taken long
            if now is not None and not now.state.is_over and self._is_orphan(now):
                await self._recover(now)

    def _is_orphan(self, operation: Operation) -> bool:
        if any(operation.id in executor.ids for executor in self._executors):
            return False
        if not operation.owner.startswith(f"{self._mark}:"):
            return False
        now = self._service.clock.now()
        if now < self._not_before.get(operation.id, now):
            return False
        is_gone = operation.owner != self._service.owner and process_is_gone(operation.owner)
        return is_gone or self._service.is_interrupted(operation)

    async def _recover(self, operation: Operation) -> None:
        if not operation.order.kind.is_resumable:
            await self._service.close_orphan(operation)
            return
        log.info("operation %s was left behind: going on with it", operation.id)
        try:
            await self._service.take_over(operation)
            await self._executor.start(operation.id)
        except RedriveError as error:
            self._not_before[operation.id] = self._service.clock.now() + STALE
            report = log.info if isinstance(error, OperationConflict) else log.warning
            report("operation %s cannot go on now: %s", operation.id, error)

    def __repr__(self) -> str:
        return f"<OrphanRecovery of {self._mark} by {self._executor!r}>"
