"""Notifications about new dead letters and stalled operations, by webhook or command.

    notifier = Notifier(interval=timedelta(minutes=5))
    notifier.record_queue("q.orders.dlq", depth=17, at=now)         # at every poll
    notifier.record_operation(operation, at=now)
    await deliver(notifier, Webhook("https://…"), clock)         # send what is due now

`Notifier` decides and does no I/O: it is given what was seen, when, and the result of each delivery. For each queue and
each operation there is at most one notice in an `interval`. What happens meanwhile is not lost: the next notice has the
totals.

    dead-letters     a queue has more messages than at the last poll. `new` is how many since the last notice that was
                     delivered, `depth` how many there are now
    backlog          a queue had messages already when the watch began (`record_backlog`). None of them counts as new,
                     but some may have arrived while no watch was running, so they are reported once
    stalled          an operation is not over, and its last heartbeat is older than `STALLED_AFTER`. Reported once
    resolved         a queue that was reported is empty again; a stalled operation continues, or has ended

A notice that could not be delivered is due again after a backoff, with what has been added since. One `Notifier` serves
one receiver: two receivers fail at different times.

Only depths are compared, so a message that arrives while another leaves is not seen.

A webhook gets JSON and, if both sides know a secret, a signature: the header X-Redrive-Signature is `sha256=` and the
hex HMAC-SHA256 of the request's body, which contains the time. Redirects are not followed: a notice goes only to the
configured URL. A command gets the same JSON on its standard input and is never run through a shell, because queue names
come from others.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import re
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import Timer
from typing import TypeAlias
from urllib.parse import urlsplit

from redrive.errors import ConfigurationError, NotDelivered
from redrive.operations.operation import Operation
from redrive.recovery.backoff import Backoff
from redrive.text import escape_line, one_line, printable
from redrive.worker.clock import Clock

log = logging.getLogger("redrive.admin")

INTERVAL = timedelta(minutes=5)
STALLED_AFTER = timedelta(minutes=2)
BACKOFF = Backoff(first=timedelta(seconds=5), factor=2, ceiling=timedelta(minutes=10), jitter=0.5)
TIMEOUT = timedelta(seconds=10)
SIGNATURE = "X-Redrive-Signature"

_MOST_SAID = 300  # characters of what a receiver answered


# Notices ----------------------------------------------------------------------------------------------


class Kind(StrEnum):
    DEAD_LETTERS = "dead-letters"
    BACKLOG = "backlog"
    STALLED = "stalled"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Notice:
    kind: Kind
    queue: str
    at: datetime
    since: datetime  # when what it reports began
    new: int = 0
    depth: int | None = None  # messages in the queue, if it is about a queue
    operation: str = ""  # its id, if it is about an operation
    state: str = ""  # of the operation

    @property
    def text(self) -> str:
        """Return one line for people."""
        match self.kind:
            case Kind.DEAD_LETTERS:
                letters = "1 new dead letter" if self.new == 1 else f"{self.new} new dead letters"
                said = f"{letters} in {self.queue} ({self.depth} there now)"
            case Kind.BACKLOG:
                letters = "1 dead letter was" if self.depth == 1 else f"{self.depth} dead letters were"
                said = f"{letters} in {self.queue} already when the watch began"
            case Kind.STALLED:
                said = f"operation {self.operation} on {self.queue} has stalled: its runner was last seen {self.since}"
            case Kind.RESOLVED if self.operation:
                said = f"operation {self.operation} on {self.queue} has not stalled any more: it is {self.state}"
            case Kind.RESOLVED:
                said = f"{self.queue} is empty again"
        return escape_line(said)

    def as_dict(self) -> dict[str, object]:
        return {
            "kind": str(self.kind),
            "text": self.text,
            "queue": self.queue,
            "operation": self.operation or None,
            "state": self.state or None,
            "new": self.new,
            "depth": self.depth,
            "since": _format_time(self.since),
            "at": _format_time(self.at),
        }

    def as_json(self) -> bytes:
        return json.dumps(self.as_dict()).encode()


def _format_time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Deciding ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Subject:
    """Something to notify about: one notice at a time, and not too often."""

    queue: str
    since: datetime | None = None  # when what the next notice reports began
    sending: Notice | None = None
    not_before: datetime | None = None
    failures: int = 0

    def is_free(self, at: datetime) -> bool:
        return self.sending is None and (self.not_before is None or self.not_before <= at)


@dataclass(slots=True)
class _Queue(_Subject):
    depth: int = 0
    grown: int = 0  # since the last notice that was delivered
    reported: bool = False  # the last notice said that there is something in it
    backlog: bool = False  # it was not empty when the watch began, and that was not delivered yet

    def notice(self, at: datetime) -> Notice | None:
        if self.grown:
            return Notice(Kind.DEAD_LETTERS, self.queue, at, self.since or at, self.grown, self.depth)
        if self.backlog and self.depth:
            return Notice(Kind.BACKLOG, self.queue, at, self.since or at, 0, self.depth)
        if self.reported and not self.depth:
            return Notice(Kind.RESOLVED, self.queue, at, at, 0, 0)
        return None

    def record_delivery(self, notice: Notice) -> None:
        self.grown -= notice.new
        self.since = notice.at if self.grown else None  # what arrived while the notice was being sent
        self.reported = bool(notice.depth)
        self.backlog = False


@dataclass(slots=True)
class _Operation(_Subject):
    id: str = ""
    state: str = ""
    over: bool = False
    stalled: bool = False
    reported: bool = False  # the last notice said that it has stalled

    def notice(self, at: datetime) -> Notice | None:
        if self.stalled == self.reported:
            return None
        kind = Kind.STALLED if self.stalled else Kind.RESOLVED
        return Notice(kind, self.queue, at, self.since or at, operation=self.id, state=self.state)

    def record_delivery(self, notice: Notice) -> None:
        self.reported = notice.kind is Kind.STALLED


class Notifier:
    """`<Notifier 3 queues 1 operations, 1 under way>`"""

    def __init__(self, *, interval: timedelta = INTERVAL) -> None:
        if interval <= timedelta(0):
            raise ConfigurationError(f"notices every {interval}: want more than 0")
        self._interval = interval
        self._queues: dict[str, _Queue] = {}
        self._operations: dict[str, _Operation] = {}

    def record_backlog(self, queue: str, depth: int) -> None:
        """Note what is in a queue when the watch begins: only what arrives later is new."""
        self._queues[queue] = _Queue(queue, depth=depth, backlog=bool(depth))

    @property
    def depths(self) -> dict[str, int]:
        """Return the depths of the queues when they were last seen."""
        return {queue: known.depth for queue, known in self._queues.items()}

    def record_queue(self, queue: str, depth: int, at: datetime) -> None:
        known = self._queues.setdefault(queue, _Queue(queue))
        if depth > known.depth:
            known.grown += depth - known.depth
            known.since = known.since or at
        known.depth = depth

    def record_operation(self, operation: Operation, at: datetime) -> None:
        known = self._operations.setdefault(operation.id, _Operation(operation.order.queue, id=operation.id))
        beat = operation.beat_at or operation.started_at or operation.created_at
        known.state, known.over = operation.state, operation.state.is_over
        known.stalled = not known.over and at - beat > STALLED_AFTER
        known.since = beat if known.stalled else at
        self._forget_if_over(known)

    def due(self, at: datetime) -> list[Notice]:
        """Return the notices to send now. Each is being sent until `delivered` or `failed` is called with it."""
        found = []
        for known in self._subjects():
            notice = known.notice(at)
            if notice is not None and known.is_free(at):
                known.sending = notice
                found.append(notice)
        return found

    def record_delivery(self, notice: Notice, at: datetime) -> None:
        known = self._release(notice)
        if known is not None:
            known.failures, known.not_before = 0, at + self._interval
            known.record_delivery(notice)
            self._forget_if_over(known)

    def record_failure(self, notice: Notice, at: datetime, chance: float = 0.0) -> None:
        """Make the notice due again after a backoff; `chance`, from 0 to 1, is its jitter."""
        known = self._release(notice)
        if known is not None:
            known.failures += 1
            known.not_before = at + BACKOFF.delay(known.failures, chance)
            self._forget_if_over(known)

    def _release(self, notice: Notice) -> _Queue | _Operation | None:
        """Return whose notice it is, which is free again; None if that was forgotten or replaced in the meantime."""
        known: _Queue | _Operation | None
        known = self._operations.get(notice.operation) if notice.operation else self._queues.get(notice.queue)
        if known is None or known.sending is not notice:
            return None
        known.sending = None
        return known

    def _forget_if_over(self, known: _Queue | _Operation) -> None:
        """Keep an operation that is over only as long as its receiver believes that it has stalled."""
        if isinstance(known, _Operation) and known.over and not known.reported and known.sending is None:
            self._operations.pop(known.id, None)

    def _subjects(self) -> list[_Queue | _Operation]:
        return [*self._queues.values(), *self._operations.values()]

    def __repr__(self) -> str:
        sending = sum(known.sending is not None for known in self._subjects())
        return f"<Notifier {len(self._queues)} queues {len(self._operations)} operations, {sending} under way>"


# Delivering ------------------------------------------------------------------------------------------------

Send: TypeAlias = Callable[[Notice], None]  # raises NotDelivered; is run in a thread


async def deliver(notifier: Notifier, send: Send, clock: Clock, chance: Callable[[], float] = float) -> int:
    """Send what is due, all at once, and return how many were delivered. `chance` jitters the backoff of the others."""
    notices = notifier.due(clock.now())
    return sum(await asyncio.gather(*(_deliver(notice, notifier, send, clock, chance) for notice in notices)))


async def _deliver(notice: Notice, notifier: Notifier, send: Send, clock: Clock, chance: Callable[[], float]) -> bool:
    try:
        await asyncio.to_thread(send, notice)
    except BaseException as error:  # also when this task is cancelled: the result is unknown, so it is sent again
        notifier.record_failure(notice, clock.now(), chance())
        if not isinstance(error, Exception):
            raise
        known = isinstance(error, NotDelivered)
        log.warning("a notice was not delivered (%s): %s", notice.text, error, exc_info=None if known else error)
        return False
    notifier.record_delivery(notice, clock.now())
    return True


class Webhook:
    """POST each notice as JSON. The path of the URL is not shown: those of chat services are secrets."""

    def __init__(
        self,
        url: str,
        *,
        secret: str | bytes | None = None,
        timeout: timedelta = TIMEOUT,
    ) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port, self._secure = parts.hostname or "", parts.port, parts.scheme == "https"
        except ValueError as error:
            raise ConfigurationError(f"a webhook's URL: {error}") from None
        if parts.scheme not in ("http", "https") or not self._host:
            raise ConfigurationError("a webhook's URL begins with https://HOST or http://HOST")
        if parts.username is not None or parts.password is not None:
            raise ConfigurationError("a webhook's URL must not hold a password")
        if not _PLAIN.fullmatch(url):
            raise ConfigurationError("a webhook's URL has only ASCII letters, and no spaces: percent-encode the others")
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._secret = secret.encode() if isinstance(secret, str) else secret
        self._timeout = timeout.total_seconds()

    def __call__(self, notice: Notice) -> None:
        body = notice.as_json()
        headers = {"Content-Type": "application/json", "User-Agent": "redrive"}
        if self._secret is not None:
            headers[SIGNATURE] = signature(body, self._secret)
        try:
            status, reason = self._post(body, headers)
        except (OSError, HTTPException, ValueError) as error:
            raise NotDelivered(f"{self!r}: {error or type(error).__name__}") from error
        if not 200 <= status < 300:
            raise NotDelivered(f"{self!r} answered {status} {printable(reason[:_MOST_SAID])}")

    def _post(self, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        connection = (HTTPSConnection if self._secure else HTTPConnection)(
            self._host, self._port, timeout=self._timeout
        )
        # A socket's timeout starts again with every byte: a receiver that sends one now and then would hold us forever.
        hang_up = Timer(self._timeout, _hang_up, (connection,))
        hang_up.daemon = True
        hang_up.start()
        try:
            connection.request("POST", self._target, body, headers)
            response = connection.getresponse()
            return response.status, response.reason
        finally:
            hang_up.cancel()
            connection.close()

    def __repr__(self) -> str:
        port = "" if self._port is None else f":{self._port}"
        return f"<Webhook {'https' if self._secure else 'http'}://{self._host}{port}/…>"


_PLAIN = re.compile(r"[!-~]+")


def _hang_up(connection: HTTPConnection) -> None:
    with suppress(OSError):
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)


def signature(body: bytes, secret: bytes) -> str:
    return f"sha256={hmac.new(secret, body, sha256).hexdigest()}"


class Command:
    """Run a program for each notice, which gets it as a line of JSON on its standard input."""

    def __init__(self, argv: Sequence[str], *, timeout: timedelta = TIMEOUT) -> None:
        if isinstance(argv, str) or not argv or not argv[0]:
            raise ConfigurationError("a command is a list, the program first: it is not run through a shell")
        if any("\0" in part for part in argv):
            raise ConfigurationError("a command must not hold a NUL")
        self._argv = list(argv)
        self._timeout = timeout.total_seconds()

    def __call__(self, notice: Notice) -> None:
        # Files, not pipes: a program that leaves a child behind, or reads nothing, does not block us.
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
            given.write(notice.as_json() + b"\n")
            given.seek(0)
            try:
                process = subprocess.Popen(
                    self._argv, stdin=given, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
                )
            except OSError as error:
                raise NotDelivered(f"{self!r} cannot be started: {error.strerror}") from error
            code = self._wait(process)
            if code:
                said.seek(0)
                words = one_line(said.read(_MOST_SAID).decode("utf-8", "replace").strip())
                raise NotDelivered(f"{self!r} ended with {code}{words and f': {words}'}")

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and all that it started: it leads a session of its own
            process.wait()
            raise NotDelivered(f"{self!r} took longer than {self._timeout:g} seconds, and was ended") from None

    def __repr__(self) -> str:
        return f"<Command {self._argv[0]}>"
