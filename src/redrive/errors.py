"""Every exception Redrive raises, in one tree.

The tree says whose fault it is, because that decides what to do next:

    RedriveError
    ├── ConfigurationError            yours: a setting makes no sense; nothing was started
    │   ├── InvalidURL
    │   ├── LetterAmbiguous           several messages of the dead-letter queue have that id; lists them
    │   ├── SearchError               a query for dead letters that makes no sense; points at the character
    │   └── TopologyError             a topology that no broker should get; holds every problem at once
    ├── TopologyConflict              the broker holds something else under a name that is wanted
    ├── TopologyMissing               the broker lacks what is wanted, and the application is not to make it
    ├── MigrationRefused              a queue was not migrated: says why; nothing was changed
    ├── MigrationPaused               a migration stopped half-way: nothing is lost, run it again
    ├── OperationConflict             another operation holds the dead-letter queue: one at a time
    ├── OperationOver                 the operation has ended: nothing about it can be changed
    ├── OperationNotFound             there is no operation of that id
    ├── LetterNotFound                there is no such message in the dead-letter queue
    ├── PeekUnsafe                    looking into a queue would bring its messages nearer to being dropped; not done
    ├── NotDeadLetterQueue            a queue that is not known to hold dead letters, or has consumers; not looked into
    ├── KeyNotFound                   there is no API key of that id or name
    ├── AuditUnavailable              what is to be done cannot be recorded, so it was not done
    ├── DatabaseUnavailable           nobody's: the database cannot be reached; nothing was started
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

What a class says of itself is what `redrive explain` and docs/reference/errors.md say of it: what happened, then
*Whose* fault it is, *Why* it comes about and what to *Do*. What it does not say is as in the class from which it hangs.
"""

from __future__ import annotations

import re
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
    """The root: `except RedriveError` catches everything Redrive raises on purpose.

    Whose: see the one that was raised.

    Do: read the message: it says what happened, and most often what to do. Every kind has a page of its own.
    """


