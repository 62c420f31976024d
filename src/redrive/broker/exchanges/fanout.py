"""fanout: everything goes everywhere. The key of a binding is part of its name and has no meaning."""

from __future__ import annotations

from collections.abc import Iterable

from redrive.broker.exchanges.bindings import Bindings, D
from redrive.wire.values import Table


class Fanout(Bindings[D]):
    def match(self, key: str, headers: Table) -> Iterable[D]:  # noqa: ARG002
        return tuple(self._bound)
