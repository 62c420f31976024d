"""Check the options of an application when they are given, by the annotations of what takes them.

    @checked("retry")
    @dataclass(frozen=True, kw_only=True)
    class Retry:
        attempts: int = 3

    Retry(atempts=3)     ConfigurationError: retry: unknown option atempts, did you mean attempts?
    Retry(attempts="3")  ConfigurationError: retry.attempts '3': want a whole number

Without this, a wrong value is found when it is first used: at a failure in production, deep in our own functions.
What an annotation cannot say (a number from 1, a text that is a length of time) the class checks itself, afterwards,
and may rely on the types.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Set
from enum import Enum
from functools import cache, wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from redrive.errors import ConfigurationError
from redrive.text import did_you_mean, loggable

C = TypeVar("C", bound=type)

# What would do instead of a value, by the option that it was given for: a phrase, or a function of the value.
Examples = Mapping[str, str | Callable[[Any], str]]

_LONGEST = 100  # characters of a value that is quoted
_NOUNS: Mapping[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    bytes: "bytes",
    None: "None",
    NoneType: "None",
    Path: "a path",
    Callable: "a function",
}


def checked(what: str, **examples: str | Callable[[Any], str]) -> Callable[[C], C]:
    """Make wrong names and types of a class's options a ConfigurationError that says what would do.

    `what` begins the message; `{option}` in it stands for the value of that option. An annotation with a text,
    `Annotated[str | timedelta, "a length of time"]`, is described by that text. `examples` show what to give for an
    option, as a text or as a function of the value that does not fit.
    """

    def decorate(cls: C) -> C:
        plain = cls.__init__  # type: ignore[misc]
        signature = inspect.signature(plain)
        parameters = list(signature.parameters.values())[1:]
        names = [one.name for one in parameters]
        defaults = {one.name: one.default for one in parameters}

        @wraps(plain)
        def checked_init(self: object, *arguments: Any, **options: Any) -> None:
            given = {**dict(zip(names, arguments, strict=False)), **options}
            if not _binds(signature, arguments, options, given):
                raise _binding_error(signature, cls.__name__, _fill(what, given), arguments, options)
            hints = option_types(plain)
            for name, value in given.items():
                if value is not defaults[name] and not fits(value, hints[name]):
                    whose = f"{_fill(what, given)}: " if "{" in what else f"{what}."
                    raise _type_error(whose, name, value, hints[name], examples)
            plain(self, *arguments, **options)

        cls.__init__ = checked_init  # type: ignore[misc]
        return cls

    return decorate


def _binds(
    signature: inspect.Signature, arguments: tuple[Any, ...], options: Mapping[str, Any], given: Mapping[str, Any]
) -> bool:
    """Return whether a call is possible. `inspect.Signature.bind` takes ten times as long."""
    known, required, positional = _names(signature)
    fit = len(arguments) <= positional and len(given) == len(arguments) + len(options)
    return fit and known >= given.keys() >= required


@cache
def _names(signature: inspect.Signature) -> tuple[frozenset[str], frozenset[str], int]:
    """Return the names of the options, of those that must be given, and the number of positional ones."""
    parameters = list(signature.parameters.values())[1:]
    required = (one.name for one in parameters if one.default is one.empty)
    positional = sum(one.kind is not one.KEYWORD_ONLY for one in parameters)
    return frozenset(one.name for one in parameters), frozenset(required), positional


def _binding_error(
    signature: inspect.Signature, name: str, what: str, arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> ConfigurationError:
    check_names(what, options, list(signature.parameters)[1:])
    try:
        signature.bind(None, *arguments, **options)
    except TypeError as error:
        return ConfigurationError(f"{name}: {error}; want {name}{_outline(signature)}")
    raise AssertionError(f"{name}{signature} takes {arguments} {options}")


def _outline(signature: inspect.Signature) -> str:
    names = list(signature.parameters.values())[1:]
    positional = [one.name for one in names if one.kind is not one.KEYWORD_ONLY]
    by_name = [f"{one.name}=..." for one in names if one.kind is one.KEYWORD_ONLY]
    return f"({', '.join([*positional, *by_name])})"


def _fill(what: str, given: Mapping[str, Any]) -> str:
    try:
        return loggable(what.format_map(given), _LONGEST)
    except (KeyError, AttributeError):  # the option that names it is missing, or of another type
        return what.partition(" {")[0]


def check_names(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise a ConfigurationError if an option is unknown."""
    names = sorted(known)
    for name in given:
        if name not in names:
            hint = did_you_mean(name, names, f"; there are {', '.join(names)}")
            raise ConfigurationError(f"{what}: unknown option {name}{hint}", option=name)


def check_types(what: str, given: Mapping[str, Any], hints: Mapping[str, Any], examples: Examples) -> None:
    """Raise a ConfigurationError that begins with `what` if a value is not of its option's type."""
    for name, value in given.items():
        if not fits(value, hints[name]):
            raise _type_error(what, name, value, hints[name], examples)


