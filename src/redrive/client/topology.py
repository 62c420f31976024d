"""Declaring, binding and deleting over a connection; what was declared is declared again after a reconnect.

All calls share one channel, one at a time: what the broker refuses closes that channel, and concerns its caller alone.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from redrive.client.channel import Channel
from redrive.client.declarations import Declaration, Declarations
from redrive.client.transport import Transport
from redrive.errors import ChannelClosed, NotFound
from redrive.wire import methods as m
from redrive.wire.method import Method
from redrive.wire.values import FieldValue

log = logging.getLogger("redrive.client")

M = TypeVar("M", bound=Method)
Arguments = Mapping[str, FieldValue]


@dataclass(frozen=True, slots=True)
class QueueInfo:
    name: str
    messages: int  # ready to be delivered
    consumers: int


class TopologyClient(ABC):
    def __init__(self) -> None:
        self._declarations = Declarations()
        self._topology_channel: Channel | None = None
        self._topology_turn = asyncio.Lock()

    @abstractmethod
    async def link(self) -> Transport:
        """Return the link that is open now, or the next one."""

    async def ask(self, method: Method, reply: type[M]) -> M:
        """Call the broker and return its reply.

        Nothing is remembered: what `declare_...` and `bind_...` do is done again after a reconnect, this is not.
        """
        async with self._topology_turn:
            return await (await self._rpc_channel()).call(method, reply)

    async def ask_together(self, *methods: Method) -> None:
        """Make several calls in one write, one after the other. If the broker refuses one, it ignores the rest."""
        async with self._topology_turn:
            channel = await self._rpc_channel()
            await asyncio.gather(*(channel.ask(method) for method in methods))

    async def _rpc_channel(self) -> Channel:
        channel = self._topology_channel
        if channel is None or not channel.is_open:
            channel = self._topology_channel = await (await self.link()).channel()
        return channel

    async def _exists(self, declare: Method, reply: type[Method]) -> bool:
        try:
            await self.ask(declare, reply)
        except NotFound:
            return False
        return True

    # Exchanges and queues -----------------------------------------------------------------------------

    async def declare_exchange(
        self,
        name: str,
        type: str = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments | None = None,
    ) -> None:
        declare = m.ExchangeDeclare(
            exchange=name,
            type=type,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=dict(arguments or {}),
        )
        await self.ask(declare, m.ExchangeDeclareOk)
        self._declarations.exchange(declare)

    async def exchange_exists(self, name: str) -> bool:
        return await self._exists(m.ExchangeDeclare(exchange=name, passive=True), m.ExchangeDeclareOk)

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        await self.ask(m.ExchangeDelete(exchange=name, if_unused=if_unused), m.ExchangeDeleteOk)
        self._declarations.forget_exchange(name)

    async def declare_queue(
        self,
        name: str = "",
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
    ) -> QueueInfo:
        """Declare a queue; without a name the broker chooses one, and another after a reconnect."""
        declare = m.QueueDeclare(
            queue=name, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=dict(arguments or {})
        )
        answer = await self.ask(declare, m.QueueDeclareOk)
        self._declarations.queue(declare, answer.queue)
        return QueueInfo(answer.queue, answer.message_count, answer.consumer_count)

    async def queue_info(self, name: str) -> QueueInfo:
        """Return how many messages are ready and how many consumers there are; `NotFound` if there is no such queue."""
        answer = await self.ask(m.QueueDeclare(queue=self.current_name(name), passive=True), m.QueueDeclareOk)
        return QueueInfo(answer.queue, answer.message_count, answer.consumer_count)

    def current_name(self, queue: str) -> str:
        """Return the name that a queue has now: one that the broker named has another one after a reconnect."""
        return self._declarations.current_name(queue)

    async def purge_queue(self, name: str) -> int:
        return (await self.ask(m.QueuePurge(queue=self.current_name(name)), m.QueuePurgeOk)).message_count

    async def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue and return how many messages it had. Quorum queues know no `if_unused`, `if_empty`."""
        name = self.current_name(name)
        answer = await self.ask(m.QueueDelete(queue=name, if_unused=if_unused, if_empty=if_empty), m.QueueDeleteOk)
        self._declarations.forget_queue(name)
        return answer.message_count

    # Bindings -----------------------------------------------------------------------------------------

    async def bind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Arguments | None = None
    ) -> None:
        bind = m.QueueBind(
            queue=self.current_name(queue), exchange=exchange, routing_key=routing_key, arguments=dict(arguments or {})
        )
        await self.ask(bind, m.QueueBindOk)
        self._declarations.bind(bind)

    async def unbind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Arguments | None = None
    ) -> None:
        unbind = m.QueueUnbind(
            queue=self.current_name(queue), exchange=exchange, routing_key=routing_key, arguments=dict(arguments or {})
        )
        await self.ask(unbind, m.QueueUnbindOk)
        self._declarations.unbind(unbind)

    async def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Arguments | None = None
    ) -> None:
        bind = m.ExchangeBind(
            destination=destination, source=source, routing_key=routing_key, arguments=dict(arguments or {})
        )
        await self.ask(bind, m.ExchangeBindOk)
        self._declarations.bind(bind)

    async def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Arguments | None = None
    ) -> None:
        unbind = m.ExchangeUnbind(
            destination=destination, source=source, routing_key=routing_key, arguments=dict(arguments or {})
        )
        await self.ask(unbind, m.ExchangeUnbindOk)
        self._declarations.unbind(unbind)

    # Restoring ----------------------------------------------------------------------------------------

    async def restore_queue(self, queue: str) -> None:
        """Declare a queue again that is gone, if it was declared here. For one that is not gone that does no harm,
        except if the broker named it: the declaration would make another, and leave this one with its messages behind.
        """
        passive = m.QueueDeclare(queue=queue, passive=True)
        if self._declarations.is_server_named(queue) and await self._exists(passive, m.QueueDeclareOk):
            return
        if declarations := self._declarations.queue_declarations(queue):
            await self._restore(await self.link(), declarations)

    async def _restore(self, link: Transport, declarations: Iterable[Declaration]) -> list[str]:
        """Declare again, and return what the broker refused: the rest may well work."""
        troubles = []
        channel: Channel | None = None
        try:
            for declaration in declarations:
                if channel is None or channel.closed is not None:
                    channel = await link.channel()
                try:
                    await self._redeclare(channel, declaration)
                except ChannelClosed as error:
                    troubles.append(f"{declaration!r}: {error}")
                    log.error("cannot restore %r: %s", declaration, error)
        finally:
            if channel is not None:
                channel.abandon()
        return troubles

    async def _redeclare(self, channel: Channel, declaration: Declaration) -> None:
        match declaration:
            case m.QueueDeclare():
                old = self._declarations.name_of(declaration)
                answer = await channel.call(declaration, m.QueueDeclareOk)
                self._declarations.rename(old, answer.queue)
            case m.QueueBind():
                await channel.ask(self._declarations.current_binding(declaration))
            case m.ExchangeDeclare() | m.ExchangeBind():
                await channel.ask(declaration)
