"""The tables of `redrive.protocol.lifecycle`: complete, obeyed in both directions, and right together.

The first tests read the tables. The next ones put a conversation into every state and let it send and receive
every lifecycle method. The last ones let two sides follow the tables and try every order in which their words
can meet.
"""

from __future__ import annotations

import runpy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import product
from pathlib import Path
from typing import TypeVar

import pytest

from redrive.errors import LocalProtocolError, ReplyCode
from redrive.protocol import lifecycle
from redrive.protocol.connection import AmqpConnection, Event, Violation
from redrive.protocol.lifecycle import CHANNEL, CONNECTION, ChannelState, ConnectionState
from redrive.protocol.messages import Incoming
from redrive.wire.frames import method_frame
from redrive.wire.method import METHODS, Method, Sender
from redrive.wire.methods.channel import ChannelClose, ChannelCloseOk, ChannelOpen, ChannelOpenOk
from redrive.wire.methods.connection import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
)
from tests.support.connection_pair import ConnectionPair, frame_by_frame

ROOT = Path(__file__).parents[3]
SIDES = (Sender.CLIENT, Sender.SERVER)
FAREWELLS = {"connection.close", "connection.close-ok", "channel.close", "channel.close-ok"}
CONNECTION_METHODS = [cls for cls in METHODS.values() if cls.id[0] == 10]
CHANNEL_METHODS: list[type[Method]] = [ChannelOpen, ChannelOpenOk, ChannelClose, ChannelCloseOk]
TABLES = [pytest.param(CONNECTION, id="connection"), pytest.param(CHANNEL, id="channel")]
CLOSE_OK = method_frame(0, ConnectionCloseOk())

S = TypeVar("S", bound=Enum)
Table = Mapping[S, Mapping[str, S]]
Cases = pytest.MarkDecorator


def other(side: Sender) -> Sender:
    return Sender.SERVER if side is Sender.CLIENT else Sender.CLIENT


def named(value: object) -> str:
    return value.name.lower() if isinstance(value, Enum) else str(getattr(value, "name", value))


# The tables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("table", "states"), [(CONNECTION, ConnectionState), (CHANNEL, ChannelState)], ids=named)
def test_a_table_has_a_row_for_every_state(table: Table[Enum], states: type[Enum]) -> None:
    assert list(table) == list(states)


@pytest.mark.parametrize("table", TABLES)
def test_a_table_leads_only_to_states_that_it_has(table: Table[Enum]) -> None:
    assert {after for row in table.values() for after in row.values()} <= set(table)


@pytest.mark.parametrize("table", TABLES)
def test_a_table_names_only_what_can_be_said(table: Table[Enum]) -> None:
    sayable = {cls.name for cls in METHODS.values()} | {lifecycle.PROTOCOL_HEADER}

    assert {key.lstrip("<>") for row in table.values() for key in row} <= sayable


@pytest.mark.parametrize("table", TABLES)
def test_the_farewells_and_only_they_have_a_direction(table: Table[Enum]) -> None:
    keys = {key for row in table.values() for key in row}

    assert {key[1:] for key in keys if key[0] in "<>"} == FAREWELLS & {key.lstrip("<>") for key in keys}
    assert not FAREWELLS & keys


def test_every_connection_method_and_every_channel_lifecycle_method_is_in_its_table() -> None:
    def words(table: Table[S]) -> set[str]:
        return {key.lstrip("<>") for row in table.values() for key in row}

    assert {cls.name for cls in CONNECTION_METHODS} | {lifecycle.PROTOCOL_HEADER} == words(CONNECTION)
    assert {cls.name for cls in CHANNEL_METHODS} == words(CHANNEL)
    assert {cls.name for cls in CHANNEL_METHODS} <= lifecycle.LIFECYCLE_METHODS


def reachable(table: Table[S], start: S) -> set[S]:
    found, todo = {start}, [start]
    while todo:
        fresh = set(table[todo.pop()].values()) - found
        found |= fresh
        todo += fresh
    return found


