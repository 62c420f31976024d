"""JSON Patch (RFC 6902): a list of small changes to a JSON document, and JSON that stays as it was written.

    [{"op": "test",    "path": "/status",       "value": "new"},
     {"op": "replace", "path": "/customer/id",  "value": 42},
     {"op": "add",     "path": "/items/-",      "value": {"sku": "A"}},
     {"op": "remove",  "path": "/debug"},
     {"op": "move",    "path": "/total",        "from": "/sum"},
     {"op": "copy",    "path": "/bill_to",      "from": "/ship_to"}]

A path is a JSON Pointer (RFC 6901): names and places with a `/` before each, in which ~1 is a slash and ~0 a tilde. ""
is the whole document. A place in an array is a number without leading zeros, or `-` for the one behind the last.

A patch is done as a whole or not at all. No step changes what it was given: it makes new arrays and objects along its
path and shares the rest, so a document is what it was whatever happens half-way.

A message may be signed, or compared, or read by somebody who counts money. So numbers are not read at all (`Number` has
the text of one): 1.10 stays 1.10, and an integer of thirty digits keeps them. Keys keep their order. An object with a
key twice has no one meaning, and is refused. What is encoded again is compact; a patch that changes nothing gives back
the bytes it was given.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from json.encoder import encode_basestring
from typing import TypeAlias

from redrive.errors import NotJson, PatchError
from redrive.wire.values import brief_repr

Json: TypeAlias = "bool | str | Number | list[Json] | dict[str, Json] | None"


# JSON, exactly ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Number:
    """A number, as it was written."""

    text: str

    def same_as(self, other: Number) -> bool:
        """1.0, 1 and 10e-1 are the same number."""
        if self.text == other.text:
            return True
        try:
            return Decimal(self.text) == Decimal(other.text)
        except InvalidOperation:  # an exponent of twenty digits
            return False


def read_json(data: bytes | str) -> Json:
    """The document, or NotJson. Bytes are UTF-8, as RFC 8259 has it."""
    try:
        text = data if isinstance(data, str) else data.decode()
        found: Json = json.loads(
            text, parse_int=Number, parse_float=Number, parse_constant=_refuse_constant, object_pairs_hook=_table
        )
        return found
    except UnicodeDecodeError as error:
        raise NotJson(f"it is not UTF-8: byte {error.start} is {data[error.start]!r}") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"{error.msg} in line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise NotJson("it is nested too deep to be read") from None


def _refuse_constant(name: str) -> Json:
    raise NotJson(f"JSON has no {name}")


def _table(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    table = dict(pairs)
    if len(table) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise NotJson(f"the key {brief_repr(twice)} stands twice in one object: which one counts is anybody's guess")
    return table


def write_json(value: object) -> bytes:
    """Return compact JSON as UTF-8. Accepts what `read_json` returns, and Python's own numbers."""
    try:
        text = _write(value)
    except RecursionError:
        raise NotJson("it is nested too deep to be written, or holds itself") from None
    # Half a character can be written in JSON, as an escape, and nowhere in UTF-8.
    return text.encode("utf-8", "backslashreplace")


def _write(value: object) -> str:
    match value:
        case Number():
            return value.text
        case float() | Decimal() if not math.isfinite(value):
            raise NotJson(f"JSON has no {value}")
        case Decimal():
            return str(value)
        case str() | int() | float() | None:
            return json.dumps(value, ensure_ascii=False)
        case Mapping():
            return f"{{{','.join([f'{_write_key(name)}:{_write(inner)}' for name, inner in value.items()])}}}"
        case list() | tuple():
            return f"[{','.join([_write(inner) for inner in value])}]"
        case _:
            raise NotJson(f"JSON has no form for {type(value).__name__}: {brief_repr(value)}")


def _write_key(name: object) -> str:
    if not isinstance(name, str):
        raise NotJson(f"a key in JSON is text, and {brief_repr(name)} is {type(name).__name__}")
    return encode_basestring(name)


def is_equal(one: Json, other: Json) -> bool:
    """Equal as RFC 6902 has it: numbers by what they are worth, objects without regard to order."""
    match one, other:
        case Number(), Number():
            return one.same_as(other)
        case dict(), dict():
            return one.keys() == other.keys() and all(is_equal(value, other[name]) for name, value in one.items())
        case list(), list():
            return len(one) == len(other) and all(map(is_equal, one, other))
        case _:
            return type(one) is type(other) and one == other


