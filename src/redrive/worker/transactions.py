"""One transaction around a message: what its handler writes, and that it was processed, or nothing at all.

    begin → note the message → handler → commit → ack

What can die in between: before the commit, nothing has happened and the message comes again. After the commit and
before the ack, the message comes again and is found to be noted: skipped. There is no third way.

A database that is unavailable at any of these steps ends the attempt without counting it (`redrive.worker.outage`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from redrive.checks import checked
from redrive.errors import ConfigurationError
from redrive.recovery.durations import Duration, duration
from redrive.worker.message import Message

_LONGEST_IDENTITY = 255  # of the inbox's column; what is cut off would make others the same


class Transaction(Protocol):
    @property
    def session(self) -> Any:
        """The handler's session."""

    @property
    def connection(self) -> object | None:
        """What connects it to the database; None: it has not begun there yet."""

    async def connect(self) -> None:
        """Begin in the database, before the handler does. A note does that, too."""

    async def note(self, consumer: str, message_ids: Sequence[str]) -> set[str]:
        """Note messages as processed, and say which had not been."""


class Transactions(Protocol):
    def begin(self, *, blocking: bool) -> AbstractAsyncContextManager[Transaction]:
        """A transaction that commits when left in peace, else is rolled back. `blocking`: for plain functions.

        Raise DatabaseLost if the database is the reason that it cannot begin, go on or commit. Whether a commit
        whose answer was lost took place is then unknown: the message's note says so when it is handled again.
        """


class DatabaseLost(BaseException):
    """The transaction of a message failed because its database is unavailable: neither message nor handler is to blame.

    No Exception: middleware that makes another error of every Exception must not make one of this.
    """


class NoMessageId(Exception):
    """A message without an id cannot be distinguished from its duplicate. Its publisher must set `message_id`."""


@checked("inbox")
@dataclass(frozen=True, slots=True, kw_only=True)
class InboxPolicy:
    """`key`: what makes two messages the same, if it is not the message id: `lambda body, message: body.event_id`.

    `without_id`: what to do with a message that has none: "park" it, take a "hash" of its body, or "process" it as
    often as it comes. `keep`: for how long it is remembered.
    """

    # what makes two messages the same, if not the message id: `lambda body, message: body.event_id`
    key: Callable[[Any, Message], str | None] | None = None
    # a message without an id: park it, take a hash of its body, or process it as often as it comes
    without_id: Literal["park", "hash", "process"] = "park"
    keep: Duration = "7d"  # for how long a message is remembered

    def __post_init__(self) -> None:
        if self.without_id not in ("park", "hash", "process"):
            raise ConfigurationError(f"inbox.without_id {self.without_id!r}: want 'park', 'hash' or 'process'")
        duration(self.keep, "inbox.keep")

    def identity(self, body: Any, message: Message) -> str | None:
        """What the message is known by; None: it cannot be, and is to be processed all the same."""
        found = self.key(body, message) if self.key is not None else message.message_id
        if found:
            text = str(found)
            return text if _storable(text) else _hash(text.encode("utf-8", "surrogatepass"))
        match self.without_id:
            case "hash":
                return _hash(message.body)
            case "process":
                return None
            case _:
                raise NoMessageId(NoMessageId.__doc__)


def _storable(text: str) -> bool:
    """Into the inbox's column: PostgreSQL has no NUL, and no database has bytes that are no UTF-8."""
    if len(text) > _LONGEST_IDENTITY or "\0" in text:
        return False
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _hash(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()
