"""A process of its own for what moves messages, so that a page does not wait for a re-drive of a million.

The server starts it, tells it through a pipe what to carry out, and hears of each beginning and end through another;
progress, and what others want of an operation, are in the database, as always. If the broker is the embedded one, it
lives there as well.

    the server ends, or dies      the pipe ends: every operation comes to rest and is left for the next server
    this process dies             its operations are found without an owner, and gone on with in the next one

The pipes carry pickles, between a process and its own child.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from redrive.admin.jobs import Job
from redrive.admin.running import Hears, Inside
from redrive.admin.service import Service
from redrive.admin.target import BrokerTarget
from redrive.broker.shared import SharedBroker
from redrive.errors import Closed, RedriveError
from redrive.runtime.dlq.operation import Operation
from redrive.store.audit import Audit
from redrive.store.database import Database
from redrive.store.operations import OperationsStore

log = logging.getLogger("redrive.admin")

_READY_WITHIN = 60.0  # seconds
_END_WITHIN = 20.0
_LIMIT = 64 * 1024 * 1024  # bytes of one message


@dataclass(frozen=True, slots=True)
class Task:
    """What the process is for."""

    target: BrokerTarget
    database: str
    mark: str
    by: str


class Ready(NamedTuple):
    owner: str


class Begin(NamedTuple):
    number: int
    job: Job


class Known(NamedTuple):
    id: str  # of an operation that is about to begin


class Begun(NamedTuple):
    number: int
    operation: Operation


class Refused(NamedTuple):
    number: int
    error: RedriveError


class Over(NamedTuple):
    operation: Operation


def _packed(message: object) -> bytes:
    data = pickle.dumps(message)
    return len(data).to_bytes(4) + data


async def _read(reader: asyncio.StreamReader) -> Any:
    """The next message; None when there are no more."""
    try:
        size = int.from_bytes(await reader.readexactly(4))
        return pickle.loads(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


# In the server --------------------------------------------------------------------------------------------


class Apart:
    """A crew in a process of its own."""

    def __init__(self, task: Task, ended: Hears = lambda _: None) -> None:
        self.owner = ""
        self._task = task
        self._ended = ended
        self._ids: set[str] = set()
        self._process: asyncio.subprocess.Process | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._ready = asyncio.Event()
        self._asked: dict[int, asyncio.Future[Operation]] = {}
        self._number = 0

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(self._ids)

    async def start(self) -> None:
        """Now, if it is to be the embedded broker's home; else when it is first needed."""
        if self._task.target.broker is None:
            await self._up()

    async def _up(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return self._process
            if self._hearing is not None:  # what the one before leaves undone is known before another is asked
                await self._hearing
            self._ready.clear()
            self._process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-c",
                    f"from {__name__} import main; main()",
                ),  # not -m: its messages are this module's
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                limit=_LIMIT,
            )
            self._tell(self._process, self._task)
            self._hearing = asyncio.create_task(self._hear(self._process), name="redrive-apart")
            try:
                async with asyncio.timeout(_READY_WITHIN):
                    await self._ready.wait()
            except TimeoutError:
                self._process.kill()
            if self._process.returncode is not None or not self.owner:
                raise RedriveError("the process that moves messages does not start: its error is in the server's log")
            return self._process

    def _tell(self, process: asyncio.subprocess.Process, message: object) -> None:
        assert process.stdin is not None
        process.stdin.write(_packed(message))

    async def begin(self, job: Job) -> Operation:
        process = await self._up()
        self._number += 1
        asked: asyncio.Future[Operation] = asyncio.get_running_loop().create_future()
        self._asked[self._number] = asked
        self._tell(process, Begin(self._number, job))
        return await asked

    async def _hear(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while (message := await _read(process.stdout)) is not None:
            match message:
                case Ready():
                    self.owner = message.owner
                    self._ready.set()
                case Known():
                    self._ids.add(message.id)
                case Begun():
                    self._answer(message.number, message.operation)
                case Refused():
                    self._answer(message.number, message.error)
                case Over():
                    self._ids.discard(message.operation.id)
                    self._ended(message.operation)
        await process.wait()
        self.owner = ""  # what it was about to do is nobody's now
        self._ids.clear()
        self._ready.set()
        for number in list(self._asked):
            self._answer(number, Closed("the process that moves messages has ended: ask again"))

    def _answer(self, number: int, answer: Operation | RedriveError) -> None:
        asked = self._asked.pop(number, None)
        if asked is None or asked.done():  # nobody waits for it any more
            return
        if isinstance(answer, Operation):
            asked.set_result(answer)
        else:
            asked.set_exception(answer)

    async def stop(self) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            async with asyncio.timeout(_END_WITHIN):
                await process.wait()
        except TimeoutError:
            log.warning("the process that moves messages does not end: it is killed")
            process.kill()
        if self._hearing is not None:
            await self._hearing

    def __repr__(self) -> str:
        return f"<Apart {self.owner or 'not started'}, {len(self._ids)} operations>"


# In the process -------------------------------------------------------------------------------------------


async def _serve(reader: asyncio.StreamReader, out: BinaryIO) -> None:
    task: Task = await _read(reader)

    def tell(message: object) -> None:
        with suppress(OSError):  # the server is gone: the other pipe says so
            out.write(_packed(message))
            out.flush()

    database = Database(task.database)
    service = Service(task.target, OperationsStore(database), Audit(database), by=task.by)
    crew = Inside(service, task.mark, lambda over: tell(Over(over)), lambda known: tell(Known(known.id)))
    async with AsyncExitStack() as stack:
        if task.target.broker is None and task.target.data is not None:
            await stack.enter_async_context(SharedBroker(task.target.data))
        tell(Ready(crew.owner))
        beginning: set[asyncio.Task[None]] = set()
        while (message := await _read(reader)) is not None:
            begun = asyncio.create_task(_begin(crew, message, tell))
            beginning.add(begun)
            begun.add_done_callback(beginning.discard)
        await asyncio.gather(*beginning, return_exceptions=True)
        await crew.stop()
        await database.close()


async def _begin(crew: Inside, message: Begin, tell: Callable[[object], None]) -> None:
    try:
        tell(Begun(message.number, await crew.begin(message.job)))
    except Exception as error:
        tell(Refused(message.number, _sendable(error)))


def _sendable(error: Exception) -> RedriveError:
    """As it is, if it can be told to another process; else what it says."""
    try:
        if isinstance(error, RedriveError) and str(pickle.loads(pickle.dumps(error))) == str(error):
            return error
    except Exception:
        log.debug("%r cannot be told to another process as it is", error)
    return RedriveError(str(error) or type(error).__name__)


def main() -> None:
    """Whoever ends the server ends this: with the pipe, in good order, not by a signal that was meant for both."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what is printed by mistake is no message
    asyncio.run(_run(out))


async def _run(out: BinaryIO) -> None:
    reader = asyncio.StreamReader(limit=_LIMIT)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await _serve(reader, out)
