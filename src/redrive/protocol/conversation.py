"""The conversation: bytes in, events out; methods in, bytes out. For either side, without I/O.

    conversation = Conversation(Sender.CLIENT)
    conversation.greet()
    socket.send(conversation.take())
    for event in conversation.receive(socket.recv(65536)): ...

`receive` reads everything a read brought in one pass. A message whose three frames are all there is taken in
one step (`whole_content`); one that is split over reads, or over many body frames, is put together piece by
piece (`_Assembly`) with the same result. A partial frame is a wait, not an exception.

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

from redrive.errors import EncodingError, LocalProtocolError, RemoteProtocolError, ReplyCode
from redrive.protocol import lifecycle
from redrive.protocol.content import Delivery, Incoming, Publication
from redrive.protocol.handshake import Tuning, check_tune_ok, settled
from redrive.protocol.lifecycle import ChannelState, ConnectionState
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
    MIN_FRAME_MAX,
    OVERHEAD,
    PROTOCOL_HEADER,
)
from redrive.wire.method import METHODS, Method, Sender, decode_method
from redrive.wire.methods.channel import ChannelClose, ChannelCloseOk, ChannelOpen
from redrive.wire.methods.connection import ConnectionClose, ConnectionCloseOk, ConnectionTune, ConnectionTuneOk
from redrive.wire.values import malformed

DELIVER = b"\x00\x3c\x00\x3c"
PUBLISH = b"\x00\x3c\x00\x28"

# RabbitMQ's own ceiling: max_message_size can be set to 512 MiB at most.
LARGEST_MESSAGE = 512 * 1024 * 1024

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


class _Assembly:
    """A message of which some frames are still to come."""

    __slots__ = ("body", "missing", "payload", "raw_properties")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.raw_properties: bytes | None = None  # None until the header frame is here
        self.body = bytearray()  # not a list: a million frames of one byte are still a megabyte
        self.missing = 0


class _Channel:
    __slots__ = ("assembly", "number", "state")

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = ChannelState.CLOSED
        self.assembly: _Assembly | None = None

    def __repr__(self) -> str:
        return f"<Channel {self.number} {self.state.name}{' assembling' * (self.assembly is not None)}>"


class Conversation:
    def __init__(
        self,
        side: Sender,
        *,
        largest_message: int = LARGEST_MESSAGE,
        offer: Tuning | None = None,
        smallest_frame_max: int = MIN_FRAME_MAX,
    ) -> None:
        """`offer` is what a server proposes. `smallest_frame_max` is the least that a client may settle on, and what a
        server reads before it has.
        """
        self.side = side
        self.state = ConnectionState.IDLE
        self.tuning = offer or Tuning()
        self.largest_message = largest_message
        self.outgoing: list[bytes] = []
        self._is_client = side is Sender.CLIENT
        self._smallest_frame_max = smallest_frame_max
        self._largest_payload = self.tuning.frame_max - OVERHEAD if self._is_client else smallest_frame_max
        self._offered = ConnectionTune()
        self._channels: dict[int, _Channel] = {}
        self._haunted: dict[int, None] = {}  # numbers that a broker closed, longest ago first
        self._rest = bytearray()  # the beginning of a frame
        self._need = 0  # how long `_rest` must be before it is worth a look
        self._hot: dict[bytes, _Builder] = {DELIVER: Delivery} if side is Sender.CLIENT else {PUBLISH: Publication}

    # Sending ------------------------------------------------------------------------------------------

    def take(self) -> bytes:
        """Everything that is to be written to the socket, once."""
        data = b"".join(self.outgoing)
        self.outgoing.clear()
        return data

    def greet(self) -> None:
        """A client's first words."""
        self._advance(lifecycle.PROTOCOL_HEADER)
        self.outgoing.append(PROTOCOL_HEADER)

    def send(self, channel: int, method: Method, raw_properties: bytes = b"\x00\x00", body: bytes = b"") -> None:
        if method.sender is not Sender.EITHER and method.sender is not self.side:
            raise LocalProtocolError(f"{method.name} is for the {method.sender.value} to send")
        frame = frames.method_frame(channel, method)
        if len(frame) > self.tuning.frame_max:
            text = f"{method.name} needs {len(frame)} bytes; this connection can carry {self.tuning.frame_max}"
            raise EncodingError(f"{text}. Shorten its arguments: the peer would close the connection")
        if method.id[0] == 10:
            if channel != 0:
                raise LocalProtocolError(f"{method.name} belongs to channel 0, not {channel}")
            self._advance(lifecycle.sent(method.name))
            self._note_tuning(method)
        elif method.name in lifecycle.LIFECYCLE_METHODS:
            self._advance_channel(channel, lifecycle.sent(method.name))
        else:
            self._require_open(channel)
        content: list[bytes] = []
        if method.has_content:
            content = frames.content_frames(
                channel, raw_properties, body, self.tuning.frame_max, strict=self._is_client
            )
        self.outgoing += [frame, *content]

    def send_content(self, channel: int, method_frame: bytes, raw_properties: bytes, body: bytes) -> None:
        """`send` for a method frame that was encoded before: the hot path of publish and deliver."""
        self._require_open(channel)
        content = frames.content_frames(channel, raw_properties, body, self.tuning.frame_max, strict=self._is_client)
        self.outgoing.append(method_frame)
        self.outgoing += content

    def send_frame(self, channel: int, frame: bytes) -> None:
        """`send` for a settlement that was encoded before."""
        self._require_open(channel)
        self.outgoing.append(frame)

    def beat(self) -> None:
        self.outgoing.append(frames.HEARTBEAT_FRAME)

    # Channels -----------------------------------------------------------------------------------------

    def free_channel(self) -> int:
        """The lowest number that nobody uses. A number is free again when both sides said so.

        One that the broker closed is the last choice, and of these the one that has been closed for longest.
        """
        unused = (number for number in range(1, self.tuning.channel_max + 1) if number not in self._channels)
        clean = next((number for number in unused if number not in self._haunted), None)
        if clean is not None:
            return clean
        for number in self._haunted:
            if number not in self._channels:
                return number
        raise LocalProtocolError(f"all {self.tuning.channel_max} channels of this connection are in use")

    def channel_state(self, number: int) -> ChannelState:
        channel = self._channels.get(number)
        return channel.state if channel is not None else ChannelState.CLOSED

    def is_open(self, number: int) -> bool:
        """May something be sent on this channel?"""
        channel = self._channels.get(number)
        return channel is not None and channel.state is ChannelState.OPEN and self.state is ConnectionState.OPEN

    def _require_open(self, number: int) -> None:
        if not self.is_open(number):
            raise LocalProtocolError(f"channel {number} is {self.channel_state(number).name} on {self!r}")

    def _advance_channel(self, number: int, key: str) -> None:
        """This side says something that changes the life of a channel."""
        if self.state is not ConnectionState.OPEN:
            raise LocalProtocolError(f"{key.lstrip('>')} on {self!r}")
        channel = self._channels.get(number) or _Channel(number)
        after = lifecycle.CHANNEL[channel.state].get(key)
        if after is None or number <= 0 or (self._is_client and number > self.tuning.channel_max):
            raise LocalProtocolError(f"{key.lstrip('>')} on channel {number}, which is {channel.state.name}")
        self._move(channel, after)

    def _move(self, channel: _Channel, state: ChannelState) -> None:
        channel.state = state
        if state is ChannelState.CLOSED:
            self._channels.pop(channel.number, None)
        else:
            self._channels[channel.number] = channel
        if state is ChannelState.OPEN:
            self._haunted.pop(channel.number, None)
        if state is not ChannelState.OPEN:
            channel.assembly = None

    # The connection's own life ------------------------------------------------------------------------

    def _advance(self, key: str) -> None:
        after = lifecycle.CONNECTION[self.state].get(key)
        if after is None:
            raise LocalProtocolError(f"{key.lstrip('>')} makes no sense on {self!r}")
        self._enter(after)

    def _enter(self, state: ConnectionState) -> None:
        self.state = state
        if state is ConnectionState.CLOSED:
            self._channels.clear()

    def _note_tuning(self, method: Method) -> None:
        match method:
            case ConnectionTune():
                self._offered = method
            case ConnectionTuneOk():
                self._tune(settled(method))

    def _tune(self, tuning: Tuning) -> None:
        """Apply the limits of the connection.

        A server reads frames with a payload of `frame_max` bytes: RabbitMQ forgives clients that forget the eight
        bytes of the frame itself.
        """
        self.tuning = tuning
        self._largest_payload = tuning.frame_max - OVERHEAD * self._is_client

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
                build = self._hot.get(data[pos + 7 : pos + 11])
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
        after = lifecycle.CONNECTION[self.state].get(lifecycle.received(cls.name))
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
        channel = self._channels.get(number) or _Channel(number)
        if cls.name in lifecycle.LIFECYCLE_METHODS:
            self._read_lifecycle_method(channel, cls, payload, events)
        elif self._is_deaf(channel):
            return  # sent before the peer knew, or before it closed the channel itself
        elif channel.state is not ChannelState.OPEN and not self._opens_for(channel):
            raise RemoteProtocolError(ReplyCode.CHANNEL_ERROR, f"{cls.name} on {channel!r}")
        elif channel.assembly is not None:
            raise RemoteProtocolError(ReplyCode.UNEXPECTED_FRAME, f"{cls.name} before the content of the last method")
        elif cls.has_content:
            channel.assembly = _Assembly(payload)
        else:
            events.append(Incoming(number, decode_method(payload)))

    def _is_deaf(self, channel: _Channel) -> bool:
        """Is everything but the channel's own life to be ignored?"""
        if channel.state is ChannelState.OPEN:
            return False
        return channel.state in _LEAVING or channel.number in self._haunted

    def _opens_for(self, channel: _Channel) -> bool:
        """A client need not wait for open-ok: a broker takes what follows channel.open in the same read."""
        return self.side is Sender.SERVER and channel.state is ChannelState.OPENING

    def _read_lifecycle_method(self, channel: _Channel, cls: type[Method], payload: bytes, events: list[Event]) -> None:
        after = lifecycle.CHANNEL[channel.state].get(lifecycle.received(cls.name))
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
                self._haunted[channel.number] = None
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
        channel = self._channels.get(number) or _Channel(number)
        if self._is_deaf(channel):
            return
        if channel.assembly is None:
            raise RemoteProtocolError(ReplyCode.UNEXPECTED_FRAME, f"content without a method on channel {number}")
        if kind == HEADER:
            self._read_header(channel, channel.assembly, payload, events)
        else:
            self._read_body(channel, channel.assembly, payload, events)

    def _read_header(self, channel: _Channel, assembly: _Assembly, payload: bytes, events: list[Event]) -> None:
        if assembly.raw_properties is not None:
            raise RemoteProtocolError(ReplyCode.UNEXPECTED_FRAME, "a second content header")
        if len(payload) < CONTENT_HEAD.size + 2:
            raise malformed("a content header is cut short")
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

    def _read_body(self, channel: _Channel, assembly: _Assembly, payload: bytes, events: list[Event]) -> None:
        if assembly.raw_properties is None:
            raise RemoteProtocolError(ReplyCode.UNEXPECTED_FRAME, "a body before its header")
        if len(payload) > assembly.missing:
            raise RemoteProtocolError(ReplyCode.UNEXPECTED_FRAME, "a body longer than its header said")
        assembly.body += payload
        assembly.missing -= len(payload)
        if not assembly.missing:
            self._complete(channel, assembly, events)

    def _complete(self, channel: _Channel, assembly: _Assembly, events: list[Event]) -> None:
        channel.assembly = None
        payload, raw_properties, body = assembly.payload, assembly.raw_properties or b"", bytes(assembly.body)
        if build := self._hot.get(payload[:4]):
            events.append(build(channel.number, payload, raw_properties, body))
        else:
            events.append(Incoming(channel.number, decode_method(payload), raw_properties, body))

    # Refusing -----------------------------------------------------------------------------------------

    def _refuse_message(self, channel: _Channel, assembly: _Assembly, size: int, events: list[Event]) -> None:
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