def _type_error(what: str, name: str, value: object, hint: Any, examples: Examples) -> ConfigurationError:
    wanted = _wanted(hint, value, examples.get(name))
    return ConfigurationError(f"{what}{name} {_quote(value)}: want {wanted}", option=name)


@cache
def option_types(options: Any) -> Mapping[str, Any]:
    """Return the types of a function's parameters, a dataclass's fields or a TypedDict's keys."""
    return get_type_hints(options, include_extras=True)


def _quote(value: object) -> str:
    try:
        return loggable(repr(value), _LONGEST)
    except Exception:  # a stranger's __repr__, or an int of thousands of digits
        return f"of type {type(value).__name__}"


def _wanted(hint: Any, value: object, example: str | Callable[[Any], str] | None) -> str:
    wanted = describe(hint)
    if example is None:
        return wanted
    return f"{wanted}, such as {example if isinstance(example, str) else example(value)}"


# Types --------------------------------------------------------------------------------------------------


@cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint) or hint, get_args(hint)


def fits(value: object, hint: Any) -> bool:
    """Return whether a value is of a type, as far as that can be seen without using it."""
    origin, arguments = _parts(hint)
    if origin is Any or isinstance(origin, TypeVar):
        return True
    if origin is Union or origin is UnionType:
        return any(fits(value, one) for one in arguments)
    if origin is Annotated:
        return fits(value, arguments[0])
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in arguments)
    if origin is None or origin is NoneType:
        return value is None
    return _fits_class(value, origin, arguments)


def _fits_class(value: object, cls: type, arguments: tuple[Any, ...]) -> bool:
    if is_typeddict(cls):  # Router checks its contents
        return isinstance(value, Mapping)
    if isinstance(value, bool) and cls in (int, float):  # Python takes True for 1
        return False
    if cls is float:
        return isinstance(value, int | float)
    if cls is type:
        return isinstance(value, type) and (not arguments or issubclass(value, arguments[0]))
    if issubclass(cls, Enum) and issubclass(cls, str):
        return isinstance(value, str)  # what takes it checks the text
    if getattr(cls, "_is_protocol", False):
        return all(hasattr(value, name) for name in _protocol_members(cls))
    if isinstance(value, str | bytes) and issubclass(cls, Iterable):  # Python takes a text for a list of texts
        return cls in (str, bytes) and isinstance(value, cls)
    return isinstance(value, cls) and _contents_fit(value, cls, arguments)


def _contents_fit(value: object, cls: type, arguments: tuple[Any, ...]) -> bool:
    if isinstance(value, Mapping) and len(arguments) == 2:
        return all(fits(key, arguments[0]) and fits(one, arguments[1]) for key, one in value.items())
    if cls is tuple and arguments[-1:] != (Ellipsis,) and isinstance(value, tuple):
        return len(value) == len(arguments) and all(map(fits, value, arguments))
    if isinstance(value, list | tuple | Set) and arguments:  # not an iterator: it can be read once
        return all(fits(one, arguments[0]) for one in value)
    return True


def _protocol_members(cls: Any) -> frozenset[str]:
    own = [base for base in cls.__mro__ if getattr(base, "_is_protocol", False)]
    names = {name for base in own for name in (*vars(base), *vars(base).get("__annotations__", ()))}
    return frozenset(name for name in names if not name.startswith("_") or name == "__call__")


def describe(hint: Any) -> str:
    """Return a type in words: "a whole number or None"."""
    origin, arguments = _parts(hint)
    if origin is Union or origin is UnionType:
        return _join(map(describe, arguments))
    if origin is Annotated:
        return str(arguments[1])
    if origin is Literal:
        return _join(map(repr, arguments))
    return _NOUNS.get(origin) or _describe_class(origin, arguments)


def _join(words: Iterable[str]) -> str:
    *others, last = dict.fromkeys(words)
    return f"{', '.join(others)} or {last}" if others else last


def _describe_class(cls: type, arguments: tuple[Any, ...]) -> str:
    if is_typeddict(cls):
        return "a mapping of options to values"
    if issubclass(cls, Enum):
        return f"one of {', '.join(str(one.value) for one in cls)}"
    if cls is type:
        return f"a subclass of {arguments[0].__name__}" if arguments else "a class"
    if issubclass(cls, Mapping):
        return f"a mapping of {_plural(arguments[0])} to {_plural(arguments[1])}"
    if issubclass(cls, Iterable) and arguments:
        return f"a list of {_plural(arguments[0])}"
    return f"{'an' if cls.__name__[0] in 'AEIO' else 'a'} {cls.__name__}"


def _plural(hint: Any) -> str:
    origin = get_origin(hint) or hint
    if origin is Any:
        return "values"
    if origin is Annotated:
        return f"values, each {describe(hint)}"
    if (noun := _NOUNS.get(origin)) is not None:
        return f"{noun.removeprefix('a ')}s"
    return f"{origin.__name__} objects"
