"""Publish mandatory and confirmed, over the application's own connections: its TLS, its failover, its credentials.

kombu publishes; what it does not do is to say that a message reached no queue. RabbitMQ returns such a message, *then*
confirms it. py-amqp raises at the return if nobody listens for it, and the confirm that follows is taken for that of
the next message. So there is a listener here, for as long as a producer is used, and both are waited for.

Whatever goes wrong, the connection is not used again: confirms may be under way on it.

Tasks use a connection of the application's pool. The worker's main process does not: it forks a child whenever one is
gone, the child closes the pool that it has inherited, and with it shuts down the sockets of its parent, in the middle
of whatever the parent was publishing. So the main process has a connection of its own, which no child ever touches.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from amqp.exceptions import ChannelError, MessageNacked
from kombu import Producer
from kombu.utils.functional import ChannelPromise

from redrive.errors import ConfigurationError, EncodingError, PublishRefused, Unroutable
from redrive.integrations.celery.messages import headers_of, plain
from redrive.recovery.failure_headers import BUDGET
from redrive.wire.properties import Properties, decode_properties

# What becomes of the properties of a message, in bytes; the story is written into them.
Rewrite = Callable[[bytes], bytes]

CONFIRMED_WITHIN = 30.0  # seconds; a broker in a memory or disk alarm confirms nothing

_TOLD = ("priority", "correlation_id", "reply_to", "message_id", "timestamp", "type", "app_id", "cluster_id")
_MEASURED = ("correlation_id", "reply_to", "priority", "message_id", "type", "app_id")


@contextmanager
def confirmed_producer(app: Any, rewrite: Rewrite) -> Iterator[ConfirmedProducer]:
    """A producer for one message, in the process that runs a task."""
    with app.pool.acquire(block=True) as connection:
        producer = ConfirmedProducer(connection, rewrite)
        try:
            yield producer
        finally:
            producer.leave()


class Outlet:
    """The main process's own connection, made when it is first needed."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._connection: Any = None
        self._process = 0
        self._one_at_a_time = threading.Lock()  # pools of threads tell of results in any of them

    @contextmanager
    def producer(self) -> Iterator[ConfirmedProducer]:
        with self._one_at_a_time:
            if self._connection is None or self._process != os.getpid():
                self._connection, self._process = self._app.connection_for_write(), os.getpid()
            producer = ConfirmedProducer(self._connection)
            try:
                yield producer
            except BaseException:
                self._connection.collect()
                self._connection = None
                raise
            finally:
                producer.leave()


def _outlet_of(app: Any) -> Outlet:
    if not hasattr(app, "redrive_outlet"):
        app.redrive_outlet = Outlet(app)
    found: Outlet = app.redrive_outlet
    return found


def hand_over(app: Any, body: bytes, raw: bytes, to: tuple[str, str]) -> None:
    """Publish a copy of a message with these properties, as they are. Returns when the broker has it."""
    told = decode_properties(raw)
    with _outlet_of(app).producer() as producer:
        producer.publish(
            body,
            exchange=to[0],
            routing_key=to[1],
            content_type=told.content_type or "application/data",
            content_encoding=told.content_encoding or "binary",
            headers=dict(told.headers or {}),
            delivery_mode=told.delivery_mode or 2,
            retry=True,
            retry_policy=dict(app.conf.task_publish_retry_policy),
            **{name: value for name in _TOLD if (value := getattr(told, name)) is not None},
        )


class ConfirmedProducer(Producer):  # type: ignore[misc]  # kombu has no types for it
    """Raises unless the message is stored in a queue: `Unroutable`, `PublishRefused`, or what the connection raised."""

    def __init__(self, connection: Any, rewrite: Rewrite | None = None) -> None:
        if not (connection.transport_options or {}).get("confirm_publish"):
            raise ConfigurationError(
                "broker_transport_options has no confirm_publish any more, which equip() had set: without confirms "
                "a retry may be lost"
            )
        self._rewrite = rewrite
        self._unroutable: list[str] = []
        super().__init__(connection, auto_declare=False, on_return=self._on_return)

    def _on_return(self, error: BaseException, *_: object) -> None:
        self._unroutable.append(str(error))

    def publish(self, body: Any, **how: Any) -> None:
        """As kombu's, but for `mandatory`, which it always is, and what `rewrite` makes of the properties."""
        exchange, key = str(how.get("exchange") or ""), str(how.get("routing_key") or "")
        if self._rewrite is not None:
            how["headers"] = self._rewritten(how)
            how.pop("expiration", None)  # it would end the wait too early; the worker looks at `expires` again
        how["confirm_timeout"] = how.get("confirm_timeout") or CONFIRMED_WITHIN
        try:
            super().publish(body, **{**how, "mandatory": True})
        except MessageNacked:
            raise PublishRefused(exchange, key, "the broker refused it: is a queue full?") from None
        except ChannelError as error:
            raise PublishRefused(exchange, key, str(error)) from error
        if self._unroutable:
            raise Unroutable(exchange, key, f"no queue took it: {self._unroutable[0]}")

    def _rewritten(self, how: Mapping[str, Any]) -> dict[str, Any]:
        headers: dict[str, Any] = dict(how.get("headers") or {})
        assert self._rewrite is not None
        measured = {name: plain(how[name]) for name in _MEASURED if how.get(name) is not None}
        try:
            raw = Properties(headers=headers_of(headers), delivery_mode=2, **measured).encode()
        except EncodingError:  # stamps of a kind that AMQP has no word for: without a story, then
            return headers
        return dict(decode_properties(self._rewrite(raw)).headers or {})

    def leave(self) -> None:
        """The channel is somebody else's from here on."""
        if not isinstance(self._channel, ChannelPromise):
            self._channel.events["basic_return"].discard(self._on_return)


def budget_of(app: Any) -> int:
    """How large properties may be: a header is one frame, and a larger one ends the connection."""
    options: Mapping[str, Any] = app.conf.broker_transport_options or {}
    return min(BUDGET, int(options.get("frame_max") or BUDGET + 64) - 64)
