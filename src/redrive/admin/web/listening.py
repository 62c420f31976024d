"""The server's side of a connection: who does not say what they want is not waited for."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_WITHIN = 30.0  # seconds, for the first line and the headers of a request


class Impatient(H11Protocol):
    """uvicorn's protocol, which ends a connection whose next request does not begin, or is never finished saying."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
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
        if not self._is_answering and not self.transport.is_closing():
            self.transport.close()
