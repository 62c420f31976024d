"""Broken inputs for a listening broker: the corpus and mutators of `tools/fuzzing`, each input on a socket of its own.

An input is told whole, then the socket is closed for writing and read to its end: when `tell` returns, the broker has
heard all of it and has let go of the connection.
"""

import socket
from collections.abc import Iterator
from random import Random

from fuzzing import corpus
from fuzzing.mutation import Mutator
from interop.raw import RawClient
from redrive.testing.pair import frame_by_frame

Input = tuple[bool, bytes]  # told on an open connection with two channels, or to a broker that knows nobody


def inputs(seed: int, count: int) -> Iterator[Input]:
    """The same ones for the same seed."""
    chance = Random(seed)
    mutator = Mutator(chance)
    stored = corpus.load()
    fresh = [data for name, found in stored.items() if name == "server-fresh" for data in found]
    opened = [data for name, found in stored.items() if name.startswith("server-") for data in found]
    for _ in range(count):
        if chance.random() < 0.1:
            yield False, chance.randbytes(chance.randrange(1, 200))
        elif chance.random() < 0.2:
            yield False, mutator.stream(chance.choice(fresh), opened)
        else:
            yield True, mutator.stream(chance.choice(opened), opened)


def tell(port: int, is_open: bool, data: bytes) -> None:
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
        client.until_closed()