def name_of(kind: type[RedriveError]) -> str:
    """By which an error can be looked up: `redrive explain topology-conflict`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower()


# Configuration ------------------------------------------------------------------------------------


class ConfigurationError(RedriveError):
    """A setting makes no sense. Nothing was started.

    Whose: yours.

    Why: an option, a file, an environment variable or an argument says something that cannot be meant; the message
    names it, and what would do.

    Do: correct it and start again. Where a name is nearly right, the message says which one was probably meant.
    """

    def __init__(self, *args: object, option: str = "") -> None:
        super().__init__(*args)
        self.option = option  # the one that is wrong, if a form has a field for it


class InvalidURL(ConfigurationError):
    """A broker URL that cannot be understood. The message never holds the password.

    Why: the scheme is not amqp or amqps, the port is no number, a query parameter is unknown, or a password has
    characters that must be percent-encoded (`@` is `%40`, `/` is `%2F`).

    Do: write it as `amqp://user:password@host:5672/vhost`; the virtual host `/` is an empty path or `%2F`. Known
    parameters are in the reference of settings.
    """


_AROUND = 40  # characters that are shown on either side of a mistake


class SearchError(ConfigurationError):
    """A query that makes no sense. `position` is the character at which it stops making any.

    Why: a field is unknown, a quote is not closed, or a value does not fit its field.

    Do: look at the place under the caret; `redrive dlq query` lists the fields and operators.
    """

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
    """A topology that no broker should get. Every problem is told at once; nothing was applied.

    Why: a name that is too long or the broker's own, an argument with a wrong value or for another type of queue, a
    binding to what is not there, a retry by a route that this queue or this broker does not have.

    Do: mend each problem in the list. Nothing was changed, so `redrive topology plan APP` can be tried until it is
    quiet.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = f"{len(self.problems)} problems" if len(self.problems) > 1 else "a problem"
        super().__init__(f"the topology has {count}:\n" + "\n".join(f"  - {problem}" for problem in self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,)


class TopologyConflict(RedriveError):
    """The broker holds something else under a wanted name, and cannot change it in place. Nothing was applied.

    Whose: the deployment's: code and broker disagree, and only people know which of them is right.

    Why: the queue or exchange was declared before with other arguments: by hand, by an older release, or by another
    program.

    Do: `redrive topology plan APP` shows each difference. Change the code to what is there, or give a queue what the
    code says with `redrive topology migrate APP QUEUE`, which loses nothing.
    """

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
    """The broker lacks something that is wanted, and whoever looked makes nothing itself. Nothing was applied.

    Whose: the deployment's.

    Why: the application has `declare=False`, so somebody else is to make its queues, and has not yet.

    Do: `redrive topology apply APP` with a user who may configure, or `declare=True`.
    """

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
    """A queue cannot be migrated now. Every reason is told at once; nothing was changed.

    Whose: the situation's: it would lose or reorder messages, or the broker would refuse it.

    Why: consumers are still at work, a stream or an auto-delete queue is concerned, or the messages that wait would not
    fit the new limits; each reason is told.

    Do: remove the reasons: stop the consumers, or pass `--wait-for-consumers`. Then run it again.
    """

    def __init__(self, queue: str, reasons: Sequence[str]) -> None:
        self.queue = queue
        self.reasons = tuple(reasons)
        said = self.reasons[0] if len(self.reasons) == 1 else "".join(f"\n  - {reason}" for reason in self.reasons)
        super().__init__(f"queue {queue} was not migrated: {said}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.queue, self.reasons)


class MigrationPaused(RedriveError):
    """A migration stopped half-way. What was done is recorded and no message is lost: run it again to go on.

    Whose: nobody's, most often: the broker or the network went away, or a limit of time was reached.

    Do: run the same command again. It finds its record, and goes on with the step in which it stopped. Until then
    messages wait in a queue beside the one that is migrated.
    """

    def __init__(self, queue: str, step: str, why: str) -> None:
        super().__init__(f"the migration of queue {queue} stopped in step {step!r}: {why}. Run it again to go on")
        self.queue = queue
        self.step = step
        self.why = why

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.queue, self.step, self.why)


# Dead letters -------------------------------------------------------------------------------------


class OperationConflict(RedriveError):
    """Another operation holds the dead-letter queue, and two at a time would move messages twice. Nothing was done.

    Whose: nobody's: somebody else was first.

    Why: another operation works on this queue, or a look that takes long. Only one at a time holds it.

    Do: `redrive ops ls` shows what runs. Wait, or `redrive ops cancel ID`; one whose process is gone goes on with
    `redrive ops resume ID`.
    """

    def __init__(self, queue: str, holder: str) -> None:
        super().__init__(
            f"queue {queue} is held by {holder}: wait until that is over, or end it; "
            "`redrive ops ls` shows what runs, and `redrive ops cancel ID` ends it"
        )
        self.queue = queue
        self.holder = holder

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.queue, self.holder)


class OperationOver(RedriveError):
    """The operation has ended, so it cannot be paused, resumed, cancelled or given another rate. Nothing was done.

    Whose: nobody's: it ended before the request arrived.

    Why: it had moved everything, or was stopped. The message names the state in which it ended.

    Do: `redrive ops show ID` shows what became of its messages. Begin another operation for those that are left.
    """

    def __init__(self, operation: str, state: str) -> None:
        super().__init__(f"operation {operation} has ended: {state}. `redrive ops show {operation}` shows its messages")
        self.operation = operation
        self.state = state

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.operation, self.state)


class OperationNotFound(RedriveError):
    """There is no operation of that id, or there is none any more.

    Whose: yours, or it was tidied away.

    Why: the id is mistyped, it is kept in another database (`--database`, REDRIVE_DATABASE), or it was deleted because
    it was old.

    Do: `redrive ops ls` shows those there are. The beginning of an id is enough where only one begins so.
    """

    def __init__(self, operation: str) -> None:
        super().__init__(f"there is no operation {operation}: `redrive ops ls` shows those there are")
        self.operation = operation

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.operation,)


class LetterNotFound(RedriveError):
    """No message of a dead-letter queue has that id.

    Whose: nobody's, most often.

    Why: it was re-driven, discarded or consumed meanwhile.

    Do: `redrive dlq peek QUEUE` shows what is there now.
    """

    def __init__(self, queue: str, letter: str) -> None:
        super().__init__(f"there is no message {letter} in {queue}: it may have been moved")
        self.queue = queue
        self.letter = letter

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.queue, self.letter)


