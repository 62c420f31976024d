"""Every exception Redrive raises, in one tree.

The tree says whose fault it is, because that decides what to do next:

    RedriveError
    ├── ConfigurationError            yours: a setting makes no sense; nothing was started
    │   ├── InvalidURL
    │   ├── SearchError               a query for dead letters that makes no sense; points at the character
    │   └── TopologyError             a topology that no broker should get; holds every problem at once
    ├── TopologyConflict              the broker holds something else under a name that is wanted
    ├── TopologyMissing               the broker lacks what is wanted, and the application is not to make it
    ├── MigrationRefused              a queue was not migrated: says why; nothing was changed
    ├── MigrationPaused               a migration stopped half-way: nothing is lost, run it again
    ├── OperationConflict             another operation holds the dead-letter queue: one at a time
    ├── OperationNotFound             there is no operation of that id
    ├── LetterNotFound                there is no such message in the dead-letter queue, or more than one
    ├── PeekUnsafe                    looking into a queue would bring its messages nearer to being dropped; not done
    ├── KeyNotFound                   there is no API key of that id or name
    ├── AuditUnavailable              what is to be done cannot be recorded, so it was not done
    ├── ProtocolError                 somebody broke AMQP
    │   ├── LocalProtocolError        yours: the call makes no sense now; nothing was sent
    │   │   ├── EncodingError         a value that AMQP cannot carry
    │   │   └── AlreadySettled        a delivery acked, nacked or rejected twice
    │   └── RemoteProtocolError       the peer's: it sent what AMQP forbids; the connection ends
    ├── BrokerError                   the broker said no, with an AMQP reply code
    │   ├── ChannelClosed             this operation failed; the connection lives on
    │   │   ├── AccessRefused  (403)
    │   │   ├── NotFound  (404)
    │   │   ├── ResourceLocked  (405)
    │   │   └── PreconditionFailed  (406)
    │   └── ConnectionClosed          the whole connection was ended by the broker
    │       └── AuthenticationFailed
    ├── ConsumerCancelled             the broker ended the consumer: its queue is gone or moved
    ├── ConnectionFailed              nobody's: no host could be reached; says what each answered
    ├── ConnectionLost                nobody's: the socket ended or fell silent
    ├── Closed                        yours: the object was closed before the call
    └── PublishError                  a message that is not known to be safe with the broker
        ├── Unroutable                no queue is bound for it: it is nowhere
        ├── PublishRefused            the broker said no: it is not stored everywhere it should be
        ├── PublishUnknown            the connection ended before the confirm: it may or may not be stored
        └── NotPublished              it never left this process

    PublishErrors is a group of PublishError, one for each message of a pipeline that failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any


class ReplyCode(IntEnum):
    """AMQP 0-9-1 reply codes (section 1.2, constants)."""

    SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


class RedriveError(Exception):
    """The root: `except RedriveError` catches everything Redrive raises on purpose."""


# Configuration ------------------------------------------------------------------------------------


class ConfigurationError(RedriveError):
    """A setting makes no sense. Nothing was started."""


class InvalidURL(ConfigurationError):
    """A broker URL that cannot be understood. The message never holds the password."""


_AROUND = 40  # characters that are shown on either side of a mistake


class SearchError(ConfigurationError):
    """A query that makes no sense. `position` is the character at which it stops making any."""

    def __init__(self, problem: str, text: str, position: int) -> None:
        super().__init__(f"{problem}\n{_pointing(text, position)}")
        self.problem = problem
        self.text = text
        self.position = position

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.text, self.position)


def _pointing(text: str, position: int) -> str:
    """The line, or what is around the place, and a caret below it."""
    start = max(0, position - _AROUND)
    before, after = text[start:position], text[position : position + _AROUND]
    line = ("…" if start else "") + before + after + ("…" if position + _AROUND < len(text) else "")
    printable = "".join(char if char.isprintable() else "·" for char in line)
    return f"  {printable}\n  {' ' * (len(before) + (start > 0))}^"


class TopologyError(ConfigurationError):
    """A topology that no broker should get. Every problem is told at once; nothing was applied."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = f"{len(self.problems)} problems" if len(self.problems) > 1 else "a problem"
        super().__init__(f"the topology has {count}:\n" + "\n".join(f"  - {problem}" for problem in self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,)


class TopologyConflict(RedriveError):
    """The broker holds something else under a wanted name, and cannot change it in place. Nothing was applied."""

    def __init__(self, conflicts: Sequence[str]) -> None:
        self.conflicts = tuple(conflicts)
        lines = "\n".join(f"  - {conflict}" for conflict in self.conflicts)
        super().__init__(
            f"the broker holds something else:\n{lines}\n"
            "RabbitMQ cannot change it in place: see `redrive topology plan`, and `redrive topology migrate` for queues"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.conflicts,)


class TopologyMissing(RedriveError):
    """The broker lacks something that is wanted, and whoever looked makes nothing itself. Nothing was applied."""

    def __init__(self, missing: Sequence[str]) -> None:
        self.missing = tuple(missing)
        lines = "\n".join(f"  - {one}" for one in self.missing)
        super().__init__(
            f"the broker lacks what the application needs:\n{lines}\n"
            "and the application declares nothing (declare=False): `redrive topology apply` makes it"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.missing,)


class MigrationRefused(RedriveError):
    """A queue cannot be migrated now. Every reason is told at once; nothing was changed."""

    def __init__(self, queue: str, reasons: Sequence[str]) -> None:
        self.queue = queue
        self.reasons = tuple(reasons)
        said = self.reasons[0] if len(self.reasons) == 1 else "".join(f"\n  - {reason}" for reason in self.reasons)
        super().__init__(f"queue {queue} was not migrated: {said}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.queue, self.reasons)


class MigrationPaused(RedriveError):
    """A migration stopped half-way. What was done is recorded and no message is lost: run it again to go on."""

    def __init__(self, queue: str, step: str, why: str) -> None:
        super().__init__(f"the migration of queue {queue} stopped in step {step!r}: {why}. Run it again to go on")
        self.queue = queue
        self.step = step
        self.why = why

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.queue, self.step, self.why)


# Dead letters -------------------------------------------------------------------------------------


class OperationConflict(RedriveError):
    """Another operation holds the dead-letter queue, and two at a time would move messages twice. Nothing was done."""

    def __init__(self, queue: str, holder: str) -> None:
        super().__init__(
            f"queue {queue} is held by {holder}: wait until that is over, or end it; "
            "`redrive ops ls` shows what runs, and `redrive ops cancel ID` ends it"
        )
        self.queue = queue
        self.holder = holder

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.queue, self.holder)


