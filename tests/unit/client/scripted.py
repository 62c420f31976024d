"""A broker that says what the test tells it to say, when the test tells it.

    async with ScriptedBroker() as broker, Connection(broker.url) as connection:
        publishing = asyncio.create_task(connection.publish("", "orders", b"{}"))
        publication = await broker.session.hears(Publication)
        broker.session.say(publication.channel, BasicNack(delivery_tag=1))

It is the broker's side of `redrive.protocol.connection` behind a loopback socket. By itself it has good manners: it
finishes the handshake and answers every call with the reply that `answers` holds for it. A test changes an answer,
takes one away (`broker.ignore(BasicCancel)`), or speaks up unasked. It never confirms a publish by itself, unless told
to with `confirming`.

`WiredLink` is a real `Transport` to such a broker without the socket: what the broker says arrives within `say`, before
it returns. That stages the meetings of two events that a socket brings about once in a thousand runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from redrive.client.transport import Transport
from redrive.client.url import BrokerURL
from redrive.protocol.connection import AmqpConnection, Event
from redrive.protocol.lifecycle import ConnectionState
from redrive.protocol.messages import Incoming, Publication
from redrive.recovery.backoff import Backoff
from redrive.testing import free_port
from redrive.wire.method import Method, Sender
from redrive.wire.methods.basic import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicQos,
    BasicQosOk,
)
from redrive.wire.methods.channel import ChannelOpen, ChannelOpenOk
from redrive.wire.methods.confirm import ConfirmSelect, ConfirmSelectOk
from redrive.wire.methods.connection import (
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
)
from redrive.wire.methods.exchange import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
)
from redrive.wire.methods.queue import (
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
)
from redrive.wire.properties import Properties

LOOPBACK = "127.0.0.1"
GREETING = object()  # stands for the client's protocol header among the things a broker answers

Answer = Method | Callable[[Any], Method]
K = TypeVar("K")

EMPTY = b"\x00\x00"  # properties of a message that has none
QUICK = Backoff(first=timedelta(milliseconds=1), ceiling=timedelta(milliseconds=5))  # for those who reconnect in a test


def _declared(declare: QueueDeclare) -> QueueDeclareOk:
    return QueueDeclareOk(queue=declare.queue or "amq.gen-scripted")


GOOD_MANNERS: dict[object, Answer] = {
    GREETING: ConnectionStart(server_properties={"product": "Scripted", "version": "4.0.5"}),
    ConnectionStartOk: ConnectionTune(channel_max=2047, frame_max=131072, heartbeat=0),
    ConnectionOpen: ConnectionOpenOk(),
    ChannelOpen: ChannelOpenOk(),
    ConfirmSelect: ConfirmSelectOk(),
    BasicQos: BasicQosOk(),
    BasicConsume: BasicConsumeOk(consumer_tag="ctag"),
    BasicCancel: BasicCancelOk(consumer_tag="ctag"),
    BasicGet: BasicGetEmpty(),
    ExchangeDeclare: ExchangeDeclareOk(),
    ExchangeDelete: ExchangeDeleteOk(),
    ExchangeBind: ExchangeBindOk(),
    ExchangeUnbind: ExchangeUnbindOk(),
    QueueDeclare: _declared,
    QueueDelete: QueueDeleteOk(),
    QueueBind: QueueBindOk(),
    QueueUnbind: QueueUnbindOk(),
    QueuePurge: QueuePurgeOk(),
}


def _answer(answer: Answer, question: object) -> Method:
    return answer(question) if callable(answer) else answer


class Manners:
    """What a broker answers by itself."""

    def __init__(self) -> None:
        self.answers = dict(GOOD_MANNERS)
        self.confirming = False

    def ignore(self, *methods: object) -> None:
        """Leave these unanswered from now on."""
        for method in methods:
            del self.answers[method]

    def first(self, question: object, *answers: Method) -> None:
        """Answer with these the first times, and then as before."""
        given, afterwards = iter(answers), self.answers[question]
        self.answers[question] = lambda method: next(given, None) or _answer(afterwards, method)

    def to(self, question: object) -> Method | None:
        answer = self.answers.get(GREETING if question is GREETING else type(question))
        return None if answer is None else _answer(answer, question)


class Session:
    """One connection as the broker sees it."""

    def __init__(self, manners: Manners, write: Callable[[bytes], None]) -> None:
        self.conversation = AmqpConnection(Sender.SERVER)
        self.all_heard: list[Event] = []
        self.raw: list[bytes] = []
        self._manners = manners
        self._write = write
        self._unread: list[Event] = []
        self._news = asyncio.Event()
        self._greeted = False
        self._published: dict[int, int] = {}
        self.lost = asyncio.Event()

    def receive(self, data: bytes) -> None:
        self.raw.append(data)
        for event in self.conversation.receive(data):
            self.all_heard.append(event)
            self._unread.append(event)
            self._answer(event)
        if not self._greeted and self.conversation.state is ConnectionState.GREETED:
            self._greeted = True
            self._reply(0, self._manners.to(GREETING))
        self.flush()
        self._news.set()

    def _answer(self, event: Event) -> None:
        if isinstance(event, Incoming):
            if isinstance(event.method, ChannelOpen):
                self._published[event.channel] = 0
            self._reply(event.channel, self._manners.to(event.method))
        elif isinstance(event, Publication):
            self._published[event.channel] = tag = self._published.get(event.channel, 0) + 1
            if self._manners.confirming:
                self._reply(event.channel, BasicAck(delivery_tag=tag))

    def _reply(self, channel: int, answer: Method | None) -> None:
        if answer is not None:
            self.conversation.send(channel, answer)

    # What a test may do -------------------------------------------------------------------------------

    async def hears(self, kind: type[K]) -> K:
        """The next event or method of this kind that the client sends, or has sent; others are passed over."""
        while True:
            for index, event in enumerate(self._unread):
                if isinstance(event, kind):
                    del self._unread[: index + 1]
                    return event
                if isinstance(event, Incoming) and isinstance(event.method, kind):
                    del self._unread[: index + 1]
                    return event.method
            self._news.clear()
            async with asyncio.timeout(10):
                await self._news.wait()

    async def hears_on(self, kind: type[Method]) -> int:
        """`hears`, for those who want to know the channel."""
        method = await self.hears(kind)
        return next(event.channel for event in self.all_heard if isinstance(event, Incoming) and event.method is method)

    def heard(self, kind: type[K]) -> list[K]:
        """Everything of this kind that the client has sent until now."""
        methods = [event.method if isinstance(event, Incoming) else event for event in self.all_heard]
        return [method for method in methods if isinstance(method, kind)]

    def forget(self) -> None:
        """Forget what was heard until now."""
        self.all_heard.clear()
        self._unread.clear()

    def say(self, channel: int, *methods: Method, body: bytes = b"", properties: bytes = EMPTY) -> None:
        """Send these, in one piece. A body goes with each of them that has a content."""
        for method in methods:
            self.conversation.send(channel, method, properties, body)
        self.flush()

    def deliver(self, channel: int, *bodies: bytes, first: int = 1, tag: str = "ctag") -> None:
        for number, body in enumerate(bodies, first):
            deliver = BasicDeliver(consumer_tag=tag, delivery_tag=number, routing_key="orders")
            self.conversation.send(channel, deliver, Properties().encode(), body)
        self.flush()

    def say_raw(self, data: bytes) -> None:
        self._write(data)

    def flush(self) -> None:
        if self.conversation.outgoing:
            self._write(self.conversation.data_to_send())

    def __repr__(self) -> str:
        return f"<Session {self.conversation!r} unread={len(self._unread)}>"


class ScriptedBroker(Manners):
    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()
        self.sessions: list[Session] = []
        self.transports: list[asyncio.Transport] = []
        self._listener: asyncio.Server | None = None
        self._news = asyncio.Event()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{self.port}/"

    @property
    def session(self) -> Session:
        """The last one."""
        return self.sessions[-1]

    async def accepted(self, number: int = 1) -> Session:
        """Wait until so many sessions have begun, and give the last of them."""
        while len(self.sessions) < number:
            self._news.clear()
            async with asyncio.timeout(10):
                await self._news.wait()
        return self.sessions[number - 1]

    def note(self, session: Session, transport: asyncio.Transport) -> None:
        self.sessions.append(session)
        self.transports.append(transport)
        self._news.set()

    def hang_up(self) -> None:
        """End the last session's socket without a word."""
        self.transports[-1].abort()

    def stop_reading(self) -> None:
        self.transports[-1].pause_reading()

    def read_again(self) -> None:
        self.transports[-1].resume_reading()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _Socket(self), LOOPBACK, self.port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listener is not None
        self._listener.close()
        for transport in self.transports:
            transport.abort()


