"""Exit codes: they say what happened, so that scripts need not read. And by which of them an error ends a command."""

from __future__ import annotations

from typing import NamedTuple

from redrive.errors import (
    AccessRefused,
    AuditUnavailable,
    AuthenticationFailed,
    ConfigurationError,
    KeyNotFound,
    LetterNotFound,
    NotDeadLetterQueue,
    NotFound,
    OperationConflict,
    OperationNotFound,
    OperationOver,
    PeekUnsafe,
    RedriveError,
    TopologyConflict,
    TopologyMissing,
)

DONE = 0
DEFECT = 1
USAGE = 2
PARTIAL = 3
NOT_FOUND = 4
NOT_ALLOWED = 5
CONFLICT = 6
UNREACHABLE = 7
GUARDED = 8
FOUND = 9
INTERRUPTED = 130


class Exit(NamedTuple):
    code: int
    meaning: str
    do: str
    errors: tuple[type[RedriveError], ...] = ()  # those that end a command with it, with all that hang from them


EXITS = (
    Exit(DONE, "done", "Nothing."),
    Exit(
        DEFECT,
        "something that nobody expected: a defect, or a data folder that cannot be used",
        "A traceback is a defect: report it. Without one, the message says what is wrong with the folder.",
    ),
    Exit(
        USAGE,
        "the question makes no sense, or needs a confirmation that nobody gave",
        "Correct the command, the setting or the file that the message names. In a script, `--yes` confirms, and for "
        "`redrive dlq discard` it is `--confirm QUEUE`.",
        (ConfigurationError,),
    ),
    Exit(
        PARTIAL,
        "done in part: some messages were not moved, or not all work was finished in time",
        "`redrive ops show ID` says what became of each message; run it again for what is left. A worker that could "
        "not finish within `--drain` ends so, too: what it had in its hands comes back.",
    ),
    Exit(
        NOT_FOUND,
        "what was asked for is not there: a queue, a message, an operation, a key, a row",
        "Check the name, the virtual host, and the database.",
        (NotFound, OperationNotFound, LetterNotFound, KeyNotFound, TopologyMissing),
    ),
    Exit(
        NOT_ALLOWED,
        "refused: the broker does not let this user, or it would not be safe, or could not be recorded",
        "The message says who refused. Do not work around a look that is refused: mend the queue.",
        (AccessRefused, AuthenticationFailed, PeekUnsafe, NotDeadLetterQueue, AuditUnavailable),
    ),
    Exit(
        CONFLICT,
        "somebody else has it, or it is there and different, or it has ended already",
        "`redrive ops ls` shows who works on dead letters; `redrive topology plan APP` shows what differs.",
        (TopologyConflict, OperationConflict, OperationOver),
    ),
    Exit(
        UNREACHABLE,
        "the broker or the database cannot be reached, or went away meanwhile",
        "`redrive ping` tries the broker alone. Commands can be run again: what was begun is resumed or not done.",
        (RedriveError,),
    ),
    Exit(
        GUARDED,
        "an operation stopped itself, because too much of what it moved came back",
        "Look at why they fail again (`redrive dlq groups QUEUE`) before trying more. The rest is where it was.",
    ),
    Exit(
        FOUND,
        "a check found what it looks for: dead letters, findings of the doctor, a topology that differs",
        "Read what it found; for the doctor, `redrive explain` knows each finding by its id.",
    ),
    Exit(INTERRUPTED, "interrupted with Ctrl-C", "Run it again: nothing is lost by an interruption."),
)


def exit_code(kind: type[RedriveError]) -> int:
    """The code with which an error ends a command: that of the first kind in the table that it is one of."""
    return next(known.code for known in EXITS if issubclass(kind, known.errors))