# Pointers ---------------------------------------------------------------------------------------------

_Path: TypeAlias = tuple[str, ...]
_STRAY_TILDE = re.compile(r"~(?![01])")
_PLACE = re.compile(r"0|[1-9][0-9]{0,17}")
_END = "-"
_LARGEST = 64 * 1024 * 1024  # characters of a document with its copies


def parse_pointer(text: str) -> _Path:
    if not text:
        return ()
    if not text.startswith("/"):
        raise ValueError(f"{brief_repr(text)} must begin with /")
    if _STRAY_TILDE.search(text):
        raise ValueError("a ~ in a path is written ~0, and a / in a name ~1")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/"))


# The patch --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PatchStep:
    op: str
    path: str
    to: _Path
    source: _Path = ()  # of a move or a copy
    value: Json = None

    def apply(self, document: Json) -> Json:
        match self.op:
            case "add":
                return _add(document, self.to, self.value)
            case "remove":
                return _remove(document, self.to)
            case "replace":
                return _rebuild(_walk(document, self.to), self.to, self.value)
            case "move":
                return _add(_remove(document, self.source), self.to, _find(document, self.source))
            case "copy":
                return _require_bounded(_add(document, self.to, _find(document, self.source)))
            case _:
                return _test(document, self.to, self.value)


@dataclass(frozen=True, slots=True)
class JsonPatch:
    """`JsonPatch.parse(text)`, and then `apply` as often as there are documents."""

    steps: tuple[PatchStep, ...]

    @classmethod
    def parse(cls, text: str | bytes) -> JsonPatch:
        try:
            steps = read_json(text)
        except NotJson as error:
            raise PatchError(f"the patch is no JSON: {error}") from None
        if not isinstance(steps, list):
            raise PatchError('a patch is an array of operations: [{"op": …, "path": …}, …]')
        return cls(tuple(_read_step(step, index) for index, step in enumerate(steps)))

    def apply(self, document: Json) -> Json:
        """The document with all of it done. The one that was given is not changed; nor is it if this fails."""
        for index, step in enumerate(self.steps):
            try:
                document = step.apply(document)
            except _Misfit as error:
                raise PatchError(str(error), index, step.path) from None
            except RecursionError:
                raise PatchError("the document is nested too deep", index, step.path) from None
        return document

    def apply_to(self, body: bytes) -> bytes:
        """The same for a body. One that comes out as it went in comes out byte for byte."""
        try:
            document = read_json(body)
        except NotJson as error:
            raise PatchError(f"the body is no JSON: {error}") from None
        changed = self.apply(document)
        try:
            return body if changed == document else write_json(changed)
        except (RecursionError, NotJson):
            raise PatchError("the document is nested too deep to be written") from None


def _require_bounded(document: Json) -> Json:
    """Copies share what they are copies of, so that thirty of them may stand for a document that fits nowhere."""
    if _size(document) > _LARGEST:
        raise _Misfit(f"the document would have more than {_LARGEST:,} characters")
    return document


def _size(document: Json) -> int:
    """How long it would be if it were written, roughly. What is there more than once is measured once."""
    known: dict[int, int] = {}

    def size(value: Json) -> int:
        return known[id(value)] if isinstance(value, dict | list) else 2 + len(value) if isinstance(value, str) else 5

    waiting = [document] if isinstance(document, dict | list) else []
    while waiting:  # not by recursion: documents may be deeper than that goes
        value = waiting[-1]
        parts = value if isinstance(value, list) else (*value, *value.values())
        unknown = [part for part in parts if isinstance(part, dict | list) and id(part) not in known]
        if unknown:
            waiting += unknown
        else:
            known[id(value)] = 2 + sum(map(size, parts))
            waiting.pop()
    return size(document)


_OPERATIONS = ("add", "remove", "replace", "move", "copy", "test")


def _read_step(step: Json, index: int) -> PatchStep:
    if not isinstance(step, dict):
        raise PatchError('an operation is an object: {"op": …, "path": …}', index)
    op = _member(step, "op", index)
    path = _member(step, "path", index)
    if op not in _OPERATIONS:
        raise PatchError(f"unknown op {brief_repr(op)}: there are {', '.join(_OPERATIONS)}", index, path)
    source = _member(step, "from", index, path) if op in ("move", "copy") else ""
    if op in ("add", "replace", "test") and "value" not in step:
        raise PatchError(f"{op} needs a value", index, path)
    try:
        found = PatchStep(op, path, parse_pointer(path), parse_pointer(source), step.get("value"))
    except ValueError as error:
        raise PatchError(str(error), index, path) from None
    if op == "move" and len(found.to) > len(found.source) and found.to[: len(found.source)] == found.source:
        raise PatchError(f"{brief_repr(source)} cannot be moved into itself", index, path)
    if op == "remove" and not found.to:
        raise PatchError("the whole document cannot be removed: replace it", index, path)
    return found


