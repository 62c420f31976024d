"""The life of a connection and of a channel, as tables.

A key is the name of a method; who may send it is part of its declaration. Only the farewells depend on who
speaks, so these have a direction: `>` this side sends, `<` this side receives. What a table does not list
is forbidden in that state, and `tests/unit/protocol/test_lifecycle.py` walks every pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto


class ConnectionState(Enum):
    IDLE = auto()  # nothing was said
    GREETED = auto()  # the client sent the protocol header
    STARTED = auto()  # the server offered its mechanisms
    SECURING = auto()  # the client gave its credentials
    CHALLENGED = auto()  # the server wants more of them
    TUNING = auto()  # the server proposed limits
    TUNED = auto()  # the client settled them
    OPENING = auto()  # the client named a virtual host
    OPEN = auto()
    CLOSING = auto()  # this side said farewell and ignores everything but the answer
    CLOSE_RECEIVED = auto()  # the other side did, and is owed an answer
    CLOSED = auto()


class ChannelState(Enum):
    CLOSED = auto()
    OPENING = auto()
    OPEN = auto()
    CLOSING = auto()  # this side sent channel.close and ignores everything but close and close-ok
    CLOSE_RECEIVED = auto()
    CROSSED = auto()  # both sent channel.close: each answers the other's and waits for its own


PROTOCOL_HEADER = "protocol-header"

_C = ConnectionState
_FAREWELL = {">connection.close": _C.CLOSING, "<connection.close": _C.CLOSE_RECEIVED}

CONNECTION: Mapping[ConnectionState, Mapping[str, ConnectionState]] = {
    _C.IDLE: {PROTOCOL_HEADER: _C.GREETED},
    _C.GREETED: {"connection.start": _C.STARTED},
    _C.STARTED: {"connection.start-ok": _C.SECURING, **_FAREWELL},
    _C.SECURING: {"connection.secure": _C.CHALLENGED, "connection.tune": _C.TUNING, **_FAREWELL},
    _C.CHALLENGED: {"connection.secure-ok": _C.SECURING, **_FAREWELL},
    _C.TUNING: {"connection.tune-ok": _C.TUNED, **_FAREWELL},
    _C.TUNED: {"connection.open": _C.OPENING, **_FAREWELL},
    _C.OPENING: {"connection.open-ok": _C.OPEN, **_FAREWELL},
    _C.OPEN: {
        "connection.blocked": _C.OPEN,
        "connection.unblocked": _C.OPEN,
        "connection.update-secret": _C.OPEN,
        "connection.update-secret-ok": _C.OPEN,
        **_FAREWELL,
    },
    # When both say farewell at once, each answers the other and is done: the socket ends here anyway.
    _C.CLOSING: {"<connection.close-ok": _C.CLOSED, "<connection.close": _C.CLOSE_RECEIVED},
    _C.CLOSE_RECEIVED: {">connection.close-ok": _C.CLOSED},
    _C.CLOSED: {},
}

_H = ChannelState

CHANNEL: Mapping[ChannelState, Mapping[str, ChannelState]] = {
    _H.CLOSED: {"channel.open": _H.OPENING},
    _H.OPENING: {
        "channel.open-ok": _H.OPEN,
        ">channel.close": _H.CLOSING,
        "<channel.close": _H.CLOSE_RECEIVED,
    },
    _H.OPEN: {">channel.close": _H.CLOSING, "<channel.close": _H.CLOSE_RECEIVED},
    _H.CLOSING: {"<channel.close-ok": _H.CLOSED, "<channel.close": _H.CROSSED},
    _H.CLOSE_RECEIVED: {">channel.close-ok": _H.CLOSED},
    # The number is free again only when the answer to our own close has come.
    _H.CROSSED: {">channel.close-ok": _H.CROSSED, "<channel.close-ok": _H.CLOSED},
}

_DIRECTED = frozenset({"connection.close", "connection.close-ok", "channel.close", "channel.close-ok"})
LIFECYCLE_METHODS = _DIRECTED | {"channel.open", "channel.open-ok"}


def sent_key(name: str) -> str:
    """The table key for a method that this side sends."""
    return ">" + name if name in _DIRECTED else name


def received_key(name: str) -> str:
    """The table key for a method that the other side sent."""
    return "<" + name if name in _DIRECTED else name
