"""What went wrong, as a value: an exception told in words that can travel with the message.

An exception holds its frames, and the frames hold everything the handler used, so it is described at once and
let go. What is told is bounded, because it goes into headers, and headers into one frame.

The stack reads as Python prints it, the first cause first and the raise last, but without the source lines: for these
files would have to be read, here, for every failure, and after a redeploy they are other lines. When it is too long it
is cut in the middle, since both ends matter: where it all began, and where it was raised.

    describe    never raises, whatever the exception is made of (see `redrive.recovery.fingerprint`)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import groupby, islice
from types import TracebackType

import msgspec

from redrive.recovery.fingerprint import fingerprint, safe_str, type_name
from redrive.text import elide_lines, truncate

MOST_STACK = 8_000  # bytes of UTF-8

_MOST_ERRORS = 10  # causes and members that are told
_MOST_MEMBERS = 5  # of one group
_OLDEST, _NEWEST = 20, 30  # frames of one error
_SAME = 3  # times that the same line is told
_MOST_PLACE = 500
_MOST_NOTES = 3

_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_MEANWHILE = "\nDuring handling of the above exception, another exception occurred:\n\n"


class Failure(msgspec.Struct, frozen=True, gc=False):
    """One failed attempt: the exception that ended it, and when."""

    error_type: str  # qualified, without "builtins."
    message: str
    stack: str
    fingerprint: str
    at: datetime


def describe(error: BaseException, at: datetime, *, stack: bool = True) -> Failure:
    """`stack`: only parked messages tell theirs, and it is the dearest part."""
    return Failure(type_name(error), safe_str(error), stack_of(error) if stack else "", fingerprint(error), at)


# The stack ------------------------------------------------------------------------------------------


def stack_of(error: BaseException) -> str:
    try:
        return elide_lines("".join(_stack_lines(error, set())), MOST_STACK)
    except BaseException:  # an error whose attributes raise: its type and its words are told elsewhere
        return ""


def _stack_lines(error: BaseException, seen: set[int]) -> Iterator[str]:
    """What came before it, the error itself, and its members if it is a group: each error once, and not too many."""
    if id(error) in seen or len(seen) >= _MOST_ERRORS:
        yield f"({type_name(error)}: {'told elsewhere' if id(error) in seen else 'and more, left out'})\n"
        return
    seen.add(id(error))
    if error.__cause__ is not None:
        yield from _stack_lines(error.__cause__, seen)
        yield _CAUSED
    elif error.__context__ is not None and not error.__suppress_context__:
        yield from _stack_lines(error.__context__, seen)
        yield _MEANWHILE
    yield from _error_lines(error)
    if isinstance(error, BaseExceptionGroup):
        yield from _member_lines(error, seen)


def _error_lines(error: BaseException) -> Iterator[str]:
    if error.__traceback__ is not None:
        yield "Traceback (most recent call last):\n"
        yield from _frame_lines(error.__traceback__)
    text = safe_str(error)
    yield f"{type_name(error)}: {text}\n" if text else f"{type_name(error)}\n"
    notes = getattr(error, "__notes__", ())
    for note in notes[:_MOST_NOTES] if isinstance(notes, list) else ():
        yield truncate(str(note), _MOST_PLACE) + "\n"


def _member_lines(group: BaseExceptionGroup[BaseException], seen: set[int]) -> Iterator[str]:
    count = len(group.exceptions)
    for number, member in enumerate(islice(group.exceptions, _MOST_MEMBERS), 1):
        yield f"\nMember {number} of {count}:\n"
        yield from _stack_lines(member, seen)
    if count > _MOST_MEMBERS:
        yield f"\n... and {count - _MOST_MEMBERS} more members ...\n"


def _frame_lines(traceback: TracebackType | None) -> Iterator[str]:
    steps = []
    while traceback is not None:
        steps.append(traceback)
        traceback = traceback.tb_next
    left_out = len(steps) - _OLDEST - _NEWEST
    if left_out <= 0:
        yield from _fold_repeats([_frame_line(step) for step in steps])
        return
    yield from _fold_repeats([_frame_line(step) for step in steps[:_OLDEST]])
    yield f"  ... {left_out} frames left out ...\n"
    yield from _fold_repeats([_frame_line(step) for step in steps[-_NEWEST:]])


def _frame_line(step: TracebackType) -> str:
    code = step.tb_frame.f_code
    return truncate(f'  File "{code.co_filename}", line {step.tb_lineno}, in {code.co_qualname}', _MOST_PLACE) + "\n"


def _fold_repeats(lines: list[str]) -> Iterable[str]:
    """A recursion in few lines."""
    if len(set(lines)) == len(lines):
        return lines
    runs = ((line, sum(1 for _ in same)) for line, same in groupby(lines))
    return (
        line * count if count <= _SAME else f"{line * _SAME}  [the same {count - _SAME} more times]\n"
        for line, count in runs
    )
