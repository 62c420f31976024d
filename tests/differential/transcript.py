"""Does one thing after another on a broker, over one channel, and writes down everything it can see.

Two brokers that behave alike give the same transcript. So it holds nothing that may differ: delivery tags are
replaced by the order in which a source delivered, times by a word, names that a broker chose by a word; and what has
no defined order (deliveries from different queues) is kept apart by queue.
"""

import asyncio
import datetime as dt
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from redrive.client.channel import Channel
from redrive.client.link import Link, open_link
from redrive.client.url import BrokerURL
from redrive.errors import BrokerError, RedriveError
from redrive.protocol.content import Delivery, Incoming
from redrive.wire.frames import publish_frame
from redrive.wire.method import Method
from redrive.wire.methods.basic import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicReject,
    BasicReturn,
)
from redrive.wire.methods.confirm import ConfirmSelect
from redrive.wire.methods.queue import QueueDeclare
from redrive.wire.properties import Properties, decode_properties

Line = tuple[Any, ...]


@dataclass
class Stage:
    """One broker with one connection and one channel, and the transcript of what happened there."""

    url: str
    queues: tuple[str, ...]
    lines: list[Line] = field(default_factory=list)
    link: Link = field(init=False)
    channel: Channel = field(init=False)

    async def open(self) -> None:
        url = BrokerURL.parse(self.url)
        self.link = await open_link(url, url.hosts[0], {}, lambda: None)
        await self._new_channel()

    async def close(self) -> None:
        await self.link.close()

    async def _new_channel(self) -> None:
        self.channel = channel = await self.link.channel()
        self._consumers: dict[str, str] = {}  # tag -> queue
        self._open: dict[tuple[str, int], int] = {}  # (source, n-th) -> delivery tag
        self._seen: dict[str, int] = defaultdict(int)
        self._arrived: dict[str, list[Line]] = defaultdict(list)
        self._confirms: list[Line] = []
        self._published = 0
        channel.on_delivery = self._on_delivery
        channel.on_confirm = lambda confirm: self._confirms.append((confirm.name, confirm.delivery_tag))
        channel.on_return = self._on_return
        channel.on_cancel = lambda cancel: self._arrived[cancel.consumer_tag].append(("cancelled", cancel.consumer_tag))
        await channel.ask(ConfirmSelect())

    # Doing ------------------------------------------------------------------------------------------------

    async def call(self, method: Method) -> None:
        """Anything that has a reply."""
        try:
            answer = await self.channel.ask(method)
            self.lines.append(("reply", *_shown(answer.method)))
        except BrokerError as error:
            await self._refused(error)

    async def publish(self, exchange: str, key: str, body: bytes, properties: Properties, mandatory: bool) -> None:
        frame = publish_frame(self.channel.number, exchange, key, mandatory)
        self.link.conversation.send_content(self.channel.number, frame, properties.encode(), body)
        self.link.write_soon()
        self._published += 1
        try:
            await self._confirmed(self._published)
        except BrokerError as error:
            await self._refused(error)

    async def _confirmed(self, number: int) -> None:
        """Wait for the answer to the only publish under way."""
        while not self._confirms:
            if self.channel.closed is not None:
                raise self.channel.closed
            await asyncio.sleep(0)
        name, tag = self._confirms.pop()
        assert tag == number
        self.lines.append(("confirm", name))

    async def get(self, queue: str) -> None:
        try:
            answer = await self.channel.ask(BasicGet(queue=queue))
        except BrokerError as error:
            await self._refused(error)
            return
        if not isinstance(answer.method, BasicGetOk):
            self.lines.append(("empty", queue))
            return
        got = answer.method
        self._note(f"get {queue}", got.delivery_tag)
        message = (got.redelivered, got.exchange, got.routing_key, got.message_count)
        self.lines.append(("got", queue, *message, _properties(answer.raw_properties), answer.body))

    async def consume(self, queue: str, prefetch: int, exclusive: bool) -> None:
        tag = f"consumer of {queue}"
        try:
            await self.channel.ask(BasicQos(prefetch_count=prefetch))
            await self.channel.ask(BasicConsume(queue=queue, consumer_tag=tag, exclusive=exclusive))
            self._consumers[tag] = queue
            self.lines.append(("consuming", queue))
        except BrokerError as error:
            await self._refused(error)

    async def cancel(self, queue: str) -> None:
        await self.call(BasicCancel(consumer_tag=f"consumer of {queue}"))

    async def settle(self, source: str, which: int, how: str, multiple: bool, requeue: bool) -> None:
        """Ack, nack or reject the n-th delivery that is open from a source; if there is none, an unknown tag."""
        # `multiple` reaches over to other sources, whose order is not defined: only where there is one source.
        alone = len({found for found, _ in self._open}) == 1
        mine = sorted((key for key in self._open if key[0] == source), key=lambda key: key[1])
        tag = self._open.pop(mine[which % len(mine)]) if mine else 999
        multiple = multiple and alone and how != "reject"
        if multiple:
            self._open = {key: open_tag for key, open_tag in self._open.items() if open_tag > tag}
        method: Method
        if how == "ack":
            method = BasicAck(delivery_tag=tag, multiple=multiple)
        elif how == "nack":
            method = BasicNack(delivery_tag=tag, multiple=multiple, requeue=requeue)
        else:
            method = BasicReject(delivery_tag=tag, requeue=requeue)
        self.channel.tell(method)
        self.lines.append(("settled", how))

    # Seeing -----------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Wait until nothing more comes, and write down what came: deliveries by source, and what the queues hold."""
        for _ in range(2):  # a queue answers a question after what it sent before; its channel passes on both
            for queue in self.queues:
                await self._count(queue)
            await self._flush()
        for source in sorted(self._arrived):
            self.lines += self._arrived[source]
        self._arrived.clear()
        for queue in self.queues:
            self.lines.append(("holds", queue, await self._count(queue)))

    async def _flush(self) -> None:
        """Have the channel answer something, so that what it was sent before has come."""
        try:
            await self.channel.ask(ConfirmSelect())
        except BrokerError as error:
            await self._refused(error)

    async def _count(self, queue: str) -> tuple[int, int] | None:
        """Messages and consumers, over a channel of its own, since asking for a missing queue ends it."""
        channel = await self.link.channel()
        try:
            answer = (await channel.ask(QueueDeclare(queue=queue, passive=True))).method
            await channel.close()
        except BrokerError:
            return None
        return answer.message_count, answer.consumer_count  # type: ignore[attr-defined]

    async def _refused(self, error: RedriveError) -> None:
        """A channel ended. Write down why and go on with a new one; what was open goes back."""
        assert isinstance(error, BrokerError), error
        self.lines.append(("refused", error.code, _without_names(error.text), error.method))
        if not self.link.alive:
            await self.open()
        else:
            await self._new_channel()

    def _on_delivery(self, delivery: Delivery) -> None:
        source = delivery.consumer_tag
        number = self._note(source, delivery.delivery_tag)
        message = (delivery.redelivered, delivery.exchange, delivery.routing_key)
        properties = _properties(delivery.raw_properties)
        self._arrived[source].append(("delivered", source, number, *message, properties, delivery.body))

    def _on_return(self, event: Incoming) -> None:
        assert isinstance(event.method, BasicReturn)
        self.lines.append(("returned", *_shown(event.method), _properties(event.raw_properties), event.body))

    def _note(self, source: str, tag: int) -> int:
        self._seen[source] += 1
        self._open[source, self._seen[source]] = tag
        return self._seen[source]


def _shown(method: Method) -> Line:
    fields = [(name, getattr(method, name)) for name in method.__dataclass_fields__]  # type: ignore[attr-defined]
    return (method.name, *(_plain(value) for _, value in fields))


def _properties(raw: bytes) -> Any:
    properties = decode_properties(raw)
    return _plain({name: value for name in _NAMES if (value := getattr(properties, name)) is not None})


_NAMES = [name for name in Properties.__dataclass_fields__ if not name.startswith("_")]


def _plain(value: Any) -> Any:
    match value:
        case dt.datetime():
            return "a time"
        case str():
            return _without_names(value)
        case Mapping():
            return {name: _plain(inner) for name, inner in value.items()}
        case list():
            return [_plain(inner) for inner in value]
        case _:
            return value


def _without_names(text: str) -> str:
    """Names that a broker chose, and the virtual host, which is each broker's own."""
    return re.sub(r"in vhost '[^']*'", "in vhost", re.sub(r"amq\.(gen|ctag)-[\w.-]+", r"amq.\1", text))