class LetterAmbiguous(ConfigurationError):
    """Several messages of a dead-letter queue have that message_id, or an id that begins so. Nothing was done.

    Whose: nobody's, most often: publishers may use a message_id twice.

    Why: a message_id belongs to what was published, and several copies of it can fail; and the beginning of an id can
    be too short.

    Do: give the whole id of the message that is meant. The error lists the ids, and `redrive dlq peek QUEUE` shows what
    each of the messages is.
    """

    def __init__(self, queue: str, letter: str, matches: Sequence[str], more: int = 0) -> None:
        listed = ", ".join(matches) + (f" and {more} more" if more else "")
        super().__init__(f"{letter} stands for {len(matches) + more} messages in {queue}: {listed}; give the id of one")
        self.queue = queue
        self.letter = letter
        self.matches = tuple(matches)
        self.more = more

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.queue, self.letter, self.matches, self.more)


class PeekUnsafe(RedriveError):
    """Looking would count towards a queue's delivery limit, and the broker drops what exceeds that. It was not done.

    Whose: the queue's: of how it was declared.

    Why: a look takes a message and gives it back. A quorum queue counts that as a delivery, and beyond its limit (20 on
    RabbitMQ 4, without being asked) the message is dropped, or goes round in a circle.

    Do: set `x-delivery-limit: -1` on the dead-letter queue, by a policy if it exists already. `redrive doctor` finds
    all queues like this one (`peek-deletes`).
    """

    def __init__(self, queue: str, why: str, lasting_fix: str, may_be_spent: bool = False) -> None:
        anyway = "; or say --spend-deliveries, and each look costs one" if may_be_spent else ""
        self.fix = lasting_fix + anyway
        super().__init__(f"queue {queue} was not looked into, since that could lose its messages: {why}. {self.fix}")
        self.queue = queue
        self.why = why
        self.lasting_fix = lasting_fix
        self.may_be_spent = may_be_spent  # by an operator who accepts that each look costs a delivery

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.queue, self.why, self.lasting_fix, self.may_be_spent)


class NotDeadLetterQueue(RedriveError):
    """The queue is not known to be a dead-letter queue, or has consumers. It was not looked into.

    Whose: yours, if the name is mistyped.

    Why: a look takes messages and gives them back. In a queue for work that takes them from its consumers, changes
    their order and counts as a delivery.

    Do: check the name. To do it all the same, specify `any_queue` (`--any-queue`). That needs an operator, and is
    recorded in the audit. For a dead-letter queue of another system, name the application or the management API
    (`--app`, `--management`), by which it is known.
    """

    def __init__(self, queue: str, why: str) -> None:
        super().__init__(f"queue {queue} was not looked into: {why}. To do it all the same: any_queue (--any-queue)")
        self.queue = queue
        self.why = why

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.queue, self.why)


class KeyNotFound(RedriveError):
    """There is no API key of that id, and none of that name that is not revoked.

    Whose: yours.

    Why: the name is mistyped, the key is revoked, or it is in another database (`--database`, REDRIVE_DATABASE).

    Do: `redrive admin keys ls` shows those there are.
    """

    def __init__(self, key: str) -> None:
        super().__init__(f"there is no key {key}: `redrive admin keys ls` shows those there are")
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key,)


