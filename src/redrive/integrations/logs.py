"""One line for each thing that did not simply go well: a retry, a parking, a drop, a breaker, a connection.

A `LogObserver` makes an ordinary record of Python's `logging`, under the name `redrive`, so that whoever has a logging
set-up of their own sees it there. The record's text is a sentence for people, made when somebody wants to read it:

    12:00:00 WARNING  q.orders: attempt 2 of 3 failed, again in 15s: TimeoutError: no answer [messageId=m-17 ...]

What the sentence is made of is carried along as fields, and `JsonFormatter` writes these instead:

    {"time":"2026-01-01T12:00:00.000Z","level":"warning","event":"settled","app":"shop","outcome":"retried", ...}

All fields of an event are always there, with null for what is unknown. Both formatters take any other record too. No
payload, no header is ever told, and what others wrote is made harmless (see `redrive.text`).
"""

from __future__ import annotations

import codecs
import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import TextIO, TypeAlias, assert_never

import msgspec

from redrive.errors import ConfigurationError
from redrive.recovery.durations import format_duration, milliseconds
from redrive.text import elide_middle, escape_line, loggable, printable_json
from redrive.worker.events import (
    BROKER_UNAVAILABLE,
    DATABASE,
    BreakerChanged,
    BreakerState,
    ConnectionChanged,
    DeliveryOutcome,
    DeliverySettled,
    Observer,
)

__all__ = ["JsonFormatter", "LogFormat", "LogObserver", "TextFormatter", "configure_logging"]

_BROKER = "broker"
_MOST_STACK = 16_000  # characters

LOGGER = "redrive"

Event: TypeAlias = "DeliverySettled | BreakerChanged | ConnectionChanged"

_FOUND_BY = ("messageId", "correlationId", "messageType", "routingKey", "fingerprint")

# What the fields of a line of JSON mean.
FIELDS: Mapping[str, str] = {
    "time": "when, in UTC",
    "level": "debug, info, warning, error or critical",
    "event": "settled, breaker or connection; a record of anything else has none",
    "app": "the application's name",
    "outcome": f"what became of the message: {', '.join(DeliveryOutcome)}",
    "reason": "of a settled message: why it was settled so; of a connection: why it changed",
    "queue": "the queue that is consumed",
    "routingKey": "with which the message was published",
    "messageType": "the message's `type`",
    "messageId": "its `message_id`",
    "correlationId": "its `correlation_id`",
    "attempt": "which attempt this was, from 1",
    "maxAttempts": "how many there are in all",
    "delayMs": "how long it waits before the next attempt, in milliseconds",
    "error": "type and message of the error, secrets masked",
    "fingerprint": "the identity of this kind of failure, by which dead letters are grouped",
    "seconds": "how long the handler took; of a connection that is open again: how long it was lost",
    "name": "the breaker's name, or what the connection is to: broker or database",
    "state": "the breaker's (closed, open, probing) or the connection's",
    "failureRate": "the share of the latest calls that failed, from 0 to 1",
    "reconnects": "how often the connection was opened again",
    "logger": "who wrote it, if it is no event of Redrive's",
    "message": "what they wrote",
    "stack": "the stack that came with it, if one did",
}

_LEVELS: Mapping[DeliveryOutcome, int] = {
    DeliveryOutcome.DONE: logging.INFO,
    DeliveryOutcome.RETRIED: logging.WARNING,
    DeliveryOutcome.PARKED: logging.ERROR,
    DeliveryOutcome.DISCARDED: logging.WARNING,
    DeliveryOutcome.SNOOZED: logging.INFO,
    DeliveryOutcome.DUPLICATE: logging.INFO,
    DeliveryOutcome.RELEASED: logging.WARNING,
}


class LogFormat(StrEnum):
    JSON = "json"
    TEXT = "text"
    AUTO = "auto"  # text on a terminal, else JSON


# What is told -------------------------------------------------------------------------------------


class LogObserver(Observer):
    logs_connections = True

    def __init__(self, app: str, logger: logging.Logger | None = None) -> None:
        self._lost: set[str] = set()  # connections to the broker
        self._lasted = timedelta(0)
        self._app = app
        self._logger = logger or logging.getLogger(LOGGER)

    def settled(self, event: DeliverySettled) -> None:
        is_away = event.outcome is DeliveryOutcome.RELEASED and event.reason.endswith(BROKER_UNAVAILABLE)
        self._log(logging.DEBUG if is_away else _LEVELS[event.outcome], event)  # the broker is a line of its own

    def breaker(self, event: BreakerChanged) -> None:
        """Log that a breaker changed its state."""
        self._log(logging.WARNING if event.state is BreakerState.OPEN else logging.INFO, event)

    def connection(self, event: ConnectionChanged) -> None:
        """A lost broker is one line, and so is one that is back, whatever the number of connections to it."""
        is_open = event.state == "open"
        if event.name != DATABASE:
            was_lost = bool(self._lost)
            (self._lost.discard if is_open else self._lost.add)(event.name)
            self._lasted = max(self._lasted if was_lost else timedelta(0), event.lasted or timedelta(0))
            if bool(self._lost) is was_lost:
                return
            event = replace(event, name=_BROKER, lasted=self._lasted if is_open else None)
        elif is_open and not event.reconnects:
            return  # it was opened for the first time, which is no news
        self._log(logging.INFO if is_open else logging.WARNING, event)

    def _log(self, level: int, event: Event) -> None:
        """As `Logger.log` does, but that looks for the line of code that logs: at some cost, and it would find this."""
        logger = self._logger
        if logger.isEnabledFor(level):
            told_event = EventRecord(event, self._app)
            logger.handle(logger.makeRecord(logger.name, level, __name__, 0, told_event, (), None))

    def __repr__(self) -> str:
        return f"<LogObserver {self._app} to {self._logger.name}>"


