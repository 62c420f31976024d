"""Tell somebody: there are new dead letters, an operation has stalled; and that it is over.

    notifier = Notifier(interval=timedelta(minutes=5))
    notifier.saw_queue("q.orders.dlq", depth=17, at=now)         # as often as one looks
    notifier.saw_operation(operation, at=now)
    await deliver(notifier, Webhook("https://…"), clock)         # what is due now

`Notifier` decides, and does nothing: it is told what was seen, when, and what became of each notice. For each queue and
each operation there is at most one notice in an `interval`. What happens meanwhile is not lost: the next notice has the
totals.

    dead-letters     a queue has more messages than at the last look. `new` is how many since the last notice that was
                     delivered, `depth` how many there are now
    backlog          a queue had messages already when the watch began (`saw_backlog`). None of them counts as new, but
                     some may have arrived while no watch was running, so they are reported once
    stalled          an operation is not over, and its runner was not seen for `stalled_after`. Told once
    resolved         a queue that was told of is empty again; a stalled operation goes on, or has ended. Can be left out

A notice that could not be delivered is due again after a while, longer each time, with what has been added since. One
`Notifier` serves one receiver: two receivers fail at different times.

Only depths are compared, so a message that comes while another goes is not seen.

The receiver of a webhook gets JSON and, if both know a secret, proof of who sent it: the header X-Redrive-Signature is
`sha256=` and the hex HMAC-SHA256 of the request's body, which holds the time. Redirects are not followed: a notice goes
where it was told to. A command gets the same JSON on its standard input, and is never run through a shell, because
queues are named by strangers.
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
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import Timer
from typing import TypeAlias
from urllib.parse import urlsplit

from redrive.errors import ConfigurationError, RedriveError
from redrive.recovery.backoff import Backoff
from redrive.recovery.bodies import visible
from redrive.runtime.clock import Clock
from redrive.runtime.dlq.operation import Operation

log = logging.getLogger("redrive.runtime")

INTERVAL = timedelta(minutes=5)
STALLED_AFTER = timedelta(minutes=2)
BACKOFF = Backoff(first=timedelta(seconds=5), factor=2, ceiling=timedelta(minutes=10), jitter=0.5)
TIMEOUT = timedelta(seconds=10)
SIGNATURE = "X-Redrive-Signature"

_MOST_SAID = 300  # characters of what a receiver answered


class NotDelivered(RedriveError):
    """A notice did not reach its receiver, as far as is known.

    Whose: the receiver's, or the network's.

    Why: no answer in time, another status than 2xx, or a command that ended with an error.

    Do: nothing is needed: it is tried again. If that goes on, check the address of `--webhook`, or run the `--command`
    by hand.
    """


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
    since: datetime  # when what it tells of began
    new: int = 0
    depth: int | None = None  # messages in the queue, if it is about a queue
    operation: str = ""  # its id, if it is about an operation
    state: str = ""  # of the operation

    @property
    def text(self) -> str:
        """A line for people."""
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
        return visible(said).replace("\n", "\\n")

    def as_dict(self) -> dict[str, object]:
        return {
            "kind": str(self.kind),
            "text": self.text,
            "queue": self.queue,
            "operation": self.operation or None,
            "state": self.state or None,
            "new": self.new,
            "depth": self.depth,
            "since": _written(self.since),
            "at": _written(self.at),
        }

    def as_json(self) -> bytes:
        return json.dumps(self.as_dict()).encode()


def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Deciding ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Slot:
    """One notice at a time, and not too often."""

    flying: Notice | None = None
    not_before: datetime | None = None
    failures: int = 0

    def is_free(self, at: datetime) -> bool:
        return self.flying is None and (self.not_before is None or self.not_before <= at)


@dataclass(slots=True)
class _Queue:
    name: str
    slot: _Slot = field(default_factory=_Slot)
    depth: int = 0
    grown: int = 0  # since the last notice that was delivered
    since: datetime | None = None  # when it began to grow
    told: bool = False  # somebody believes that there is something in it
    backlog: bool = False  # it was not empty when the watch began, and that was not delivered yet

    def notice(self, at: datetime) -> Notice | None:
        if self.grown:
            return Notice(Kind.DEAD_LETTERS, self.name, at, self.since or at, self.grown, self.depth)
        if self.backlog and self.depth:
            return Notice(Kind.BACKLOG, self.name, at, self.since or at, 0, self.depth)
        if self.told and not self.depth:
            return Notice(Kind.RESOLVED, self.name, at, at, 0, 0)
        return None

    def was_told(self, notice: Notice) -> None:
        self.grown -= notice.new
        self.since = notice.at if self.grown else None  # what came while it was under way
        self.told = bool(notice.depth)
        self.backlog = False


@dataclass(slots=True)
class _Operation:
    id: str
    queue: str
    slot: _Slot = field(default_factory=_Slot)
    state: str = ""
    over: bool = False
    stalled: bool = False
    since: datetime | None = None
    told: bool = False

    def notice(self, at: datetime) -> Notice | None:
        if self.stalled == self.told:
            return None
        kind = Kind.STALLED if self.stalled else Kind.RESOLVED
        return Notice(kind, self.queue, at, self.since or at, operation=self.id, state=self.state)

    def was_told(self, notice: Notice) -> None:
        self.told = notice.kind is Kind.STALLED


class Notifier:
    """`<Notifier 3 queues 1 operations, 1 under way>`"""

    def __init__(
        self,
        *,
        interval: timedelta = INTERVAL,
        stalled_after: timedelta = STALLED_AFTER,
        backoff: Backoff = BACKOFF,
        resolved: bool = True,
    ) -> None:
        if interval <= timedelta(0) or stalled_after <= timedelta(0):
            raise ConfigurationError(f"notices every {interval}, stalled after {stalled_after}: want more than 0")
        self._interval = interval
        self._stalled_after = stalled_after
        self._backoff = backoff
        self._resolved = resolved
        self._queues: dict[str, _Queue] = {}
        self._operations: dict[str, _Operation] = {}

    # What was seen

    def saw_backlog(self, queue: str, depth: int) -> None:
        """Note what is in a queue when the watch begins: only what arrives later is new."""
        self._queues[queue] = _Queue(queue, depth=depth, backlog=bool(depth))

    @property
    def depths(self) -> dict[str, int]:
        """Return the depths of the queues when they were last seen."""
        return {queue: known.depth for queue, known in self._queues.items()}

    def saw_queue(self, queue: str, depth: int, at: datetime) -> None:
        known = self._queues.setdefault(queue, _Queue(queue))
        if depth > known.depth:
            known.grown += depth - known.depth
            known.since = known.since or at
        known.depth = depth

    def saw_operation(self, operation: Operation, at: datetime) -> None:
        known = self._operations.setdefault(operation.id, _Operation(operation.id, operation.order.queue))
        beat = operation.beat_at or operation.started_at or operation.created_at
        known.state, known.over = operation.state, operation.state.is_over
        known.stalled = not known.over and at - beat > self._stalled_after
        known.since = beat if known.stalled else at
        self._tidy(known)

    def forget_queue(self, queue: str) -> None:
        """It is gone: there is nothing more to tell of it."""
        self._queues.pop(queue, None)

    def _tidy(self, known: _Operation) -> None:
        """Of an operation that is over there is one thing to tell at most: that it is, to who heard that it stalled."""
        if not self._resolved and not known.stalled and known.slot.flying is None:
            known.told = False
        if known.over and not known.told and known.slot.flying is None:
            self._operations.pop(known.id, None)

    # What to do

    def due(self, at: datetime) -> list[Notice]:
        """The notices to send now. Each is under way until `delivered` or `failed` is said of it."""
        found = []
        for known, notice in self._pending(at):
            if known.slot.is_free(at):
                known.slot.flying = notice
                found.append(notice)
        return found

    def next_due(self, at: datetime) -> datetime | None:
        """When to ask again, if nothing else is seen until then."""
        times = [known.slot.not_before or at for known, _ in self._pending(at) if known.slot.flying is None]
        return max(at, min(times)) if times else None

    def _pending(self, at: datetime) -> Iterator[tuple[_Queue | _Operation, Notice]]:
        for known in self._everything():
            notice = known.notice(at)
            if notice is not None and (self._resolved or notice.kind is not Kind.RESOLVED):
                yield known, notice

    def _everything(self) -> list[_Queue | _Operation]:
        return [*self._queues.values(), *self._operations.values()]

    # What became of it

    def delivered(self, notice: Notice, at: datetime) -> None:
        known = self._landed(notice)
        if known is not None:
            known.slot = _Slot(not_before=at + self._interval)
            known.was_told(notice)
            if isinstance(known, _Operation):
                self._tidy(known)

    def failed(self, notice: Notice, at: datetime, chance: float = 0.0) -> None:
        """It is due again later, by the backoff; `chance`, from 0 to 1, is its jitter."""
        known = self._landed(notice)
        if known is not None:
            failures = known.slot.failures + 1
            known.slot = _Slot(None, at + self._backoff.delay(failures, chance), failures)
            if isinstance(known, _Operation):
                self._tidy(known)

    def _landed(self, notice: Notice) -> _Queue | _Operation | None:
        """Whose notice it is; None if that was forgotten, and perhaps seen anew, in the meantime."""
        known: _Queue | _Operation | None
        known = self._operations.get(notice.operation) if notice.operation else self._queues.get(notice.queue)
        return known if known is not None and known.slot.flying is notice else None

    def __repr__(self) -> str:
        flying = sum(known.slot.flying is not None for known in self._everything())
        return f"<Notifier {len(self._queues)} queues {len(self._operations)} operations, {flying} under way>"


# Doing ------------------------------------------------------------------------------------------------

Send: TypeAlias = Callable[[Notice], None]  # raises NotDelivered; is run in a thread


def never() -> float:
    return 0.0


async def deliver(notifier: Notifier, send: Send, clock: Clock, chance: Callable[[], float] = never) -> int:
    """Send what is due, all at once. How many were delivered."""
    notices = notifier.due(clock.now())
    return sum(await asyncio.gather(*(_deliver(notice, notifier, send, clock, chance) for notice in notices)))


async def _deliver(notice: Notice, notifier: Notifier, send: Send, clock: Clock, chance: Callable[[], float]) -> bool:
    try:
        await asyncio.to_thread(send, notice)
    except BaseException as error:  # also when this task is cancelled: nobody knows, so it is sent again
        notifier.failed(notice, clock.now(), chance())
        if not isinstance(error, Exception):
            raise
        known = isinstance(error, NotDelivered)
        log.warning("a notice was not delivered (%s): %s", notice.text, error, exc_info=None if known else error)
        return False
    notifier.delivered(notice, clock.now())
    return True


class Webhook:
    """POST each notice, as JSON. Its path is not shown: those of chat services are secrets."""

    def __init__(
        self,
        url: str,
        *,
        secret: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: timedelta = TIMEOUT,
        context: ssl.SSLContext | None = None,
    ) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port, self._secure = parts.hostname or "", parts.port, parts.scheme == "https"
        except ValueError as error:
            raise ConfigurationError(f"a webhook's URL: {error}") from None
        if parts.scheme not in ("http", "https") or not self._host:
            raise ConfigurationError("a webhook's URL begins with https://HOST or http://HOST")
        if parts.username is not None or parts.password is not None:
            raise ConfigurationError("a webhook's URL must not hold a password: give it as a header (Authorization)")
        if not _PLAIN.fullmatch(url):
            raise ConfigurationError("a webhook's URL has only ASCII letters, and no spaces: percent-encode the others")
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = {"Content-Type": "application/json", "User-Agent": "redrive", **_checked(headers or {})}
        self._secret = secret.encode() if isinstance(secret, str) else secret
        self._timeout = timeout.total_seconds()
        self._context = context

    def __call__(self, notice: Notice) -> None:
        body = notice.as_json()
        headers = dict(self._headers)
        if self._secret is not None:
            headers[SIGNATURE] = signature(body, self._secret)
        try:
            status, reason = self._post(body, headers)
        except (OSError, HTTPException, ValueError) as error:
            raise NotDelivered(f"{self!r}: {error or type(error).__name__}") from error
        if not 200 <= status < 300:
            raise NotDelivered(f"{self!r} answered {status} {visible(reason[:_MOST_SAID])}")

    def _post(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
        connection = self._connection()
        # A socket's timeout starts anew with every byte: who sends one now and then would keep us forever.
        hang_up = Timer(self._timeout, _hang_up, (connection,))
        hang_up.daemon = True
        hang_up.start()
        try:
            connection.request("POST", self._target, body, dict(headers))
            response = connection.getresponse()
            return response.status, response.reason
        finally:
            hang_up.cancel()
            connection.close()

    def _connection(self) -> HTTPConnection:
        if self._secure:
            context = self._context or ssl.create_default_context()
            return HTTPSConnection(self._host, self._port, timeout=self._timeout, context=context)
        return HTTPConnection(self._host, self._port, timeout=self._timeout)

    def __repr__(self) -> str:
        port = "" if self._port is None else f":{self._port}"
        return f"<Webhook {'https' if self._secure else 'http'}://{self._host}{port}/…>"


_PLAIN = re.compile(r"[!-~]+")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[ -~]*")


def _checked(headers: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in headers.items():
        if not (_HEADER.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
            raise ConfigurationError(f"a webhook's header {name!r}: its name or value is none that HTTP carries")
    return headers


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
        # Files, not pipes: a program that leaves a child behind, or reads nothing, does not hold us up.
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
                words = visible(said.read(_MOST_SAID).decode("utf-8", "replace").strip()).replace("\n", " ")
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
