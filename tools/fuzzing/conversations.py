"""`protocol`: a conversation of either side in several states. `frames`: what it reads them with.

The words of these targets are such as "queue.declare" or "FRAME_ERROR a frame ends with".
"""

from __future__ import annotations

import pickle
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import cached_property
from random import Random

from fuzzing.mutation import Mutator
from fuzzing.playing import Application, look_at, outcome, remote
from fuzzing.targets import Broken, Target
from redrive.errors import EncodingError
from redrive.protocol.connection import AmqpConnection, Violation
from redrive.protocol.handshake import Tuning
from redrive.protocol.lifecycle import ConnectionState
from redrive.protocol.messages import Delivery, Publication
from redrive.wire.frames import (
    BODY,
    CONTENT_HEAD,
    HEADER,
    HEARTBEAT,
    METHOD,
    OVERHEAD,
    PROTOCOL_HEADER,
    method_frame,
)
from redrive.wire.method import METHODS, Method, Sender, decode_method
from redrive.wire.methods.basic import BasicDeliver, BasicPublish
from redrive.wire.methods.channel import ChannelClose, ChannelOpen
from redrive.wire.methods.connection import ConnectionClose
from redrive.wire.properties import decode_properties
from redrive.wire.values import read_table
from tests.support.connection_pair import ConnectionPair, frame, frame_by_frame

# Limits small enough that inputs of a few hundred bytes go beyond them.
TUNING = Tuning(channel_max=4, frame_max=4096, heartbeat=0)
LARGEST_MESSAGE = 5000


# Conversations --------------------------------------------------------------------------------------------------


def new_pair() -> ConnectionPair:
    return ConnectionPair(
        offer=TUNING,
        client=AmqpConnection(Sender.CLIENT, largest_message=LARGEST_MESSAGE, offer=TUNING),
        server=AmqpConnection(Sender.SERVER, largest_message=LARGEST_MESSAGE, offer=TUNING),
    )


def _fresh() -> ConnectionPair:
    pair = new_pair()
    pair.client.send_protocol_header()
    return pair


def opened() -> ConnectionPair:
    pair = new_pair()
    pair.open()
    pair.open_channel()
    pair.open_channel()
    return pair


def _in_content() -> ConnectionPair:
    """A message on channel 1 lacks the rest of its body, one on channel 2 everything but its method."""
    pair = opened()
    some_body = frame(HEADER, 1, CONTENT_HEAD.pack(60, 0, 20) + b"\x00\x00") + frame(BODY, 1, b"0123456789")
    publish, deliver = BasicPublish(routing_key="k"), BasicDeliver(consumer_tag="c", delivery_tag=1)
    pair.tell_server(method_frame(1, publish) + some_body + method_frame(2, publish))
    pair.tell_client(method_frame(1, deliver) + some_body + method_frame(2, deliver))
    return pair


def _channels_closing() -> ConnectionPair:
    """Channel 1 is being closed by both sides and channel 2 by each, channel 3 is being opened."""
    pair = opened()
    for side in (pair.client, pair.server):
        side.send(1, ChannelClose())
        side.send(2, ChannelClose())
        side.receive(method_frame(1, ChannelClose()))
    pair.client.send(3, ChannelOpen())
    pair.server.receive(method_frame(3, ChannelOpen()))
    return pair


def _closing() -> ConnectionPair:
    pair = opened()
    pair.client.send(0, ConnectionClose())
    pair.server.send(0, ConnectionClose())
    return pair


STATES: dict[str, Callable[[], ConnectionPair]] = {
    "fresh": _fresh,
    "open": opened,
    "content": _in_content,
    "channels": _channels_closing,
    "closing": _closing,
}


class ConversationTarget(Target):
    """A conversation of one side in some state, with an application behind it."""

    def __init__(self, side: Sender, state: str) -> None:
        states = ("fresh",) if state == "fresh" else ("open", "content", "channels", "closing")
        super().__init__(f"{side.value}-{state}", tuple(f"{side.value}-{state}" for state in states))
        self._side, self._state = side, state

    @cached_property
    def _template(self) -> bytes:
        """A conversation is a plain value: copied in microseconds."""
        pair = STATES[self._state]()
        conversation = pair.client if self._side is Sender.CLIENT else pair.server
        conversation.data_to_send()
        return pickle.dumps(conversation)

    def mutate(self, mutator: Mutator, data: bytes, others: Sequence[bytes]) -> bytes:
        return mutator.stream(data, others)

    def run(self, data: bytes) -> set[str]:
        conversation: AmqpConnection = pickle.loads(self._template)
        application = Application(conversation)
        words: set[str] = set()
        for read in reads(data):
            events = conversation.receive(read)
            answer = conversation.data_to_send()
            application.begin()
            for event in events:
                words.update(look_at(event))
                application.react(event)
                if isinstance(event, Violation) and event.channel == 0:
                    check_end(conversation, event is events[-1])
            check_outgoing(conversation, answer + conversation.data_to_send())
        check_retained(conversation, len(data))
        words.add(conversation.state.name)
        return words


