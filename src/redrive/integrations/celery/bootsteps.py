"""The worker's own part: the topology is made before the first task is run, and what is no task is parked.

Celery acknowledges a message that it cannot decode, and rejects one of a task that it does not know. Both are often
somebody's mistake in a deploy, and worth keeping: they are parked with the reason.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from amqp.exceptions import PreconditionFailed
from celery import bootsteps
from celery.exceptions import NotRegistered
from celery.worker.consumer import Consumer as CeleryConsumer

from redrive.errors import TopologyError
from redrive.integrations.celery.messages import body_of, properties_of, restore_nulls
from redrive.integrations.celery.producer import budget_of, hand_over
from redrive.integrations.celery.queues import equipment_of, find_place
from redrive.recovery.failure import describe
from redrive.recovery.failure_headers import ParkReason, parking
from redrive.recovery.history import read_history
from redrive.topology import Definitions, Server, Topology, expand

log = logging.getLogger("redrive.integrations.celery")


class Provision(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Make what is missing of the topology, whenever the worker has connected. Nothing is changed or deleted."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def start(self, parent: Any) -> None:
        equipment = equipment_of(parent.app)
        if equipment is not None:
            with parent.connection.channel() as channel:
                provision(channel, equipment.topology)


def provision(channel: Any, topology: Topology) -> None:
    """Over kombu's channel; raises TopologyError if something is there in another form."""
    try:
        _declare(channel, expand(topology, _server_of(channel)))
    except PreconditionFailed as error:
        raise TopologyError([f"{error}: RabbitMQ cannot change that in place, see `redrive topology plan`"]) from None


def _declare(channel: Any, wanted: Definitions) -> None:
    for exchange in wanted.exchanges:
        channel.exchange_declare(
            exchange.name,
            exchange.type,
            durable=exchange.durable,
            auto_delete=exchange.auto_delete,
            arguments=dict(exchange.arguments),
            nowait=False,
        )
    for queue in wanted.queues:
        channel.queue_declare(
            queue.name,
            durable=queue.durable,
            exclusive=False,
            auto_delete=queue.auto_delete,
            arguments=dict(queue.arguments),
            nowait=False,
        )
    for bind in wanted.bindings:
        make = channel.queue_bind if bind.destination_type == "queue" else channel.exchange_bind
        make(bind.destination, bind.source, bind.routing_key, arguments=dict(bind.arguments))


def _server_of(channel: Any) -> Server:
    told = re.match(r"\d+(\.\d+){0,2}", str(channel.connection.server_properties.get("version", "")), re.ASCII)
    return Server.of(told[0]) if told is not None else Server()


class Consumer(CeleryConsumer):  # type: ignore[misc]  # Celery has no types
    """Celery's, but for messages that are no task of ours, and for what the management API made of null headers."""

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        receive: Callable[[Any], Any] = super().create_task_handler(*args, **options)

        def on_task_received(message: Any) -> Any:
            restore_nulls(message.headers)
            return receive(message)

        return on_task_received

    def on_decode_error(self, message: Any, exc: BaseException) -> None:
        super().on_decode_error(_Parked(self.app, message, exc, self.hostname), exc)

    def on_unknown_message(self, body: Any, message: Any) -> None:
        error = ValueError("this is not a message of Celery's: it names no task")
        super().on_unknown_message(body, _Parked(self.app, message, error, self.hostname))

    def on_unknown_task(self, body: Any, message: Any, exc: BaseException) -> None:
        error = NotRegistered(str((message.headers or {}).get("task", exc)))
        super().on_unknown_task(body, _Parked(self.app, message, error, self.hostname), exc)

    def on_invalid_task(self, body: Any, message: Any, exc: BaseException) -> None:
        super().on_invalid_task(body, _Parked(self.app, message, exc, self.hostname), exc)


class _Parked:
    """A message that is parked when Celery wants to be rid of it."""

    def __init__(self, app: Any, message: Any, error: BaseException, host: str) -> None:
        self._app, self._message, self._error, self._host = app, message, error, host

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)

    def ack(self) -> None:
        self.reject_log_error(log, ())

    def reject_log_error(self, logger: Any, errors: Any, requeue: bool = False) -> None:
        if self._copied():
            self._message.ack_log_error(logger, errors)
        else:
            self._message.reject_log_error(logger, errors, requeue)

    def _copied(self) -> bool:
        message = self._message
        headers = message.headers or {}
        place = find_place(self._app, message.delivery_info, headers)
        if place is None or place.dead_end is None or place.parking == "reject":
            return False
        now, history = datetime.now(UTC), read_history(headers, place.name, via_reject=False)
        try:
            raw = parking(
                properties_of(message).encode(),
                history,
                describe(self._error, now),
                reason=ParkReason.MALFORMED,
                origin=place.origin(self._app, message.delivery_info, self._host),
                attempt=history.failed + 1,
                at=now,
                budget=budget_of(self._app),
            )
            hand_over(self._app, body_of(message), raw, place.dead_end)
        except Exception as error:  # the reject that follows leads to the same place
            log.error("a message of %s that is no task cannot be published: %s", place.name, error)
            return False
        return True