class OperationNotFound(RedriveError):
    """There is no operation of that id, or there is none any more."""

    def __init__(self, operation: str) -> None:
        super().__init__(f"there is no operation {operation}: `redrive ops ls` shows those there are")
        self.operation = operation

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.operation,)


class LetterNotFound(RedriveError):
    """No message of a dead-letter queue has that id, or several begin with it."""

    def __init__(self, queue: str, letter: str) -> None:
        super().__init__(f"there is no message {letter} in {queue}: it was moved, or several begin so")
        self.queue = queue
        self.letter = letter

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.queue, self.letter)


class PeekUnsafe(RedriveError):
    """Looking would count towards a queue's delivery limit, and the broker drops what exceeds that. It was not done."""

    def __init__(self, queue: str, why: str, fix: str) -> None:
        super().__init__(f"queue {queue} was not looked into, since that could lose its messages: {why}. {fix}")
        self.queue = queue
        self.why = why
        self.fix = fix

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.queue, self.why, self.fix)


class KeyNotFound(RedriveError):
    """There is no API key of that id, and none of that name that is not revoked."""

    def __init__(self, key: str) -> None:
        super().__init__(f"there is no key {key}: `redrive admin keys ls` shows those there are")
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key,)


class AuditUnavailable(RedriveError):
    """What somebody wants to do cannot be recorded, and what is not recorded is not done."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the audit cannot be written, so nothing was done: {why}")
        self.why = why

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.why,)


# Protocol -----------------------------------------------------------------------------------------


class ProtocolError(RedriveError):
    """Somebody broke the rules of AMQP 0-9-1."""


class LocalProtocolError(ProtocolError):
    """The call makes no sense in the present state. Nothing was sent."""


class EncodingError(LocalProtocolError):
    """A value that AMQP 0-9-1 cannot carry."""


class AlreadySettled(LocalProtocolError):
    """A delivery can be settled once: acked, nacked or rejected."""


class RemoteProtocolError(ProtocolError):
    """The peer sent what AMQP forbids. `code` is the reply code to close the connection with."""

    def __init__(self, code: ReplyCode, text: str) -> None:
        super().__init__(f"{code.name} - {text}")
        self.code = code
        self.text = text

    def __reduce__(self) -> tuple[Any, ...]:  # exceptions cross processes: Celery and multiprocessing pickle them
        return type(self), (self.code, self.text)


# The broker said no -------------------------------------------------------------------------------


class BrokerError(RedriveError):
    """The broker refused, with an AMQP reply code and its own words."""

    def __init__(self, code: int, text: str, method: tuple[int, int] = (0, 0)) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text
        self.method = method  # class and method id of what the broker objects to, (0, 0) when unsaid

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.text, self.method)


class ChannelClosed(BrokerError):
    """The broker closed a channel because of an operation on it. The connection lives on."""


class AccessRefused(ChannelClosed):
    """403: this user may not do that. Grant the permission, or connect as another user."""


class NotFound(ChannelClosed):
    """404: the queue or exchange does not exist in this virtual host."""


class ResourceLocked(ChannelClosed):
    """405: another connection owns the queue exclusively, or consumes from it exclusively."""


class PreconditionFailed(ChannelClosed):
    """406: most often, something exists already with other arguments. RabbitMQ cannot change them in place."""


class ConnectionClosed(BrokerError):
    """The broker closed the whole connection."""


class AuthenticationFailed(ConnectionClosed):
    """The broker did not accept the credentials, or this user may not enter the virtual host."""


_CHANNEL_ERRORS: dict[int, type[ChannelClosed]] = {
    ReplyCode.ACCESS_REFUSED: AccessRefused,
    ReplyCode.NOT_FOUND: NotFound,
    ReplyCode.RESOURCE_LOCKED: ResourceLocked,
    ReplyCode.PRECONDITION_FAILED: PreconditionFailed,
}


def channel_closed(code: int, text: str, method: tuple[int, int] = (0, 0)) -> ChannelClosed:
    """The exception for a `channel.close` from the broker, as precise as its reply code allows."""
    return _CHANNEL_ERRORS.get(code, ChannelClosed)(code, text, method)


class ConsumerCancelled(RedriveError):
    """The broker ended a consumer: its queue was deleted, moved to another node, or the consumer timed out."""


# The network --------------------------------------------------------------------------------------


class ConnectionFailed(RedriveError):
    """No host could be reached. The message says what each of them answered."""


class ConnectionLost(RedriveError):
    """The connection ended without a farewell: socket closed, reset, or silent for too long."""


class Closed(RedriveError):
    """The connection, publisher or consumer was closed by its owner before this call."""


# Publishing ---------------------------------------------------------------------------------------


class PublishError(RedriveError):
    """A message that is not known to be safe with the broker."""

    def __init__(self, exchange: str, routing_key: str, why: str) -> None:
        super().__init__(f"message to exchange {exchange!r} with key {routing_key!r}: {why}")
        self.exchange = exchange
        self.routing_key = routing_key
        self.why = why
        self.index: int | None = None  # position in the input of publish_many()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.exchange, self.routing_key, self.why), {"index": self.index}


class Unroutable(PublishError):
    """No queue is bound to the exchange for this key: the broker stored the message nowhere."""


class PublishRefused(PublishError):
    """The broker said no: a full queue with reject-publish, a missing exchange, or an internal error."""


class PublishUnknown(PublishError):
    """The connection ended before the confirm. The message may be stored, or not: publish it again.

    A duplicate is then possible and a loss is not; keep the same `message_id` so that an inbox absorbs it.
    """


class NotPublished(PublishError):
    """The message never left this process: publishing it again cannot duplicate it."""


class PublishErrors(ExceptionGroup[PublishError], RedriveError):
    """Some messages of a pipeline failed, each with its own error and its `index` in the input."""

    def derive(self, excs: Sequence[PublishError]) -> PublishErrors:  # type: ignore[override]
        return PublishErrors(self.message, excs)
