"""One line for each event, whole, harmless, and in the form that is asked for."""

import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from redrive.errors import ConfigurationError
from redrive.integrations import logs
from redrive.integrations.logs import JsonFormatter, LogFormat, LogObserver, TextFormatter, configure_logging
from redrive.text import escape_line
from redrive.worker.events import (
    BROKER_UNAVAILABLE,
    BreakerChanged,
    BreakerState,
    ConnectionChanged,
    DeliveryOutcome,
    DeliverySettled,
)

RETRIED = DeliverySettled(
    queue="q.orders",
    outcome=DeliveryOutcome.RETRIED,
    attempt=2,
    max_attempts=3,
    reason="failed",
    message_id="m-17",
    correlation_id="c-4",
    message_type="OrderPlaced",
    routing_key="orders.placed",
    delay=timedelta(seconds=15),
    error="TimeoutError: no answer",
    fingerprint="3fa9c0ffee00",
    seconds=0.25,
)
BARE = DeliverySettled("q.orders", DeliveryOutcome.RELEASED, 1, 3, "redelivered")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Narrow(io.StringIO):
    """Text for somebody who knows another encoding than ours."""

    encoding = ""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self.encoding = encoding


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """What a test sets up is gone after it."""
    kept = {name: (list(log.handlers), log.level, log.propagate) for name in ("", "redrive") if (log := _logger(name))}
    yield
    for name, (handlers, level, propagate) in kept.items():
        logger = _logger(name)
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(name or None)


def record(
    text: str, *args: object, level: int = logging.INFO, name: str = "elsewhere", **more: Any
) -> logging.LogRecord:
    made = logging.LogRecord(name, level, __file__, 1, text, args, more.pop("exc_info", None))
    made.created = 1767268800.0625
    for key, value in more.items():
        setattr(made, key, value)
    return made


def written(*events: DeliverySettled | BreakerChanged | ConnectionChanged, form: str = "json") -> list[str]:
    stream = io.StringIO()
    configure_logging(form, "debug", stream)
    observer = LogObserver("shop")
    for event in events:
        match event:
            case DeliverySettled():
                observer.settled(event)
            case BreakerChanged():
                observer.breaker(event)
            case ConnectionChanged():
                observer.connection(event)
    return stream.getvalue().splitlines()


def fields(event: DeliverySettled | BreakerChanged | ConnectionChanged) -> dict[str, Any]:
    [line] = written(event)
    told = json.loads(line)
    assert isinstance(told, dict)
    return told


# What is told ------------------------------------------------------------------------------------------


def test_a_retry_is_one_line_with_everything_that_is_known_about_it() -> None:
    told = fields(RETRIED)

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told.pop("time"))
    assert told == {
        "level": "warning",
        "event": "settled",
        "app": "shop",
        "outcome": "retried",
        "reason": "failed",
        "queue": "q.orders",
        "routingKey": "orders.placed",
        "messageType": "OrderPlaced",
        "messageId": "m-17",
        "correlationId": "c-4",
        "attempt": 2,
        "maxAttempts": 3,
        "delayMs": 15000,
        "error": "TimeoutError: no answer",
        "fingerprint": "3fa9c0ffee00",
        "seconds": 0.25,
    }


def test_what_is_unknown_is_null_and_not_missing() -> None:
    assert fields(BARE).keys() == fields(RETRIED).keys()
    assert fields(BARE)["correlationId"] is None


@pytest.mark.parametrize(
    ("outcome", "level"),
    [
        (DeliveryOutcome.RETRIED, "warning"),
        (DeliveryOutcome.PARKED, "error"),
        (DeliveryOutcome.DISCARDED, "warning"),
        (DeliveryOutcome.SNOOZED, "info"),
        (DeliveryOutcome.RELEASED, "warning"),
        (DeliveryOutcome.DONE, "info"),
    ],
)
def test_an_outcome_is_as_loud_as_it_is_bad(outcome: DeliveryOutcome, level: str) -> None:
    assert fields(DeliverySettled("q", outcome, 1, 3, "why"))["level"] == level


