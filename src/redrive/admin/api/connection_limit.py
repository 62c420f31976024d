"""The server's side of a connection: a client that does not finish its request is not waited for.

There are at most `MOST_CONNECTIONS`, since each takes a file of the process, and one that has no files left cannot even
write down what happens; and at most `MOST_OF_AN_ADDRESS` for each client address, so that one client cannot take them
all. When there are too many, the connection is closed that has waited for longest for the rest of its request, or for
the next one, or for the client to read its answer: of all connections, or of that address. A connection whose request
is complete, and being answered, is never closed for another; if all are such, the newcomer is closed.

A trusted proxy (`--trust-proxy`) has one address for many users, so only the first limit holds for it. An address of
IPv6 is its network (/64), as for the throttle.

A request may be answered before its body is complete, as one without credentials is. Of the rest `MOST_DRAINED` bytes
are read, for a client that reads its answer when it has sent everything; then the connection is closed.

How long the body of a request may take is checked in `bounds`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic  # the loop's own may tell milliseconds only (uvloop's does)

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from redrive.admin.access.settings import Network
from redrive.admin.access.throttle import place_of
from redrive.admin.api.proxies import is_trusted

HEAD_WITHIN = 30.0  # seconds, for the first line and the headers of a request
MOST_CONNECTIONS = 500  # half of the files that a process may have where nobody said otherwise
MOST_OF_AN_ADDRESS = 100
MOST_DRAINED = 256 * 1024  # bytes
LINGER = 1.0  # seconds, in which a client can read the answer before its connection is closed


class IdleTimeoutProtocol(H11Protocol):
    """uvicorn's protocol, which ends a connection whose next request does not begin, or is never finished saying."""

    proxies: Sequence[Network] = ()
    _deadline: asyncio.TimerHandle | None = None
    _waiting_since = 0.0
    _drained = 0  # bytes of a body whose request has been answered
    _place: str | None = None  # the client's address; None: a trusted proxy, or no address

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client is not None and not is_trusted(self.client[0], self.proxies):
            self._place = place_of(self.client[0])
        self._waiting_since = monotonic()
        self._wait()
        self._grow_prefetch()

    def _grow_prefetch(self) -> None:
        others = [
            one for one in self.connections if isinstance(one, IdleTimeoutProtocol) and not one.transport.is_closing()
        ]
        neighbours = [one for one in others if one._place == self._place]
        if self._place is not None and len(neighbours) > MOST_OF_AN_ADDRESS:
            _close_one_of(neighbours)
        elif len(others) > MOST_CONNECTIONS:
            _close_one_of(others)

    @property
    def _waits_for_the_client(self) -> bool:
        """For a request, for the rest of one, or until the client reads the answer."""
        return not self._is_answering or self.cycle.more_body or self.flow.write_paused

    def data_received(self, data: bytes) -> None:
        if self._is_left_over(len(data)):
            return
        if not self._is_answering and self._deadline is None:
            self._wait()
        super().data_received(data)
        if self._is_answering:
            self._stop_waiting()

    def _is_left_over(self, size: int) -> bool:
        """Is this beyond what is read of a request that has been answered? Then the connection ends soon."""
        if self._is_answering or self.conn.their_state is not h11.SEND_BODY:
            return False
        self._drained += size
        if self._drained <= MOST_DRAINED:
            return False
        self._stop_waiting()
        self._deadline = self.loop.call_later(LINGER, self.transport.abort)
        self.transport.pause_reading()
        return True

    def on_response_complete(self) -> None:
        self._waiting_since = monotonic()
        self._drained = 0
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _should_upgrade(self) -> bool:
        """There are no web sockets here: one would leave this protocol, and with it all limits."""
        return False

    def send_400_response(self, msg: str) -> None:
        """A body may turn out to be malformed when its request is being answered, which then ends without an answer."""
        started = self._is_answering and self.cycle.response_started
        if self._is_answering:
            self.cycle.disconnected = True
        if started:
            self.transport.close()
        else:
            super().send_400_response(msg)

    @property
    def _is_answering(self) -> bool:
        """Between the end of a head and the end of its answer."""
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


def _close_one_of(connections: Sequence[IdleTimeoutProtocol]) -> None:
    """The newcomer is one of them, so there is always one that waits for its client."""
    waiting = (one for one in connections if one._waits_for_the_client)
    min(waiting, key=lambda one: one._waiting_since).transport.abort()


def protocol_behind(proxies: Sequence[Network]) -> type[IdleTimeoutProtocol]:
    """Return the protocol of a server that trusts these proxies."""
    return type("ImpatientBehindProxies", (IdleTimeoutProtocol,), {"proxies": proxies})
