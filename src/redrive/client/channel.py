"""One channel of one link: calls with their replies in order, and hooks for what the broker says unasked.

A channel is used for one thing (one consumer, one publisher, one person's declarations), because whatever the
broker refuses on a channel closes it for everybody on it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from redrive.errors import Closed, LocalProtocolError, RedriveError, RemoteProtocolError, ReplyCode, channel_closed
from redrive.protocol.lifecycle import ChannelState, ConnectionState
from redrive.protocol.messages import Delivery, Incoming
from redrive.wire.method import Method
from redrive.wire.methods.basic import BasicAck, BasicCancel, BasicNack, BasicReturn
from redrive.wire.methods.channel import ChannelClose, ChannelCloseOk, ChannelFlow, ChannelFlowOk, ChannelOpen

if TYPE_CHECKING:
    from redrive.client.transport import Transport

M = TypeVar("M", bound=Method)


def _ignore(event: object) -> None:
    """The default of a hook."""


class Channel:
    def __init__(self, link: Transport, number: int) -> None:
        self.link = link
        self.number = number
        self.closed: RedriveError | None = None  # why, once it is
        self.on_delivery: Callable[[Delivery], None] = _ignore
        self.on_confirm: Callable[[BasicAck | BasicNack], None] = _ignore
        self.on_return: Callable[[Incoming], None] = _ignore
        self.on_cancel: Callable[[BasicCancel], None] = _ignore
        self.on_closed: Callable[[RedriveError], None] = _ignore
        self._calls: deque[tuple[tuple[str, ...], asyncio.Future[Incoming]]] = deque()

    @property
    def is_open(self) -> bool:
        """May something be sent on it? One read may bring a close behind other words: the conversation knows first."""
        return self.closed is None and self.link.conversation.is_open(self.number)

    @property
    def _state(self) -> ChannelState:
        conversation = self.link.conversation
        connected = conversation.state is ConnectionState.OPEN
        return conversation.channel_state(self.number) if connected else ChannelState.CLOSED

    async def open(self) -> None:
        await self.ask(ChannelOpen())

    async def call(self, method: Method, reply: type[M]) -> M:
        """Send a method and wait for its reply."""
        answer = (await self.ask(method)).method
        if not isinstance(answer, reply):
            raise LocalProtocolError(f"{method.name} is answered by {answer.name}, not {reply.__name__}")
        return answer

    async def ask(self, method: Method) -> Incoming:
        """`call` for methods with more than one reply, or a reply with content."""
        if self.closed is not None:
            raise self.closed
        self.link.conversation.send(self.number, method)
        return await self._expect_reply(method.replies)

    def _expect_reply(self, names: tuple[str, ...]) -> asyncio.Future[Incoming]:
        answer: asyncio.Future[Incoming] = asyncio.get_running_loop().create_future()
        self._calls.append((names, answer))
        self.link.write_soon()
        return answer

    def tell(self, method: Method) -> None:
        """Send a method that has no reply."""
        self.link.conversation.send(self.number, method)
        self.link.write_soon()

    async def close(self) -> None:
        """Close it and wait for the answer: everything sent before has then been seen by the broker."""
        if (farewell := self._send_close()) is not None:
            try:
                await farewell
            except RedriveError:
                pass  # it ended in another way
        self.fail(self._closed_error())

    def abandon(self) -> None:
        """Close it without waiting. Its number is free again when the broker has answered."""
        self._send_close()

    def _send_close(self) -> asyncio.Future[Incoming] | None:
        if self.closed is not None or self._state not in (ChannelState.OPENING, ChannelState.OPEN):
            return None
        self.link.write_now()  # with the acks that wait for it: on a closing channel nothing more is said
        self._fail_calls(self._closed_error())  # after channel.close the broker answers nothing else
        self.link.conversation.send(self.number, ChannelClose(reply_text="goodbye"))
        return self._expect_reply(ChannelClose.replies)

    def _closed_error(self) -> RedriveError:
        return Closed(f"channel {self.number} was closed by this side")

    def on_incoming(self, event: Incoming) -> None:
        match event.method:
            case BasicAck() | BasicNack() as confirm:
                self.on_confirm(confirm)
            case BasicReturn():
                self.on_return(event)
            case BasicCancel() as cancel:
                self.on_cancel(cancel)
            case ChannelClose() as close:
                self.fail(channel_closed(close.reply_code, close.reply_text, (close.class_id, close.method_id)))
            case ChannelFlow() as flow:  # RabbitMQ never sends it; whoever does is owed an answer
                if self.is_open:
                    self.tell(ChannelFlowOk(active=flow.active))
            case _:
                self._reply(event)

    def _reply(self, event: Incoming) -> None:
        expected = self._calls[0][0] if self._calls else ()
        if event.method.name not in expected:
            wanted = " or ".join(expected) or "nothing"
            text = f"{event.method.name} on channel {self.number}, where {wanted} was due"
            raise RemoteProtocolError(ReplyCode.COMMAND_INVALID, text)  # the end of the link
        _, answer = self._calls.popleft()
        if not answer.done():  # the caller may have given up waiting
            answer.set_result(event)
        if isinstance(event.method, ChannelCloseOk):
            self.fail(self._closed_error())

    def fail(self, reason: RedriveError) -> None:
        """The channel is over. Whoever waits on it is told why."""
        if self.closed is not None:
            return
        self.closed = reason
        self.link.forget(self)
        self._fail_calls(reason)
        self.on_closed(reason)

    def _fail_calls(self, reason: RedriveError) -> None:
        for _, answer in self._calls:
            if not answer.done():
                answer.set_exception(reason)
                answer.exception()  # an abandoned channel has nobody waiting
        self._calls.clear()

    def __repr__(self) -> str:
        life = "OPEN" if self.closed is None else f"CLOSED: {self.closed}"
        return f"<Channel {self.number} {life} calls={len(self._calls)}>"