def test_a_breaker_that_opens_is_a_warning_and_one_that_closes_is_news() -> None:
    opened, closed = (
        fields(BreakerChanged("payments", "q.orders", state, 0.61803))
        for state in (BreakerState.OPEN, BreakerState.CLOSED)
    )

    assert (opened["level"], closed["level"]) == ("warning", "info")
    assert opened | {"time": ""} == {
        "time": "",
        "level": "warning",
        "event": "breaker",
        "app": "shop",
        "name": "payments",
        "queue": "q.orders",
        "state": "open",
        "failureRate": 0.618,
    }


def test_a_connection_tells_its_state_and_never_its_password() -> None:
    lost, back = map(
        json.loads,
        written(
            ConnectionChanged("consuming", "reconnecting", "no answer from amqp://shop:s3cret@host", 4),
            ConnectionChanged("consuming", "open", None, 5, timedelta(seconds=1.5)),
        ),
    )

    assert (lost["level"], lost["reason"]) == ("warning", "no answer from amqp://shop:***@host")
    assert (back["level"], back["reason"], back["reconnects"], back["seconds"]) == ("info", None, 5, 1.5)


def test_several_connections_that_are_lost_are_one_line_and_so_is_their_return() -> None:
    lines = written(
        *(ConnectionChanged(name, "open", None, 0) for name in ("consuming", "publishing")),
        ConnectionChanged("consuming", "reconnecting", "reset", 0),
        ConnectionChanged("publishing", "reconnecting", "no answer", 0),
        ConnectionChanged("publishing", "open", None, 1, timedelta(seconds=3)),
        ConnectionChanged("consuming", "open", None, 1, timedelta(seconds=2)),
        form="text",
    )

    assert [line.split(maxsplit=2)[2] for line in lines] == [
        "connection to the broker is reconnecting: reset",
        "connection to the broker is open again after 3s",
    ]


def test_messages_that_a_lost_broker_kept_from_being_handed_over_are_no_news() -> None:
    released = DeliverySettled("q", DeliveryOutcome.RELEASED, 1, 3, f"not handed over: {BROKER_UNAVAILABLE}")
    assert fields(released)["level"] == "debug"
    assert fields(structs.replace(released, reason="not handed over: full"))["level"] == "warning"


def test_what_is_not_wanted_is_not_made() -> None:
    configure_logging("json", "critical", stream := io.StringIO())

    LogObserver("shop").settled(RETRIED)

    assert stream.getvalue() == ""


def test_a_logging_set_up_of_ones_own_gets_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    LogObserver("shop").settled(RETRIED)

    [heard] = caplog.records
    assert (heard.name, heard.levelname) == ("redrive", "WARNING")
    assert heard.getMessage().startswith("q.orders: attempt 2 of 3 failed, again in 15s: TimeoutError: no answer")


def test_another_logger_can_be_told(caplog: pytest.LogCaptureFixture) -> None:
    observer = LogObserver("shop", logging.getLogger("shop.messages"))
    observer.settled(RETRIED)

    assert caplog.records[0].name == "shop.messages"
    assert repr(observer) == "<LogObserver shop to shop.messages>"


