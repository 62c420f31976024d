"""An event loop in which nothing is left to chance: simulated time, a simulated network, no threads.

Time passes only when everybody waits, and then at once. What programs write to each other goes through `Network`, a
piece at a time, in the order in which it was written. Each piece that a *life* (a process that may die) sends or
receives is a step, and at each step something can go wrong:

    lose     the connection is reset, and the piece is gone
    cut      the piece arrives, and then the connection is reset: whoever sent it does not hear of that
    late     the piece, and all behind it on its way, come after everything else that is on its way
    die      the life ends: what it wrote before has arrived, this piece has not, and nobody hears of it again

A `Plan` says what goes wrong at which steps. The same plan makes the same run, to the last byte but for identities.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from redrive.worker.clock import SystemClock

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
_LATE = 0.005  # seconds


class Mishap(StrEnum):
    LOSE = "lose"
    CUT = "cut"
    LATE = "late"
    DIE = "die"


Plan = Mapping[int, Mishap]
"""What goes wrong, by step; steps are counted from 1."""


class Stuck(AssertionError):
    """Everybody waits, and nothing will ever happen."""


class Life:
    """A process, as far as this world knows: tasks and connections that end together."""

    def __init__(self) -> None:
        self.died = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def dead(self) -> bool:
        return self.died.is_set()

    def begin(self, coroutine: Any) -> asyncio.Task[Any]:
        context = contextvars.copy_context()
        context.run(_LIFE.set, self)
        return asyncio.get_running_loop().create_task(coroutine, context=context)

    def own(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def bury(self) -> None:
        """End its tasks. Nothing that they do about it reaches anybody."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(list(self._tasks))


_LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)


def this_life() -> Life | None:
    return _LIFE.get()


def _factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **more)
    context = more.get("context")
    life = context.get(_LIFE) if context is not None else _LIFE.get()
    if life is not None:
        life.own(task)
    return task


