"""Exchanges: which destinations a message goes to, by its key or its headers. One file for each type.

A matcher holds the bindings of one exchange and knows nothing of messages, queues or other exchanges: a destination
is whatever the broker put in. It is made for a dialect, since versions differ in what they refuse and compare.

    matcher = MATCHERS["topic"](dialect)
    matcher.bind(queue, "orders.*.created", {})
    matcher.match("orders.eu.created", {})         # (queue,)

The default exchange is none of these: it has no bindings, every queue is bound to it by its name.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from redrive.broker.exchanges.bindings import Bindings, InvalidBinding
from redrive.broker.exchanges.direct import Direct
from redrive.broker.exchanges.fanout import Fanout
from redrive.broker.exchanges.headers import Headers
from redrive.broker.exchanges.topic import Topic
from redrive.wire.values import Table

__all__ = ["MATCHERS", "Direct", "Fanout", "Headers", "InvalidBinding", "Matcher", "Topic"]

D = TypeVar("D", bound=Hashable)


class Matcher(Protocol[D]):
    @property
    def needs_headers(self) -> bool:
        """True: the answer depends on headers, so it cannot be remembered by routing key."""

    def bind(self, destination: D, key: str, arguments: Table) -> bool:
        """False when the very same binding exists. Raises InvalidBinding when the exchange refuses it."""

    def unbind(self, destination: D, key: str, arguments: Table) -> bool:
        """False when there is no such binding."""

    def drop(self, destination: D) -> bool:
        """Forget all bindings to a destination. False when there were none."""

    def leads_to(self, destination: D) -> bool:
        """Is there any binding to it?"""

    def match(self, key: str, headers: Table) -> Iterable[D]:
        """Where a message goes: each destination once."""

    def bindings(self) -> Iterator[tuple[D, str, Table]]: ...

    def __len__(self) -> int: ...


MATCHERS: dict[str, type[Bindings[Any]]] = {"direct": Direct, "fanout": Fanout, "topic": Topic, "headers": Headers}