def test_every_state_can_be_reached_from_the_first() -> None:
    assert reachable(CONNECTION, ConnectionState.IDLE) == set(ConnectionState)
    assert reachable(CHANNEL, ChannelState.CLOSED) == set(ChannelState)


@pytest.mark.parametrize("state", ConnectionState, ids=named)
def test_every_connection_can_come_to_its_end(state: ConnectionState) -> None:
    assert ConnectionState.CLOSED in reachable(CONNECTION, state)


@pytest.mark.parametrize("state", ChannelState, ids=named)
def test_every_channel_can_come_to_its_end(state: ChannelState) -> None:
    assert ChannelState.CLOSED in reachable(CHANNEL, state)


def test_farewell_can_be_said_from_the_first_method_until_it_was_said() -> None:
    silent = {
        ConnectionState.IDLE, ConnectionState.GREETED,
        ConnectionState.CLOSING, ConnectionState.CLOSE_RECEIVED, ConnectionState.CLOSED,
    }  # fmt: skip

    assert {state for state in ConnectionState if ">connection.close" not in CONNECTION[state]} == silent


def test_the_diagrams_in_the_documentation_are_drawn_from_these_tables() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "draw_lifecycles.py"))

    assert (ROOT / "docs" / "lifecycles.md").read_text() == tool["page"](), "run: python tools/draw_lifecycles.py"


# A connection in every state, told every method ---------------------------------------------------------


def conversation_in(side: Sender, state: ConnectionState) -> AmqpConnection:
    conversation = AmqpConnection(side)
    conversation.state = state
    return conversation


def cases(states: Iterable[S], methods: list[type[Method]], listed: Callable[[Sender, S, type[Method]], bool]) -> Cases:
    """Every side, state and method of which `listed` is true, as parameters."""
    return pytest.mark.parametrize(
        ("side", "state", "cls"),
        [(side, state, cls) for side, state, cls in product(SIDES, states, methods) if listed(side, state, cls)],
        ids=named,
    )


def may_say(side: Sender, cls: type[Method]) -> bool:
    return cls.sender in (side, Sender.EITHER)


def connection_sends(side: Sender, state: ConnectionState, cls: type[Method]) -> bool:
    return may_say(side, cls) and lifecycle.sent_key(cls.name) in CONNECTION[state]


def connection_accepts(side: Sender, state: ConnectionState, cls: type[Method]) -> bool:
    return may_say(other(side), cls) and lifecycle.received_key(cls.name) in CONNECTION[state]


@cases(ConnectionState, CONNECTION_METHODS, connection_sends)
def test_a_side_sends_what_the_table_lists(side: Sender, state: ConnectionState, cls: type[Method]) -> None:
    conversation = conversation_in(side, state)

    conversation.send(0, cls())

    assert conversation.data_to_send() == method_frame(0, cls())
    assert conversation.state is CONNECTION[state][lifecycle.sent_key(cls.name)]


@cases(ConnectionState, CONNECTION_METHODS, lambda *case: not connection_sends(*case))
def test_a_side_sends_nothing_that_the_table_does_not_list(
    side: Sender, state: ConnectionState, cls: type[Method]
) -> None:
    conversation = conversation_in(side, state)

    with pytest.raises(LocalProtocolError, match=cls.name):
        conversation.send(0, cls())

    assert (conversation.state, conversation.data_to_send()) == (state, b"")


@cases(ConnectionState, CONNECTION_METHODS, connection_accepts)
def test_a_side_accepts_what_the_table_lists(side: Sender, state: ConnectionState, cls: type[Method]) -> None:
    conversation = conversation_in(side, state)

    events = conversation.receive(method_frame(0, cls()))

    assert events == [Incoming(0, cls())]
    if cls is ConnectionClose:  # the answer to it is nobody's choice, and the last word
        assert (conversation.state, conversation.data_to_send()) == (ConnectionState.CLOSED, CLOSE_OK)
    else:
        assert (conversation.state, conversation.data_to_send()) == (
            CONNECTION[state][lifecycle.received_key(cls.name)],
            b"",
        )


