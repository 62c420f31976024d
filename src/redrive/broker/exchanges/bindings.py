"""The bindings of an exchange: which there are. What they match is for each type to say.

A binding is named by its destination, key and arguments; to bind once more what is bound is to do nothing. A type
that looks at the key only (or at nothing) still keeps apart two bindings that differ in their arguments, and a
message that fits both goes to their destination once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator
from typing import ClassVar, Generic, NamedTuple, TypeVar

from redrive.broker.dialect import LATEST, Dialect
from redrive.broker.exchanges.header_values import Term, identity
from redrive.wire.values import Table

D = TypeVar("D", bound=Hashable)


class InvalidBinding(ValueError):
    """A binding that the exchange refuses: PRECONDITION_FAILED, in RabbitMQ's words."""


class Binding(NamedTuple, Generic[D]):
    destination: D
    key: str
    arguments: Table


class Bindings(ABC, Generic[D]):
    """All that is the same for every type of exchange."""

    needs_headers: ClassVar[bool] = False  # True: the result depends on headers, so it cannot be cached by routing key

    def __init__(self, dialect: Dialect = LATEST) -> None:
        self.dialect = dialect
        self._bound: dict[D, dict[tuple[str, Term], Binding[D]]] = {}
        self._count = 0

    # What a type of exchange does ---------------------------------------------------------------------

    @abstractmethod
    def match(self, key: str, headers: Table) -> Iterable[D]:
        """Where a message goes: each destination once."""

    def _check(self, binding: Binding[D]) -> None:
        """Raise InvalidBinding if it makes no sense."""

    def _include(self, binding: Binding[D]) -> None:
        """Index a new binding."""

    def _exclude(self, binding: Binding[D]) -> None:
        """Remove a binding from the index."""

    # What all of them do ------------------------------------------------------------------------------

    def bind(self, destination: D, key: str, arguments: Table) -> bool:
        """False when the very same binding exists."""
        binding = Binding(destination, key, arguments)
        self._check(binding)
        bound = self._bound.setdefault(destination, {})
        name = key, identity(arguments)
        if name in bound:
            return False
        bound[name] = binding
        self._count += 1
        self._include(binding)
        return True

    def unbind(self, destination: D, key: str, arguments: Table) -> bool:
        """False when there is no such binding."""
        bound = self._bound.get(destination, {})
        binding = bound.pop((key, identity(arguments)), None)
        if binding is None:
            return False
        if not bound:
            del self._bound[destination]
        self._count -= 1
        self._exclude(binding)
        return True

    def drop(self, destination: D) -> bool:
        """Forget all bindings to a destination. False when there were none."""
        bound = self._bound.pop(destination, {})
        self._count -= len(bound)
        for binding in bound.values():
            self._exclude(binding)
        return bool(bound)

    def leads_to(self, destination: D) -> bool:
        """Is there any binding to it?"""
        return destination in self._bound

    def bindings(self) -> Iterator[Binding[D]]:
        for bound in self._bound.values():
            yield from bound.values()

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<{type(self).__name__} bindings={self._count} destinations={len(self._bound)}>"


class ReferenceCounts(dict[D, int]):
    """Destinations, and how many bindings lead to each."""

    def add(self, destination: D) -> None:
        self[destination] = self.get(destination, 0) + 1

    def remove(self, destination: D) -> None:
        if self[destination] == 1:
            del self[destination]
        else:
            self[destination] -= 1
