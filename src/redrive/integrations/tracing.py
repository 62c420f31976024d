"""OpenTelemetry spans for what happens to a message, by the semantic conventions for messaging and RabbitMQ.

    publish domain.events     PRODUCER   its context travels in the headers, as W3C `traceparent`
      process q.orders        CONSUMER   its parent is the publish, in every attempt

A message keeps the context it was created with however often it is retried, parked, re-driven or relayed: "if a user
provides a custom creation context in a message, this context SHOULD NOT be modified". Publishing it again is then a
span of kind CLIENT that links to that context.

Only the API is needed. Where no SDK was set up before `Tracing` was made, it is off and its spans are one shared object
that does nothing. What a stranger wrote into the headers never fails a message: a context that cannot be read is none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from typing import Any, Protocol

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import INVALID_SPAN, Link, Span, SpanKind, Tracer
from opentelemetry.util.types import AttributeValue

from redrive.worker.message import Message
from redrive.worker.publisher import PublishHook

__all__ = ["Tracing", "instrument"]

Headers = Mapping[str, Any]
Attributes = dict[str, AttributeValue]

_NOTHING: AbstractContextManager[Span] = nullcontext(INVALID_SPAN)


# The context in the headers -----------------------------------------------------------------------


class HeaderGetter(Getter[Headers]):
    """AMQP carries texts as bytes or as strings, and under any name anything."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        value = carrier.get(key)
        if isinstance(value, bytes):
            value = value.decode("ascii", "replace")
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Headers) -> list[str]:
        return [key for key in carrier if isinstance(key, str)]


_GETTER = HeaderGetter()


def inject(headers: MutableMapping[str, Any]) -> None:
    """Write the current context into the headers, by the propagators that are set up."""
    propagate.inject(headers)


def extract(headers: Headers) -> Context:
    """The context that is written in the headers; an empty one if there is none."""
    return propagate.extract(headers, Context(), getter=_GETTER)


def _link(context: Context) -> list[Link]:
    span = trace.get_current_span(context).get_span_context()
    return [Link(span)] if span.is_valid else []


# Spans --------------------------------------------------------------------------------------------


class Tracing:
    """Context managers around the work of a worker. `provider` is the global one, as it is now, unless given."""

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        known = provider if provider is not None else trace.get_tracer_provider()
        off = isinstance(known, trace.ProxyTracerProvider | trace.NoOpTracerProvider)
        self._tracer = None if off else known.get_tracer("redrive")

    @property
    def is_on(self) -> bool:
        """Return whether spans are recorded."""
        return self._tracer is not None

    def publish_span(
        self,
        exchange: str,
        routing_key: str,
        headers: MutableMapping[str, Any],
        *,
        message_id: str | None = None,
        correlation_id: str | None = None,
    ) -> AbstractContextManager[Span]:
        """Around publish and confirm: enter it before the headers are encoded, to which it adds its context."""
        if self._tracer is None:
            return _NOTHING
        attributes = _common("publish", "send", destination(exchange, routing_key), routing_key)
        attributes |= _identity(message_id, correlation_id)
        return _publish_span(self._tracer, f"publish {exchange or routing_key}", headers, attributes)

    def process_span(self, message: Message) -> AbstractContextManager[Span]:
        """Around the handler."""
        if self._tracer is None:
            return _NOTHING
        attributes, context = _message_attributes("process", "process", message), extract(_headers(message))
        return _span(self._tracer, f"process {message.queue}", SpanKind.CONSUMER, attributes, context=context)

    def __repr__(self) -> str:
        return f"<Tracing {'on' if self.is_on else 'off'}>"


@contextmanager
def _span(
    tracer: Tracer,
    name: str,
    kind: SpanKind,
    attributes: Attributes,
    *,
    context: Context | None = None,
    links: list[Link] | None = None,
) -> Iterator[Span]:
    with tracer.start_as_current_span(name, context, kind, attributes, links) as span:
        try:
            yield span
        except Exception as error:
            span.set_attribute("error.type", _type(error))
            raise


@contextmanager
def _publish_span(
    tracer: Tracer, name: str, headers: MutableMapping[str, Any], attributes: Attributes
) -> Iterator[Span]:
    created = _link(extract(headers))
    kind = SpanKind.CLIENT if created else SpanKind.PRODUCER
    with _span(tracer, name, kind, attributes, links=created) as span:
        if not created:
            inject(headers)
        yield span


# What a span says ---------------------------------------------------------------------------------


def destination(exchange: str, routing_key: str, queue: str = "") -> str:
    """`{exchange}:{routing key}:{queue}` without what is empty; key and queue once if they are the same."""
    parts = [exchange, routing_key, "" if queue == routing_key else queue]
    return ":".join(part for part in parts if part) or "amq.default"


def _message_attributes(name: str, kind: str, message: Message) -> Attributes:
    try:
        where = destination(message.exchange, message.routing_key, message.queue)
        attributes = _common(name, kind, where, message.routing_key)
        attributes |= _identity(message.message_id, message.correlation_id)
        return attributes | {"messaging.message.body.size": len(message.body), "redrive.attempt": message.attempt}
    except Exception:  # properties that cannot be read are the worker's business
        return _common(name, kind, message.queue, "")


def _common(name: str, kind: str, where: str, routing_key: str) -> Attributes:
    attributes: Attributes = {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": where,
    }
    if routing_key:
        attributes["messaging.rabbitmq.destination.routing_key"] = routing_key
    return attributes


def _identity(message_id: str | None, correlation_id: str | None) -> Attributes:
    known = {"messaging.message.id": message_id, "messaging.message.conversation_id": correlation_id}
    return {name: value for name, value in known.items() if value is not None}


def _headers(message: Message) -> Headers:
    try:
        return message.headers
    except Exception:
        return {}


def _type(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class Instrumented(Protocol):
    """An application that can be traced."""

    middleware: list[Callable[[Any], AbstractAsyncContextManager[Any]]]
    publish_hook: PublishHook


def instrument(app: Instrumented, tracing: Tracing) -> None:
    """Have an application's handlers run within spans, and what it publishes carry on their traces."""
    if not tracing.is_on:
        return

    @asynccontextmanager
    async def trace(message: Message) -> AsyncIterator[Span]:
        with tracing.process_span(message) as span:
            yield span

    app.middleware.insert(0, trace)
    app.publish_hook = tracing.publish_span
