"""Which errors a setting names: by class, by HTTP status, or by a function that says so.

    Retry(only=(ConnectionError, http_status(500, 599)), never=http_status(422))
    consumer("orders", dlq={http_status(422): "orders.invalid", BankError: "orders.bank"})

An error carries an HTTP status if it has one of these attributes with a whole number from 100 to 599; the first counts.
They are those of the common clients: httpx, requests, aiohttp, urllib.

    error.response.status_code    error.status_code
    error.response.status         error.status
                                  error.code

In a table several keys can match. The most specific one counts, whatever the order of the table: first a function, then
the narrowest range of statuses, then the nearest class among those that the error inherits from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias, TypeGuard, TypeVar

from redrive.errors import ConfigurationError

_FIRST, _LAST = 100, 599


@dataclass(frozen=True, slots=True)
class HttpStatus:
    """Errors that carry an HTTP status from `first` to `last`."""

    first: int
    last: int

    def __call__(self, error: BaseException) -> bool:
        status = status_of(error)
        return status is not None and self.first <= status <= self.last


def http_status(first: int, last: int | None = None) -> HttpStatus:
    """Name the errors that carry this HTTP status, or one from `first` to `last`: `http_status(500, 599)`."""
    last = first if last is None else last
    if not all(_is_status(status) for status in (first, last)) or last < first:
        shown = repr(first) if first == last else f"{first!r} to {last!r}"
        raise ConfigurationError(
            f"http_status {shown}: want a status, http_status(422), or a range of them from {_FIRST} to {_LAST}, "
            "http_status(500, 599)"
        )
    return HttpStatus(first, last)


ErrorFilter: TypeAlias = type[BaseException] | HttpStatus | Callable[[BaseException], bool]
Errors: TypeAlias = Annotated[
    ErrorFilter | tuple[ErrorFilter, ...],
    "an exception's class, a tuple of them, http_status(422), or a function of an error",
]

V = TypeVar("V")


def is_one_of(error: BaseException, errors: Errors) -> bool:
    """Return whether a setting names this error. Raises whatever a function in the setting raises."""
    if isinstance(errors, tuple):
        return any(_matches(error, one) for one in errors)
    return _matches(error, errors)


def most_specific(error: BaseException, table: Mapping[ErrorFilter, V]) -> V | None:
    """Return the value of the key that names this error most specifically; None if no key does."""
    matching = [key for key in table if _matches(error, key)]
    return table[min(matching, key=lambda key: _generality(error, key))] if matching else None


def _matches(error: BaseException, key: ErrorFilter) -> bool:
    return isinstance(error, key) if isinstance(key, type) else bool(key(error))


def _generality(error: BaseException, key: ErrorFilter) -> tuple[int, int]:
    if isinstance(key, HttpStatus):
        return 1, key.last - key.first
    if not isinstance(key, type):
        return 0, 0
    bases = type(error).__mro__
    distance = next((number for number, base in enumerate(bases) if base is key), len(bases))  # or it was registered
    return 2, distance


def check_errors(what: str, errors: object) -> None:
    """Raise ConfigurationError unless this names errors: it is used only when something has failed, which is late."""
    for one in errors if isinstance(errors, tuple) else (errors,):
        check_filter(what, one, "a tuple of them, ")


def check_filter(what: str, key: object, several: str = "") -> None:
    names_errors = issubclass(key, BaseException) if isinstance(key, type) else callable(key) and key is not http_status
    if not names_errors:
        raise ConfigurationError(
            f"{what} {key!r}: want an exception's class, {several}http_status(422), or a function of an error"
        )


# HTTP statuses ------------------------------------------------------------------------------------


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error carries."""
    try:
        response = getattr(error, "response", None)
        found = _status_in(response, ("status_code", "status")) if response is not None else None
        return _status_in(error, ("status_code", "status", "code")) if found is None else found
    except Exception:  # a property that raises because there was no response
        return None


def _status_in(holder: object, names: tuple[str, ...]) -> int | None:
    for name in names:
        status = getattr(holder, name, None)
        if _is_status(status):
            return int(status)
    return None


def _is_status(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and _FIRST <= value <= _LAST
