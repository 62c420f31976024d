"""Does one thing after another on a broker, over one channel at a time, and writes down everything it can see.

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
from typing import Any, NamedTuple

from redrive.client.channel import Channel
from redrive.client.transport import Transport, open_transport
from redrive.client.url import BrokerURL
from redrive.errors import BrokerError, RedriveError
from redrive.protocol.messages import Delivery, Incoming
from redrive.wire.frames import OVERHEAD, content_frames, publish_frame
from redrive.wire.method import Method
from redrive.wire.methods.basic import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicRecover,
    BasicReject,
    BasicReturn,
)
from redrive.wire.methods.confirm import ConfirmSelect
from redrive.wire.methods.queue import QueueDeclare
from redrive.wire.methods.tx import TxCommit, TxRollback, TxSelect
from redrive.wire.properties import Properties, decode_properties

Line = tuple[Any, ...]
MOST_CHANNELS = 3
SHORT_LIFE = 0.06  # a message with a TTL of a millisecond is gone after this, on either broker


class Delivered(NamedTuple):
    """A delivery by names that are the same on every broker: the n-th of its source, and the step it came with."""

    source: str
    number: int
    step: int


class Seat:
    """One channel, and what came over it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.open: dict[Delivered, int] = {}  # what is not settled, with its delivery tag
        self.in_transaction: dict[Delivered, int] = {}  # what is, if the transaction is committed
        self.settled_last = 999  # an unknown tag
        self.takes_all: set[str] = set()  # the tags of consumers that acknowledge nothing
        self.seen: dict[str, int] = defaultdict(int)
        self.arrived: dict[str, list[Line]] = defaultdict(list)
        self.confirms: list[Line] = []
        self.published = 0