class EventRecord:
    """The message of a record: its fields for those who know it, its sentence for everybody else."""

    __slots__ = ("_event", "fields")

    def __init__(self, event: Event, app: str) -> None:
        self._event = event
        self.fields = fields_of(event, app)

    def __str__(self) -> str:
        return sentence(self._event, self.fields)


def fields_of(event: Event, app: str) -> dict[str, object]:
    match event:
        case DeliverySettled():
            return _settled_fields(event, app)
        case BreakerChanged():
            return {
                "event": "breaker",
                "app": app,
                "name": event.name,
                "queue": event.queue,
                "state": event.state.value,
                "failureRate": round(event.failure_rate, 4),
            }
        case ConnectionChanged():
            return {
                "event": "connection",
                "app": app,
                "name": event.name,
                "state": event.state,
                "reason": None if event.reason is None else loggable(event.reason),
                "reconnects": event.reconnects,
                "seconds": None if event.lasted is None else round(event.lasted.total_seconds(), 6),
            }
        case _ as never:
            assert_never(never)


def _settled_fields(event: DeliverySettled, app: str) -> dict[str, object]:
    return {
        "event": "settled",
        "app": app,
        "outcome": event.outcome.value,
        "reason": loggable(event.reason),
        "queue": event.queue,
        "routingKey": _short(event.routing_key),
        "messageType": _short(event.message_type),
        "messageId": _short(event.message_id),
        "correlationId": _short(event.correlation_id),
        "attempt": event.attempt,
        "maxAttempts": event.max_attempts,
        "delayMs": None if event.delay is None else milliseconds(event.delay),
        "error": None if event.error is None else loggable(event.error),
        "fingerprint": event.fingerprint,
        "seconds": round(event.seconds, 6),
    }


def sentence(event: Event, fields: Mapping[str, object]) -> str:
    """For people, and made of the fields, which are harmless."""
    match event:
        case DeliverySettled():
            why = "" if event.error is None else f": {fields['error']}"
            found_by = " ".join(f"{name}={value}" for name in _FOUND_BY if (value := fields[name]) is not None)
            return f"{event.queue}: {_description(event, fields)}{why}" + (f" [{found_by}]" if found_by else "")
        case BreakerChanged():
            return f"{event.queue}: breaker {event.name} is {event.state.value}, {event.failure_rate:.0%} had failed"
        case ConnectionChanged():
            why = "" if event.reason is None else f": {fields['reason']}"
            lasted = "" if event.lasted is None else f" again after {format_duration(event.lasted)}"
            return f"connection to the {event.name} is {event.state}{lasted}{why}"
        case _ as never:
            assert_never(never)


def _description(event: DeliverySettled, fields: Mapping[str, object]) -> str:
    attempt = f"attempt {event.attempt} of {event.max_attempts}"
    delay = "" if event.delay is None else format_duration(event.delay)
    match event.outcome:
        case DeliveryOutcome.RETRIED:
            return f"{attempt} failed, again in {delay}" if delay else f"{attempt} failed, again"
        case DeliveryOutcome.SNOOZED:
            return f"snoozed for {delay}" if delay else "snoozed"
        case DeliveryOutcome.PARKED:
            return f"parked as {fields['reason']} after {attempt}"
        case DeliveryOutcome.DISCARDED | DeliveryOutcome.DUPLICATE | DeliveryOutcome.RELEASED | DeliveryOutcome.DONE:
            return f"{event.outcome.value} ({fields['reason']}) in {attempt}"
        case _ as never:
            assert_never(never)


def _short(value: str | None) -> str | None:
    return None if value is None else elide_middle(value, 255)  # as long as AMQP's short strings are


# How it is written --------------------------------------------------------------------------------


