"""The server's side of a connection: who does not say what they want is not waited for.

There are at most so many connections, since each takes a file of the process, and one that has no files left cannot
even write down what happens. When there are too many, the one goes that has been silent for longest. Only when all of
them are being answered is the newcomer sent away.
"""

from __future__ import annotations

import asyncio
from time import monotonic  # the loop's own may tell milliseconds only (uvloop's does)

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_WITHIN = 30.0  # seconds, for the first line and the headers of a request
MOST_CONNECTIONS = 500  # half of the files that a process may have where nobody said otherwise


class Impatient(H11Protocol):
    """uvicorn's protocol, which ends a connection whose next request does not begin, or is never finished saying."""

    _deadline: asyncio.TimerHandle | None = None
    _heard_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._heard_at = monotonic()
        self._wait()
        if len(self.connections) > MOST_CONNECTIONS:
            self._make_room()

    def _make_room(self) -> None:
        silent = [other for other in self.connections if isinstance(other, Impatient) and other._is_silent]
        min(silent, key=lambda other: other._heard_at).transport.close()  # if nobody else is, it is this one

    @property
    def _is_silent(self) -> bool:
        return not self._is_answering and not self.transport.is_closing()

    def data_received(self, data: bytes) -> None:
        self._heard_at = monotonic()
        if not self._is_answering and self._deadline is None:
            self._wait()
        super().data_received(data)
        if self._is_answering:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def _is_answering(self) -> bool:
        """Between the end of a head and the end of its answer. How long a body may take is `bounds`' to say."""
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._deadline = self.loop.call_later(HEAD_WITHIN, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self._is_silent:
            self.transport.close()