class AuditUnavailable(RedriveError):
    """What somebody wants to do cannot be recorded, and what is not recorded is not done.

    Whose: the database's, with which the audit is kept.

    Why: it is away, full, read-only, or lacks its tables.

    Do: bring it back, or `redrive db upgrade` if the tables are missing; then do it again. Nothing was done the first
    time.
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"the audit cannot be written, so nothing was done: {why}")
        self.why = why

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.why,)


class DatabaseUnavailable(RedriveError):
    """The database cannot be reached. Nothing was started.

    Whose: nobody's: the database is down, or unreachable from here.

    Why: it is not started, the URL has the wrong host, port, user or password, or a firewall blocks the connection. The
    message contains the reason that the driver reports.

    Do: start the database or correct its URL (`REDRIVE_DATABASE`), then start again. An outage that begins later ends
    nothing: consumers wait until the database is back.
    """


# Protocol -----------------------------------------------------------------------------------------


class ProtocolError(RedriveError):
    """Somebody broke the rules of AMQP 0-9-1.

    Whose: see the two kinds of it: LocalProtocolError is yours, RemoteProtocolError is the peer's.

    Do: read the message; if Redrive itself broke the rules, that is a defect to be reported.
    """


class LocalProtocolError(ProtocolError):
    """The call makes no sense in the present state. Nothing was sent.

    Whose: yours: of the code that calls.

    Do: look at the call that raised it. Nothing has reached the broker, so nothing has to be undone.
    """


class EncodingError(LocalProtocolError):
    """A value that AMQP 0-9-1 cannot carry.

    Why: a name longer than 255 bytes, a number that no AMQP type holds, a header value of a type that AMQP has no form
    for.

    Do: send something else: a shorter name, a string instead of an object, the data in the body instead of a header.
    """


class AlreadySettled(LocalProtocolError):
    """A delivery can be settled once: acked, nacked or rejected.

    Why: two parts of a program both settle it, or a handler that is settled for acks by itself.

    Do: settle it in one place. A consumer of an App is settled by what its handler returns or raises.
    """


class RemoteProtocolError(ProtocolError):
    """The peer sent what AMQP forbids. `code` is the reply code to close the connection with.

    Whose: the peer's.

    Why: something between here and the broker changes bytes, the port is not AMQP's (TLS on a port without, or the
    other way round), or the broker has a defect.

    Do: check the port and scheme (`amqp` 5672, `amqps` 5671) and proxies. The connection ends, and what was unsettled
    comes again.
    """

    def __init__(self, code: ReplyCode, text: str) -> None:
        super().__init__(f"{code.name} - {text}")
        self.code = code
        self.text = text

    def __reduce__(self) -> tuple[Any, ...]:  # exceptions cross processes: Celery and multiprocessing pickle them
        return type(self), (self.code, self.text)


# The broker said no -------------------------------------------------------------------------------


class BrokerError(RedriveError):
    """The broker refused, with an AMQP reply code and its own words.

    Whose: the broker's to say, most often yours to mend.

    Do: the code and the text are RabbitMQ's own: its log has the same line, with more around it.
    """

    def __init__(self, code: int, text: str, method: tuple[int, int] = (0, 0)) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text
        self.method = method  # class and method id of what the broker objects to, (0, 0) when unsaid

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.text, self.method)


class ChannelClosed(BrokerError):
    """The broker closed a channel because of an operation on it. The connection lives on.

    Why: AMQP answers a mistake by closing the channel on which it was made. Others have channels of their own and
    notice nothing.

    Do: mend what the text says; the next call opens a new channel.
    """


class AccessRefused(ChannelClosed):
    """403: this user may not do that.

    Why: the user lacks configure, write or read permission for that name in this virtual host, or the name is reserved
    (`amq.`).

    Do: grant it (`rabbitmqctl set_permissions`), or connect as another user. An application that may not configure
    wants `declare=False`.
    """


class NotFound(ChannelClosed):
    """404: the queue or exchange does not exist in this virtual host.

    Why: it was never made, it was deleted, or this is another virtual host than one thinks.

    Do: `redrive topology plan APP` shows what is missing, `apply` makes it; `redrive ping` says where one is connected.
    """


class ResourceLocked(ChannelClosed):
    """405: another connection owns the queue exclusively, or consumes from it exclusively.

    Why: an exclusive queue of a connection that still lives, perhaps a dead one that the broker has not noticed yet; or
    a single consumer that insists on being the only one.

    Do: end the other connection, or wait until its heartbeat runs out. Do not use exclusive queues for work.
    """


class PreconditionFailed(ChannelClosed):
    """406: most often, something exists already with other arguments. RabbitMQ cannot change them in place.

    Why: a declaration with other arguments than those that exist, a message that is too large, an acknowledgement that
    came too late (`consumer_timeout`), or a delivery tag that is not known.

    Do: the text says which. For arguments: `redrive topology plan APP`, then `redrive topology migrate` for a queue.
    For `consumer_timeout`: `redrive doctor` says what to set.
    """


class ConnectionClosed(BrokerError):
    """The broker closed the whole connection.

    Why: an operator closed it, the broker shuts down (320), or it objects to something that concerns the whole
    connection.

    Do: workers connect again by themselves. If it happens again and again, the text and the broker's log say why.
    """


class AuthenticationFailed(ConnectionClosed):
    """The broker did not accept the credentials, or this user may not enter the virtual host.

    Whose: yours: of the URL or of the user's rights.

    Why: a wrong name or password, `guest` from another machine than the broker's own, a virtual host that does not
    exist or in which the user has no permission.

    Do: check the URL (REDRIVE_BROKER), and `rabbitmqctl list_permissions -p VHOST`. Characters like `@` in a password
    must be percent-encoded.
    """


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
    """The broker ended a consumer: its queue was deleted, moved to another node, or the consumer timed out.

    Whose: nobody's, or whoever deleted the queue.

    Do: workers consume again as soon as the queue is there. If an ack took longer than `consumer_timeout`, give the
    handler a `timeout=` below it.
    """


# The network --------------------------------------------------------------------------------------


class ConnectionFailed(RedriveError):
    """No host could be reached. The message says what each of them answered.

    Whose: nobody's: the broker is down, or unreachable from here.

    Why: it is not started, the host name or port is wrong, a firewall is between, or TLS does not come about (the
    message says what each host answered).

    Do: `redrive ping --broker URL` tries it alone. Workers and the relay keep trying by themselves; commands end with
    code 7.
    """


class ConnectionLost(RedriveError):
    """The connection ended without a farewell: socket closed, reset, or silent for too long.

    Whose: nobody's.

    Why: the broker was killed, the network was cut, or nothing was heard for too long, not even a heartbeat.

    Do: nothing, most often: connections come back by themselves, and what was not settled comes again. A publish that
    was under way ends in `PublishUnknown`.
    """


class Closed(RedriveError):
    """The connection, publisher or consumer was closed by its owner before this call.

    Whose: yours: of the code that calls.

    Do: do not use it after `close()`, or outside of its `async with`; make another one.
    """


# Publishing ---------------------------------------------------------------------------------------


class PublishError(RedriveError):
    """A message that is not known to be safe with the broker.

    Whose: see its four kinds: each says where the message is, and whether publishing again can make a duplicate.

    Do: `except PublishError` catches all four. Do not go on as if the message were safe: publish it again, or put it
    into an outbox in the first place.
    """

    def __init__(self, exchange: str, routing_key: str, why: str) -> None:
        super().__init__(f"message to exchange {exchange!r} with key {routing_key!r}: {why}")
        self.exchange = exchange
        self.routing_key = routing_key
        self.why = why
        self.index: int | None = None  # position in the input of publish_many()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.exchange, self.routing_key, self.why), {"index": self.index}


class Unroutable(PublishError):
    """No queue is bound to the exchange for this key: the broker stored the message nowhere.

    Whose: the topology's: no queue is bound for this key.

    Why: a binding is missing, the key is mistyped, or the consumer's queues were never made here.

    Do: `redrive topology plan APP` shows missing bindings. Publish again when there is one; it cannot be a duplicate.
    """


class PublishRefused(PublishError):
    """The broker said no: a full queue with reject-publish, a missing exchange, or an internal error.

    Whose: the broker's.

    Why: a queue is full and has `x-overflow: reject-publish`, the exchange does not exist, the message is larger than
    the broker takes, or the broker has trouble of its own.

    Do: mend the cause, then publish again. With a fan-out to several queues some may have it already: keep the same
    `message_id`.
    """


class PublishUnknown(PublishError):
    """The connection ended before the confirm. The message may be stored, or not.

    Whose: nobody's.

    Why: between sending and confirming there is always a moment in which only the broker knows.

    Do: publish it again with the same `message_id`. A duplicate is then possible and a loss is not; an inbox absorbs
    the duplicate.
    """


class NotPublished(PublishError):
    """The message never left this process: publishing it again cannot duplicate it.

    Whose: nobody's.

    Why: there was no connection, or the publisher was closed before the message could be written.

    Do: publish it again: it cannot become a duplicate.
    """


class PublishErrors(ExceptionGroup[PublishError], RedriveError):
    """Some messages of a pipeline failed, each with its own error and its `index` in the input.

    Whose: see each of them.

    Do: `except*` or `.exceptions`: each has its `index`, so that exactly those are published again. All others are
    confirmed.
    """

    def derive(self, excs: Sequence[PublishError]) -> PublishErrors:  # type: ignore[override]
        return PublishErrors(self.message, excs)
