"""Credentials and tuning: what a client answers to the broker's opening words, and what a broker checks of it.

The broker proposes limits, the client settles them, and neither may go beyond what the other named. Zero is
"no limit" (no heartbeat for the heartbeat), so the smaller of two limits wins unless it is zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from redrive.errors import LocalProtocolError, RemoteProtocolError, ReplyCode
from redrive.wire import methods as m
from redrive.wire.frames import MIN_FRAME_MAX
from redrive.wire.method import Method
from redrive.wire.values import Table, malformed_error

CLIENT_CAPABILITIES: Table = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "exchange_exchange_bindings": True,
    "per_consumer_qos": True,
    "publisher_confirms": True,
}


@dataclass(frozen=True, slots=True)
class PlainAuth:
    """SASL PLAIN: a user name and a password, in clear within the connection (so use TLS)."""

    username: str
    password: str = field(repr=False)

    mechanism = "PLAIN"

    def response(self) -> bytes:
        return b"\x00" + self.username.encode() + b"\x00" + self.password.encode()


@dataclass(frozen=True, slots=True)
class ExternalAuth:
    """SASL EXTERNAL: the TLS client certificate says who this is."""

    mechanism = "EXTERNAL"

    def response(self) -> bytes:
        return b""


Credentials = PlainAuth | ExternalAuth


def read_plain(response: bytes) -> PlainAuth:
    """A broker's reading of a PLAIN response: authorisation identity, user, password, each after a NUL."""
    parts = response.split(b"\x00")
    if len(parts) != 3:
        raise malformed_error("a PLAIN response must be: NUL, user, NUL, password")
    try:
        return PlainAuth(parts[1].decode(), parts[2].decode())
    except UnicodeDecodeError:
        raise malformed_error("a PLAIN response must be UTF-8") from None


@dataclass(frozen=True, slots=True)
class Tuning:
    """The limits of a connection. `heartbeat` is in seconds, 0 for none."""

    channel_max: int = 2047
    frame_max: int = 131072
    heartbeat: int = 60


def negotiate(offer: m.ConnectionTune, wish: Tuning) -> Tuning:
    """What a client settles on: within the broker's offer, and as near to the wish as that allows."""
    frame_max = _smaller_limit(offer.frame_max, wish.frame_max) or Tuning().frame_max
    if frame_max < MIN_FRAME_MAX:
        raise RemoteProtocolError(ReplyCode.NOT_ALLOWED, f"frame_max {frame_max} is below {MIN_FRAME_MAX}")
    return Tuning(
        channel_max=_smaller_limit(offer.channel_max, wish.channel_max) or 65535,
        frame_max=frame_max,
        heartbeat=min(offer.heartbeat, wish.heartbeat) or wish.heartbeat,
    )


def check_tune_ok(
    offer: m.ConnectionTune, answer: m.ConnectionTuneOk, smallest_frame_max: int = MIN_FRAME_MAX
) -> Tuning:
    """What a broker makes of a client's answer: it may lower limits, not raise them."""
    for name in ("channel_max", "frame_max"):
        limit, wanted = getattr(offer, name), getattr(answer, name)
        if limit and (wanted == 0 or wanted > limit):
            text = f"negotiated {name} = {wanted} is higher than the maximum allowed value ({limit})"
            raise RemoteProtocolError(ReplyCode.NOT_ALLOWED, text)
    if 0 < answer.frame_max < smallest_frame_max:
        text = (
            f"negotiated frame_max = {answer.frame_max} is lower than the minimum allowed value ({smallest_frame_max})"
        )
        raise RemoteProtocolError(ReplyCode.NOT_ALLOWED, text)
    return agreed_limits(answer)


def agreed_limits(answer: m.ConnectionTuneOk) -> Tuning:
    """The limits that hold after a `tune-ok`. A frame without limit would be memory without limit."""
    return Tuning(answer.channel_max or 65535, answer.frame_max or Tuning().frame_max, answer.heartbeat)


def _smaller_limit(one: int, other: int) -> int:
    return min(one, other) or max(one, other)


@dataclass(slots=True)
class ClientHandshake:
    """A client's half of the handshake: give it what the broker said, send what it answers."""

    credentials: Credentials
    virtual_host: str = "/"
    wish: Tuning = field(default_factory=Tuning)
    client_properties: Table = field(default_factory=dict)

    server_properties: Table = field(default_factory=dict, init=False)
    tuning: Tuning = field(default_factory=Tuning, init=False)

    def answer(self, method: Method) -> Iterator[Method]:
        match method:
            case m.ConnectionStart():
                self.server_properties = method.server_properties
                yield self._start_ok(method)
            case m.ConnectionTune():
                self.tuning = tuning = negotiate(method, self.wish)
                yield m.ConnectionTuneOk(
                    channel_max=tuning.channel_max, frame_max=tuning.frame_max, heartbeat=tuning.heartbeat
                )
                yield m.ConnectionOpen(virtual_host=self.virtual_host)
            case m.ConnectionSecure():
                text = f"{self.credentials.mechanism} needs no second challenge, but the broker sent one"
                raise RemoteProtocolError(ReplyCode.NOT_IMPLEMENTED, text)
            case _:
                raise LocalProtocolError(f"{method.name} is not a question of the handshake")

    def _start_ok(self, start: m.ConnectionStart) -> m.ConnectionStartOk:
        if start.version_major != 0 or start.version_minor != 9:
            text = f"the broker speaks AMQP {start.version_major}-{start.version_minor}, not 0-9"
            raise RemoteProtocolError(ReplyCode.NOT_IMPLEMENTED, text)
        offered = start.mechanisms.decode("ascii", "replace").split()
        if self.credentials.mechanism not in offered:
            text = f"the broker offers {' '.join(offered) or 'no mechanism'}, not {self.credentials.mechanism}"
            raise RemoteProtocolError(ReplyCode.ACCESS_REFUSED, text)
        return m.ConnectionStartOk(
            client_properties={**self.client_properties, "capabilities": CLIENT_CAPABILITIES},
            mechanism=self.credentials.mechanism,
            response=self.credentials.response(),
        )
