"""Which publishes the broker has answered for (RabbitMQ's publisher confirms).

The broker numbers the publishes of a channel from 1 and acks or nacks the numbers, singly or all up to one,
in any order. A message that could not be routed is *returned* first and then acked like any other. The return
does not carry the number, and two messages in flight may share their `message_id` (a retry and its original
do), so the message is found by what was sent: the oldest unanswered publish with the same exchange, routing
key, body and properties. When two are alike in all of these, blaming either is right: one of two identical
messages is stored and one is not.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Generic, TypeVar

from redrive.errors import RemoteProtocolError, ReplyCode

W = TypeVar("W")


class Pending(Generic[W]):
    """A publish that is waiting for its confirm. `waiter` is the caller's business."""

    __slots__ = ("body", "exchange", "properties", "returned", "routing_key", "waiter")

    def __init__(self, exchange: str, routing_key: str, properties: bytes, body: bytes, waiter: W) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        self.body = body
        self.waiter = waiter
        self.returned: str | None = None  # why the broker sent it back

    def __repr__(self) -> str:
        returned = f" returned={self.returned!r}" if self.returned is not None else ""
        return f"<Pending exchange={self.exchange!r} key={self.routing_key!r} {len(self.body)} bytes{returned}>"


class ConfirmLedger(Generic[W]):
    def __init__(self) -> None:
        self._pending: dict[int, Pending[W]] = {}  # in publishing order
        self._last = 0

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, pending: Pending[W]) -> int:
        self._last += 1
        self._pending[self._last] = pending
        return self._last

    def settle(self, tag: int, multiple: bool) -> list[Pending[W]]:
        """Take out what the broker just answered for, in publishing order. Tag 0 with `multiple` means all."""
        if tag > self._last:
            text = f"a confirm for publish {tag}, but only {self._last} were made"
            raise RemoteProtocolError(ReplyCode.COMMAND_INVALID, text)
        if not multiple:
            answered = self._pending.pop(tag, None)
            return [answered] if answered is not None else []
        upto = tag or self._last
        return [self._pending.pop(number) for number in list(takewhile(lambda n: n <= upto, self._pending))]

    def mark_returned(
        self, exchange: str, routing_key: str, properties: bytes, body: bytes, why: str
    ) -> Pending[W] | None:
        """Find the publish that was returned and note it down; its confirm is still to come."""
        alike = [
            pending
            for pending in self._pending.values()
            if pending.returned is None and pending.exchange == exchange and pending.routing_key == routing_key
        ]
        alike = [pending for pending in alike if pending.body == body] or alike
        # A broker may rewrite the properties (BCC is taken out), so these only decide between equal bodies.
        alike = [pending for pending in alike if pending.properties == properties] or alike
        if not alike:
            return None
        alike[0].returned = why
        return alike[0]

    def abandon(self) -> list[Pending[W]]:
        """The channel is gone: take out everything that will never be answered."""
        pending = list(self._pending.values())
        self._pending.clear()
        return pending

    def __repr__(self) -> str:
        return f"<ConfirmLedger unconfirmed={len(self._pending)} published={self._last}>"
