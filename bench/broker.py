"""The private RabbitMQ node of a run, and the chores around a measurement: queues made, filled, counted, deleted.

The broker has work left when a client is done (deleting a queue, collecting garbage), which would be charged to
whoever is measured next. So a measurement begins when the node's CPU has come to rest.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil

from redrive.client import Connection, Properties, Publish
from redrive.testing import RabbitMQ

T = TypeVar("T")

JSON = Properties(content_type="application/json", delivery_mode=2)

# At rest: below this share of a core for one sample. A broker that never rests is measured as it is.
_RESTING_SHARE = 0.1
_SAMPLE = 0.1
_LONGEST_WAIT = 10.0


class Broker:
    def __init__(self, **options: Any) -> None:
        """With `options` of `RabbitMQ`."""
        self._numbers = itertools.count(1)
        self._directory = tempfile.TemporaryDirectory(prefix="redrive-bench-", ignore_cleanup_errors=True)
        self._node = RabbitMQ(Path(self._directory.name) / "node", **options)

    def __enter__(self) -> Self:
        self._node.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._node.discard()
        self._directory.cleanup()

    @property
    def url(self) -> str:
        return self._node.url

    def api(self, path: str, method: str = "GET", body: object = None) -> Any:
        return self._node.api(path, method, body)

    def versions(self) -> dict[str, str]:
        return {"RabbitMQ": ".".join(map(str, self._node.version))}

    @contextmanager
    def fresh_queue(self) -> Iterator[str]:
        """A durable classic queue that nobody has used."""
        queue = f"bench-{next(self._numbers)}"
        self._do(lambda connection: connection.declare_queue(queue))
        try:
            yield queue
        finally:
            self._do(lambda connection: connection.delete_queue(queue))

    def fill(self, queue: str, body: bytes, count: int) -> None:
        message = Publish("", queue, body, JSON)
        self._do(lambda connection: connection.publish_many(itertools.repeat(message, count)))

    def delete(self, *queues: str) -> None:
        """Those of them that are there."""

        async def delete_each(connection: Connection) -> None:
            for queue in queues:
                await connection.delete_queue(queue)

        self._do(delete_each)

    def depth(self, queue: str) -> int:
        return self._do(lambda connection: connection.queue_info(queue)).messages

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def wait_until_idle(self) -> None:
        wait_until_idle(self.pid)

    @property
    def pid(self) -> int:
        assert self._node.pid is not None
        return self._node.pid

    def _do(self, chore: Callable[[Connection], Awaitable[T]]) -> T:
        """One chore, one connection: none stays open, and unheard, while others are measured."""

        async def connected() -> T:
            async with Connection(self.url, name="bench chores") as connection:
                return await chore(connection)

        return asyncio.run(connected())

    def __repr__(self) -> str:
        return f"<Broker {self._node!r}>"


def wait_until_idle(broker: int) -> None:
    """`broker` is its process."""
    process = psutil.Process(broker)
    process.cpu_percent()
    deadline = time.monotonic() + _LONGEST_WAIT
    while time.monotonic() < deadline and process.cpu_percent(_SAMPLE) > _RESTING_SHARE * 100:
        pass