def _member(step: Mapping[str, Json], name: str, index: int, path: str = "") -> str:
    value = step.get(name)
    if not isinstance(value, str):
        what = "is missing" if name not in step else "must be text"
        raise PatchError(f'"{name}" {what}', index, path)
    return value


# Finding and changing ---------------------------------------------------------------------------------


class _Misfit(Exception):
    """A step does not fit the document."""


def _find(document: Json, path: _Path) -> Json:
    return _walk(document, path)[-1]


def _walk(document: Json, path: _Path) -> list[Json]:
    """Return the document, every value on the way, and the value at the path."""
    found = [document]
    for depth, part in enumerate(path):
        found.append(_child(found[-1], part, path, depth))
    return found


def _child(parent: Json, part: str, path: _Path, depth: int) -> Json:
    match parent:
        case dict():
            if part not in parent:
                raise _Misfit(f"{_path_name(path[:depth])} has no {brief_repr(part)}")
            return parent[part]
        case list():
            return parent[_place(part, len(parent) - 1, path, depth)]
        case _:
            raise _Misfit(f"{_path_name(path[:depth])} is {_type_name(parent)}: there is nothing in it")


def _rebuild(walked: list[Json], path: _Path, value: Json) -> Json:
    """Return the document with `value` at the path. Everything on the way is new; the rest is shared."""
    for parent, part in zip(walked[-2::-1], reversed(path), strict=True):
        if isinstance(parent, dict):
            value = {**parent, part: value}
        elif isinstance(parent, list):
            value = [*parent[: int(part)], value, *parent[int(part) + 1 :]]
    return value


def _add(document: Json, path: _Path, value: Json) -> Json:
    if not path:
        return value
    parents, part = path[:-1], path[-1]
    walked = _walk(document, parents)
    match walked[-1]:
        case dict() as table:
            return _rebuild(walked, parents, {**table, part: value})
        case list() as array:
            place = len(array) if part == _END else _place(part, len(array), path, len(parents))
            return _rebuild(walked, parents, [*array[:place], value, *array[place:]])
        case other:
            raise _Misfit(f"{_path_name(parents)} is {_type_name(other)}: nothing can be added to it")


def _remove(document: Json, path: _Path) -> Json:
    """Remove a value. The whole document is only removed when it is moved to where it was; the result is None."""
    if not path:
        return None
    walked, parents, part = _walk(document, path)[:-1], path[:-1], path[-1]
    parent = walked[-1]
    if isinstance(parent, dict):
        return _rebuild(walked, parents, {name: value for name, value in parent.items() if name != part})
    assert isinstance(parent, list)
    return _rebuild(walked, parents, parent[: int(part)] + parent[int(part) + 1 :])


def _test(document: Json, path: _Path, wanted: Json) -> Json:
    found = _find(document, path)
    if not is_equal(found, wanted):
        other = _type_name(found)
        raise _Misfit(
            "the test failed" + (f": it is {other}, not {_type_name(wanted)}" if other != _type_name(wanted) else "")
        )
    return document


def _place(part: str, last: int, path: _Path, depth: int) -> int:
    array = _path_name(path[:depth])
    if part == _END:
        raise _Misfit(f"{_END} is the place behind the last one of {array}: there is nothing yet")
    if _PLACE.fullmatch(part) is None:
        raise _Misfit(f"{array} is an array: {brief_repr(part)} is no place in it")
    if int(part) > last:
        raise _Misfit(f"{array} has no place {part}: the last is {last}" if last >= 0 else f"{array} is empty")
    return int(part)


def _path_name(path: _Path) -> str:
    text = "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)
    return brief_repr(text) if path else "the document"


def _type_name(value: Json) -> str:
    """Describe a value without quoting it: it may be a secret."""
    return _KINDS[type(value)]


_KINDS = {
    Number: "a number",
    str: "text",
    dict: "an object",
    list: "an array",
    bool: "true or false",
    type(None): "null",
}