@dataclass
class Stage:
    """One broker with one connection and a few channels, and the transcript of what happened there.

    Everything is done on the current channel. The others keep their consumers, and what they have not settled.

    `patience` is how many seconds nothing new must be seen before it is believed that nothing more comes. A queue that
    answers questions in the order of its work needs none; a quorum queue writes to its log first.
    """

    url: str
    queues: tuple[str, ...]
    patience: float = 0.0
    short_lived: bool = False  # a message may have a TTL of a millisecond
    lines: list[Line] = field(default_factory=list)
    link: Transport = field(init=False)
    _seats: list[Seat] = field(default_factory=list)  # the current one comes first
    _mode: Method = field(default_factory=ConfirmSelect)
    _there: set[str] = field(default_factory=set)  # queues that were declared and not found missing since
    _step: int = 0
    _bodies: int = 0
    _consumed: int = 0

    async def open(self) -> None:
        url = BrokerURL.parse(self.url)
        self.link = await open_transport(url, url.hosts[0], {}, lambda: None)
        self._lookers: dict[str, Channel] = {}  # by queue: asking for a missing one ends a channel
        self._consumers: dict[str, tuple[Seat, str]] = {}  # by queue: their channels and tags
        self._seats = []
        await self._new_channel()

    async def close(self) -> None:
        await self.link.close()

    @property
    def seat(self) -> Seat:
        return self._seats[0]

    @property
    def channel(self) -> Channel:
        return self.seat.channel

    async def _new_channel(self) -> None:
        """Open a channel and make it the current one."""
        seat = Seat(await self.link.channel())
        self._seats.insert(0, seat)
        seat.channel.on_delivery = lambda delivery: self._on_delivery(seat, delivery)
        seat.channel.on_confirm = lambda confirm: seat.confirms.append((confirm.name, confirm.delivery_tag))
        seat.channel.on_return = self._on_return
        seat.channel.on_cancel = lambda cancel: self._on_cancel(seat, cancel)
        await seat.channel.ask(self._mode)

    def _leave_channel(self) -> None:
        """The current channel has ended."""
        left = self._seats.pop(0)
        self._consumers = {queue: consumer for queue, consumer in self._consumers.items() if consumer[0] is not left}

    # Doing ------------------------------------------------------------------------------------------------

    async def use_transactions(self) -> None:
        """From here on, on every channel."""
        self._mode = TxSelect()
        await self.close_channel()

    async def close_channel(self) -> None:
        """Close the current channel, whatever is not settled there, and go on with a new one."""
        await self.channel.close()
        self._leave_channel()
        await self._new_channel()

    async def another_channel(self) -> None:
        """Leave the current channel as it is. The next is new or, if there are enough, the one not used longest."""
        if len(self._seats) < MOST_CHANNELS:
            await self._new_channel()
        else:
            self._seats.insert(0, self._seats.pop())

    async def reconnect(self) -> None:
        """Close the connection with everything that is not settled, and open another."""
        await self.link.close()
        await self.open()

    async def call(self, method: Method) -> None:
        """Anything that has a reply."""
        if isinstance(method, QueueDeclare) and not method.passive:
            self._there.add(method.queue.replace("\r", "").replace("\n", ""))
        try:
            answer = await self.channel.ask(method)
            self.lines.append(("reply", *_shown(answer.method)))
        except BrokerError as error:
            await self._refused(error)

    async def publish(self, exchange: str, key: str, size: int, properties: Properties, mandatory: bool) -> None:
        """A message that can be told from all others by its body, if the size has room for its number.

        A body that is a little too large for one frame is sent in one: brokers forgive eight bytes.
        """
        frame = publish_frame(self.channel.number, exchange, key, mandatory)
        self._bodies += 1
        body = f"{self._bodies:.<{size}}"[: max(size, 2) * bool(size)].encode()
        conversation, tuning = self.link.conversation, self.link.conversation.tuning
        if tuning.frame_max - OVERHEAD < size <= tuning.frame_max:
            pieces = content_frames(self.channel.number, properties.encode(), body, tuning.frame_max + OVERHEAD)
            conversation.outgoing += [frame, *pieces]
        else:
            conversation.send_content(self.channel.number, frame, properties.encode(), body)
        self.link.write_soon()
        self.seat.published += 1
        if isinstance(self._mode, TxSelect):
            await self._flush()
            return
        try:
            await self._confirmed(self.seat.published)
        except BrokerError as error:
            await self._refused(error)

    async def _confirmed(self, number: int) -> None:
        """Wait for the answer to the only publish under way."""
        while not self.seat.confirms:
            if self.channel.closed is not None:
                raise self.channel.closed
            await asyncio.sleep(0)
        name, tag = self.seat.confirms.pop()
        assert tag == number
        self.lines.append(("confirm", name))

    async def get(self, queue: str, *, no_ack: bool) -> bool:
        """Take one, and say whether there was one."""
        try:
            answer = await self.channel.ask(BasicGet(queue=queue, no_ack=no_ack))
        except BrokerError as error:
            await self._refused(error)
            return False
        if not isinstance(answer.method, BasicGetOk):
            self.lines.append(("empty", queue))
            return False
        got = answer.method
        if not no_ack:
            self._note(self.seat, f"get {queue}", got.delivery_tag)
        message = (got.redelivered, got.exchange, got.routing_key, got.message_count)
        self.lines.append(("got", queue, *message, _properties(answer.raw_properties), answer.body))
        return True

    async def consume(self, queue: str, prefetch: int, *, exclusive: bool, no_ack: bool) -> None:
        """One consumer for each queue; the one before leaves."""
        if queue in self._consumers:
            await self.cancel(queue)
        self._consumed += 1
        tag = f"consumer {self._consumed} of {queue[:9]}"
        try:
            await self.channel.ask(BasicQos(prefetch_count=prefetch))
            self._consumers[queue] = (self.seat, tag)
            if no_ack:
                self.seat.takes_all.add(tag)
            await self.channel.ask(BasicConsume(queue=queue, consumer_tag=tag, exclusive=exclusive, no_ack=no_ack))
            self.lines.append(("consuming", queue))
        except BrokerError as error:
            await self._refused(error)

    async def cancel(self, queue: str) -> None:
        """Cancel the consumer of a queue, on its own channel."""
        seat, tag = self._consumers.pop(queue, (self.seat, "nobody"))
        answer = await seat.channel.ask(BasicCancel(consumer_tag=tag))
        self.lines.append(("reply", *_shown(answer.method)))

    async def settle(self, which: int, how: str, *, multiple: bool, requeue: bool, again: bool) -> None:
        """Ack, nack or reject one of the open deliveries; or `again` what is settled already."""
        if again:
            # A rollback opens it again, and then `multiple` may reach more.
            multiple = multiple and how != "reject" and not isinstance(self._mode, TxSelect)
            self._settle(how, self.seat.settled_last, multiple=multiple, requeue=requeue)
            await self._flush()
            return
        if not self.seat.open:
            self.lines.append(("nothing to settle",))
            return
        chosen = sorted(self.seat.open)[which % len(self.seat.open)]
        tag = self.seat.open[chosen]
        multiple = multiple and how != "reject" and self._is_defined(how, chosen)
        reached = (
            [delivered for delivered, open_tag in self.seat.open.items() if open_tag <= tag] if multiple else [chosen]
        )
        for delivered in reached:
            self.seat.in_transaction[delivered] = self.seat.open.pop(delivered)
        self._settle(how, tag, multiple=multiple, requeue=requeue)

    def _is_defined(self, how: str, chosen: Delivered) -> bool:
        """Is it the same for every broker what `multiple` reaches, and where that goes?

        Deliveries from two sources that came with the same step may have come in any order. And what two queues
        give up at once may reach a third in any order.
        """
        others = [delivered for delivered in self.seat.open if delivered.source != chosen.source]
        if how == "ack":
            return all(other.step != chosen.step for other in others)
        return all(other.step > chosen.step for other in others)

    async def settle_all(self, how: str, *, requeue: bool) -> None:
        """Delivery tag 0 with `multiple`. Where several queues would give up messages at once, ack."""
        if how == "nack" and len({delivered.source for delivered in self.seat.open}) > 1:
            how = "ack"
        self.seat.in_transaction |= self.seat.open
        self.seat.open.clear()
        self._settle(how, 0, multiple=True, requeue=requeue)

    def _settle(self, how: str, tag: int, *, multiple: bool, requeue: bool) -> None:
        method: Method
        if how == "ack":
            method = BasicAck(delivery_tag=tag, multiple=multiple)
        elif how == "nack":
            method = BasicNack(delivery_tag=tag, multiple=multiple, requeue=requeue)
        else:
            method = BasicReject(delivery_tag=tag, requeue=requeue)
        self.channel.tell(method)
        self.seat.settled_last = tag or self.seat.settled_last
        self.lines.append(("settled", how))

    async def recover(self, method: BasicRecover) -> None:
        """Everything that is open comes back, and has other tags then."""
        self.seat.open.clear()
        await self.call(method)

    async def end_transaction(self, method: TxCommit | TxRollback) -> None:
        if isinstance(method, TxRollback):
            self.seat.open |= self.seat.in_transaction
        self.seat.in_transaction.clear()
        await self.call(method)

    # Seeing -----------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Wait until nothing more comes, and write down what came: deliveries by source, and what the queues hold."""
        holds = await self._stillness()
        arrived = {source: lines for seat in self._seats for source, lines in seat.arrived.items()}
        for source in sorted(arrived):
            self.lines += arrived[source]
        for seat in self._seats:
            seat.arrived.clear()
        self.lines += [("holds", queue, count) for queue, count in holds.items()]
        self._step += 1

    async def _stillness(self) -> dict[str, Any]:
        """Look at least twice: a queue answers a question after what it sent before, and its channel passes on both."""
        seen: object = None
        loop = asyncio.get_running_loop()
        still_since = loop.time()
        while True:
            counts = await asyncio.gather(*map(self._count, self.queues))
            holds = dict(zip(self.queues, counts, strict=True))
            await self._flush()
            sees = (holds, [sum(map(len, seat.arrived.values())) for seat in self._seats], self.channel)
            if sees != seen:
                seen, still_since = sees, loop.time()
            elif loop.time() - still_since >= self.patience:
                return holds
            else:
                await asyncio.sleep(self.patience / 4)

    async def last_look(self) -> None:
        """What was not settled goes back with its channel; then everything is taken out of the queues."""
        while len(self._seats) > 1:
            await self.channel.close()
            self._leave_channel()
        await self.close_channel()
        await self.rest()
        await self.look()
        for queue in self.queues:
            if ("holds", queue, None) not in self.lines:
                while await self.get(queue, no_ack=True):
                    pass
                await self.rest()  # a message that expired behind those may have come into a queue of a short TTL

    async def rest(self) -> None:
        """Wait until messages with a TTL of a millisecond have expired, if there are any."""
        if self.short_lived:
            await asyncio.sleep(SHORT_LIFE)

    async def _flush(self) -> None:
        """Have each channel answer something, so that what it was sent before has come."""
        try:
            await self.channel.ask(self._mode)
        except BrokerError as error:
            await self._refused(error)
        for seat in self._seats[1:]:
            await seat.channel.ask(self._mode)

    async def _count(self, queue: str) -> tuple[int, int] | None:
        """Messages and consumers, over a channel for this queue alone. One that is missing stays so until declared."""
        if queue not in self._there:
            return None
        looker = self._lookers.get(queue)
        if looker is None or looker.closed is not None:
            looker = self._lookers[queue] = await self.link.channel()
        try:
            answer = (await looker.ask(QueueDeclare(queue=queue, passive=True))).method
        except BrokerError:
            self._there.discard(queue)
            return None
        return answer.message_count, answer.consumer_count  # type: ignore[attr-defined]

    async def _refused(self, error: RedriveError) -> None:
        """A channel ended. Write down why and go on with a new one; what was open goes back."""
        assert isinstance(error, BrokerError), error
        self.lines.append(("refused", error.code, _without_names(error.text), error.method))
        if not self.link.alive:
            await self.open()
        else:
            self._leave_channel()
            await self._new_channel()

    def _on_delivery(self, seat: Seat, delivery: Delivery) -> None:
        source = delivery.consumer_tag
        number = self._note(seat, source, delivery.delivery_tag)
        message = (delivery.redelivered, delivery.exchange, delivery.routing_key)
        properties = _properties(delivery.raw_properties)
        seat.arrived[source].append(("delivered", source, number, *message, properties, delivery.body))

    def _on_cancel(self, seat: Seat, cancel: BasicCancel) -> None:
        self._consumers = {queue: known for queue, known in self._consumers.items() if known[1] != cancel.consumer_tag}
        seat.arrived[cancel.consumer_tag].append(("cancelled", cancel.consumer_tag))

    def _on_return(self, event: Incoming) -> None:
        assert isinstance(event.method, BasicReturn)
        self.lines.append(("returned", *_shown(event.method), _properties(event.raw_properties), event.body))

    def _note(self, seat: Seat, source: str, tag: int) -> int:
        seat.seen[source] += 1
        if source not in seat.takes_all:
            seat.open[Delivered(source, seat.seen[source], self._step)] = tag
        return seat.seen[source]


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
        case bool():
            return f"{value}"  # which Python finds equal to 1 and 0
        case Mapping():
            return tuple((name, _plain(inner)) for name, inner in value.items())
        case list():
            return [_plain(inner) for inner in value]
        case _:
            return value


def _without_names(text: str) -> str:
    """Without the names that a broker chose, the virtual host, which is each broker's own, and half a character.

    RabbitMQ cuts long texts by bytes.
    """
    text = re.sub(r"(in vhost '[^']*'?)?\ufffd?\.\.\.$", "...", text)
    return re.sub(r"in vhost '[^']*'", "in vhost", re.sub(r"amq\.(gen|ctag)-[\w.-]+", r"amq.\1", text))
