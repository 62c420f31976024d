"""`socket`: a listening broker as a process, and clients that talk nonsense, each on a socket of its own.

An input is told whole, then the socket is closed for writing and read to its end: when `tell` returns, the broker has
heard all of it and has let go of the connection. Promised is that it does so, goes on, says nothing of a fault of its
own, keeps no memory, and that another client, who publishes and gets all along, does not notice.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Self

from fuzzing import corpus
from fuzzing.mutation import Mutator
from fuzzing.targets import Broken, Target
from interop.embedded import EmbeddedBroker
from interop.neighbour import Neighbour
from interop.raw import RawClient
from tests.support.connection_pair import frame_by_frame

Input = tuple[bool, bytes]  # told on an open connection with two channels, or to a broker that knows nobody

MEMORY = 100 * 1024 * 1024  # bytes that a broker may grow by


def inputs(seed: int, count: int) -> Iterator[Input]:
    """The same ones for the same seed."""
    chance = Random(seed)
    mutator = Mutator(chance)
    fresh, opened = _streams()
    for _ in range(count):
        yield _input(chance, mutator, fresh, opened)


def _streams() -> tuple[list[bytes], list[bytes]]:
    stored = corpus.load()
    fresh = [data for name, found in stored.items() if name == "server-fresh" for data in found]
    return fresh, [data for name, found in stored.items() if name.startswith("server-") for data in found]


def _input(chance: Random, mutator: Mutator, fresh: Sequence[bytes], opened: Sequence[bytes]) -> Input:
    if chance.random() < 0.1:
        return False, chance.randbytes(chance.randrange(1, 200))
    if chance.random() < 0.2:
        return False, mutator.stream(chance.choice(fresh), opened)
    return True, mutator.stream(chance.choice(opened), opened)


def tell(port: int, is_open: bool, data: bytes) -> bytes:
    """What the broker says to it, until it is at an end."""
    with RawClient(port, within=30) as client:
        try:
            if is_open:
                client.open(channels=2)
                client.socket.sendall(data)
            else:
                for unit in frame_by_frame(data):  # the broker may read them one by one
                    client.socket.sendall(unit)
            client.socket.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError, OSError) as gone:
            if isinstance(gone, TimeoutError):
                raise
        return client.until_closed()


class SocketTarget(Target):
    """An input begins with `o` if it is told on an open connection, and with `f` if to a fresh one."""

    seconds = 30.0
    grows = False

    def __enter__(self) -> Self:
        self._stack = stack = ExitStack()
        folder = Path(tempfile.mkdtemp(prefix="redrive-fuzz-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        self._broker = stack.enter_context(EmbeddedBroker(folder))
        self._neighbour = stack.enter_context(Neighbour(self._broker.url))
        self._memory, self._read = self._broker.memory, 0
        self._fresh, self._opened = _streams()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, data: bytes) -> set[str]:
        said = tell(self._broker.port, data[:1] == b"o", data[1:])
        if not self._broker.running:
            raise Broken(f"the broker ended: {self._new_lines()}")
        for line in self._new_lines().splitlines():
            if "a fault of the broker's own" in line or "Traceback" in line:
                raise Broken(line)
        if self._broker.memory - self._memory > MEMORY:
            raise Broken(f"it grew by {(self._broker.memory - self._memory) // 1024} KiB")
        return {str(said[-12:-8])}

    def _new_lines(self) -> str:
        with self._broker.log.open() as log:
            log.seek(self._read)
            new = log.read()
            self._read = log.tell()
        return new

    def mutate(self, mutator: Mutator, data: bytes, others: Sequence[bytes]) -> bytes:  # noqa: ARG002 - those of `protocol`
        is_open, told = _input(mutator.chance, mutator, self._fresh, self._opened)
        return (b"o" if is_open else b"f") + told

    def made(self) -> dict[str, bytes]:
        return {"greeting": b"fAMQP\x00\x00\x09\x01", "http": b"fGET / HTTP/1.1\r\n\r\n", "silence": b"o"}
