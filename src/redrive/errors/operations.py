"""Dead letters: looking at them, and operations that move, change, discard or archive them."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.errors.base import ConfigurationError, RedriveError

_AROUND = 40  # characters that are shown on either side of a mistake


class SearchError(ConfigurationError):
    """A query that makes no sense. `position` is the character at which it stops making any.

    Why: a field is unknown, a quote is not closed, or a value does not fit its field.

    Do: look at the place under the caret; `redrive dlq query` lists the fields and operators.
    """

    def __init__(self, problem: str, text: str, position: int) -> None:
        super().__init__(f"{problem}\n{_with_caret(text, position)}")
        self.problem = problem
        self.text = text
        self.position = position


def _with_caret(text: str, position: int) -> str:
    """The line, or what is around the place, and a caret below it."""
    start = max(0, position - _AROUND)
    before, after = text[start:position], text[position : position + _AROUND]
    line = ("…" if start else "") + before + after + ("…" if position + _AROUND < len(text) else "")
    printable = "".join(char if char.isprintable() else "·" for char in line)
    return f"  {printable}\n  {' ' * (len(before) + (start > 0))}^"


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


class LetterNotFound(RedriveError):
    """No message of a dead-letter queue has that id.

    Whose: nobody's, most often.

    Why: it was re-driven, discarded or consumed meanwhile.

    Do: `redrive dlq peek QUEUE` shows what is there now.
    """

    def __init__(self, queue: str, letter: str) -> None:
        super().__init__(f"there is no message {letter} in {queue}: it may have been moved")
        self.queue = queue
        self.dead_letter = letter


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
        self.dead_letter = letter
        self.matches = tuple(matches)
        self.more = more


class PeekUnsafe(RedriveError):
    """Looking would count towards a queue's delivery limit, and the broker drops what exceeds that. It was not done.

    Whose: the queue's: of how it was declared.

    Why: a look takes a message and gives it back. A quorum queue counts that as a delivery, and beyond its limit (20 on
    RabbitMQ 4, without being asked) the message is dropped, or returns in a cycle.

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


class KeyNotFound(RedriveError):
    """There is no API key of that id, and none of that name that is not revoked.

    Whose: yours.

    Why: the name is mistyped, the key is revoked, or it is in another database (`--database`, REDRIVE_DATABASE).

    Do: `redrive admin keys ls` shows those there are.
    """

    def __init__(self, key: str) -> None:
        super().__init__(f"there is no key {key}: `redrive admin keys ls` shows those there are")
        self.key = key


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


class PatchError(ConfigurationError):
    """A patch that makes no sense, or does not fit the document. Says which operation, from 0, and which path.

    Why: a path that is not in the document, a `test` that fails, an operation or a member that RFC 6902 does not know.

    Do: `redrive dlq show QUEUE ID` has the body to compare with; correct the operation that the message names.
    """

    def __init__(self, why: str, operation: int | None = None, path: str = "") -> None:
        where = "" if operation is None else f" (operation {operation}, path {path!r:.60})"
        super().__init__(f"JSON Patch: {why}{where}")
        self.why = why
        self.operation = operation
        self.path = path


class NotJson(ConfigurationError):
    """Bytes that are no JSON document, or one without a single meaning; or a value that JSON has no form for.

    Why: the body is something else (another content type, compressed, cut off), or it has a key twice.

    Do: change such a message by a function (`redrive dlq transform --function MODULE:NAME`), which gets the bytes.
    """


class EditRefused(ConfigurationError):
    """An edit that AMQP cannot carry, or that would not do what was meant. Nothing was changed.

    Why: a header that a re-drive writes itself, a property that cannot be set, a value that AMQP has no form for, more
    headers than a frame holds, or a body that its content type contradicts.

    Do: the message says which part: leave it out. `--force` is for a body that is called JSON and is none.
    """


class TransformFailed(RedriveError):
    """One message could not be changed. It stays where it is; others are not affected.

    Whose: the patch's or the function's, for this message.

    Do: `redrive ops show ID --items failed` lists what was not changed, and why. Correct the patch, and run it for
    those that are left.
    """


class LetterError(ConfigurationError):
    """A line that no message can be made of. `line` is its number, from 1.

    Why: the file is cut off, was edited, or is no export of Redrive's.

    Do: look at that line. A file is checked as a whole before its first message is published; what comes from stdin is
    not, and an import that was cut short goes on with `--from-line`.
    """

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")
        self.line = line
        self.why = why


class ArchiveError(RedriveError):
    """An archive cannot be opened, read or trusted. What was not written there must not be acked.

    Whose: the disk's, or of who else writes there.

    Why: no permission, no room, or somebody else is writing the same file.

    Do: make room or fix the permissions, then do it again: what was not archived was not taken from its queue.
    Archives are in `.redrive/archive`, or below REDRIVE_DATA.
    """


class Unresolved(RedriveError):
    """The connection was lost before some messages were confirmed. They are still in the dead-letter queue.

    Whose: nobody's.

    Do: nothing, if the operation continues by itself; else begin another. A message that was sent already may arrive
    twice, with the same id, so that an inbox recognises it. The operation counts it as possibly duplicated. Nothing is
    lost.
    """


class DestinationUnavailable(RedriveError):
    """Nothing is accepted at the destination any more.

    Whose: the destination's.

    Why: it refuses one message after the other: it is full, gone, or not routable any more. So the operation ended
    itself, as FAILED.

    Do: fix the destination, then begin another operation: everything that was not moved is still in the dead-letter
    queue.
    """


class NotDelivered(RedriveError):
    """A notice did not reach its receiver, as far as is known.

    Whose: the receiver's, or the network's.

    Why: no answer in time, another status than 2xx, or a command that ended with an error.

    Do: nothing is needed: it is tried again. If that goes on, check the address of `--webhook`, or run the `--command`
    by hand.
    """
