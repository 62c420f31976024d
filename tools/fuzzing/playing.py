"""The application behind a conversation: it answers what it is asked, and looks at everything it is given.

It is as naive as an application may be: it answers events that a later frame of the same read has made pointless,
and is told so by LocalProtocolError. Anything else that it gets to see is a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from redrive.errors import LocalProtocolError, RemoteProtocolError
from redrive.protocol.confirms import ConfirmLedger, Pending
from redrive.protocol.connection import AmqpConnection, Event, Violation
from redrive.protocol.handshake import ClientHandshake, PlainAuth, read_plain
from redrive.protocol.lifecycle import ConnectionState
from redrive.protocol.messages import Delivery, Incoming, Publication
from redrive.wire.method import METHODS, Method, Sender
from redrive.wire.methods.basic import BasicAck, BasicGet, BasicGetOk, BasicNack, BasicReturn
from redrive.wire.methods.channel import ChannelOpen
from redrive.wire.methods.connection import (
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
)
from redrive.wire.properties import decode_properties

_BY_NAME = {cls.name: cls for cls in METHODS.values()}


class Application:
    """Plays the part of `conversation`'s owner."""

    def __init__(self, conversation: AmqpConnection) -> None:
        self.conversation = conversation
        self.react = self._as_client if conversation.side is Sender.CLIENT else self._as_server
        self._handshake = ClientHandshake(PlainAuth("guest", "guest"))
        self._ledger: ConfirmLedger[None] = ConfirmLedger()
        for _ in range(5):
            self._ledger.add(Pending("e", "k", b"\x00\x00", b"body", None))

    def begin(self) -> None:
        """A broker's first question is asked when the greeting is complete, which is no event."""
        if self.conversation.side is Sender.SERVER and self.conversation.state is ConnectionState.GREETED:
            self._say(0, ConnectionStart(mechanisms=b"PLAIN EXTERNAL"))

    def _say(self, channel: int, method: Method) -> None:
        try:
            self.conversation.send(channel, method, body=b"body")
        except LocalProtocolError:
            pass

    def _answer(self, question: Method) -> None:
        for answer in self._handshake.answer(question):
            self._say(0, answer)

    def _as_server(self, event: Event) -> None:
        match event:
            case Publication():
                self._say(event.channel, BasicAck(delivery_tag=1))
            case Incoming(method=ConnectionStartOk() as start_ok):
                remote(lambda: read_plain(start_ok.response))
                tuning = self.conversation.tuning
                self._say(0, ConnectionTune(channel_max=tuning.channel_max, frame_max=tuning.frame_max))
            case Incoming(channel=number, method=BasicGet()):
                self._say(number, BasicGetOk(delivery_tag=1))
            case Incoming(channel=number, method=method):
                for name in method.replies:
                    self._say(number, _BY_NAME[name]())

    def _as_client(self, event: Event) -> None:
        match event:
            case Delivery():
                self._say(event.channel, BasicAck(delivery_tag=event.delivery_tag))
            case Incoming(method=ConnectionStart() | ConnectionTune() | ConnectionSecure() as question):
                remote(lambda: self._answer(question))
            case Incoming(method=ConnectionOpenOk()):
                self._say(1, ChannelOpen())
                self._say(2, ChannelOpen())
            case Incoming(method=BasicAck() | BasicNack() as confirm):
                remote(lambda: self._ledger.settle(confirm.delivery_tag, confirm.multiple))
            case Incoming(method=BasicReturn() as back):
                self._ledger.mark_returned(
                    back.exchange, back.routing_key, event.raw_properties, event.body, back.reply_text
                )


def remote(call: Callable[[], object]) -> RemoteProtocolError | None:
    """The complaint about the peer that this call makes, if it makes one."""
    try:
        call()
    except RemoteProtocolError as complaint:
        return complaint
    return None


def look_at(event: Event) -> Iterator[str]:
    """Ask an event for everything it knows, and say what kind of event it is."""
    repr(event)
    match event:
        case Delivery():
            yield "delivery"
            _ = event.consumer_tag, event.exchange, event.routing_key
            yield outcome(remote(lambda: event.properties))
        case Publication():
            yield "publication"
            _ = event.exchange, event.routing_key
            yield outcome(remote(lambda: decode_properties(event.raw_properties)))
        case Incoming():
            yield event.method.name
            if event.method.has_content:
                yield outcome(remote(lambda: decode_properties(event.raw_properties)))
        case Violation():
            yield f"{event.channel > 0} {outcome(event.error)}"


def outcome(complaint: RemoteProtocolError | None) -> str:
    """The kind of a complaint: its words, without the numbers and bytes that it quotes."""
    if complaint is None:
        return "fine"
    return " ".join(word for word in str(complaint).split() if word.isalpha() or word.isupper())
