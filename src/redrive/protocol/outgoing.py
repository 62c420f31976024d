"""What one side of a conversation sends, and the state of the connection and its channels that this depends on.

A client does not reuse the number of a channel that the broker closed as long as it has another: see `conversation`.
"""

from __future__ import annotations

from redrive.errors import EncodingError, LocalProtocolError
from redrive.protocol import lifecycle
from redrive.protocol.handshake import Tuning, agreed_limits
from redrive.protocol.lifecycle import ChannelState, ConnectionState
from redrive.wire import frames
from redrive.wire.frames import MIN_FRAME_MAX, OVERHEAD, PROTOCOL_HEADER
from redrive.wire.method import Method, Sender
from redrive.wire.methods.connection import ConnectionTune, ConnectionTuneOk

# RabbitMQ's own ceiling: max_message_size can be set to 512 MiB at most.
LARGEST_MESSAGE = 512 * 1024 * 1024


class Assembly:
    """A message of which some frames are still to come."""

    __slots__ = ("body", "missing", "payload", "raw_properties")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.raw_properties: bytes | None = None  # None until the header frame is here
        self.body = bytearray()  # not a list: a million frames of one byte are still a megabyte
        self.missing = 0


class ChannelRecord:
    __slots__ = ("assembly", "number", "state")

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = ChannelState.CLOSED
        self.assembly: Assembly | None = None

    def __repr__(self) -> str:
        return f"<Channel {self.number} {self.state.name}{' assembling' * (self.assembly is not None)}>"


class Outgoing:
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
        self._channels: dict[int, ChannelRecord] = {}
        self._recently_closed: dict[int, None] = {}  # numbers that a broker closed, longest ago first
        self._rest = bytearray()  # received: the beginning of a frame
        self._need = 0  # how long `_rest` must be before it is worth reading

    # Sending ------------------------------------------------------------------------------------------

    def data_to_send(self) -> bytes:
        """Everything that is to be written to the socket, once."""
        data = b"".join(self.outgoing)
        self.outgoing.clear()
        return data

    def send_protocol_header(self) -> None:
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
            self._advance(lifecycle.sent_key(method.name))
            self._note_tuning(method)
        elif method.name in lifecycle.LIFECYCLE_METHODS:
            self._advance_channel(channel, lifecycle.sent_key(method.name))
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

    def send_heartbeat(self) -> None:
        self.outgoing.append(frames.HEARTBEAT_FRAME)

    # Channels -----------------------------------------------------------------------------------------

    def free_channel(self) -> int:
        """Return the lowest unused number. A number is free again when both sides said so.

        One that the broker closed is the last choice, and of these the one that has been closed for longest.
        """
        unused = (number for number in range(1, self.tuning.channel_max + 1) if number not in self._channels)
        clean = next((number for number in unused if number not in self._recently_closed), None)
        if clean is not None:
            return clean
        for number in self._recently_closed:
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
        channel = self._channels.get(number) or ChannelRecord(number)
        after = lifecycle.CHANNEL[channel.state].get(key)
        if after is None or number <= 0 or (self._is_client and number > self.tuning.channel_max):
            raise LocalProtocolError(f"{key.lstrip('>')} on channel {number}, which is {channel.state.name}")
        self._move(channel, after)

    def _move(self, channel: ChannelRecord, state: ChannelState) -> None:
        channel.state = state
        if state is ChannelState.CLOSED:
            self._channels.pop(channel.number, None)
        else:
            self._channels[channel.number] = channel
        if state is ChannelState.OPEN:
            self._recently_closed.pop(channel.number, None)
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
                self._tune(agreed_limits(method))

    def _tune(self, tuning: Tuning) -> None:
        """Apply the limits of the connection.

        A server reads frames with a payload of `frame_max` bytes: RabbitMQ forgives clients that forget the eight
        bytes of the frame itself.
        """
        self.tuning = tuning
        self._largest_payload = tuning.frame_max - OVERHEAD * self._is_client
