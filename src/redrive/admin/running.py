"""Operations that run in a server: they outlive whoever asked for them, and the server itself.

    begin     written down, locked, under way: then its caller gets an answer, and the rest happens here
    stop      the server ends: each operation finishes what is under way, gives back the rest, and is left as it was,
              for the next server to go on with
    adopt     what another server began and cannot go on with, because it is gone

A server adopts operations of servers of the same broker, and no others: whose process was a command on somebody's
machine is that somebody's to resume. Only re-drives and moves are gone on with. A discard, or a change, has an archive
on the machine that began it: it is closed, and says what to do about the rest.

Who carries them out is a `Crew`: tasks in this process (`Inside`), or a process of its own (`redrive.admin.apart`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from redrive.admin.jobs import GoOn, Job
from redrive.admin.service import STALE, Service
from redrive.admin.target import BrokerTarget
from redrive.client import BrokerURL
from redrive.errors import OperationConflict, RedriveError
from redrive.runtime.dlq.moving import Mover
from redrive.runtime.dlq.operation import Operation, State

log = logging.getLogger("redrive.admin")

_LOOK_ROUND = 3.0  # seconds
_STOP_WITHIN = 10.0

Hears = Callable[[Operation], None]


class Crew(Protocol):
    @property
    def owner(self) -> str:
        """By which its operations are known to be its own."""

    @property
    def ids(self) -> frozenset[str]:
        """Of the operations under way, and of those that are about to be: they are not left behind, whatever else it
        looks like.
        """

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Leave everything in good order."""

    async def begin(self, job: Job) -> Operation:
        """Returns as soon as it is under way; raises what keeps it from that."""


# Whose they are -------------------------------------------------------------------------------------------


def server_mark(target: BrokerTarget) -> str:
    """By which the servers of one broker know each other's operations."""
    if target.broker is None:
        where = f"{socket.gethostname()}:{target.data}"
    else:
        url = BrokerURL.parse(target.broker)
        where = f"{sorted(map(str, url.hosts))}{url.virtual_host}"
    return f"server:{hashlib.sha256(where.encode()).hexdigest()[:12]}"


def owner_name(mark: str) -> str:
    """A process, not a place: the next one at this place is another."""
    return f"{mark}:{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"


def is_gone(owner: str) -> bool:
    """Is it known at once that this process is not there any more? On another machine it is not."""
    _, host, pid, _ = owner.rsplit(":", 3)
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    if int(pid) == os.getpid():  # whoever had this number before
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


# What is under way ----------------------------------------------------------------------------------------


class Runner:
    """Goes round and looks for what was left behind."""

    def __init__(self, service: Service, mark: str, crew: Crew) -> None:
        self.crew = crew
        self._service = service
        self._mark = mark
        self._rounds: asyncio.Task[None] | None = None
        self._not_before: dict[str, datetime] = {}  # of those that could not go on when it was tried

    async def start(self) -> None:
        await self.crew.start()
        self._rounds = asyncio.create_task(self._look_round(), name="redrive-adopting")

    async def stop(self) -> None:
        if self._rounds is not None:
            self._rounds.cancel()
            await asyncio.gather(self._rounds, return_exceptions=True)
        await self.crew.stop()

    async def _look_round(self) -> None:
        while True:
            try:
                await self.adopt()
            except Exception as error:  # the database is away: the next round may see it
                log.warning("whether operations were left behind cannot be told: %s", error)
            await asyncio.sleep(_LOOK_ROUND)

    async def adopt(self) -> None:
        running = await asyncio.to_thread(self._service.store.running)
        self._not_before = {one.id: self._not_before[one.id] for one in running if one.id in self._not_before}
        for operation in filter(self._is_left, running):
            now = await asyncio.to_thread(self._service.store.get, operation.id)  # to adopt another may have taken long
            if now is not None and not now.state.is_over and self._is_left(now):
                await self._adopt(now)

    def _is_left(self, operation: Operation) -> bool:
        if operation.id in self.crew.ids or not operation.owner.startswith(f"{self._mark}:"):
            return False
        now = self._service.clock.now()
        if now < self._not_before.get(operation.id, now):
            return False
        is_gone_now = operation.owner != self.crew.owner and is_gone(operation.owner)
        return is_gone_now or self._service.is_interrupted(operation)

    async def _adopt(self, operation: Operation) -> None:
        if not operation.order.kind.is_resumable:
            await self._service.close_interrupted(operation)
            return
        log.info("operation %s was left behind: going on with it", operation.id)
        try:
            await self.crew.begin(GoOn(self._service.by, operation))
        except RedriveError as error:
            self._not_before[operation.id] = self._service.clock.now() + STALE
            tell = log.info if isinstance(error, OperationConflict) else log.warning
            tell("operation %s cannot go on now: %s", operation.id, error)

    def __repr__(self) -> str:
        return f"<Runner of {len(self.crew.ids)} operations>"


