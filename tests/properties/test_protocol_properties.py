"""A conversation means the same however its bytes arrive, and no bytes at all can break it.

Whole reads take the fast path of `AmqpConnection`, single bytes take the piecemeal one: that they agree is the proof
that the two are one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.errors import LocalProtocolError
from redrive.protocol.connection import AmqpConnection, Event, Violation
from redrive.protocol.handshake import Tuning
from redrive.protocol.lifecycle import LIFECYCLE_METHODS, ConnectionState
from redrive.protocol.messages import Delivery, Incoming, Publication
from redrive.wire.frames import METHOD, OVERHEAD, PROTOCOL_HEADER
from redrive.wire.method import METHODS, Method, Sender, decode_method
from redrive.wire.methods.basic import BasicDeliver, BasicGetOk, BasicPublish, BasicReturn
from redrive.wire.methods.channel import ChannelClose, ChannelOpen, ChannelOpenOk
from redrive.wire.methods.connection import ConnectionClose
from redrive.wire.methods.queue import QueueDeclare
from redrive.wire.properties import Properties
from tests.support.connection_pair import ConnectionPair, Split, at_random, byte_by_byte, essence, frame_by_frame, whole

unhurried = settings(deadline=None)  # ten thousand single bytes on a busy machine are no failure


# Valid conversations ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Say:
    """One side says something. When it may not, it keeps silent."""

    side: Sender
    channel: int
    method: Method
    properties: bytes
    body: bytes

    def perform(self, pair: ConnectionPair) -> None:
        conversation = pair.client if self.side is Sender.CLIENT else pair.server
        try:
            conversation.send(self.channel, self.method, self.properties, self.body)
        except LocalProtocolError:
            pass


@dataclass(frozen=True)
class Arrive:
    """What one side has said reaches the other."""

    side: Sender

    def perform(self, pair: ConnectionPair) -> list[Event]:
        return pair.to_server() if self.side is Sender.CLIENT else pair.to_client()


names = st.text("ab.#ë€", max_size=10)
bodies = st.binary(max_size=40) | st.integers(0, 10_000).map(lambda size: b"x" * size)
properties = st.builds(
    Properties, message_id=st.none() | names, headers=st.none() | st.dictionaries(names, st.integers(0, 99), max_size=3)
).map(Properties.encode)

PLAIN_METHODS = [
    cls() for cls in METHODS.values() if cls.id[0] != 10 and not cls.has_content and cls.name not in LIFECYCLE_METHODS
]
CONNECTION_TALK = [cls() for cls in METHODS.values() if cls.id[0] == 10 and cls.id[1] >= 60]

methods: st.SearchStrategy[Method] = st.one_of(
    st.builds(BasicPublish, exchange=names, routing_key=names, mandatory=st.booleans()),
    st.builds(BasicDeliver, consumer_tag=names, delivery_tag=st.integers(0, 2**64 - 1), routing_key=names),
    st.builds(BasicReturn, exchange=names, routing_key=names),
    st.builds(BasicGetOk, delivery_tag=st.integers(0, 2**64 - 1), exchange=names),
    st.builds(QueueDeclare, queue=names, arguments=st.dictionaries(names, st.integers() | names, max_size=3)),
    st.sampled_from([ChannelOpen(), ChannelOpenOk(), ChannelClose()]),
    st.sampled_from(PLAIN_METHODS),
)
sides = st.sampled_from([Sender.CLIENT, Sender.SERVER])
channels = st.integers(1, 3)


@st.composite
def sayings(draw: st.DrawFn) -> Say:
    method = draw(methods)
    side = method.sender if method.sender is not Sender.EITHER else draw(sides)
    return Say(side, draw(channels), method, draw(properties), draw(bodies))


farewells = st.builds(Say, sides, st.just(0), st.just(ConnectionClose()), st.just(b""), st.just(b""))
connection_talk = st.sampled_from(CONNECTION_TALK).map(lambda method: Say(method.sender, 0, method, b"", b""))
conversations = st.lists(sayings() | st.builds(Arrive, sides) | connection_talk | farewells, max_size=20)
splits = st.integers().map(Random).map(at_random)


def opened(split: Split = whole, frame_max: int = 4096) -> ConnectionPair:
    """Open, with channels 1 and 2."""
    pair = ConnectionPair(split=split, offer=Tuning(frame_max=frame_max))
    pair.open()
    pair.open_channel()
    pair.open_channel()
    return pair


def understood(conversation: list[Say | Arrive], split: Split) -> list[tuple[object, ...]]:
    """What both sides make of a conversation."""
    pair = opened(split)
    events: list[Event] = []
    for act in conversation:
        events += act.perform(pair) or []
    heard = pair.pump()
    return [essence(event) for event in (*events, *heard.client, *heard.server)]


@given(st.binary(max_size=3000), splits)
@unhurried
def test_no_way_of_splitting_loses_a_byte(data: bytes, split: Split) -> None:
    for way in (whole, frame_by_frame, byte_by_byte, split):
        assert b"".join(way(data)) == data


@given(conversations, splits)
@unhurried
def test_a_conversation_means_the_same_however_its_bytes_arrive(conversation: list[Say | Arrive], split: Split) -> None:
    meaning = understood(conversation, whole)

    assert understood(conversation, split) == meaning
    assert understood(conversation, frame_by_frame) == meaning
    assert understood(conversation, byte_by_byte) == meaning


# Messages -------------------------------------------------------------------------------------------------------


@st.composite
def frame_max_and_body(draw: st.DrawFn) -> tuple[int, bytes]:
    """Sizes around every multiple of what a frame can hold."""
    frame_max = draw(st.integers(4096, 10_000) | st.just(131_072))
    frames, more = draw(st.integers(0, 3)), draw(st.integers(-2, 2) | st.integers(0, 100))
    size = max(0, frames * (frame_max - OVERHEAD) + more)
    return frame_max, Random(size).randbytes(size)


@given(frame_max_and_body(), properties, splits)
@unhurried
def test_a_publish_of_any_size_survives_any_frame_size(
    given: tuple[int, bytes], raw_properties: bytes, split: Split
) -> None:
    frame_max, body = given
    pair = opened(split, frame_max)

    pair.client.send(1, BasicPublish(exchange="e", routing_key="k"), raw_properties, body)
    [publication] = pair.to_server()

    assert isinstance(publication, Publication)
    assert (publication.raw_properties, publication.body) == (raw_properties, body)


@given(frame_max_and_body(), properties, splits)
@unhurried
def test_a_delivery_of_any_size_survives_any_frame_size(
    given: tuple[int, bytes], raw_properties: bytes, split: Split
) -> None:
    frame_max, body = given
    pair = opened(split, frame_max)

    pair.server.send(1, BasicDeliver(delivery_tag=1), raw_properties, body)
    [delivery] = pair.to_client()

    assert isinstance(delivery, Delivery)
    assert (delivery.raw_properties, delivery.body) == (raw_properties, body)


# Mutations --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutation:
    """Replace some bytes somewhere: an insertion replaces none, a deletion puts none in their place."""

    where: float  # 0 is the beginning, 1 the end
    length: int
    replacement: bytes

    def apply(self, data: bytes) -> bytes:
        start = int(len(data) * self.where)
        return data[:start] + self.replacement + data[start + self.length :]


TELLING = [b"\x00", b"\xff", b"\xce", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x01", b"\x02", b"\x03", b"\x08"]
mutations = st.lists(
    st.builds(Mutation, st.floats(0, 1), st.integers(0, 4), st.sampled_from(TELLING) | st.binary(max_size=4)),
    min_size=1,
    max_size=3,
)


def mutate(data: bytes, mutations: list[Mutation]) -> bytes:
    return reduce(lambda mutated, mutation: mutation.apply(mutated), mutations, data)


def stream(side: Sender, conversation: list[Say]) -> bytes:
    """The bytes that one side says in an open connection."""
    pair = opened()
    for say in conversation:
        say.perform(pair)
    return pair.client.data_to_send() if side is Sender.CLIENT else pair.server.data_to_send()


def heard(side: Sender, data: bytes, split: Split) -> tuple[list[tuple[object, ...]], ConnectionState, bytes]:
    """What the other side makes of these bytes: its events, its state, its answers."""
    pair = opened(split)
    hearer: AmqpConnection = pair.server if side is Sender.CLIENT else pair.client
    events = pair.tell_server(data) if side is Sender.CLIENT else pair.tell_client(data)
    for event in events:
        assert isinstance(event, Delivery | Publication | Incoming | Violation)
        if isinstance(event, Violation) and event.channel == 0:
            assert event is events[-1]
            assert hearer.state is ConnectionState.CLOSED
    return [essence(event) for event in events], hearer.state, hearer.data_to_send()


@given(sides, st.lists(sayings(), max_size=8), mutations, splits)
@settings(max_examples=200, deadline=None)
def test_a_broken_stream_gives_events_and_at_most_one_end_however_it_arrives(
    side: Sender, conversation: list[Say], mutations: list[Mutation], split: Split
) -> None:
    data = mutate(stream(side, conversation), mutations)

    outcome = heard(side, data, whole)

    assert heard(side, data, split) == outcome
    assert heard(side, data, byte_by_byte) == outcome


@given(sides, st.lists(sayings(), max_size=8), mutations)
@unhurried
def test_the_answer_to_a_broken_stream_is_well_formed(
    side: Sender, conversation: list[Say], mutations: list[Mutation]
) -> None:
    _, _, answer = heard(side, mutate(stream(side, conversation), mutations), whole)

    for unit in frame_by_frame(answer):
        assert unit[0] == METHOD
        assert unit[-1:] == b"\xce"
        assert decode_method(unit[7:-1]).sender is not side


@given(st.binary(max_size=40), splits)
@unhurried
def test_any_greeting_is_understood_or_refused_in_the_same_way(greeting: bytes, split: Split) -> None:
    outcomes = []
    for way in (whole, split, byte_by_byte):
        server = AmqpConnection(Sender.SERVER)
        pair = ConnectionPair(split=way, server=server)
        words = [essence(event)[:3] for event in pair.tell_server(greeting)]  # without the text: it quotes the bytes
        outcomes.append((words, server.state, server.data_to_send()))

    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert outcomes[0][2] in (b"", PROTOCOL_HEADER)
