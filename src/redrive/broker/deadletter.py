"""What dying does to a message: its `x-death` header and everything else that dead-lettering changes.

`x-death` is an array of tables, newest death first, one for each queue and reason: `count`, `reason`, `queue`,
`time` (of the first of them), `exchange` and `routing-keys` (as they were then), and `original-expiration` if the
message had one. Who keeps this record differs, and with it everything else:

- 4.x keeps a list beside the message and writes the header from it. What a client publishes as x-death is not
  read, and is replaced at the first death.
- 3.10 has the header alone. It reads, at each death, whatever is there: a client's own x-death counts. Two deaths
  or more are grouped before the new one is added, which turns their order around: r1, r2, r3 in turn give
  [r3, r1, r2]. Fields stand in the order of the list above in the first table and alphabetically in all later ones.

Both sort the headers by name, remove `expiration` (what killed the message must not kill it again) and leave all
other headers byte for byte. BCC is taken away when a message is published and never seen again.

A dead letter may travel in circles. That is wanted after a `rejected`, when a consumer has had its turn; without
one nobody would ever stop it, and RabbitMQ drops the message (`is_cycle`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from redrive.broker.dialect import Dialect
from redrive.wire.raw_properties import (
    RawFields,
    RawValue,
    find_header,
    patch_properties,
    raw_array,
    raw_long,
    raw_table,
    raw_text,
    raw_timestamp,
    read_expiration,
    split_array,
    split_table,
)
from redrive.wire.values import read_value

REJECTED = "rejected"

_X_DEATH = b"x-death"
_HIGHEST_COUNT = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Death:
    """All deaths of a message in one queue for one reason."""

    queue: str
    reason: str
    count: int
    time: int  # of the first, seconds since the epoch; as are the fields that follow
    exchange: str
    routing_keys: tuple[str, ...]
    original_expiration: str | None = None


class Copies(NamedTuple):
    """The keys besides its own by which a message finds its queues."""

    cc: tuple[str, ...]
    bcc: tuple[str, ...]


def dead_letter_of(
    raw_properties: bytes,
    deaths: tuple[Death, ...],
    *,
    queue: str,
    reason: str,
    exchange: str,
    routing_keys: tuple[str, ...],
    now: int,
    dead_letter_key: str | None,
    dialect: Dialect,
) -> tuple[bytes, tuple[Death, ...]]:
    """The properties of the dead letter, and its deaths including this one.

    `exchange` and `routing_keys` are those by which it came into `queue`: the key, then those of CC, without BCC. A
    dead letter that was sent on with a `dead_letter_key` came by that key alone, even if it still has a CC header.
    """
    expiration = _original_expiration(raw_properties, dialect)
    death = Death(queue, reason, 1, now, exchange, routing_keys, expiration)
    if dialect.believes_client_x_death:
        headers, deaths = _die_by_header(find_header(raw_properties, _X_DEATH), death)
    else:
        headers, deaths = _die_by_record(deaths, death)
    if dialect.writes_last_death:
        headers |= _death_headers("last", death)
    cc_goes = dialect.removes_cc_on_dead_letter_key and dead_letter_key is not None
    raw = patch_properties(
        raw_properties,
        set_headers=headers,
        remove_headers=(b"BCC", b"CC") if cc_goes else (b"BCC",),
        sort_headers=True,
        drop_expiration=True,
    )
    return raw, deaths


def is_cycle(deaths: tuple[Death, ...], reason: str, target_queue: str) -> bool:
    """Would this dead letter loop if `target_queue` got it? `deaths` are those that `dead_letter_of` has given.

    It has died there before, and no consumer has rejected it since. One that is rejected now is never in a cycle.
    """
    if reason == REJECTED:
        return False
    for death in deaths:
        if death.reason == REJECTED:
            return False
        if death.queue == target_queue:
            return True
    return False


def deaths_of(raw_properties: bytes, dialect: Dialect) -> tuple[Death, ...]:
    """What the x-death header of a message means that a client has just published."""
    if not dialect.believes_client_x_death:
        return ()
    return tuple(map(_read_death, _tables(find_header(raw_properties, _X_DEATH))))


def encode_history(deaths: tuple[Death, ...], copies: Copies | None) -> bytes:
    """For storage: the value of an x-death header, and in it, after the deaths, an array of the copies' keys.

    Whoever knows nothing of copies passes over it.
    """
    values = [raw_table(_fields(death)) for death in deaths]
    if copies is not None:
        values.append(raw_array(raw_array(map(raw_text, keys)) for keys in copies))
    return raw_array(values) if values else b""


def decode_history(stored: bytes) -> tuple[tuple[Death, ...], Copies | None]:
    deaths = tuple(map(_read_death, _tables(stored)))
    elements = split_array(stored) if stored else []
    if len(elements) == len(deaths):
        return deaths, None
    cc, bcc = (tuple(map(_text, split_array(keys))) for keys in split_array(elements[-1]))
    return deaths, Copies(cc, bcc)


# By a record beside the message: 4.x -----------------------------------------------------------------


def _die_by_record(deaths: tuple[Death, ...], death: Death) -> tuple[dict[bytes, RawValue], tuple[Death, ...]]:
    headers = {} if deaths else _death_headers("first", death)
    others = []
    for earlier in deaths:
        if (earlier.queue, earlier.reason) == (death.queue, death.reason):
            death = replace(earlier, count=earlier.count + 1)
        else:
            others.append(earlier)
    deaths = (death, *others)
    headers[_X_DEATH] = _x_death(map(_fields, deaths))
    return headers, deaths


def _fields(death: Death, *, expiration_last: bool = False) -> RawFields:
    """Return the table of a death: 4.x writes original-expiration first, 3.10 last."""
    fields = [
        (b"count", raw_long(death.count)),
        (b"reason", raw_text(death.reason)),
        (b"queue", raw_text(death.queue)),
        (b"time", raw_timestamp(death.time)),
        (b"exchange", raw_text(death.exchange)),
        (b"routing-keys", raw_array(map(raw_text, death.routing_keys))),
    ]
    if death.original_expiration is not None:
        expiration = (b"original-expiration", raw_text(death.original_expiration))
        fields.insert(len(fields) if expiration_last else 0, expiration)
    return fields


# By the header alone: 3.10 ---------------------------------------------------------------------------


def _die_by_header(written: RawValue | None, death: Death) -> tuple[dict[bytes, RawValue], tuple[Death, ...]]:
    tables = _tables(written)
    if written is None or not written.startswith(b"A"):
        tables = [_fields(death, expiration_last=True)]
    else:
        tables = _with_death(_group_by_queue_and_reason(tables), death)
    headers = _death_headers("first", death) if written is None else {}
    headers[_X_DEATH] = _x_death(tables)
    return headers, tuple(map(_read_death, tables))


def _group_by_queue_and_reason(tables: list[RawFields]) -> list[RawFields]:
    """One table for each queue and reason, in reverse order; if there is only one table, as it is.

    Before 3.6 there was a table for each death and no count. A message may still say so: the number of its tables
    is then the count.
    """
    if len(tables) < 2:
        return tables
    groups: dict[tuple[RawValue, RawValue], list[RawFields]] = {}
    for table in tables:
        groups.setdefault(_queue_and_reason(table), []).append(table)
    return [_with_count(group[0], len(group)) for group in reversed(groups.values())]


def _with_count(table: RawFields, count: int) -> RawFields:
    return table if _field(table, b"count") is not None else [(b"count", raw_long(count)), *table]


def _with_death(tables: list[RawFields], death: Death) -> list[RawFields]:
    newest = _fields(death, expiration_last=True)
    others = []
    for table in tables:
        if _queue_and_reason(table) == _queue_and_reason(newest):
            newest = _increment_count(table)
        else:
            others.append(table)
    return [sorted(newest, key=_name), *others]


def _increment_count(table: RawFields) -> RawFields:
    count = raw_long(min(_number(_field(table, b"count")) + 1, _HIGHEST_COUNT))
    return [(b"count", count), *(field for field in table if field[0] != b"count")]


def _queue_and_reason(table: RawFields) -> tuple[RawValue, RawValue]:
    return _content(_field(table, b"queue")), _content(_field(table, b"reason"))


# Reading and writing ---------------------------------------------------------------------------------


def _x_death(tables: Iterable[RawFields]) -> RawValue:
    return raw_array(map(raw_table, tables))


def _tables(value: RawValue | None) -> list[RawFields]:
    """The tables in what may be an x-death header. Anything else in it is ignored."""
    if value is None or not value.startswith(b"A"):
        return []
    return [split_table(element[1:]) for element in split_array(value) if element.startswith(b"F")]


def _read_death(table: RawFields) -> Death:
    """Whatever a client wrote is a death. What is missing or makes no sense is empty."""
    expiration = _field(table, b"original-expiration")
    keys = _field(table, b"routing-keys") or b""
    return Death(
        queue=_text(_field(table, b"queue")),
        reason=_text(_field(table, b"reason")),
        count=_number(_field(table, b"count")),
        time=_timestamp(_field(table, b"time")),
        exchange=_text(_field(table, b"exchange")),
        routing_keys=tuple(map(_text, split_array(keys))) if keys.startswith(b"A") else (),
        original_expiration=None if expiration is None else _text(expiration),
    )


def _death_headers(which: str, death: Death) -> dict[bytes, RawValue]:
    """x-first-death-* or x-last-death-*."""
    fields = {"reason": death.reason, "queue": death.queue, "exchange": death.exchange}
    return {f"x-{which}-death-{field}".encode(): raw_text(value) for field, value in fields.items()}


def _original_expiration(raw_properties: bytes, dialect: Dialect) -> str | None:
    expiration = read_expiration(raw_properties)
    if expiration is None or not dialect.reads_expiration_as_number:
        return expiration
    try:
        return str(int(expiration))
    except ValueError:
        return expiration


def _field(table: RawFields, name: bytes) -> RawValue | None:
    return next((value for found, value in table if found == name), None)


def _name(field: tuple[bytes, RawValue]) -> bytes:
    return field[0]


def _content(value: RawValue | None) -> bytes:
    """What compares: text is the same text as `S` and as `x`."""
    if value is None:
        return b""
    return value[5:] if value[:1] in (b"S", b"x") else value


def _text(value: RawValue | None) -> str:
    if value is None or value[:1] not in (b"S", b"x"):
        return ""
    return value[5:].decode("utf-8", "surrogateescape")


def _number(value: RawValue | None) -> int:
    number = None if value is None else read_value(value, 0, len(value))[0]
    return number if isinstance(number, int) and not isinstance(number, bool) else 0


def _timestamp(value: RawValue | None) -> int:
    return int.from_bytes(value[1:]) if value is not None and value.startswith(b"T") else 0
