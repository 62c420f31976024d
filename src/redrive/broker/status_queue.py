"""The exchanges, queues and bindings of a virtual host, read by `basic.get` from the queue `amq.redrive.inventory`.

RabbitMQ reports this over its management API, in the same rows. There is no such queue: the message is created when it
is read, and it must be read with `no_ack`, since there is nothing to requeue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import json

from redrive.broker.message import Message
from redrive.broker.queue import Queue
from redrive.wire.property_scan import skim

if TYPE_CHECKING:
    from redrive.broker.vhost import VirtualHost

STATUS_QUEUE = "amq.redrive.inventory"


def status_message(vhost: VirtualHost) -> bytes:
    rows = {"exchanges": _exchanges(vhost), "queues": _queues(vhost), "bindings": _bindings(vhost)}
    return json.encode({section: list(found) for section, found in rows.items()}, enc_hook=str)


def _exchanges(vhost: VirtualHost) -> Iterator[dict[str, Any]]:
    fields = ("name", "type", "durable", "auto_delete", "internal", "arguments")
    for exchange in vhost.exchanges.values():
        yield {field: getattr(exchange, field) for field in fields}


def _queues(vhost: VirtualHost) -> Iterator[dict[str, Any]]:
    for queue in vhost.queues.values():
        yield {
            "name": queue.name,
            "durable": queue.durable,
            "auto_delete": queue.auto_delete,
            "exclusive": queue.owner is not None,
            "arguments": queue.arguments,
            "messages_ready": len(queue),
            "messages_unacknowledged": queue.unacked,
            "consumers": queue.consumers,
            "head_message_timestamp": _published(queue.head),
        }


def _published(message: Message | None) -> int | None:
    """Return the timestamp of a message, if its publisher gave it one."""
    return None if message is None else skim(message.facts.raw).timestamp


def _bindings(vhost: VirtualHost) -> Iterator[dict[str, Any]]:
    for exchange in vhost.exchanges.values():
        for destination, key, arguments in exchange.matcher.bindings():
            yield {
                "source": exchange.name,
                "destination": destination.name,
                "destination_type": "queue" if isinstance(destination, Queue) else "exchange",
                "routing_key": key,
                "arguments": arguments,
            }