LISTENING = [state for state in ConnectionState if state.name not in ("IDLE", "CLOSING", "CLOSED")]


@cases(LISTENING, CONNECTION_METHODS, lambda *case: not connection_accepts(*case))
def test_a_side_ends_the_connection_over_what_the_table_does_not_list(
    side: Sender, state: ConnectionState, cls: type[Method]
) -> None:
    conversation = conversation_in(side, state)

    events = conversation.receive(method_frame(0, cls()))

    assert_refused(events, ReplyCode.COMMAND_INVALID)
    assert conversation.state is ConnectionState.CLOSED


@cases([ConnectionState.CLOSING, ConnectionState.CLOSED], CONNECTION_METHODS, lambda side, state, cls: (
    may_say(other(side), cls) and not connection_accepts(side, state, cls)
))  # fmt: skip
def test_a_side_that_said_farewell_ignores_what_the_table_does_not_list(
    side: Sender, state: ConnectionState, cls: type[Method]
) -> None:
    conversation = conversation_in(side, state)

    assert conversation.receive(method_frame(0, cls())) == []
    assert (conversation.state, conversation.data_to_send()) == (state, b"")


@pytest.mark.parametrize("state", list(ConnectionState)[1:], ids=named)
def test_nobody_greets_twice(state: ConnectionState) -> None:
    with pytest.raises(LocalProtocolError, match="protocol-header makes no sense"):
        conversation_in(Sender.CLIENT, state).send_protocol_header()


def assert_refused(events: list[Event], code: ReplyCode) -> None:
    [violation] = events
    assert isinstance(violation, Violation)
    assert (violation.channel, violation.error.code) == (0, code)


# A channel in every state, told every method -----------------------------------------------------------

# CLOSE_RECEIVED is left in the same step that enters it.
LASTING = [state for state in ChannelState if state is not ChannelState.CLOSE_RECEIVED]
DEAF = [ChannelState.CLOSING, ChannelState.CROSSED]

WORDS: dict[str, type[Method]] = {"open": ChannelOpen, "open-ok": ChannelOpenOk, "close": ChannelClose}
LIVES: dict[ChannelState, str] = {
    ChannelState.CLOSED: "",
    ChannelState.OPENING: "open",
    ChannelState.OPEN: "open open-ok",
    ChannelState.CLOSING: "open open-ok >close",
    ChannelState.CROSSED: "open open-ok >close <close",
}


def channel_in(side: Sender, state: ChannelState) -> AmqpConnection:
    """A conversation whose channel 1 came to this state by the rules."""
    conversation = conversation_in(side, ConnectionState.OPEN)
    for word in LIVES[state].split():
        cls = WORDS[word.lstrip("<>")]
        if word[0] == ">" or cls.sender is side:
            conversation.send(1, cls())
        else:
            conversation.receive(method_frame(1, cls()))
    conversation.data_to_send()
    assert conversation.channel_state(1) is state
    return conversation


def channel_sends(side: Sender, state: ChannelState, cls: type[Method]) -> bool:
    return may_say(side, cls) and lifecycle.sent_key(cls.name) in CHANNEL[state]


def channel_accepts(side: Sender, state: ChannelState, cls: type[Method]) -> bool:
    return may_say(other(side), cls) and lifecycle.received_key(cls.name) in CHANNEL[state]


@cases(LASTING, CHANNEL_METHODS, channel_sends)
def test_a_side_sends_on_a_channel_what_the_table_lists(side: Sender, state: ChannelState, cls: type[Method]) -> None:
    conversation = channel_in(side, state)

    conversation.send(1, cls())

    assert conversation.data_to_send() == method_frame(1, cls())
    assert conversation.channel_state(1) is CHANNEL[state][lifecycle.sent_key(cls.name)]


@cases(LASTING, CHANNEL_METHODS, lambda *case: not channel_sends(*case))
def test_a_side_sends_nothing_on_a_channel_that_the_table_does_not_list(
    side: Sender, state: ChannelState, cls: type[Method]
) -> None:
    conversation = channel_in(side, state)

    with pytest.raises(LocalProtocolError, match=cls.name):
        conversation.send(1, cls())

    assert (conversation.channel_state(1), conversation.data_to_send()) == (state, b"")


