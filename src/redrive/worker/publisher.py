"""Publishing for applications: values in, a confirmed message out, with an id and its correlation.

Every message gets an id (UUIDv7: they sort by time), a timestamp and a content type. What is published while another
message is handled belongs to it: it carries on its correlation id.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from typing import Any, Protocol, TypedDict
from uuid import UUID

from redrive.errors import ConfigurationError
from redrive.recovery.durations import Duration, duration, milliseconds
from redrive.topology import ladder
from redrive.topology.model import Exchange
from redrive.wire.properties import PERSISTENT, Properties
from redrive.worker.clock import Clock
from redrive.worker.codecs import Codecs
from redrive.worker.events import Observer
from redrive.worker.message import current_message
from redrive.worker.ports import PublisherPort

Headers = dict[str, Any]


class PublishHook(Protocol):
    """Something that happens around a publish, and may write into its headers: a span of a trace."""

    def __call__(
        self,
        exchange: str,
        routing_key: str,
        headers: Headers,
        *,
        message_id: str | None = ...,
        correlation_id: str | None = ...,
    ) -> AbstractContextManager[Any]: ...


def no_hook(*_: object, **__: object) -> AbstractContextManager[Any]:
    return nullcontext()


class PublishOptions(TypedDict, total=False):
    """The options of `publish`, as keyword arguments."""

    after: Duration | None
    type: str | None
    headers: Mapping[str, Any] | None
    content_type: str | None
    message_id: str | None
    correlation_id: str | None
    reply_to: str | None
    priority: int | None
    persistent: bool


class Publisher:
    """`await publisher.publish("domain.events", "files.uploaded.png", file)`: returns when the broker has it."""

    def __init__(
        self,
        broker: PublisherPort,
        *,
        app: str,
        codecs: Codecs,
        clock: Clock,
        observer: Observer,
        hook: PublishHook = no_hook,
        delayed_exchange: str | None = None,
    ) -> None:
        """`delayed_exchange`: where the broker has one."""
        self._broker = broker
        self._app = app
        self._codecs = codecs
        self._clock = clock
        self._observer = observer
        self._hook = hook
        self._delayed_exchange = delayed_exchange

    async def publish(
        self,
        exchange: str | Exchange,
        routing_key: str,
        body: Any,
        *,
        after: Duration | None = None,
        type: str | None = None,
        headers: Mapping[str, Any] | None = None,
        content_type: str | None = None,
        message_id: str | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        priority: int | None = None,
        persistent: bool = True,
    ) -> str:
        """Publish a message, wait for the broker's confirm, and return the message's id.

        after: deliver it after this time; `exchange` is then "" and `routing_key` the name of a queue
        type: what kind of message it is
        headers: its headers
        content_type: how the body is encoded; by default as JSON, or as it is if it is bytes or a text
        message_id: its id; by default a UUIDv7
        correlation_id: the id of what it belongs to; by default that of the message being handled, or its own
        reply_to: where an answer is expected
        priority: its priority, on queues that have priorities
        persistent: whether it survives a restart of the broker
        """
        name = exchange.name if isinstance(exchange, Exchange) else exchange
        encoded, written_as = self._codecs.encode(body, content_type)
        now = self._clock.now()
        identity = message_id or str(uuid7(now, secrets.token_bytes(10)))
        all_headers = dict(headers or {})
        place = self._destination(name, routing_key, after, all_headers)
        handled = current_message.get()
        correlation = correlation_id or (handled.correlation_id if handled is not None else None) or identity
        began = self._clock.monotonic()
        with self._hook(name, routing_key, all_headers, message_id=identity, correlation_id=correlation):
            properties = Properties(
                content_type=written_as,
                headers=all_headers or None,
                delivery_mode=PERSISTENT if persistent else 1,
                priority=priority,
                correlation_id=correlation,
                reply_to=reply_to,
                message_id=identity,
                timestamp=now,
                type=type,
                app_id=self._app,
            )
            await self._broker.publish(*place, encoded, properties)
        self._observer.published(name, self._clock.monotonic() - began)
        return identity

    def _destination(
        self, exchange: str, routing_key: str, after: Duration | None, headers: dict[str, Any]
    ) -> tuple[str, str]:
        delay = duration(after, "after") if after is not None else timedelta(0)
        if delay <= timedelta(0):
            return exchange, routing_key
        if exchange:
            raise ConfigurationError(
                f"after={after!r} delays messages to a queue: publish to the exchange '' with the queue's name as key"
            )
        if self._delayed_exchange is None:
            return ladder.ENTRANCE, ladder.routing_key(delay, routing_key)
        headers["x-delay"] = milliseconds(delay)
        return self._delayed_exchange, routing_key


def uuid7(moment: datetime, chance: bytes) -> UUID:
    """An identity that sorts by the time it was made (RFC 9562, version 7). `chance` are ten random bytes."""
    number = int(moment.timestamp() * 1000) << 80 | int.from_bytes(chance, "big")
    number = number & ~(0xF << 76) | 0x7 << 76
    number = number & ~(0x3 << 62) | 0x2 << 62
    return UUID(int=number)