def reads(data: bytes) -> Iterator[bytes]:
    """The input as it arrives: frame by frame, so that answers come in time, or in pieces of any size."""
    chance = Random(zlib.crc32(data))
    if chance.random() < 0.6:
        yield from frame_by_frame(data)
        return
    start = 0
    while start < len(data):
        stop = start + chance.choice((1, 3, 8, 20, 100, 1000, 100_000))
        yield data[start:stop]
        start = stop


# What a conversation promises -----------------------------------------------------------------------------------------


def check_end(conversation: AmqpConnection, is_last: bool) -> None:
    if not is_last:
        raise Broken("events after the one that ends the connection")
    if conversation.state is not ConnectionState.CLOSED:
        raise Broken(f"after a violation: {conversation!r}")
    if conversation.receive(method_frame(0, ConnectionClose())) or conversation.outgoing:
        raise Broken("a closed conversation heard or said something")


def check_outgoing(conversation: AmqpConnection, data: bytes) -> None:
    """What this side says are frames and methods that the other side can read."""
    for unit in frame_by_frame(data):
        if unit == PROTOCOL_HEADER:
            continue
        if len(unit) < OVERHEAD or unit[-1] != 0xCE or len(unit) > conversation.tuning.frame_max:
            raise Broken(f"said no frame: {unit!r:.100}")
        if unit[0] == METHOD and decode_method(unit[7:-1]).sender not in (conversation.side, Sender.EITHER):
            raise Broken(f"said what is for the other side to say: {unit!r:.100}")
        if unit[0] not in (METHOD, HEADER, BODY, HEARTBEAT):
            raise Broken(f"said a frame of type {unit[0]}")


def check_retained(conversation: AmqpConnection, heard: int) -> None:
    """What a conversation keeps is bounded by what it was told, never by what it was promised."""
    kept = retained(conversation, set())
    if kept > 10_000 + 32 * heard:
        raise Broken(f"{kept} bytes kept after hearing {heard}: {conversation!r}")


def retained(value: object, seen: set[int]) -> int:
    """The size of an object with everything it holds, except what the program holds anyway."""
    if id(value) in seen or isinstance(value, type | Enum) or value is None:
        return 0
    seen.add(id(value))
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(retained(part, seen) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple | set):
        return size + sum(retained(part, seen) for part in value)
    held = vars(value) if hasattr(value, "__dict__") else getattr(type(value), "__slots__", ())
    return size + sum(retained(getattr(value, name, None), seen) for name in held)


# Decoders -----------------------------------------------------------------------------------------------------------


class DecoderTarget(Target):
    """A function that decodes bytes, or complains about the peer."""

    def __init__(self, name: str, decode: Callable[[bytes], object]) -> None:
        super().__init__(name)
        self._decode = decode

    def run(self, data: bytes) -> set[str]:
        complaint = remote(lambda: repr(self._decode(data)))
        return {f"{self.name} {outcome(complaint)}"}


def _decode_table(data: bytes) -> object:
    return read_table(data, 0, len(data))


def _decode_properties(data: bytes) -> object:
    """What was decoded can be written again, or it is said why not: RabbitMQ itself takes no NaN."""
    properties = decode_properties(data)
    try:
        again = decode_properties(properties.encode())
    except EncodingError:
        return properties
    if again != properties:
        raise Broken(f"{properties!r} came back as {again!r}")
    return properties


def _decode_method(data: bytes) -> Method | None:
    return decode_method(data) if data[:4] in METHODS else None


def _decode_delivery(data: bytes) -> object:
    delivery = Delivery(1, data, data[-40:], data)
    return delivery.consumer_tag, delivery, remote(lambda: delivery.properties)


def _decode_publication(data: bytes) -> object:
    return Publication(1, data, b"", data)


def decoders() -> list[Target]:
    return [
        DecoderTarget("table", _decode_table),
        DecoderTarget("properties", _decode_properties),
        DecoderTarget("method", _decode_method),
        DecoderTarget("delivery", _decode_delivery),
        DecoderTarget("publication", _decode_publication),
    ]


def conversations() -> list[Target]:
    """Every state of either side."""
    return [ConversationTarget(side, state) for side in (Sender.CLIENT, Sender.SERVER) for state in STATES]
