"""Exchanges: which destinations a message goes to, by its key or its headers. One file for each type.

A matcher holds the bindings of one exchange and knows nothing of messages, queues or other exchanges: a destination
is whatever the broker put in. It is made for a dialect, since versions differ in what they refuse and compare.

    matcher = MATCHERS["topic"](dialect)
    matcher.bind(queue, "orders.*.created", {})
    matcher.match("orders.eu.created", {})         # (queue,)

The default exchange is none of these: it has no bindings, every queue is bound to it by its name.
"""

from __future__ import annotations

from typing import Any

from redrive.broker.exchanges.bindings import Bindings, InvalidBinding
from redrive.broker.exchanges.direct import Direct
from redrive.broker.exchanges.fanout import Fanout
from redrive.broker.exchanges.headers import Headers
from redrive.broker.exchanges.topic import Topic

__all__ = ["MATCHERS", "Bindings", "Direct", "Fanout", "Headers", "InvalidBinding", "Topic"]


MATCHERS: dict[str, type[Bindings[Any]]] = {"direct": Direct, "fanout": Fanout, "topic": Topic, "headers": Headers}