@cases(LASTING, CHANNEL_METHODS, channel_accepts)
def test_a_side_accepts_on_a_channel_what_the_table_lists(side: Sender, state: ChannelState, cls: type[Method]) -> None:
    conversation = channel_in(side, state)
    after = CHANNEL[state][lifecycle.received_key(cls.name)]

    events = conversation.receive(method_frame(1, cls()))

    assert events == [Incoming(1, cls())]
    assert conversation.data_to_send() == (method_frame(1, ChannelCloseOk()) if cls is ChannelClose else b"")
    assert conversation.channel_state(1) is (ChannelState.CLOSED if after is ChannelState.CLOSE_RECEIVED else after)


@cases([s for s in LASTING if s not in DEAF], CHANNEL_METHODS, lambda side, state, cls: (
    may_say(other(side), cls) and not channel_accepts(side, state, cls)
))  # fmt: skip
def test_a_side_ends_the_connection_over_what_a_channel_does_not_list(
    side: Sender, state: ChannelState, cls: type[Method]
) -> None:
    conversation = channel_in(side, state)

    events = conversation.receive(method_frame(1, cls()))

    assert_refused(events, ReplyCode.CHANNEL_ERROR)


@cases(DEAF, CHANNEL_METHODS, lambda side, state, cls: (
    may_say(other(side), cls) and not channel_accepts(side, state, cls)
))  # fmt: skip
def test_a_side_that_closed_a_channel_ignores_what_the_table_does_not_list(
    side: Sender, state: ChannelState, cls: type[Method]
) -> None:
    conversation = channel_in(side, state)

    assert conversation.receive(method_frame(1, cls())) == []
    assert (conversation.channel_state(1), conversation.data_to_send()) == (state, b"")


@pytest.mark.parametrize("state", [s for s in ConnectionState if s is not ConnectionState.OPEN], ids=named)
def test_nobody_opens_a_channel_on_a_connection_that_is_not_open(state: ConnectionState) -> None:
    with pytest.raises(LocalProtocolError, match=f"channel.open on <Conversation client {state.name}"):
        conversation_in(Sender.CLIENT, state).send(1, ChannelOpen())


@pytest.mark.parametrize("state", [s for s in LISTENING if s is not ConnectionState.OPEN], ids=named)
def test_a_channel_on_a_connection_that_is_not_open_is_refused(state: ConnectionState) -> None:
    events = conversation_in(Sender.SERVER, state).receive(method_frame(1, ChannelOpen()))

    assert_refused(events, ReplyCode.CHANNEL_ERROR)


@pytest.mark.parametrize("state", [ConnectionState.CLOSING, ConnectionState.CLOSED], ids=named)
def test_a_channel_on_a_connection_that_ends_is_ignored(state: ConnectionState) -> None:
    assert conversation_in(Sender.SERVER, state).receive(method_frame(1, ChannelOpen())) == []


# Both sides, in every order ----------------------------------------------------------------------------

Act = Callable[["World"], None]


