"""Run operations in a child process. If the broker is the embedded one, it lives there as well.

    server to child    its configuration, once, as a pickle; then the ids of operations to start, one per line
    child to server    lines: `ready`, `started ID`, `refused ID ERROR`, `ended ID`

An error is a pickle, so that the server answers with the same problem whichever process found it. Everything else about
an operation is read from the database.

    the server ends, or dies    the pipe ends: every operation comes to rest and is left for the next server
    the child dies              it is started again when it is needed. Its operations have an owner that is gone, and
                                recovery, which needs it, goes on with them
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import BinaryIO

from redrive.admin.executor import Ended
from redrive.admin.executor.local import LocalExecutor
from redrive.admin.executor.recovery import owner_name
from redrive.admin.service import Service
from redrive.admin.target import BrokerTarget
from redrive.broker.shared import SharedBroker
from redrive.database.engine import Database
from redrive.errors import Closed, RedriveError
from redrive.operations.audit_log import AuditLog
from redrive.operations.operation import Operation
from redrive.operations.repository import OperationRepository

log = logging.getLogger("redrive.admin")

_READY_WITHIN = 60.0  # seconds
_END_WITHIN = 20.0
_LIMIT = 64 * 1024 * 1024  # bytes of one line
_MAIN = f"from {__name__} import main; main()"  # not -m: pickles name this module


def configure_plain_logs() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What the child works on, and from whom it takes operations."""

    place: BrokerTarget
    database: str
    mark: str
    server: str  # the owner of the operations that it is asked to start
    configure_logs: Callable[[], object] = configure_plain_logs  # what is pickled is its name and its arguments


# In the server --------------------------------------------------------------------------------------------


class SubprocessExecutor:
    def __init__(self, service: Service, config: WorkerConfig, ended: Ended = lambda _: None) -> None:
        self._service = service
        self._config = config
        self._ended = ended
        self._waiting: set[str] = set()  # ids of operations that wait for the child
        self._operations: dict[str, Operation] = {}  # that run there, or are about to, by id
        self._starting: dict[str, asyncio.Future[None]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._spawning = asyncio.Lock()
        self._ready = asyncio.Event()  # or it has ended

    @property
    def ids(self) -> frozenset[str]:
        return frozenset((*self._operations, *self._waiting))

    async def open(self) -> None:
        """Start the child now if it is to host the embedded broker; else it is started when it is needed."""
        if self._config.place.broker is None:
            await self._running_process()

    async def start(self, id: str) -> Operation:
        operation = await self._service.operation(id)
        try:
            process = await self._process_for(id)
            self._operations[id] = operation
            started = self._starting[id] = asyncio.get_running_loop().create_future()
            assert process.stdin is not None
            process.stdin.write(f"{id}\n".encode())
            await started
        except RedriveError as error:
            self._operations.pop(id, None)
            await self._service.abandon(id, error)  # unless the child has claimed it
            raise
        finally:
            self._starting.pop(id, None)
        return await self._service.operation(id)

    async def _process_for(self, id: str) -> asyncio.subprocess.Process:
        self._waiting.add(id)
        try:
            return await self._running_process()
        finally:
            self._waiting.discard(id)

    async def close(self) -> None:
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
        if self._reading is not None:
            await self._reading

    async def _running_process(self) -> asyncio.subprocess.Process:
        async with self._spawning:
            if self._process is not None and self._process.returncode is None:
                return self._process
            if self._reading is not None:  # what the last one leaves undone is known before another is asked
                await self._reading
            self._ready.clear()
            self._process = process = await self._spawn()
            self._reading = asyncio.create_task(self._read(process), name="redrive-executor")
            try:
                async with asyncio.timeout(_READY_WITHIN):
                    await self._ready.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
            if process.returncode is not None:
                raise RedriveError("the process that moves messages does not start: its error is in the server's log")
            return process

    async def _spawn(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _MAIN),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            limit=_LIMIT,
        )
        assert process.stdin is not None
        process.stdin.write(_encode(self._config) + b"\n")
        return process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := (await process.stdout.readline()).decode():
            word, id, error, *_ = [*line.split(), "", ""]
            match word:
                case "ready":
                    self._ready.set()
                case "started":
                    self._answer(id)
                case "refused":
                    self._answer(id, pickle.loads(base64.b64decode(error)))
                case "ended":
                    if (operation := self._operations.pop(id, None)) is not None:
                        self._ended(operation)
        await process.wait()
        for id in list(self._starting):
            self._answer(id, Closed("the process that moves messages has ended: ask again"))
        self._operations.clear()  # its operations are without a process now
        self._ready.set()

    def _answer(self, id: str, error: RedriveError | None = None) -> None:
        started = self._starting.get(id)
        if started is None or started.done():  # the request that waited for it is gone
            return
        if error is None:
            started.set_result(None)
        else:
            started.set_exception(error)

    def __repr__(self) -> str:
        pid = self._process.pid if self._process is not None else "not started"
        return f"<SubprocessExecutor {pid}, {len(self._operations)} operations>"


def _encode(value: object) -> bytes:
    return base64.b64encode(pickle.dumps(value))


# In the child ---------------------------------------------------------------------------------------------


async def _serve(reader: asyncio.StreamReader, out: BinaryIO) -> None:
    config: WorkerConfig = pickle.loads(base64.b64decode(await reader.readline()))
    config.configure_logs()

    def report(word: str, id: str = "", error: str = "") -> None:
        with suppress(OSError):  # the server is gone: the other pipe says so
            out.write(f"{word} {id} {error}\n".encode())
            out.flush()

    database = Database(config.database)
    service = Service(config.place, OperationRepository(database), AuditLog(database), by="redrive serve")
    service.owner = owner_name(config.mark)
    executor = LocalExecutor(service, lambda operation: report("ended", operation.id))
    async with AsyncExitStack() as stack:
        if config.place.broker is None and config.place.data is not None:
            await stack.enter_async_context(SharedBroker(config.place.data))
        report("ready")
        starting: set[asyncio.Task[None]] = set()
        while line := await reader.readline():
            task = asyncio.create_task(_start(executor, service, config.server, line.decode().strip(), report))
            starting.add(task)
            task.add_done_callback(starting.discard)
        await asyncio.gather(*starting, return_exceptions=True)
        await executor.close()
        await database.close()


async def _start(executor: LocalExecutor, service: Service, server: str, id: str, report: Callable[..., None]) -> None:
    try:
        await service.claim(id, server)
        await executor.start(id)
        report("started", id)
    except Exception as error:
        report("refused", id, _encode(_picklable(error)).decode())


def _picklable(error: Exception) -> RedriveError:
    """Return the error as it is, if a pickle can carry it; else one with the same text."""
    try:
        if isinstance(error, RedriveError) and str(pickle.loads(pickle.dumps(error))) == str(error):
            return error
    except Exception:
        log.debug("%r cannot be pickled", error)
    return RedriveError(str(error) or type(error).__name__)


def main() -> None:
    """Run the child. It ends with the pipe, in good order, not by a signal that was meant for the server as well."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what is printed by mistake is not a line of the protocol
    asyncio.run(_run(out))


async def _run(out: BinaryIO) -> None:
    reader = asyncio.StreamReader(limit=_LIMIT)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await _serve(reader, out)
