"""direct: the key of the message is the key of the binding."""

from __future__ import annotations

from collections.abc import Iterable

from redrive.broker.dialect import LATEST, Dialect
from redrive.broker.exchanges.bindings import Binding, Bindings, D, ReferenceCounts
from redrive.wire.values import Table


class Direct(Bindings[D]):
    def __init__(self, dialect: Dialect = LATEST) -> None:
        super().__init__(dialect)
        self._routes: dict[str, ReferenceCounts[D]] = {}

    def match(self, key: str, headers: Table) -> Iterable[D]:  # noqa: ARG002
        return tuple(self._routes.get(key, ()))

    def _include(self, binding: Binding[D]) -> None:
        self._routes.setdefault(binding.key, ReferenceCounts()).add(binding.destination)

    def _exclude(self, binding: Binding[D]) -> None:
        tally = self._routes[binding.key]
        tally.remove(binding.destination)
        if not tally:
            del self._routes[binding.key]