# Sentences ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (
            RETRIED,
            "q.orders: attempt 2 of 3 failed, again in 15s: TimeoutError: no answer "
            "[messageId=m-17 correlationId=c-4 messageType=OrderPlaced routingKey=orders.placed "
            "fingerprint=3fa9c0ffee00]",
        ),
        (DeliverySettled("q", DeliveryOutcome.RETRIED, 1, 3, "failed"), "q: attempt 1 of 3 failed, again"),
        (
            DeliverySettled("q", DeliveryOutcome.PARKED, 3, 3, "expired", error="E"),
            "q: parked as expired after attempt 3 of 3: E",
        ),
        (
            DeliverySettled("q", DeliveryOutcome.SNOOZED, 1, 3, "snoozed", delay=timedelta(minutes=5)),
            "q: snoozed for 5m",
        ),
        (DeliverySettled("q", DeliveryOutcome.SNOOZED, 1, 3, "snoozed"), "q: snoozed"),
        (BARE, "q.orders: released (redelivered) in attempt 1 of 3"),
        (
            DeliverySettled("q", DeliveryOutcome.DISCARDED, 1, 3, "discarded"),
            "q: discarded (discarded) in attempt 1 of 3",
        ),
        (BreakerChanged("db", "q", BreakerState.OPEN, 0.5), "q: breaker db is open, 50% had failed"),
        (ConnectionChanged("database", "open", None, 1), "connection to the database is open"),
        (ConnectionChanged("consuming", "lost", "reset", 1), "connection to the broker is lost: reset"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_people_read_a_sentence(event: DeliverySettled | BreakerChanged | ConnectionChanged, sentence: str) -> None:
    [line] = written(event, form="text")

    assert re.sub(r"^\d\d:\d\d:\d\d [A-Z]+ +", "", line) == sentence


# Hostile values ----------------------------------------------------------------------------------------

anything = st.text(st.characters(exclude_categories=()))


@given(anything, st.sampled_from(["json", "text"]))
def test_whatever_a_message_is_called_its_line_is_one_line_of_harmless_text(text: str, form: str) -> None:
    event = DeliverySettled(text, DeliveryOutcome.PARKED, 1, 3, text, text, text, text, text, None, text, text)
    [line] = io.StringIO("\n".join(written(event, form=form)), newline="\n").readlines()

    assert escape_line(line) == line
    line.encode()


@given(st.text())
def test_whatever_a_message_is_called_json_gives_it_back(text: str) -> None:
    assert (
        fields(DeliverySettled("q", DeliveryOutcome.RETRIED, 1, 3, "failed", message_id=text[:255]))["messageId"]
        == text[:255]
    )


def test_half_a_character_is_written_as_its_code() -> None:
    assert (
        '"messageId":"\\ud83d"'
        in written(DeliverySettled("q", DeliveryOutcome.RETRIED, 1, 3, "failed", message_id="\ud83d"))[0]
    )


def test_long_values_are_cut() -> None:
    told = fields(
        DeliverySettled("q", DeliveryOutcome.RETRIED, 1, 3, "r" * 10**6, message_id="m" * 10**6, error="e" * 10**6)
    )

    assert (len(told["reason"]), len(told["messageId"]), len(told["error"])) == (1999, 255, 1999)


def test_secrets_in_errors_and_reasons_are_masked() -> None:
    secret = "refused by amqp://u:s3cret@h"

    assert "s3cret" not in "".join(written(DeliverySettled("q", DeliveryOutcome.PARKED, 1, 3, secret, error=secret)))
    assert "s3cret" not in "".join(
        written(DeliverySettled("q", DeliveryOutcome.PARKED, 1, 3, secret, error=secret), form="text")
    )


# Any other record --------------------------------------------------------------------------------------


def test_an_ordinary_record_is_a_line_of_json_too() -> None:
    line = JsonFormatter().format(record("opened %s", "a\nb", name="redrive.client"))

    assert json.loads(line) == {
        "time": "2026-01-01T12:00:00.062Z",
        "level": "info",
        "logger": "redrive.client",
        "message": "opened a\nb",
    }
    assert "\n" not in line


def failed() -> Any:
    try:
        raise ValueError("bad\x1b[2J password=hunter2")
    except ValueError:
        return sys.exc_info()


def test_an_exception_is_told_with_its_stack_in_the_same_line_of_json() -> None:
    line = JsonFormatter().format(record("oh", exc_info=failed()))

    assert "\n" not in line
    assert json.loads(line)["stack"].endswith("ValueError: bad\x1b[2J password=***")


def test_a_stack_for_people_is_indented_so_that_it_cannot_pass_for_another_record() -> None:
    first, *stack = TextFormatter().format(record("oh", exc_info=failed())).splitlines()

    assert first.endswith("INFO     elsewhere: oh")
    assert stack[0] == "    Traceback (most recent call last):"
    assert stack[-1] == "    ValueError: bad\\x1b[2J password=***"
    assert all(line.startswith("    ") for line in stack)


def test_a_stack_that_somebody_formatted_before_or_asked_for_is_told() -> None:
    told = json.loads(JsonFormatter().format(record("oh", exc_text="Traceback: x", stack_info="Stack: y")))

    assert told["stack"] == "Traceback: x\nStack: y"


def test_a_record_that_says_it_has_an_exception_and_has_none_is_told_without() -> None:
    assert "stack" not in json.loads(JsonFormatter().format(record("oh", exc_info=(None, None, None))))


# Where it goes -----------------------------------------------------------------------------------------


def test_a_terminal_gets_text_and_a_file_gets_json() -> None:
    assert isinstance(logs.formatter_for("auto", Terminal()), TextFormatter)
    assert isinstance(logs.formatter_for("auto", io.StringIO()), JsonFormatter)


def coloured(monkeypatch: pytest.MonkeyPatch, **environment: str) -> bool:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    return "\x1b[" in logs.formatter_for("text", Terminal()).format(record("hello"))


def test_a_terminal_gets_colours_unless_it_or_its_owner_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert coloured(monkeypatch)
    assert not coloured(monkeypatch, NO_COLOR="1")
    assert not coloured(monkeypatch, TERM="dumb")


def test_a_file_gets_no_colours() -> None:
    assert "\x1b[" not in logs.formatter_for("text", io.StringIO()).format(record("hello"))


COLOURS = {logging.CRITICAL: 31, logging.ERROR: 31, logging.WARNING: 33, logging.INFO: 32, logging.DEBUG: 36}


@pytest.mark.parametrize(("level", "colour"), COLOURS.items())
def test_a_level_has_its_colour(level: int, colour: int) -> None:
    assert f"\x1b[{colour}m" in TextFormatter(colours=True).format(record("hello", level=level))


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "no-such-encoding"])
@pytest.mark.parametrize("form", ["json", "text"])
def test_a_stream_that_cannot_carry_a_character_gets_its_code(encoding: str, form: str) -> None:
    stream = Narrow(encoding)
    configure_logging(form, "info", stream)
    LogObserver("shop").settled(DeliverySettled("Größe.日本.😀", DeliveryOutcome.RETRIED, 1, 3, "failed"))

    line = stream.getvalue()
    assert line.isascii()
    if form == "json":
        assert json.loads(line)["queue"] == "Größe.日本.😀"


