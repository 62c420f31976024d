"""What the arguments of a queue mean, checked when it is declared, and compared when it is declared again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from redrive.broker.dialect import Dialect
from redrive.broker.errors import AmqpError, precondition
from redrive.broker.exchanges.header_values import type_name
from redrive.wire.values import FieldValue, Table

# The longest life of a queue and of its messages is ten years, in milliseconds.
LONGEST_LIFE = 10 * 365 * 24 * 3600 * 1000
# RabbitMQ's timers are Erlang's: 2^32 - 1 milliseconds is the longest delay.
LONGEST_TTL = (1 << 32) - 1
_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class QueueSettings:
    quorum: bool = False
    message_ttl: int | None = None  # milliseconds
    expires: int | None = None  # milliseconds without use
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: str = "drop-head"
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None
    max_priority: int | None = None
    single_active_consumer: bool = False
    delivery_limit: int | None = None  # None: unlimited

    @property
    def limited(self) -> bool:
        """Can it be full?"""
        return self.max_length is not None or self.max_bytes is not None


_Check: TypeAlias = Callable[[FieldValue], str | None]  # returns what is wrong with the value, in RabbitMQ's words


def _whole(low: int, high: int, beyond: str = "{{value_too_large,{}}}") -> _Check:
    """An integer within these bounds. `beyond`: how RabbitMQ refuses a larger one."""

    def check(value: FieldValue) -> str | None:
        if not isinstance(value, int) or isinstance(value, bool):
            return not_an_integer(value)
        if value < low:
            return f"{{value_negative,{value}}}" if value < 0 else f"{{value_zero,{value}}}"
        return beyond.format(value) if value > high else None

    return check


def not_an_integer(value: FieldValue) -> str:
    return f'"expected integer, got {type_name(value)}"'


def _text(*among: str, otherwise: str = "") -> _Check:
    """A text, one of `among` if any are given. `otherwise`: how RabbitMQ refuses another."""

    def check(value: FieldValue) -> str | None:
        if not isinstance(value, str):
            return f"{{unacceptable_type,{type_name(value)}}}"
        return otherwise.format(value) if among and value not in among else None

    return check


def _flag(value: FieldValue) -> str | None:
    return None if isinstance(value, bool) else f"{{unacceptable_type,{type_name(value)}}}"


_ARGUMENTS: Mapping[str, _Check] = {
    "x-expires": _whole(1, LONGEST_LIFE),
    "x-message-ttl": _whole(0, LONGEST_LIFE),
    "x-dead-letter-routing-key": _text(),
    "x-dead-letter-strategy": _text("at-most-once", "at-least-once", otherwise="invalid_dlx_strategy"),
    "x-max-length": _whole(0, _MOST),
    "x-max-length-bytes": _whole(0, _MOST),
    "x-max-priority": _whole(0, 255, "{{max_value_exceeded,{}}}"),
    "x-overflow": _text("drop-head", "reject-publish", "reject-publish-dlx", otherwise="invalid_overflow"),
    "x-queue-mode": _text("default", "lazy", otherwise="\"unsupported queue mode '{}'\""),
    "x-queue-version": _whole(1, 2, "\"unsupported queue version '{}'\""),
    "x-single-active-consumer": _flag,
    "x-queue-type": _text("classic", "quorum", otherwise="\"unsupported queue type '{}'\""),
    "x-delivery-limit": _whole(-1, _MOST),
}
# What RabbitMQ compares when a queue is declared again, in this order: the first that differs is named.
_CLASSIC_COMPARES = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    "x-queue-type",
)
_QUORUM_COMPARES = (
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-overflow",
    "x-single-active-consumer",
    "x-queue-type",
    "x-delivery-limit",
    "x-message-ttl",
)
_QUORUM_REFUSES = ("x-max-priority", "x-queue-mode")
_CLASSIC_REFUSES = ("x-delivery-limit", "x-dead-letter-strategy")


def read_settings(queue: str, vhost: str, arguments: Table, dialect: Dialect) -> QueueSettings:
    check_exchange_name("x-dead-letter-exchange", "queue", queue, vhost, arguments)
    for name, value in arguments.items():
        if name == "x-queue-mode" and not dialect.checks_queue_mode:
            continue
        if (check := _ARGUMENTS.get(name)) is not None and (wrong := check(value)) is not None:
            raise _invalid(name, queue, vhost, wrong)
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        raise _invalid("x-dead-letter-routing-key", queue, vhost, "routing_key_but_no_dlx_defined")
    quorum = arguments.get("x-queue-type") == "quorum"
    for name in _QUORUM_REFUSES if quorum else _CLASSIC_REFUSES:
        if name in arguments:
            kind = "rabbit_quorum_queue" if quorum else "rabbit_classic_queue"
            raise precondition(f"invalid arg '{name}' for queue '{queue}' in vhost '{vhost}' of queue type {kind}")
    return QueueSettings(
        quorum=quorum,
        message_ttl=_integer(arguments, "x-message-ttl"),
        expires=_integer(arguments, "x-expires"),
        max_length=_integer(arguments, "x-max-length"),
        max_bytes=_integer(arguments, "x-max-length-bytes"),
        overflow=_overflow(arguments, quorum=quorum),
        dead_letter_exchange=_string(arguments, "x-dead-letter-exchange"),
        dead_letter_key=_string(arguments, "x-dead-letter-routing-key"),
        max_priority=_integer(arguments, "x-max-priority"),
        single_active_consumer=arguments.get("x-single-active-consumer") is True,
        delivery_limit=_delivery_limit(arguments, dialect) if quorum else None,
    )


def _overflow(arguments: Table, *, quorum: bool) -> str:
    """A quorum queue accepts `reject-publish-dlx`, and drops at its head instead."""
    overflow = _string(arguments, "x-overflow") or "drop-head"
    return "drop-head" if quorum and overflow == "reject-publish-dlx" else overflow


def _delivery_limit(arguments: Table, dialect: Dialect) -> int | None:
    limit = _integer(arguments, "x-delivery-limit")
    if limit is None:
        return dialect.default_delivery_limit
    if limit == -1:
        return None if dialect.allows_unlimited_deliveries else 0
    return limit


def check_equivalent(queue: str, vhost: str, received: Table, current: Table, dialect: Dialect) -> None:
    """A queue exists: what a second declaration wants must be what it has, as far as its type knows the argument."""
    for name in _QUORUM_COMPARES if current.get("x-queue-type") == "quorum" else _CLASSIC_COMPARES:
        wanted, has = received.get(name), current.get(name)
        if name == "x-queue-type":
            if (wanted or "classic") == (has or "classic"):
                continue
            if dialect.names_default_queue_type:
                wanted, has = wanted or "classic", has or "classic"
        if not is_equivalent(wanted, has):
            raise _inequivalent(name, "queue", queue, vhost, wanted, has)


def is_equivalent(one: FieldValue, other: FieldValue) -> bool:
    """Equal, and of one kind: 1 is neither 1.0 nor true. How many bytes an integer has does not matter."""
    return type(one) is type(other) and one == other


def check_exchange_name(argument: str, what: str, name: str, vhost: str, arguments: Table) -> None:
    """Refuse an argument that is to name an exchange and is not a text."""
    if argument in arguments and not isinstance(value := arguments[argument], str):
        text = f"invalid type '{type_name(value)}' for arg '{argument}' in {what} '{name}' in vhost '{vhost}'"
        raise precondition(text)


def check_same(compared: Iterable[tuple[str, FieldValue, FieldValue]], what: str, name: str, vhost: str) -> None:
    """Refuse a declaration if one of these properties, as received and as it is, differs."""
    for argument, received, current in compared:
        if received != current:
            raise _inequivalent(argument, what, name, vhost, received, current)


def _inequivalent(
    argument: str, what: str, name: str, vhost: str, received: FieldValue, current: FieldValue
) -> AmqpError:
    if received is None or current is None:
        wanted = "none" if received is None else f"the value '{_format(received)}' of type '{type_name(received)}'"
        has = "none" if current is None else f"the value '{_format(current)}' of type '{type_name(current)}'"
    else:
        wanted, has = f"'{_format(received)}'", f"'{_format(current)}'"
    text = f"inequivalent arg '{argument}' for {what} '{name}' in vhost '{vhost}': "
    return precondition(f"{text}received {wanted} but current is {has}")


def _invalid(argument: str, queue: str, vhost: str, wrong: str) -> AmqpError:
    return precondition(f"invalid arg '{argument}' for queue '{queue}' in vhost '{vhost}': {wrong}")


def _format(value: FieldValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _integer(arguments: Table, name: str) -> int | None:
    value = arguments.get(name)
    return value if isinstance(value, int) else None


def _string(arguments: Table, name: str) -> str | None:
    value = arguments.get(name)
    return value if isinstance(value, str) else None