class Inside:
    """Tasks in this process."""

    def __init__(
        self, service: Service, mark: str, ended: Hears = lambda _: None, known: Hears = lambda _: None
    ) -> None:
        """`known` hears of an operation as soon as it is one, `ended` when it is over."""
        self._service = service
        self._ended = ended
        self._known = known
        self._running: dict[str, _Running] = {}
        self.owner = service.owner = owner_name(mark)

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(self._running)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        await asyncio.gather(*(one.leave(self._service) for one in list(self._running.values())))

    async def begin(self, job: Job) -> Operation:
        running = _Running(job, self._service.acting(job.by), self._note)
        running.task.add_done_callback(lambda _: self._over(running))
        return await running.first()

    def _note(self, running: _Running, operation: Operation) -> None:
        self._running[operation.id] = running
        self._known(operation)

    def _over(self, running: _Running) -> None:
        if running.operation is not None and self._running.get(running.operation.id) is running:
            del self._running[running.operation.id]
            self._ended(running.operation)
        if not running.task.cancelled() and (error := running.task.exception()) is not None:
            log.warning("an operation was not carried out, or its end not written down: %s", error)


class _Running:
    """One operation, in a task."""

    def __init__(self, job: Job, service: Service, known: Callable[[_Running, Operation], None]) -> None:
        self.operation: Operation | None = None
        self._known = known
        self._mover: Mover | None = None
        self._moved = asyncio.Event()
        self.task = asyncio.create_task(job.run(service, self._see, self._meet), name="redrive-operation")
        self.task.add_done_callback(lambda _: self._moved.set())  # the last change comes a little before the end

    def _meet(self, mover: Mover) -> None:
        self._mover = mover

    def _see(self, operation: Operation) -> None:
        if self.operation is None:
            self._known(self, operation)
        self.operation = operation
        if self._mover is not None:  # else it is about to begin
            self._moved.set()

    async def first(self) -> Operation:
        """As it is when it has begun."""
        seeing = asyncio.create_task(self._moved.wait())
        await asyncio.wait((seeing, self.task), return_when=asyncio.FIRST_COMPLETED)
        seeing.cancel()
        if self.task.done():
            return await self.task
        assert self.operation is not None
        return self.operation

    async def leave(self, service: Service) -> None:
        """Let it come to rest, and leave it for the next server."""
        mover = self._mover
        if mover is None:  # it has not begun
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            return
        was = mover.operation.state
        try:
            async with asyncio.timeout(_STOP_WITHIN):
                while not self.task.done() and not mover.steering.rests:
                    mover.steering.pause()  # in each round: it may begin to run only now
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            log.warning("operation %s did not come to rest: it is cut off", mover.operation.id)
        if self.task.done():
            return
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        if mover.operation.state.is_over:  # only the record of its end is missing
            return
        state = was if was in (State.PAUSED, State.CANCELLING) else State.RUNNING
        await service.leave(replace(mover.operation, state=state))
