"""headers: the arguments of a binding are headers that a message must have, all of them or any.

`x-match` says which: `all` (also when it is not there) or `any`. These ignore arguments whose names begin with
"x-"; `all-with-x` and `any-with-x` do not. An argument without a value (type `V`) wants the header to be there,
whatever its value. To want nothing is to match everything with `all`, and nothing with `any`.

`header_values` has the comparison of values, `Dialect` what a timestamp is compared with.

A message meets *conditions*: each of its headers is one by its value and one by being there. Bindings wait at the
conditions they want, so that a message looks only at those that want something it has.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeAlias

from redrive.broker.dialect import LATEST, Dialect
from redrive.broker.exchanges.bindings import Binding, Bindings, D, InvalidBinding
from redrive.broker.exchanges.header_values import Term, format_term, identity, seconds, term, type_name
from redrive.wire.values import FieldValue, Table

_Condition: TypeAlias = tuple[str, Term]  # a header's name and its value

_ANY_VALUE = ("any value",)  # which no term is
_EVERYTHING: _Condition = ("", ("everything",))  # a condition that every message meets

_X_MATCH = "x-match"
_MODES = ("all", "any", "all-with-x", "any-with-x")


@dataclass(frozen=True, slots=True)
class _HeaderMatch(Generic[D]):
    """The condition of one binding, prepared for comparison."""

    destination: D
    all: bool
    conditions: tuple[_Condition, ...]

    @property
    def index_keys(self) -> Iterable[_Condition]:
        """Return the conditions under which the binding is indexed: with `all`, the first one is enough."""
        if not self.all:
            return self.conditions
        return self.conditions[:1] or (_EVERYTHING,)

    def matches(self, met: Collection[_Condition]) -> bool:
        """Return whether a message found by one of the index keys meets the binding."""
        return not self.all or all(condition in met for condition in self.conditions)


class Headers(Bindings[D]):
    needs_headers: ClassVar[bool] = True

    def __init__(self, dialect: Dialect = LATEST) -> None:
        super().__init__(dialect)
        self._waiting: dict[
            _Condition, dict[tuple[D, str, Term], _HeaderMatch[D]]
        ] = {}  # by index key, then by binding

    def match(self, key: str, headers: Table) -> Iterable[D]:  # noqa: ARG002
        met: dict[_Condition, None] = {_EVERYTHING: None}
        for name, value in headers.items():
            met[name, _ANY_VALUE] = met[name, self._header(value)] = None
        found: dict[D, None] = {}
        for index_key in met:
            for binding in self._waiting.get(index_key, {}).values():
                if binding.destination not in found and binding.matches(met):
                    found[binding.destination] = None
        return tuple(found)

    def _header(self, value: FieldValue) -> Term:
        if isinstance(value, dt.datetime) and self.dialect.matches_timestamps_in_ms:
            return seconds(value) * 1000
        return term(value, equate_numbers=self.dialect.equates_numbers)

    def _check(self, binding: Binding[D]) -> None:
        mode = binding.arguments.get(_X_MATCH, "all")
        if not isinstance(mode, str):
            text = f"Invalid x-match field type {type_name(mode)} (value {format_term(mode)}); expected longstr"
            raise InvalidBinding(text)
        if mode not in _MODES:
            text = f"Invalid x-match field value {format_term(mode)}; expected all, any, all-with-x, or any-with-x"
            raise InvalidBinding(text)

    def _include(self, binding: Binding[D]) -> None:
        match = self._header_match(binding)
        for index_key in match.index_keys:
            self._waiting.setdefault(index_key, {})[_name(binding)] = match

    def _exclude(self, binding: Binding[D]) -> None:
        for index_key in self._header_match(binding).index_keys:
            del self._waiting[index_key][_name(binding)]
            if not self._waiting[index_key]:
                del self._waiting[index_key]

    def _header_match(self, binding: Binding[D]) -> _HeaderMatch[D]:
        mode = str(binding.arguments.get(_X_MATCH, "all"))
        conditions = tuple(
            (name, _ANY_VALUE if value is None else term(value, equate_numbers=self.dialect.equates_numbers))
            for name, value in binding.arguments.items()
            if _counts(name, mode)
        )
        return _HeaderMatch(binding.destination, mode.startswith("all"), conditions)


def _name(binding: Binding[D]) -> tuple[D, str, Term]:
    return binding.destination, binding.key, identity(binding.arguments)


def _counts(argument: str, mode: str) -> bool:
    return argument != _X_MATCH and (mode.endswith("-with-x") or not argument.startswith("x-"))
