"""A message as the broker holds it: what was published, and its place in each queue it was routed to.

Properties and route stay raw bytes: they are passed on as they came. What the broker itself acts on is read once,
when the message arrives (`Facts`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from redrive.broker.deadletter import Copies, Death, deaths_of, encode_history
from redrive.broker.dialect import Dialect
from redrive.broker.errors import precondition
from redrive.broker.exchanges.header_values import type_name
from redrive.broker.queue_arguments import LONGEST_TTL
from redrive.protocol.messages import route_exchange, route_key
from redrive.wire.properties import PERSISTENT, TRANSIENT, decode_properties
from redrive.wire.raw_properties import (
    check_properties,
    find_header,
    patch_properties,
    read_delivery_mode,
    read_expiration,
    read_priority,
)
from redrive.wire.values import read_value

_NUMBER = re.compile(r"[+-]?[0-9]+")
_LONGEST_EXPIRATION = 315_360_000_000  # ten years of milliseconds
_HEADERS = 0x20  # in the first octet of the property flags
_USER_ID = 0x10  # in the second


@dataclass(frozen=True, slots=True)
class Facts:
    """What the properties of a message mean to the broker."""

    raw: bytes  # as consumers get to see them
    persistent: bool = False
    priority: int | None = None
    expiration: int | None = None  # milliseconds, from the publisher
    user_id: str | None = None
    cc: tuple[str, ...] = ()  # more routing keys, visible to consumers
    bcc: tuple[str, ...] = ()  # more routing keys, hidden from consumers
    delay: int = 0  # milliseconds, for an exchange that delays
    deaths: tuple[Death, ...] = ()  # from the publisher's x-death header, where the dialect believes it

    def dead(self, *, by_key: bool) -> Facts:
        """Return the facts of the message as a dead letter: what killed it must not kill it again.

        `by_key`: it is routed by a key of its own, and no longer by those it was published with.
        """
        if by_key:
            return replace(self, expiration=None, cc=(), bcc=())
        return replace(self, expiration=None) if self.expiration is not None else self


def read_facts(raw: bytes, dialect: Dialect) -> Facts:
    """Read the properties. Refuses malformed and invalid ones."""
    check_properties(raw)
    mode, expiration = read_delivery_mode(raw), read_expiration(raw)
    if mode not in (None, TRANSIENT, PERSISTENT) and dialect.refuses_unknown_delivery_modes:
        raise precondition(f"invalid message: {{delivery_mode_unknown,{mode}}}")
    facts = Facts(
        raw,
        persistent=mode == PERSISTENT,
        priority=read_priority(raw),
        expiration=None if expiration is None else _milliseconds(expiration),
        user_id=decode_properties(raw).user_id if raw[1] & _USER_ID else None,
    )
    return _read_headers(facts, dialect) if raw[0] & _HEADERS else facts


def _read_headers(facts: Facts, dialect: Dialect) -> Facts:
    raw = facts.raw
    return replace(
        facts,
        raw=patch_properties(raw, remove_headers=(b"BCC",), sort_headers=dialect.sorts_headers),
        cc=_read_copies(raw, b"CC"),
        bcc=_read_copies(raw, b"BCC"),
        delay=_delay(raw),
        deaths=deaths_of(raw, dialect),
    )


def _read_copies(raw: bytes, name: bytes) -> tuple[str, ...]:
    """Return the routing keys that a CC or BCC header adds. Elements that are not text are ignored."""
    value = find_header(raw, name)
    if value is None:
        return ()
    keys = read_value(value, 0, len(value))[0]
    if not isinstance(keys, list):
        kind = f'"{name.decode()}",{type_name(keys)}'
        raise precondition(f"invalid message: {{unacceptable_type_in_header,{kind}}}")
    return tuple(key for key in keys if isinstance(key, str))


def _delay(raw: bytes) -> int:
    """Return the `x-delay` header in milliseconds; 0 if it is absent or invalid."""
    value = find_header(raw, b"x-delay")
    delay = None if value is None else read_value(value, 0, len(value))[0]
    return min(delay, LONGEST_TTL) if isinstance(delay, int) and delay > 0 else 0


def _milliseconds(expiration: str) -> int:
    """Parse an expiration as Erlang does: a number, and nothing after it."""
    found = _NUMBER.match(expiration)
    if found is None:
        wrong = "no_integer"
    elif found.end() < len(expiration):
        wrong = f'{{leftover_string,"{expiration[found.end() :]}"}}'
    elif (number := int(found.group())) < 0:
        wrong = f"{{value_negative,{number}}}"
    elif number > _LONGEST_EXPIRATION:
        wrong = f"{{value_too_large,{number}}}"
    else:
        return number
    raise precondition(f"invalid expiration '{expiration}': {wrong}")


class Message:
    """Shared by all queues it is in, and never changed."""

    __slots__ = ("body", "deaths", "facts", "failures", "raw_properties", "route", "weight")

    def __init__(
        self,
        route: bytes,
        raw_properties: bytes,
        body: bytes,
        facts: Facts,
        deaths: tuple[Death, ...] = (),
        failures: int = 0,
    ) -> None:
        self.route = route
        self.raw_properties = raw_properties
        self.body = body
        self.facts = facts
        self.deaths = deaths
        self.failures = failures  # deliveries that failed in queues in which it died
        self.weight = len(raw_properties) + len(body)  # bytes that it takes in memory, roughly

    @property
    def exchange(self) -> str:
        return route_exchange(self.route)

    @property
    def routing_key(self) -> str:
        return route_key(self.route)

    @property
    def routing_keys(self) -> tuple[str, ...]:
        """Return all keys by which it is routed."""
        return (self.routing_key, *self.facts.cc, *self.facts.bcc)

    def history(self) -> bytes:
        """Return its dead-letter history for storage, and its copies if the properties do not contain them."""
        if not self.deaths and not self.facts.bcc:
            return b""
        copies = Copies(self.facts.cc, self.facts.bcc)
        told = Copies(_read_copies(self.raw_properties, b"CC"), ())
        return encode_history(self.deaths, None if copies == told else copies)

    def __repr__(self) -> str:
        return f"<Message exchange={self.exchange!r} key={self.routing_key!r} {len(self.body)} bytes>"


class Entry:
    """A message in one queue. `id` names it in the journal, `position` orders it within the queue."""

    __slots__ = ("acquired", "delivery_count", "expires_at", "id", "message", "position", "redelivered", "stored")

    def __init__(self, id: int, message: Message, position: int, expires_at: float | None) -> None:
        self.id = id
        self.message = message
        self.position = position
        self.expires_at = expires_at
        self.redelivered = False
        self.delivery_count = 0  # deliveries that failed
        self.acquired = 0  # deliveries that came back, failed or not
        self.stored = False  # is it in the journal?

    def __repr__(self) -> str:
        return f"<Entry {self.id} at {self.position}{' redelivered' * self.redelivered} {self.message!r}>"
