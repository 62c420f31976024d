"""fanout: everything goes everywhere. The key of a binding is part of its name and has no meaning."""

from __future__ import annotations

from collections.abc import Iterable

from redrive.broker.exchanges.bindings import Binding, Bindings, D
from redrive.wire.values import Table


class Fanout(Bindings[D]):
    def match(self, key: str, headers: Table) -> Iterable[D]:  # noqa: ARG002
        return tuple(self._bound)

    def _include(self, binding: Binding[D]) -> None:
        """Whatever is bound gets everything."""

    def _exclude(self, binding: Binding[D]) -> None:
        """So there is nothing else to remember."""
