"""Another client of the same broker, who publishes and gets all along and must not notice what a test does."""

import asyncio
import threading
import time
from typing import Self

from redrive.client import Connection

PATIENCE = 5.0  # seconds for one round trip, on a machine that is busy with other tests


class Neighbour:
    """`<Neighbour trips=1200 worst=0.012 s>`; complains on exit if it was disturbed."""

    def __init__(self, url: str) -> None:
        self.trips = 0
        self.worst = 0.0
        self._url = url
        self._over = threading.Event()
        self._settled = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._live, name="neighbour")

    def _live(self) -> None:
        try:
            asyncio.run(self._round_trips())
        except BaseException as failure:
            self._failure = failure
            self._settled.set()

    async def _round_trips(self) -> None:
        async with Connection(self._url, name="neighbour") as connection:
            await connection.declare_queue("neighbour")
            while not self._over.is_set():
                begun = time.monotonic()
                async with asyncio.timeout(PATIENCE):
                    await connection.publish("", "neighbour", str(self.trips).encode())
                    delivery = await connection.get("neighbour")
                assert delivery is not None
                assert delivery.body == str(self.trips).encode()
                delivery.ack()
                self.worst = max(self.worst, time.monotonic() - begun)
                self.trips += 1
                self._settled.set()
                await asyncio.sleep(0.001)  # a neighbour, not a load
            assert connection.reconnects == 0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._settled.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise AssertionError(f"{self!r} was disturbed") from self._failure

    def __repr__(self) -> str:
        return f"<Neighbour trips={self.trips} worst={self.worst:.3f} s>"