class World:
    """A client and a broker that do their duty at once, and between them the frames that are under way."""

    def __init__(self, pair: ConnectionPair) -> None:
        self.pair = pair
        self.to_server: deque[bytes] = deque()
        self.to_client: deque[bytes] = deque()
        self.heard: list[Event] = []

    def server_reads(self) -> None:
        for event in self.pair.server.receive(self.to_server.popleft()):
            self.heard.append(event)
            self.server_answers(event)

    def server_answers(self, event: Event) -> None:
        match event:
            case Incoming(channel=number, method=ChannelOpen()):
                self.pair.server.send(number, ChannelOpenOk())
            case Incoming(method=ConnectionStartOk()):
                self.pair.server.send(0, ConnectionTune())
            case Incoming(method=ConnectionOpen()):
                self.pair.server.send(0, ConnectionOpenOk())

    def client_reads(self) -> None:
        for event in self.pair.client.receive(self.to_client.popleft()):
            self.heard.append(event)
            match event:
                case Incoming(method=ConnectionStart() | ConnectionTune() as question):
                    for answer in self.pair.handshake.answer(question):
                        self.pair.client.send(0, answer)

    def post(self) -> None:
        """What was just said is under way, frame by frame."""
        self.to_server += frame_by_frame(self.pair.client.data_to_send())
        self.to_client += frame_by_frame(self.pair.server.data_to_send())

    def settle(self) -> None:
        """Everything that is under way arrives."""
        while self.to_server or self.to_client:
            if self.to_server:
                self.server_reads()
            if self.to_client:
                self.client_reads()
            self.post()

    def key(self) -> tuple[object, ...]:
        client, server = self.pair.client, self.pair.server
        states = (client.state, server.state, client.channel_state(1), server.channel_state(1))
        return (*states, tuple(self.to_server), tuple(self.to_client))


def play(begin: Callable[[], World], path: tuple[Act, ...]) -> World | None:
    """The world after these acts, or None when one of them was impossible."""
    world = begin()
    try:
        for act in path:
            act(world)
            world.post()
    except (LocalProtocolError, IndexError):  # not allowed in this state, or nothing under way to read
        return None
    return world


def worlds(begin: Callable[[], World], acts: list[Act]) -> Iterator[tuple[World, tuple[Act, ...]]]:
    """Every different world that any order of these acts leads to, and how to get there."""
    seen: set[object] = set()
    todo: deque[tuple[Act, ...]] = deque([()])
    while todo:
        path = todo.popleft()
        world = play(begin, path)
        if world is not None and world.key() not in seen:
            seen.add(world.key())
            todo.extend((*path, act) for act in acts)
            yield world, path


READS: list[Act] = [World.server_reads, World.client_reads]


def opened_world() -> World:
    pair = ConnectionPair()
    pair.open()
    return World(pair)


def greeting_world() -> World:
    """A client that has just greeted, and the broker's first question."""
    pair = ConnectionPair()
    pair.client.send_protocol_header()
    pair.to_server()
    pair.server.send(0, ConnectionStart())
    world = World(pair)
    world.post()
    return world


def test_no_order_of_opens_and_closes_breaks_a_connection_or_loses_a_channel_number() -> None:
    acts: list[Act] = [
        *READS,
        lambda world: world.pair.client.send(1, ChannelOpen()),
        lambda world: world.pair.client.send(1, ChannelClose()),
        lambda world: world.pair.server.send(1, ChannelClose()),
    ]
    seen = set()
    for world, path in worlds(opened_world, acts):
        seen.add((world.pair.client.channel_state(1), world.pair.server.channel_state(1)))
        world.settle()

        assert not [event for event in world.heard if isinstance(event, Violation)], path
        at_last = {world.pair.client.channel_state(1), world.pair.server.channel_state(1)}
        assert at_last in ({ChannelState.OPEN}, {ChannelState.CLOSED}), path

    assert (ChannelState.CROSSED, ChannelState.CROSSED) in seen  # or the search was not worth its name


def test_no_order_of_farewells_from_the_handshake_on_breaks_the_rules_or_never_ends() -> None:
    acts: list[Act] = [
        *READS,
        lambda world: world.pair.client.send(0, ConnectionClose()),
        lambda world: world.pair.server.send(0, ConnectionClose()),
    ]
    seen = set()
    for world, path in worlds(greeting_world, acts):
        states = {world.pair.client.state, world.pair.server.state}
        seen.add(frozenset(states))
        farewell = states & {ConnectionState.CLOSING, ConnectionState.CLOSED}
        world.settle()

        assert not [event for event in world.heard if isinstance(event, Violation)], path
        at_last = ConnectionState.CLOSED if farewell else ConnectionState.OPEN
        assert (world.pair.client.state, world.pair.server.state) == (at_last, at_last), path

    assert frozenset({ConnectionState.CLOSING}) in seen  # both at once