class SimulatedLoop(asyncio.BaseEventLoop):
    """The selector is the loop itself: to wait for files is to let time pass."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = self
        self._clock_resolution = 1e-6
        self.network = Network(self)
        self.set_task_factory(_factory)

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck("everybody waits for somebody else")
        self._now += timeout
        return []

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ARG002
        """At once: a thread would be scheduled by the system, in an order of its own."""
        done = self.create_future()
        try:
            done.set_result(function(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done

    async def create_server(self, factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:  # noqa: ARG002
        return self.network.listen(factory, port)

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:  # noqa: ARG002
        await asyncio.sleep(0)
        return self.network.connect(factory, port)


class SimulatedClock(SystemClock):
    """For an application and for a broker. Both wait on the loop, in which time is simulated."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.time(), UTC)

    def monotonic(self) -> float:
        return self._loop.time()

    def time(self) -> float:
        return NEW_YEAR + self._loop.time()

    def call_at(self, when: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_at(when - NEW_YEAR, action)


# The network --------------------------------------------------------------------------------------


@dataclass(eq=False)
class Piece:
    to: Wire
    data: bytes | None  # None: the end of the stream

    @property
    def life(self) -> Life | None:
        return self.to.life or self.to.peer.life


class Network:
    def __init__(self, loop: SimulatedLoop) -> None:
        self.plan: Plan = {}
        self.steps = 0
        self.happened: list[tuple[int, Mishap]] = []
        self._loop = loop
        self._servers: dict[int, Callable[[], asyncio.Protocol]] = {}
        self._under_way: deque[Piece] = deque()
        self._pumping = False
        self._wires: list[Wire] = []

    def listen(self, factory: Callable[[], asyncio.Protocol], port: int) -> Listener:
        port = port or 5672 + len(self._servers)
        self._servers[port] = factory
        return Listener(self._servers, port)

    def connect(self, factory: Callable[[], asyncio.Protocol], port: int) -> tuple[Wire, asyncio.Protocol]:
        life = this_life()
        if port not in self._servers or (life is not None and life.dead):
            raise ConnectionRefusedError(111, "nobody listens there")
        ours, theirs = Wire(self, factory(), life), Wire(self, self._servers[port](), None)
        ours.peer, theirs.peer = theirs, ours
        self._wires += (ours, theirs)
        theirs.protocol.connection_made(theirs)
        ours.protocol.connection_made(ours)
        return ours, ours.protocol

    def send(self, piece: Piece) -> None:
        self._under_way.append(piece)
        self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """One piece in each turn of the loop, so that everybody can answer in between."""
        self._pumping = False
        piece = next((piece for piece in self._under_way if piece.to.takes), None)
        if piece is None:
            return
        self._under_way.remove(piece)
        self._step(piece)
        if self._under_way:
            self._pump_soon()

    def _step(self, piece: Piece) -> None:
        mishap = None
        if piece.life is not None and not piece.life.dead:
            self.steps += 1
            mishap = self.plan.get(self.steps)
        if mishap is not None:
            self.happened.append((self.steps, mishap))
        if mishap is Mishap.DIE:
            assert piece.life is not None
            self._kill(piece.life)
        elif mishap is Mishap.LATE:
            self._hold_up(piece)
        elif mishap is Mishap.LOSE:
            piece.to.reset()
        else:
            piece.to.arrive(piece.data)
            if mishap is Mishap.CUT:
                piece.to.reset()

    def _hold_up(self, piece: Piece) -> None:
        self._under_way.appendleft(piece)
        piece.to.held = True
        self._loop.call_later(_LATE, self._let_go, piece.to)

    def _let_go(self, wire: Wire) -> None:
        wire.held = False
        self._pump_soon()

    def _kill(self, life: Life) -> None:
        life.died.set()
        for wire in [wire for wire in self._wires if wire.life is life]:
            wire.vanish()

    def forget(self, wire: Wire) -> None:
        self._under_way = deque(piece for piece in self._under_way if piece.to is not wire)
        if wire in self._wires:
            self._wires.remove(wire)

    def resumed(self) -> None:
        self._pump_soon()


class Listener:
    """What `create_server` gives."""

    def __init__(self, servers: dict[int, Any], port: int) -> None:
        self._servers = servers
        self._port = port
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def close(self) -> None:
        self._servers.pop(self._port, None)


class Wire(asyncio.Transport):
    """One end of a connection."""

    peer: Wire

    def __init__(self, network: Network, protocol: asyncio.Protocol, life: Life | None) -> None:
        super().__init__()
        self._network = network
        self._loop = asyncio.get_running_loop()
        self.protocol = protocol
        self.life = life
        self.held = False
        self._reading = True
        self._closing = False
        self._over = False

    @property
    def takes(self) -> bool:
        return self._reading and not self.held

    def arrive(self, data: bytes | None) -> None:
        if self._over:
            return
        if data is None:
            self.protocol.eof_received()
            self._end(None)
            self.peer._end(None)
        else:
            self.protocol.data_received(data)

    def reset(self) -> None:
        """Both ends hear of it."""
        for wire in (self, self.peer):
            wire._end(ConnectionResetError(104, "Connection reset by peer"))

    def vanish(self) -> None:
        """This end is gone with its process; what it had written arrived, and then the other end is told.

        So are the tasks of the dead, lest they wait: whatever they do about it, they do not reach anybody any more.
        """
        self._end(ConnectionAbortedError("dead"))
        self.peer._end(ConnectionResetError(104, "Connection reset by peer"))

    def _end(self, error: Exception | None) -> None:
        if not self._over:
            self._over = self._closing = True
            self._network.forget(self)
            self._loop.call_soon(self.protocol.connection_lost, error)

    # asyncio.Transport --------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if not self._closing and data:
            self._network.send(Piece(self.peer, bytes(data)))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._network.send(Piece(self.peer, None))

    def abort(self) -> None:
        if not self._over:
            self.reset()

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._network.resumed()

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol
