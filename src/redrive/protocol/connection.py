"""The AMQP connection: bytes in, events out; methods in, bytes out. For either side, without I/O.

    connection = AmqpConnection(Sender.CLIENT)
    connection.send_protocol_header()
    socket.send(connection.data_to_send())
    for event in connection.receive(socket.recv(65536)): ...

`receive` reads everything a read brought in one pass. A message whose three frames are all there is taken in
one step (`whole_content`); one that is split over reads, or over many body frames, is put together piece by
piece (`Assembly`) with the same result. A partial frame is a wait, not an exception.

When the peer breaks the rules, the answer that AMQP prescribes is written and a `Violation` is the last event:
on channel 0 the connection is over, on another channel that channel is. The rules are sections 2.2.4, 4.2.3
and 4.2.6, and where the specification leaves room, what RabbitMQ does.

One thing RabbitMQ does is not in them: when it closes a channel, deliveries that it sent before may come behind its
channel.close, even behind the open-ok of the next channel with that number. Somebody else would get them there, and
settle by their tags messages of its own. So a client ignores them until the number is open again, and does not open it
as long as it has another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from redrive.errors import RemoteProtocolError, ReplyCode
from redrive.protocol import lifecycle
from redrive.protocol.handshake import check_tune_ok
from redrive.protocol.lifecycle import ChannelState, ConnectionState
from redrive.protocol.messages import Delivery, Incoming, Publication
from redrive.protocol.outgoing import Assembly, ChannelRecord, Outgoing
from redrive.wire import frames
from redrive.wire.frames import (
    BODY,
    CONTENT_HEAD,
    END_OCTET,
    GREETINGS,
    HEAD,
    HEADER,
    HEADER_FRAME,
    HEARTBEAT,
    METHOD,
    OVERHEAD,
    PROTOCOL_HEADER,
)
from redrive.wire.method import METHODS, Method, Sender, decode_method
from redrive.wire.methods.channel import ChannelClose, ChannelCloseOk, ChannelOpen
from redrive.wire.methods.connection import ConnectionClose, ConnectionCloseOk, ConnectionTuneOk
from redrive.wire.values import malformed_error

DELIVER = b"\x00\x3c\x00\x3c"
PUBLISH = b"\x00\x3c\x00\x28"

# What a client takes from a broker, whatever frames were agreed on.
LARGEST_HEADER = 4 * 1024 * 1024

_LEAVING = (ChannelState.CLOSING, ChannelState.CROSSED)


@dataclass(frozen=True, slots=True)
class Violation:
    """The peer broke the rules on this channel (0: the connection). The answer has been written."""

    channel: int
    error: RemoteProtocolError


Event: TypeAlias = "Delivery | Publication | Incoming | Violation"

_Builder = Callable[[int, bytes, bytes, bytes], Delivery | Publication]
_CLIENT_READS: dict[bytes, _Builder] = {DELIVER: Delivery}
_SERVER_READS: dict[bytes, _Builder] = {PUBLISH: Publication}


class AmqpConnection(Outgoing):
    # Receiving ----------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """What the peer said. Ends with a `Violation` on channel 0 if it may say no more."""
        events: list[Event] = []
        try:
            self._read(data, events)
        except RemoteProtocolError as error:
            self._refuse(error)
            events.append(Violation(0, error))
        return events

    def _read(self, data: bytes, events: list[Event]) -> None:
        if self._rest:
            self._rest += data
            if len(self._rest) < self._need:
                return
            data = bytes(self._rest)
            self._rest.clear()
        pos, end = 0, len(data)
        if self.state is ConnectionState.IDLE:
            pos = self._read_greeting(data)
        limit = self._largest_payload
        builders = _CLIENT_READS if self._is_client else _SERVER_READS
        while end - pos >= OVERHEAD and self.state is not ConnectionState.CLOSED:
            kind, number, size = HEAD.unpack_from(data, pos)
            stop = pos + 7 + size
            if size > limit:
                self._check_oversized(data, pos, size)
            if stop >= end:
                break
            if data[stop] != END_OCTET:
                raise RemoteProtocolError(ReplyCode.FRAME_ERROR, f"a frame ends with {data[stop]:#04x}, not 0xce")
            if kind == METHOD:
                build = builders.get(data[pos + 7 : pos + 11])
                if build is not None and (whole := self._whole_content(data, number, stop, end)) is not None:
                    raw_properties, body, after = whole
                    events.append(build(number, data[pos + 7 : stop], raw_properties, body))
                    pos = after
                    continue
                self._read_method(number, data[pos + 7 : stop], events)
                limit = self._largest_payload
            else:
                self._read_other(kind, number, data[pos + 7 : stop], events)
            pos = stop + 1
        self._keep(data, pos, end)

    def _keep(self, data: bytes, pos: int, end: int) -> None:
        """Put the beginning of a frame aside until enough has come for the next step."""
        if pos == end or self.state is ConnectionState.CLOSED:
            return
        self._rest += data[pos:]
        if self.state is ConnectionState.IDLE:
            self._need = 0  # every byte is worth a look: who speaks something else is told at once
        elif end - pos < OVERHEAD:
            self._need = OVERHEAD
        else:
            self._need = OVERHEAD + HEAD.unpack_from(data, pos)[2]

    def _read_greeting(self, data: bytes) -> int:
        """A client's first eight bytes. Whatever else it sends, it is told what is spoken here (section 4.2.2)."""
        if not any(greeting.startswith(data[: len(greeting)]) for greeting in GREETINGS):
            raise RemoteProtocolError(ReplyCode.NOT_IMPLEMENTED, f"not a greeting of AMQP 0-9-1: {data[:8]!r}")
        if len(data) < len(PROTOCOL_HEADER):
            return 0
        self._advance(lifecycle.PROTOCOL_HEADER)
        return len(PROTOCOL_HEADER)

    def _check_oversized(self, data: bytes, pos: int, size: int) -> None:
        """RabbitMQ does not cut headers, also if they have grown beyond what was agreed on: by an x-death, or because
        their publisher had larger frames. A client that closed the connection over one would do so again with every
        redelivery.
        """
        if self._is_client and data[pos] == HEADER and size <= LARGEST_HEADER and self.state is ConnectionState.OPEN:
            return
        if self.state is ConnectionState.GREETED and data[pos : pos + 4] == b"AMQP":
            version = ".".join(map(str, data[pos + 4 : pos + 8]))
            raise RemoteProtocolError(ReplyCode.NOT_IMPLEMENTED, f"the broker refuses AMQP 0-9-1, it speaks {version}")
        text = f"a frame with {size} bytes of payload; at most {self._largest_payload} are allowed"
        raise RemoteProtocolError(ReplyCode.FRAME_ERROR, text)

    def _whole_content(self, data: bytes, number: int, stop: int, end: int) -> tuple[bytes, bytes, int] | None:
        """Properties, body and what follows, when the header and the only body frame are there and in order.

        Anything unusual is None, and is judged by the piecemeal way.
        """
        channel = self._channels.get(number)
        if channel is None or channel.state is not ChannelState.OPEN or channel.assembly is not None:
            return None
        start = stop + 1
        if end - start < 22 or self.state is not ConnectionState.OPEN:
            return None
        limit = self._largest_payload
        kind, on, size, class_id, weight, body_size = HEADER_FRAME.unpack_from(data, start)
        stop = start + 7 + size
        if kind != HEADER or on != number or class_id != 60 or weight or not 14 <= size <= limit:
            return None
        if stop >= end or data[stop] != END_OCTET:
            return None
        raw_properties = data[start + 19 : stop]
        if not body_size:
            return raw_properties, b"", stop + 1
        start = stop + 1
        if end - start < OVERHEAD:
            return None
        kind, on, size = HEAD.unpack_from(data, start)
        stop = start + 7 + size
        if kind != BODY or on != number or size != body_size or size > limit or size > self.largest_message:
            return None
        if stop >= end or data[stop] != END_OCTET:
            return None
        return raw_properties, data[start + 7 : stop], stop + 1

    # Methods --------------------------------------------------------------------------------------------

    def _read_method(self, number: int, payload: bytes, events: list[Event]) -> None:
        cls = METHODS.get(payload[:4])
        if cls is None:
            raise RemoteProtocolError(ReplyCode.NOT_IMPLEMENTED, f"unknown method {payload[:4].hex()}")
        if cls.sender is self.side:
            raise RemoteProtocolError(ReplyCode.COMMAND_INVALID, f"{cls.name} is for this side to send")
        if (cls.id[0] == 10) != (number == 0):
            raise RemoteProtocolError(ReplyCode.COMMAND_INVALID, f"{cls.name} on channel {number}")
        if number == 0:
            self._read_connection_method(cls, payload, events)
        else:
            self._read_channel_method(number, cls, payload, events)

    def _read_connection_method(self, cls: type[Method], payload: bytes, events: list[Event]) -> None:
        after = lifecycle.CONNECTION[self.state].get(lifecycle.received_key(cls.name))
        if after is None:
            if self.state is ConnectionState.CLOSING:
                return  # section 1.4.2.10: after close, everything but close and close-ok is ignored
            raise RemoteProtocolError(ReplyCode.COMMAND_INVALID, f"{cls.name} in state {self.state.name}")
        method = decode_method(payload)
        if isinstance(method, ConnectionTuneOk):
            self._tune(check_tune_ok(self._offered, method, self._smallest_frame_max))
        self._enter(after)
        if isinstance(method, ConnectionClose):
            self.send(0, ConnectionCloseOk())
        events.append(Incoming(0, method))

    def _read_channel_method(self, number: int, cls: type[Method], payload: bytes, events: list[Event]) -> None:
        if self.state is ConnectionState.CLOSING:
            return
        if self.state is not ConnectionState.OPEN:
            raise RemoteProtocolError(ReplyCode.CHANNEL_ERROR, f"{cls.name} in state {self.state.name}")
        channel = self._channels.get(number) or ChannelRecord(number)
        if cls.name in lifecycle.LIFECYCLE_METHODS:
            self._read_lifecycle_method(channel, cls, payload, events)
        elif self._ignores_frames(channel):
            return  # sent before the peer knew, or before it closed the channel itself
        elif channel.state is not ChannelState.OPEN and not self._opens_for(channel):
            raise RemoteProtocolError(ReplyCode.CHANNEL_ERROR, f"{cls.name} on {channel!r}")
        elif channel.assembly is not None:
            raise RemoteProtocolError(ReplyCode.UNEXPECTED_FRAME, f"{cls.name} before the content of the last method")
        elif cls.has_content:
            channel.assembly = Assembly(payload)
        else:
            events.append(Incoming(number, decode_method(payload)))

    def _ignores_frames(self, channel: ChannelRecord) -> bool:
        """Is everything but the channel's own life to be ignored?"""
        if channel.state is ChannelState.OPEN:
            return False
        return channel.state in _LEAVING or channel.number in self._recently_closed

    def _opens_for(self, channel: ChannelRecord) -> bool:
        """A client need not wait for open-ok: a broker takes what follows channel.open in the same read."""
        return self.side is Sender.SERVER and channel.state is ChannelState.OPENING

    def _read_lifecycle_method(
        self, channel: ChannelRecord, cls: type[Method], payload: bytes, events: list[Event]
    ) -> None:
        after = lifecycle.CHANNEL[channel.state].get(lifecycle.received_key(cls.name))
        if after is None:
            if channel.state in _LEAVING:
                return  # an open-ok that crossed our close
            raise RemoteProtocolError(ReplyCode.CHANNEL_ERROR, f"{cls.name} on {channel!r}")
        if cls is ChannelOpen and len(self._channels) >= self.tuning.channel_max:
            text = (
                f"number of channels opened ({len(self._channels)}) has reached the negotiated channel_max "
                f"({self.tuning.channel_max})"
            )
            raise RemoteProtocolError(ReplyCode.NOT_ALLOWED, text)
        method = decode_method(payload)
        self._move(channel, after)
        if isinstance(method, ChannelClose):
            self.send(channel.number, ChannelCloseOk())
            if self.side is Sender.CLIENT:
                self._recently_closed[channel.number] = None
        events.append(Incoming(channel.number, method))

    # Content, piece by piece ------------------------------------------------------------------------------

    def _read_other(self, kind: int, number: int, payload: bytes, events: list[Event]) -> None:
        if kind == HEARTBEAT:
            if payload:
                raise RemoteProtocolError(ReplyCode.FRAME_ERROR, "a heartbeat with a payload")
            if number != 0:
                raise RemoteProtocolError(ReplyCode.UNEXPECTED_FRAME, f"a heartbeat on channel {number}, not 0")
            return
        if kind not in (HEADER, BODY):
            raise RemoteProtocolError(ReplyCode.FRAME_ERROR, f"unknown frame type {kind}")
        if self.state is ConnectionState.CLOSING:
            return
        channel = self._channels.get(number) or ChannelRecord(number)
        if self._ignores_frames(channel):
            return
        if channel.assembly is None:
            raise RemoteProtocolError(ReplyCode.UNEXPECTED_FRAME, f"content without a method on channel {number}")
        if kind == HEADER:
            self._read_header(channel, channel.assembly, payload, events)
        else:
            self._read_body(channel, channel.assembly, payload, events)

    def _read_header(self, channel: ChannelRecord, assembly: Assembly, payload: bytes, events: list[Event]) -> None:
        if assembly.raw_properties is not None:
            raise RemoteProtocolError(ReplyCode.UNEXPECTED_FRAME, "a second content header")
        if len(payload) < CONTENT_HEAD.size + 2:
            raise malformed_error("a content header is cut short")
        class_id, weight, body_size = CONTENT_HEAD.unpack_from(payload)
        if class_id != frames.BASIC_CLASS or weight:
            text = f"a content header of class {class_id} and weight {weight}, not 60 and 0"
            raise RemoteProtocolError(ReplyCode.UNEXPECTED_FRAME, text)
        if body_size > self.largest_message:
            self._refuse_message(channel, assembly, body_size, events)
            return
        assembly.raw_properties = payload[CONTENT_HEAD.size :]
        assembly.missing = body_size
        if not body_size:
            self._complete(channel, assembly, events)

    def _read_body(self, channel: ChannelRecord, assembly: Assembly, payload: bytes, events: list[Event]) -> None:
        if assembly.raw_properties is None:
            raise RemoteProtocolError(ReplyCode.UNEXPECTED_FRAME, "a body before its header")
        if len(payload) > assembly.missing:
            raise RemoteProtocolError(ReplyCode.UNEXPECTED_FRAME, "a body longer than its header said")
        assembly.body += payload
        assembly.missing -= len(payload)
        if not assembly.missing:
            self._complete(channel, assembly, events)

    def _complete(self, channel: ChannelRecord, assembly: Assembly, events: list[Event]) -> None:
        channel.assembly = None
        payload, raw_properties, body = assembly.payload, assembly.raw_properties or b"", bytes(assembly.body)
        builders = _CLIENT_READS if self._is_client else _SERVER_READS
        if build := builders.get(payload[:4]):
            events.append(build(channel.number, payload, raw_properties, body))
        else:
            events.append(Incoming(channel.number, decode_method(payload), raw_properties, body))

    # Refusing -----------------------------------------------------------------------------------------

    def _refuse_message(self, channel: ChannelRecord, assembly: Assembly, size: int, events: list[Event]) -> None:
        """Too large: as in RabbitMQ, the channel ends and the connection lives; the body is read and dropped."""
        text = f"message size {size} is larger than configured max size {self.largest_message}"
        error = RemoteProtocolError(ReplyCode.PRECONDITION_FAILED, text)
        class_id, method_id = METHODS[assembly.payload[:4]].id
        close = ChannelClose(reply_code=error.code, reply_text=str(error), class_id=class_id, method_id=method_id)
        self.send(channel.number, close)
        events.append(Violation(channel.number, error))

    def _refuse(self, error: RemoteProtocolError) -> None:
        """The connection is over. Say why, if the peer is far enough to understand, and listen no more."""
        before = self.state
        self._enter(ConnectionState.CLOSED)
        if before is ConnectionState.IDLE:
            self.outgoing.append(PROTOCOL_HEADER)
        elif ">connection.close" in lifecycle.CONNECTION[before]:
            close = ConnectionClose(reply_code=error.code, reply_text=str(error))
            self.outgoing.append(frames.method_frame(0, close))

    def __repr__(self) -> str:
        return (
            f"<Conversation {self.side.value} {self.state.name} channels={len(self._channels)} "
            f"outgoing={len(self.outgoing)}>"
        )
