"""Many messages changed in the same way, each as a whole or not at all.

A transform looks at one message and says what is to be different (`Edit`), or nothing: then the message is skipped and
stays where it is. There are two ways to get one:

    from_patch('[{"op": "replace", "path": "/currency", "value": "EUR"}]')       JSON Patch, for JSON bodies
    from_function(fix)                                                           def fix(body, headers, letter): ...

A function returns bytes (the new body), a dict or list (the new body, as JSON), an `Edit` (body, headers, properties),
or None (skip). It gets what a message tells, and can change none of it in place. Whatever else it returns, and whatever
it raises, is a failure of that one message: it says so, and the message stays in its queue.

`apply_transform` does all of it for one delivery.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from redrive.deadletters.body_preview import is_json
from redrive.deadletters.dead_letter import DeadLetter
from redrive.deadletters.edits import Content, Edit, apply_edit
from redrive.deadletters.json_patch import JsonPatch, write_json
from redrive.errors import ConfigurationError, EditRefused, NotJson, PatchError, TransformFailed
from redrive.operations.export_format import Delivered
from redrive.recovery.fingerprint import safe_str, type_name
from redrive.wire.values import FieldValue, brief_repr

_NO_TYPE = ("", "application/octet-stream")


class Transform(Protocol):
    def __call__(self, body: bytes, headers: Mapping[str, FieldValue], dead_letter: DeadLetter, /) -> Edit | None:
        """What is to be different, None to skip this message, or TransformFailed."""


def apply_transform(
    transform: Transform, delivery: Delivered, dead_letter: DeadLetter, *, force: bool = False
) -> Content | None:
    """The message as it will be; None if it is to be skipped. Raises TransformFailed, and nothing else."""
    edit = transform(delivery.body, MappingProxyType(dict(dead_letter.headers)), dead_letter)
    if edit is None:
        return None
    try:
        return apply_edit(Content(delivery.raw_properties, delivery.body), edit, force=force)
    except EditRefused as error:
        raise TransformFailed(str(error)) from error


# JSON Patch -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PatchTransform:
    patch: JsonPatch

    def __call__(self, body: bytes, _: Mapping[str, FieldValue], __: DeadLetter, /) -> Edit | None:
        try:
            return Edit(self.patch.apply_to(body))
        except PatchError as error:
            raise TransformFailed(str(error)) from error

    def __str__(self) -> str:
        steps = [f"{step.op} {step.path}" for step in self.patch.steps]
        return f"JSON Patch: {', '.join(steps) or 'nothing'}"


def from_patch(text: str | bytes) -> PatchTransform:
    """Raises PatchError if the text is no patch."""
    return PatchTransform(JsonPatch.parse(text))


# By hand ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ByHand:
    """The same edit for every message that is meant: mostly, there is one."""

    edit: Edit

    def __call__(self, *_: object) -> Edit:
        return self.edit

    def __str__(self) -> str:
        return "by hand"


# Functions --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FunctionTransform:
    function: Callable[..., object]
    name: str

    def __call__(self, body: bytes, headers: Mapping[str, FieldValue], dead_letter: DeadLetter, /) -> Edit | None:
        try:
            found = self.function(body, headers, dead_letter)
        except (Exception, SystemExit) as error:  # a message is not lost because a function wants to leave
            raise TransformFailed(f"{self.name} raised {type_name(error)}: {safe_str(error)}") from error
        try:
            return self._edit(found, dead_letter)
        except NotJson as error:
            raise TransformFailed(f"{self.name} returned what is no JSON: {error}") from error

    def _edit(self, found: object, dead_letter: DeadLetter) -> Edit | None:
        match found:
            case None | Edit():
                return found
            case bytes() | bytearray() | memoryview():
                return Edit(bytes(found))
            case Mapping() | list() | tuple():
                return self._json(found, dead_letter)
            case _:
                if inspect.iscoroutine(found):
                    found.close()  # or Python warns that nobody awaited it
                raise TransformFailed(
                    f"{self.name} returned {type(found).__name__} ({brief_repr(found)}): "
                    "want bytes (a body), a dict or list (a body, as JSON), an Edit, or None to skip"
                )

    def _json(self, value: object, dead_letter: DeadLetter) -> Edit:
        """A consumer that expects msgpack must not be sent JSON under that name."""
        if not (
            is_json(dead_letter.content_type) or (dead_letter.content_type or "") in _NO_TYPE or _is_text(dead_letter)
        ):
            raise TransformFailed(
                f"{self.name} returned {type(value).__name__}, which becomes JSON, and the message is called "
                f"{brief_repr(dead_letter.content_type)}: return bytes, or an Edit that sets content_type, too"
            )
        return Edit(write_json(value))

    def __str__(self) -> str:
        return self.name


def _is_text(dead_letter: DeadLetter) -> bool:
    return (dead_letter.content_type or "").lower().startswith("text/")


def from_function(function: object, name: str = "") -> FunctionTransform:
    """`name` is what errors and records call it, as `module:function`. Raises ConfigurationError if it is none."""
    known = name or getattr(function, "__qualname__", "") or type(function).__name__
    if not callable(function):
        raise ConfigurationError(f"{known} is {type(function).__name__}: want a function of body, headers and letter")
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        raise ConfigurationError(f"{known} is asynchronous: want an ordinary function")
    try:
        inspect.signature(function).bind(b"", {}, None)
    except TypeError as error:
        raise ConfigurationError(f"{known} must take body, headers and letter: {error}") from None
    except ValueError:  # one that is not written in Python does not tell
        pass
    return FunctionTransform(function, known)
