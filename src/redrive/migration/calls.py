"""What is done to a broker in the course of a migration, each a call.

Nothing is remembered, so nothing is made again after a reconnect. And when the connection was lost nothing is done any
more: the lock went with it, and somebody else may hold it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from redrive.errors import ConnectionLost, NotFound, PreconditionFailed
from redrive.migration.ports import Migrator
from redrive.topology.definitions import BindingDefinition, Definition, ExchangeDefinition, QueueDefinition
from redrive.wire import methods as m
from redrive.wire.method import Method

M = TypeVar("M", bound=Method)


@dataclass(frozen=True, slots=True)
class QueueUsage:
    """What a passive declaration tells, exactly and at once."""

    messages: int  # ready to be delivered
    consumers: int

    @property
    def is_idle(self) -> bool:
        return not self.messages and not self.consumers


class MigrationCalls:
    def __init__(self, broker: Migrator) -> None:
        self.broker = broker
        self._last_error = broker.last_error

    def check(self) -> None:
        error = self.broker.last_error
        if error is not self._last_error:
            raise ConnectionLost(f"the connection was lost, and the lock on the queue with it ({error})")

    async def _ask(self, method: Method, reply: type[M]) -> M:
        self.check()
        answer = await self.broker.ask(method, reply)
        self.check()
        return answer

    # Looking ------------------------------------------------------------------------------------------

    async def usage(self, queue: str) -> QueueUsage | None:
        """None: there is no such queue."""
        try:
            answer = await self._ask(m.QueueDeclare(queue=queue, passive=True), m.QueueDeclareOk)
        except NotFound:
            return None
        return QueueUsage(answer.message_count, answer.consumer_count)

    async def ready(self, queue: str) -> int:
        found = await self.usage(queue)
        return found.messages if found is not None else 0

    # Making -------------------------------------------------------------------------------------------

    async def make(self, definition: Definition) -> None:
        match definition:
            case ExchangeDefinition():
                await self._ask(_exchange(definition), m.ExchangeDeclareOk)
            case QueueDefinition():
                await self._ask(_queue(definition), m.QueueDeclareOk)
            case BindingDefinition(destination_type="queue"):
                await self._ask(m.QueueBind(**_binding(definition)), m.QueueBindOk)
            case BindingDefinition():
                await self._ask(m.ExchangeBind(**_binding(definition)), m.ExchangeBindOk)

    async def lock(self, name: str) -> None:
        """A queue that only this connection can have, and that goes with it."""
        await self._ask(m.QueueDeclare(queue=name, exclusive=True), m.QueueDeclareOk)

    # Taking away --------------------------------------------------------------------------------------

    async def unbind(self, binding: BindingDefinition) -> None:
        """What is not bound, or not even there, is unbound already."""
        if binding.destination_type == "queue":
            await self._ask(m.QueueUnbind(**_binding(binding)), m.QueueUnbindOk)
        else:
            await self._ask(m.ExchangeUnbind(**_binding(binding)), m.ExchangeUnbindOk)

    async def delete_exchange(self, name: str) -> None:
        await self._ask(m.ExchangeDelete(exchange=name), m.ExchangeDeleteOk)

    async def delete_idle(self, queue: str, kind: str) -> bool:
        """Delete a queue if it is empty and unused; say whether it is gone."""
        found = await self.usage(queue)
        if found is None:
            return True
        if not found.is_idle:
            return False
        try:
            await self._ask(_delete(queue, kind), m.QueueDeleteOk)
        except PreconditionFailed:
            return False
        return True

    async def replace_idle(self, old: QueueDefinition, new: QueueDefinition, binding: BindingDefinition) -> bool:
        """Delete a queue if it is empty and unused and declare it again, in one write; return whether that was done.

        Whoever publishes to it by name in the moment between is told that there is no route, so the moment is kept as
        short as the broker allows.
        """
        found = await self.usage(old.name)
        if found is not None and not found.is_idle:
            return False
        self.check()
        try:
            await self.broker.ask_together(_delete(old.name, old.type), _queue(new), m.QueueBind(**_binding(binding)))
        except PreconditionFailed:
            return False
        self.check()
        return True


def _delete(queue: str, kind: str) -> m.QueueDelete:
    """Only classic queues know conditions; others close the connection over them (540)."""
    return m.QueueDelete(queue=queue, if_unused=kind == "classic", if_empty=kind == "classic")


def _exchange(definition: ExchangeDefinition) -> m.ExchangeDeclare:
    return m.ExchangeDeclare(
        exchange=definition.name,
        type=definition.type,
        durable=definition.durable,
        auto_delete=definition.auto_delete,
        internal=definition.internal,
        arguments=dict(definition.arguments),
    )


def _queue(definition: QueueDefinition) -> m.QueueDeclare:
    return m.QueueDeclare(
        queue=definition.name,
        durable=definition.durable,
        auto_delete=definition.auto_delete,
        arguments=dict(definition.arguments),
    )


def _binding(definition: BindingDefinition) -> dict[str, Any]:
    """Return the fields of a binding, as the methods that bind and unbind a queue or an exchange name them."""
    names = ("queue", "exchange") if definition.destination_type == "queue" else ("destination", "source")
    ends = dict(zip(names, (definition.destination, definition.source), strict=True))
    return {**ends, "routing_key": definition.routing_key, "arguments": dict(definition.arguments)}
