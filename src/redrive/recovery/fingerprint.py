"""The identity of a kind of failure: twelve hex digits by which a thousand dead letters become three groups.

It is made of what stays the same when the same thing goes wrong again, on another machine, after a redeploy, for
another customer:

    the type of the error        qualified, since every library has a TimeoutError
    the way to the raise         the innermost functions as module:function; lines and paths, which a redeploy
                                 moves, are left out
    what it was raised from      explicit causes, and the members of a group: a wrapper raised in one place for
                                 everything is as many kinds as there are things behind it

Frames of the machinery (Redrive, asyncio, threads, Celery) are on the way of every failure and say nothing. Where no
others are left (an error that was never raised, a body that cannot be decoded) the words count instead, with all values
taken out: "order 17 of 'ann' is late" and "order 4 of 'bob' is late" are one kind.

An error is somebody else's code: its `__str__` may raise, its causes may go in circles, a group may have ten thousand
members. Nothing here raises, and all that is looked at is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from itertools import islice

from redrive.text import truncate

MOST_WORDS = 1_000  # characters of an error's text

_MOST_NAME = 200
_FUNCTIONS = 5  # the innermost ones: enough to tell callers of a shared function apart
_MOST_FRAMES = 1_000  # innermost, in which the functions are looked for
_MOST_KIN = 16  # causes and members that are looked at
_MOST_NORMALISED = 200
_MOST_KNOWN = 1_000  # ways to a raise that are remembered
_LONGEST_KNOWN = 50  # frames of one

_MACHINERY = {"redrive", "asyncio", "concurrent", "contextlib", "threading", "celery", "billiard", "kombu"}
_INLINED = {"<listcomp>", "<dictcomp>", "<setcomp>"}  # frames of their own up to Python 3.11, not from 3.12 on

_VALUE = re.compile(
    r"""
    (?<![^\s@<>()\[\],;:'"]) [^\s@<>()\[\],;:'"]++ @ [\w.-]*\w         # e-mail addresses
    | (?<!\w) (?:
        b?'.*?'(?!\w) | b?".*?"(?!\w)                                 # quoted; the apostrophe in "can't" is no quote
        | [0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12} \b              # UUIDs
        | [-+]? \w*\d\w* (?: (?:[-+.:/]|,\s?) \w*\d\w* )*             # words with a digit: 17, 0x1f, 2.5, A-12, 10:30
        | [0-9a-f]{8,} \b                                             # long hex
    )
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


# Where something fails, it fails again and again: fingerprints by the identities of all that they are made of, together
# with all that, so that nothing else can have these identities.
_known: dict[tuple[int, ...], tuple[str, list[object]]] = {}


def fingerprint(error: BaseException) -> str:
    """Twelve hex digits: the same for the same kind of failure."""
    try:
        if error.__cause__ is None and not isinstance(error, BaseExceptionGroup):
            return _fingerprint_of_one(error)
        own, *others = map(_kind, _related_errors(error))
        parts = [own, *sorted(set(others))]  # which member of a group came first is chance
    except BaseException:  # an error whose attributes raise still has a type
        parts = [type_name(error)]
    return _digest("\n".join(parts))


def _fingerprint_of_one(error: BaseException) -> str:
    """Of an error with no other behind it, which are most."""
    way: list[object] = [type(error)]
    step = error.__traceback__
    while step is not None:
        frame = step.tb_frame
        way += (frame.f_code, frame.f_globals.get("__name__"))
        step = step.tb_next
    key = tuple(map(id, way))
    if (known := _known.get(key)) is not None:
        return known[0]
    found = _digest(_kind(error))
    if len(way) <= 2 * _LONGEST_KNOWN and _functions(error):  # else its words count, which are not on the way
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = found, way
    return found


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=6).hexdigest()


def _related_errors(error: BaseException) -> Iterator[BaseException]:
    """The error, the explicit causes behind it and the members of groups among them; nearest first, each once."""
    waiting, seen = [error], {id(error)}
    for known in waiting:
        yield known
        members = known.exceptions if isinstance(known, BaseExceptionGroup) else ()
        for other in (known.__cause__, *islice(members, _MOST_KIN)):
            if other is not None and id(other) not in seen and len(waiting) < _MOST_KIN:
                seen.add(id(other))
                waiting.append(other)


def _kind(error: BaseException) -> str:
    functions = _functions(error)
    return " ".join((type_name(error), *functions)) if functions else f"{type_name(error)} {normalise(safe_str(error))}"


def _functions(error: BaseException) -> list[str]:
    """The innermost functions that the error passed, innermost first. A recursion counts once, however deep it was."""
    frames = []
    step = error.__traceback__
    while step is not None:
        frames.append(step.tb_frame)
        step = step.tb_next
    found: dict[str, None] = {}
    for frame in islice(reversed(frames), _MOST_FRAMES):
        module, code = frame.f_globals.get("__name__"), frame.f_code
        if code.co_name in _INLINED or str(module).partition(".")[0] in _MACHINERY:
            continue
        found[f"{module}:{code.co_qualname}"] = None
        if len(found) == _FUNCTIONS:
            break
    return list(found)


def normalise(text: str) -> str:
    """The text with a mark where values were: numbers, hex, UUIDs, e-mail addresses, all that was quoted."""
    return _VALUE.sub("#", text)[:_MOST_NORMALISED]


# What an error says of itself -----------------------------------------------------------------------


def type_name(error: BaseException) -> str:
    """Qualified: "json.decoder.JSONDecodeError"; but "ValueError", which everybody knows."""
    try:
        return _name_of(type(error))  # type: ignore[arg-type]  # the hash of a class, not of its instances
    except BaseException:  # a metaclass can make even that fail
        return "an error without a name"


@lru_cache(1024)
def _name_of(kind: type) -> str:
    module, name = kind.__module__, kind.__qualname__
    return truncate(name if module == "builtins" else f"{module}.{name}", _MOST_NAME)


def safe_str(error: BaseException) -> str:
    """Its text. Whatever `__str__` raises, SystemExit included: a message is not lost because its error cannot talk."""
    try:
        return truncate(str(error), MOST_WORDS)
    except BaseException as trouble:
        return f"(its text could not be had: {type_name(trouble)})"