def test_setting_up_again_replaces_and_never_doubles() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure_logging("json", "info", first)
    configure_logging("json", "info", second)

    logging.getLogger("redrive.client").info("hello")

    assert (first.getvalue().count("hello"), second.getvalue().count("hello")) == (0, 1)


def test_the_root_does_not_write_it_a_second_time(caplog: pytest.LogCaptureFixture) -> None:
    configure_logging("json", "info", io.StringIO())

    logging.getLogger("redrive.client").info("hello")

    assert caplog.records == []


def test_everybodys_records_can_be_written_too() -> None:
    configure_logging("json", "info", stream := io.StringIO(), logger="")

    logging.getLogger("shop").info("hello")

    assert json.loads(stream.getvalue())["logger"] == "shop"


def test_without_a_stream_it_is_the_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogFormat.JSON, logging.INFO)
    logging.getLogger("redrive").info("hello")

    assert json.loads(capsys.readouterr().err)["message"] == "hello"


def test_a_form_or_level_that_is_none_is_refused_and_changes_nothing() -> None:
    before = list(logging.getLogger("redrive").handlers)
    with pytest.raises(ConfigurationError, match="log form 'xml': want one of json, text, auto"):
        configure_logging("xml")
    with pytest.raises(ConfigurationError, match="log level 'loud': want one of critical"):
        configure_logging("json", "loud")

    assert logging.getLogger("redrive").handlers == before
