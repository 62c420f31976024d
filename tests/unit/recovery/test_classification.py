import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from urllib.error import HTTPError

import msgspec
import pytest

from redrive.errors import ConfigurationError
from redrive.recovery.classification import Classified, FailureKind, classify
from redrive.recovery.exception_filter import status_of
from redrive.recovery.handler_signals import Discard, Park, RetryLater, Snooze
from redrive.recovery.retry import Retry

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def kind(error: BaseException, policy: Retry | None = None) -> FailureKind:
    return classify(error, policy or Retry(), NOW).kind


class ClientError(Exception):
    """As HTTP clients raise it: with a response."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"status {status}")
        self.response = SimpleNamespace(status_code=status, headers=headers or {})


class ValidationException(Exception):
    pass


class OurOwn(ValidationException):
    pass


# What a handler says ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "expected", "after"),
    [
        (RetryLater(after="30s"), FailureKind.TRANSIENT, timedelta(seconds=30)),
        (Snooze("5m"), FailureKind.SNOOZED, timedelta(minutes=5)),
        (Park("unknown customer"), FailureKind.REQUESTED, None),
        (Discard(), FailureKind.DISCARDED, None),
    ],
)
def test_a_handler_decides_by_what_it_raises(error: Exception, expected: FailureKind, after: timedelta | None) -> None:
    said = classify(error, Retry(never=Exception), NOW)
    assert (said.kind, said.after) == (expected, after)


@pytest.mark.parametrize("make", [lambda: Snooze("0s"), lambda: RetryLater(after="-1s"), lambda: Snooze(5)])
def test_a_handler_that_says_no_time_is_told(make: object) -> None:
    with pytest.raises(ConfigurationError):
        make()  # type: ignore[operator]


# What the policy says -----------------------------------------------------------------------------


def test_never_and_only_take_types_tuples_and_functions() -> None:
    assert kind(KeyError(), Retry(never=LookupError)) is FailureKind.PERMANENT
    assert kind(KeyError(), Retry(never=(OSError, KeyError))) is FailureKind.PERMANENT
    assert kind(OSError("locked"), Retry(never=lambda error: "locked" in str(error))) is FailureKind.PERMANENT
    assert kind(OSError(), Retry(only=OSError)) is FailureKind.TRANSIENT
    assert kind(KeyError(), Retry(only=OSError)) is FailureKind.PERMANENT


def test_what_is_in_both_is_never_retried() -> None:
    assert kind(ConnectionError(), Retry(only=OSError, never=ConnectionError)) is FailureKind.PERMANENT


def test_classify_is_asked_first_and_may_have_no_opinion() -> None:
    policy = Retry(classify=lambda error: {"yes": True, "no": False}.get(str(error)), never=OSError)
    assert kind(OSError("yes"), policy) is FailureKind.TRANSIENT
    assert kind(KeyError("x"), policy) is FailureKind.TRANSIENT
    assert kind(Exception("no"), policy) is FailureKind.PERMANENT
    assert kind(OSError("?"), policy) is FailureKind.PERMANENT


def test_a_policy_can_retry_what_is_never_retried_by_default() -> None:
    assert kind(OurOwn(), Retry(only=OurOwn)) is FailureKind.TRANSIENT


# What is known of errors --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        msgspec.ValidationError("wrong"),
        msgspec.DecodeError("wrong"),
        json.JSONDecodeError("wrong", "", 0),
        UnicodeDecodeError("utf-8", b"", 0, 1, "wrong"),
        ValidationException(),
        OurOwn(),
    ],
)
def test_data_that_is_wrong_stays_wrong(error: Exception) -> None:
    assert kind(error) is FailureKind.PERMANENT


@pytest.mark.parametrize("error", [OSError(), TimeoutError(), KeyError("x"), ValueError(), RuntimeError(), Exception()])
def test_everything_else_may_pass(error: Exception) -> None:
    assert kind(error) is FailureKind.TRANSIENT


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        *((status, FailureKind.PERMANENT) for status in (400, 404, 422)),
        *((status, FailureKind.TRANSIENT) for status in (408, 409, 429, 500, 503, 302)),
    ],
)
def test_an_http_status_says_whose_fault_it_was(status: int, expected: FailureKind) -> None:
    assert kind(ClientError(status)) is expected


def test_the_status_is_found_where_common_clients_keep_it() -> None:
    assert status_of(HTTPError("http://x", 503, "busy", {}, None)) == 503  # type: ignore[arg-type]
    aiohttp = Exception()
    aiohttp.status = 429  # type: ignore[attr-defined]
    assert status_of(aiohttp) == 429
    exit_code = SystemExit(2)
    assert status_of(exit_code) is None
    flag = Exception()
    flag.code = True  # type: ignore[attr-defined]
    assert status_of(flag) is None


class Unanswered(Exception):
    @property
    def response(self) -> object:
        raise RuntimeError("there was no answer")


def test_an_error_whose_attributes_raise_tells_nothing() -> None:
    assert status_of(Unanswered()) is None
    assert classify(Unanswered(), Retry(), NOW) == Classified(FailureKind.TRANSIENT)
    assert classify(Unanswered(), Retry(only=Unanswered), NOW) == Classified(FailureKind.TRANSIENT)


@pytest.mark.parametrize(
    ("header", "after"),
    [
        ("30", timedelta(seconds=30)),
        ("Thu, 01 Jan 2026 00:01:00 GMT", timedelta(minutes=1)),
        ("Thu, 01 Jan 2015 00:01:00 GMT", None),
        ("soon", None),
        ("-5", None),
        ("", None),
        ("999999999", timedelta(days=1)),
        ("9" * 400, None),
        ("Thu, 01 Jan 2026 00:01:00 +99999999999999", None),
        ("Thu, 01 Jan 99999999999999999999 00:01:00 GMT", None),
    ],
)
def test_retry_after_is_honoured_if_it_makes_sense(header: str, after: timedelta | None) -> None:
    assert classify(ClientError(503, {"Retry-After": header}), Retry(), NOW).after == after


def test_headers_that_are_none_do_no_harm() -> None:
    error = ClientError(503)
    error.response.headers = 5
    assert classify(error, Retry(), NOW).after is None
