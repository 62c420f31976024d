"""How a command ends: its exit code, which tells scripts what happened, an error, or a signal."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

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
    name_of,
)

if TYPE_CHECKING:
    import asyncio

ERRORS_PAGE = "docs/reference/errors.md"

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
        "not finish within `--drain` ends so, too: what was unacknowledged is redelivered.",
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
        "The message says who refused. Do not work around a peek that is refused: fix the queue.",
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


def fail(error: RedriveError, code: int) -> NoReturn:
    """Say it on stderr, and end. The last line is dim: it is for whoever does not know what to do."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    click.echo(f"redrive: {error}{notes}", err=True)
    click.secho(pointer(type(error)), err=True, dim=True)
    sys.exit(code)


def pointer(kind: type[RedriveError]) -> str:
    """The command that explains an error, and the page. There is no website: the package knows, and the manual."""
    name = name_of(kind)
    return f"  redrive explain {name}   {ERRORS_PAGE}#{name}"


def stop_on_signals(farewell: str) -> asyncio.Event:
    """An event that SIGTERM and SIGINT set. The next one kills: nothing is lost by that, it only comes again."""
    import asyncio  # not at the top: `redrive health` runs every few seconds, and needs none of it

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            click.echo("redrive: quitting at once; what was not settled comes back", err=True)
            sys.stderr.flush()
            signal.raise_signal(signal.SIGKILL)
        stop.set()
        click.echo(f"redrive: {farewell}", err=True)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop
