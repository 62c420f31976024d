"""Which errors are meant, which key of a table, and what means none."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from redrive import http_status
from redrive.errors import ConfigurationError
from redrive.recovery.breaker import BreakerPolicy
from redrive.recovery.exception_filter import Errors, check_errors, is_one_of, most_specific
from redrive.recovery.retry import Retry
from redrive.worker.consumer_spec import BatchSpec


class HttpError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"answered {status}")
        self.response = SimpleNamespace(status_code=status)


class PaymentRefused(HttpError): ...


@pytest.mark.parametrize(
    ("errors", "meant"),
    [
        (OSError, True),
        (ConnectionError, True),
        ((KeyError, OSError), True),
        (lambda error: "refused" in str(error), True),
        ((KeyError, lambda error: "refused" in str(error)), True),
        (KeyError, False),
        ((), False),
        (lambda error: "refused" not in str(error), False),
        (http_status(422), False),
    ],
)
def test_a_class_a_function_or_several_say_which_errors_are_meant(errors: Errors, meant: bool) -> None:
    check_errors("retry.only", errors)

    assert is_one_of(ConnectionError("connection refused"), errors) is meant


@pytest.mark.parametrize(
    ("errors", "statuses"),
    [
        (http_status(422), {422}),
        (http_status(500, 599), {500, 503, 599}),
        ((http_status(422), http_status(503)), {422, 503}),
        ((KeyError, http_status(400, 499)), {404, 422}),
    ],
)
def test_a_status_or_a_range_says_which_errors_are_meant(errors: Errors, statuses: set[int]) -> None:
    check_errors("retry.only", errors)

    every = (200, 404, 422, 500, 503, 599)
    assert {status for status in every if is_one_of(HttpError(status), errors)} == statuses


@pytest.mark.parametrize("setting", ["only", "never"])
def test_a_status_can_be_what_is_retried_or_never_retried(setting: str) -> None:
    assert Retry(**{setting: http_status(422)})  # type: ignore[arg-type]


@pytest.mark.parametrize("isolate", [422, "ValueError", (ValueError, 422), [ValueError]])
def test_a_batch_is_told_at_once_what_means_no_error(isolate: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^batch.isolate .*: want true or false or an exception's class"):
        BatchSpec(isolate=isolate)


def test_a_batch_isolates_by_status() -> None:
    batch = BatchSpec(isolate=http_status(422))
    assert batch.isolates(HttpError(422))
    assert not batch.isolates(HttpError(503))


@pytest.mark.parametrize("errors", ["OSError", 503, None, int, [OSError], (OSError, "KeyError"), (OSError, 422)])
@pytest.mark.parametrize("setting", ["retry.only", "retry.never", "breaker.only"])
def test_what_cannot_be_asked_about_an_error_is_refused_before_there_is_one(setting: str, errors: object) -> None:
    kind, name = setting.split(".")
    with pytest.raises(ConfigurationError, match=rf"^{setting} .*: want an exception's class, a tuple of them, http_s"):
        {"retry": Retry, "breaker": BreakerPolicy}[kind](**{name: errors})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "statuses", [(99,), (600,), (True,), ("422",), (422.0,), (500, 400), (500, 1000), ((500, 599),)]
)
def test_what_is_no_status_is_refused(statuses: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r"^http_status .*: want a status, http_status\(422\), or a range"):
        http_status(*statuses)


def test_http_status_itself_means_no_error() -> None:
    with pytest.raises(ConfigurationError, match="want an exception's class"):
        Retry(only=http_status)  # type: ignore[arg-type]


# Tables -----------------------------------------------------------------------------------------------


def is_a_refusal(error: BaseException) -> bool:
    return "answered 402" in str(error)


TABLE: dict[Any, str] = {
    BaseException: "anything",
    HttpError: "http",
    OSError: "system",
    ConnectionError: "connection",
    http_status(400, 499): "theirs",
    http_status(422): "invalid",
    is_a_refusal: "refused",
}


@pytest.mark.parametrize(
    ("error", "value"),
    [
        (KeyError(), "anything"),
        (HttpError(503), "http"),
        (PaymentRefused(503), "http"),
        (OSError(), "system"),
        (ConnectionResetError(), "connection"),
        (HttpError(404), "theirs"),
        (PaymentRefused(422), "invalid"),
        (PaymentRefused(402), "refused"),
    ],
)
@pytest.mark.parametrize("order", [list, lambda items: list(reversed(items))])
def test_the_most_specific_key_counts_whatever_the_order(
    error: BaseException, value: str, order: Callable[[Any], list[Any]]
) -> None:
    assert most_specific(error, dict(order(list(TABLE.items())))) == value


def test_no_key_may_match() -> None:
    assert most_specific(KeyError(), {OSError: "system"}) is None


def test_of_several_functions_the_first_counts() -> None:
    def every(_: BaseException) -> bool:
        return True

    assert most_specific(HttpError(402), {is_a_refusal: "refused", every: "every"}) == "refused"
    assert most_specific(HttpError(402), {every: "every", is_a_refusal: "refused"}) == "every"
