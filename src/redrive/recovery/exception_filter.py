"""Which errors a setting means: a type, several, or a function that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

from redrive.errors import ConfigurationError

_WANTED = "an exception's class, a tuple of them, or a function of an error"

Errors: TypeAlias = Annotated[
    type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool], _WANTED
]


def is_one_of(error: BaseException, errors: Errors) -> bool:
    if isinstance(errors, type | tuple):
        return isinstance(error, errors)
    return bool(errors(error))


def check_errors(what: str, errors: object) -> None:
    """Who is asked only when something has failed must not turn out to be no question then."""
    kinds = errors if isinstance(errors, tuple) else (errors,)
    for kind in kinds:
        if not _is_exception(kind) and (isinstance(kind, type) or kind is not errors or not callable(kind)):
            raise ConfigurationError(f"{what} {kind!r}: want {_WANTED}")


def _is_exception(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)
