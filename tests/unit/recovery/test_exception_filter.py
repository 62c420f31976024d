"""Which errors are meant, and what means none."""

import pytest

from redrive.errors import ConfigurationError
from redrive.recovery.breaker import BreakerPolicy
from redrive.recovery.exception_filter import Errors, check_errors, is_one_of
from redrive.recovery.retry import Retry


@pytest.mark.parametrize(
    ("errors", "meant"),
    [
        (OSError, True),
        (ConnectionError, True),
        ((KeyError, OSError), True),
        (lambda error: "refused" in str(error), True),
        (KeyError, False),
        ((), False),
        (lambda error: "refused" not in str(error), False),
    ],
)
def test_a_type_several_or_a_function_say_which_errors_are_meant(errors: Errors, meant: bool) -> None:
    check_errors("retry.only", errors)

    assert is_one_of(ConnectionError("connection refused"), errors) is meant


@pytest.mark.parametrize("errors", ["OSError", 503, None, int, [OSError], (OSError, "KeyError"), (OSError, print)])
@pytest.mark.parametrize("setting", ["retry.only", "retry.never", "breaker.only"])
def test_what_cannot_be_asked_about_an_error_is_refused_before_there_is_one(setting: str, errors: object) -> None:
    kind, name = setting.split(".")
    with pytest.raises(ConfigurationError, match=rf"^{setting} .*: want an exception's class, a tuple of them, or a"):
        {"retry": Retry, "breaker": BreakerPolicy}[kind](**{name: errors})  # type: ignore[arg-type]