class _Socket(asyncio.Protocol):
    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self._session = Session(self._broker, transport.write)
        self._broker.note(self._session, transport)

    def data_received(self, data: bytes) -> None:
        self._session.receive(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the interface
        self._session.lost.set()


class WiredLink(Manners):
    """A link whose other end is in the test's hands: no socket, no task."""

    def __init__(self, url: str = "amqp://guest:guest@memory/") -> None:
        super().__init__()
        self.on_change: Callable[[], object] = lambda: None
        parsed = BrokerURL.parse(url)
        self.link = Transport(parsed, parsed.hosts[0], {}, self._changed)
        self.session = Session(self, self.link.data_received)
        self.transport = _Wire(self.session)

    def _changed(self) -> None:
        self.on_change()

    async def open(self) -> Self:
        self.link.connection_made(self.transport)
        await self.link.opened
        return self

    def end(self) -> None:
        self.link.connection_lost(None)


class _Wire(asyncio.Transport):
    """Carries what the link writes to the session, in the next turn of the loop as a socket would."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.closed = False
        self._session = session

    def write(self, data: Any) -> None:
        if data and not self.closed:
            asyncio.get_running_loop().call_soon(self._session.receive, bytes(data))

    def close(self) -> None:
        self.closed = True

    abort = close

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass
