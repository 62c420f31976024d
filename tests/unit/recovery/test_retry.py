from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigurationError
from redrive.recovery.retry import MOST_RUNGS, Exponential, Retry, RetryRoute


def labels(retry: Retry) -> list[str]:
    return [rung.label for rung in retry.rungs]


def test_a_fixed_delay_is_one_rung_called_as_it_was_written() -> None:
    assert labels(Retry(attempts=3, delay="60s")) == ["60s"]
    assert labels(Retry(attempts=3, delay=timedelta(seconds=60))) == ["1m"]


def test_steps_are_rungs_in_their_order_and_the_last_one_repeats() -> None:
    retry = Retry(attempts=6, steps=["30s", "2m", "10m"])
    assert labels(retry) == ["30s", "2m", "10m"]
    assert [retry.rung(number).label for number in (1, 2, 3, 4, 5)] == ["30s", "2m", "10m", "10m", "10m"]


def test_steps_alone_say_how_many_attempts_there_are() -> None:
    assert Retry(steps=["1s", "2s"]).attempts == 3


def test_fewer_attempts_than_steps_need_fewer_rungs() -> None:
    assert labels(Retry(attempts=2, steps=["1s", "2s", "3s"])) == ["1s"]


def test_one_attempt_never_waits() -> None:
    assert Retry(attempts=1, delay="5s").rungs == ()


def test_exponential_waits_grow_up_to_their_ceiling() -> None:
    retry = Retry(attempts=11, exponential=Exponential("5s", 2, "5m"))
    assert labels(retry) == ["5s", "10s", "20s", "40s", "1m20s", "2m40s", "5m"]
    assert retry.rung(10).delay == timedelta(minutes=5)
    assert retry.rung(10**400).delay == timedelta(minutes=5)


def test_without_a_word_it_is_three_attempts_and_fifteen_seconds() -> None:
    assert (Retry().attempts, labels(Retry()), Retry().via) == (3, ["15s"], RetryRoute.REPUBLISH)


def test_jitter_spreads_each_rung_over_shorter_ones() -> None:
    retry = Retry(attempts=2, delay="10s", jitter=0.2)
    assert labels(retry) == ["10s", "9s", "8s"]
    assert [retry.rung(1, chance).delay.total_seconds() for chance in (0, 0.34, 0.99)] == [10, 9, 8]


@given(st.integers(1, 50), st.floats(0, 0.99), st.floats(0, 1, exclude_max=True), st.integers(1, 10**6))
def test_every_wait_is_one_of_the_rungs(attempts: int, jitter: float, chance: float, retry_number: int) -> None:
    retry = Retry(attempts=attempts + 1, exponential=Exponential("1s", 3, "1h"), jitter=jitter)
    number = min(retry_number, attempts)
    assert retry.rung(number, chance).delay in {rung.delay for rung in retry.rungs}
    assert retry.rung(number, chance) == retry.rung(number, chance)


def test_a_schedule_of_many_attempts_is_checked_at_once() -> None:
    assert labels(Retry(attempts=10**9, delay="1s")) == ["1s"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"attempts": -1}, "retry.attempts -1: want a number from 1"),
        ({"attempts": True}, "retry.attempts True"),
        ({"attempts": "3"}, "retry.attempts '3'"),
        ({"delay": "5s", "steps": ["1s"]}, "delay and steps exclude each other"),
        ({"steps": "5s"}, "want a list of values, each a length of time"),
        ({"delay": "0s"}, "want 1ms to"),
        ({"delay": "60d"}, "want 1ms to 49d"),
        ({"steps": ["5s", "x"]}, r"retry.steps\[1\] 'x' is not a length of time"),
        ({"jitter": 1}, "retry.jitter 1"),
        ({"max_age": "0s"}, "retry.max_age"),
        ({"via": "redo"}, "retry.via 'redo': want one of reject, republish, delayed, quorum"),
        ({"attempts": 99, "steps": [f"{n}s" for n in range(1, MOST_RUNGS + 2)]}, "more than 32 different waits"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        Retry(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "factor", "ceiling"), [("0s", 2, "5s"), ("6s", 2, "5s"), ("1s", 0.5, "5s"), ("1s", float("inf"), "5s")]
)
def test_waits_that_do_not_grow_are_refused(first: str, factor: float, ceiling: str) -> None:
    with pytest.raises(ConfigurationError, match="exponential"):
        Exponential(first, factor, ceiling)