class JsonFormatter(logging.Formatter):
    """Any record as one line of JSON. With `ascii_only` for streams that cannot carry more."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        super().__init__()
        self._encode = _ascii_json if ascii_only else _json

    def format(self, record: logging.LogRecord) -> str:
        line = self._encode(record_fields(record))
        return printable_json(line)


def _json(fields: Mapping[str, object]) -> str:
    try:
        return msgspec.json.encode(fields, enc_hook=str).decode()
    except UnicodeEncodeError:  # half a character, which no encoding has a place for
        return _ascii_json(fields)


def _ascii_json(fields: Mapping[str, object]) -> str:
    return json.dumps(fields, separators=(",", ":"), default=str)


def record_fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = {"time": _utc(record.created), "level": record.levelname.lower()}
    if isinstance(record.msg, EventRecord):
        fields.update(record.msg.fields)
        return fields
    fields["logger"] = record.name
    fields["message"] = loggable(record.getMessage())
    if stack := stack_of(record):
        fields["stack"] = stack
    return fields


class TextFormatter(logging.Formatter):
    """Any record as one line for people; a stack follows, indented, so that it cannot pass for another record."""

    def __init__(self, *, colours: bool = False, ascii_only: bool = False) -> None:
        super().__init__()
        self._colours = colours
        self._ascii_only = ascii_only

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if not isinstance(record.msg, EventRecord):
            text = f"{record.name}: {loggable(text)}"
        lines = [escape_line(text), *(f"    {escape_line(line)}" for line in stack_of(record).splitlines())]
        said = "\n".join(lines)
        if self._ascii_only:
            said = said.encode("ascii", "backslashreplace").decode()
        return self._head(record) + said

    def _head(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        level = f"{record.levelname:<8}"
        if not self._colours:
            return f"{time} {level} "
        return f"\x1b[2m{time}\x1b[0m \x1b[{_colour(record.levelno)}m{level}\x1b[0m "


def stack_of(record: logging.LogRecord) -> str:
    """The stack that a record carries, masked and bounded; "" if none."""
    parts = []
    if record.exc_info and record.exc_info[0] is not None:
        parts.append(logging.Formatter().formatException(record.exc_info))
    elif record.exc_text:
        parts.append(record.exc_text)
    if record.stack_info:
        parts.append(record.stack_info)
    return loggable("\n".join(parts), _MOST_STACK)


def _colour(level: int) -> int:
    if level >= logging.ERROR:
        return 31
    return 33 if level >= logging.WARNING else 32 if level >= logging.INFO else 36


def _utc(seconds: float) -> str:
    whole = int(seconds)
    return f"{_utc_second(whole)}.{int((seconds - whole) * 1000):03}Z"


@lru_cache(maxsize=4)  # many lines are of the same second
def _utc_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


# Where it goes ------------------------------------------------------------------------------------


class LineHandler(logging.StreamHandler[TextIO]):
    """What `configure_logging` set up: known by its type, so that it is replaced and never doubled."""


def configure_logging(
    form: LogFormat | str = LogFormat.AUTO,
    level: int | str = logging.INFO,
    stream: TextIO | None = None,
    *,
    logger: str = LOGGER,
) -> logging.Handler:
    """Write what `logger` gets ("" is everybody's) to `stream` (stderr), instead of what was set up here before."""
    handler = LineHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(formatter_for(form, handler.stream))
    wanted = _level(level)
    target = logging.getLogger(logger or None)
    for earlier in [one for one in target.handlers if isinstance(one, LineHandler)]:
        target.removeHandler(earlier)
    target.addHandler(handler)
    target.setLevel(wanted)
    chatty = logging.getLogger("alembic")  # makes the tables, and tells at each start which plugins it has
    if chatty.level == logging.NOTSET:
        chatty.setLevel(logging.WARNING)
    target.propagate = False  # or a handler of the root would write each line a second time
    return handler


def formatter_for(form: LogFormat | str, stream: TextIO) -> logging.Formatter:
    ascii_only = not _carries_unicode(stream)
    match _form(form):
        case LogFormat.JSON:
            return JsonFormatter(ascii_only=ascii_only)
        case LogFormat.TEXT:
            return TextFormatter(colours=_shows_colours(stream), ascii_only=ascii_only)
        case LogFormat.AUTO:
            return formatter_for(LogFormat.TEXT if stream.isatty() else LogFormat.JSON, stream)
        case _ as never:
            assert_never(never)


def _form(value: str) -> LogFormat:
    try:
        return LogFormat(value)
    except ValueError:
        raise ConfigurationError(f"log form {value!r}: want one of {', '.join(LogFormat)}") from None


def _level(value: int | str) -> int:
    if isinstance(value, int):
        return value
    levels = logging.getLevelNamesMapping()
    if value.upper() not in levels:
        raise ConfigurationError(f"log level {value!r}: want one of {', '.join(levels).lower()}")
    return levels[value.upper()]


def _carries_unicode(stream: TextIO) -> bool:
    try:
        return codecs.lookup(getattr(stream, "encoding", None) or "utf-8").name.startswith("utf")
    except LookupError:
        return False


def _shows_colours(stream: TextIO) -> bool:
    """Rich knows terminals, NO_COLOR, FORCE_COLOR and dumb TERMs; it is loaded only where somebody may be looking."""
    from rich.console import Console

    console = Console(file=stream)
    return console.color_system is not None and not console.no_color
