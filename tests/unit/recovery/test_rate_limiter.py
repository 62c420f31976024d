"""Never more than the bucket and what flowed into it, and not less than the rate where somebody always waits."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigurationError
from redrive.recovery.rate_limiter import RateLimit

rates = st.floats(0.001, 1e5)
bursts = st.integers(1, 50)
starts = st.floats(0, 1e6)


def passes(limit: RateLimit, now: float) -> bool:
    return limit.take(now) == 0.0


def eager(limit: RateLimit, now: float, count: int) -> list[float]:
    """When `count` messages pass if each asks again just when it was told to."""
    passed: list[float] = []
    while len(passed) < count:
        wait = limit.take(now)
        if wait:
            now += wait
        else:
            passed.append(now)
    return passed


def test_a_burst_passes_at_once_and_then_one_message_in_each_interval() -> None:
    assert eager(RateLimit(10, burst=3), 0.0, 6) == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.2, 0.3])


def test_who_must_wait_is_told_how_long() -> None:
    limit = RateLimit(4, burst=1)
    assert limit.take(100.0) == 0.0

    assert [limit.take(now) for now in (100.0, 100.125, 100.25)] == [0.25, 0.125, 0.0]


def test_asking_costs_nothing() -> None:
    limit = RateLimit(4, burst=1)
    limit.take(0.0)
    for _ in range(100):
        assert not passes(limit, 0.125)

    assert passes(limit, 0.25)


def test_after_a_silence_there_is_one_burst_and_not_more() -> None:
    limit = RateLimit(10, burst=5)
    eager(limit, 0.0, 50)

    assert sum(passes(limit, 1e6) for _ in range(100)) == 5


def test_without_a_word_about_bursts_a_tenth_of_a_second_can_be_caught_up_with() -> None:
    assert RateLimit(1000).burst == 100
    assert RateLimit(3).burst == 1


@given(rates, bursts, starts, st.lists(st.floats(0, 3), max_size=60))
def test_no_window_sees_more_than_the_burst_and_the_rate(
    rate: float, burst: int, start: float, gaps: list[float]
) -> None:
    limit, now, passed = RateLimit(rate, burst), start, []
    for gap in gaps:
        now += gap / rate
        if passes(limit, now):
            passed.append(now)

    for (first, begin), (last, end) in combinations(enumerate(passed), 2):
        assert last - first + 1 <= burst + rate * (end - begin) + 1e-3


@given(rates, bursts, starts)
def test_who_always_waits_gets_the_whole_rate(rate: float, burst: int, start: float) -> None:
    passed = eager(RateLimit(rate, burst), start, burst + 100)

    assert (passed[-1] - start) * rate == pytest.approx(100, rel=1e-3)


@given(rates, bursts, starts, st.integers(0, 200))
def test_who_waits_as_told_is_never_sent_away_more_than_once_more(
    rate: float, burst: int, start: float, before: int
) -> None:
    limit = RateLimit(rate, burst)
    now = eager(limit, start, before + 1)[-1]

    asked = 0
    while wait := limit.take(now):
        now += wait
        asked += 1

    assert asked <= 2


def test_a_million_messages_later_it_has_not_drifted() -> None:
    passed = eager(RateLimit(3000, burst=1), 12345.678, 1_000_000)

    assert passed[-1] - passed[0] == pytest.approx(999_999 / 3000, rel=1e-6)


# Another rate ------------------------------------------------------------------------------------------


def test_a_new_rate_holds_at_once() -> None:
    limit = RateLimit(0.01, burst=1)
    limit.take(0.0)
    assert limit.take(1.0) == pytest.approx(99.0)

    limit.change(1.0, 10)

    assert limit.take(1.0) == pytest.approx(0.1, rel=0.02)


def test_a_change_gives_nobody_a_burst() -> None:
    limit = RateLimit(10, burst=10)
    eager(limit, 0.0, 10)

    limit.change(0.0, 10, burst=1000)

    assert not passes(limit, 0.0)


def test_a_smaller_bucket_keeps_what_fits() -> None:
    limit = RateLimit(10, burst=100)

    limit.change(0.0, 10, burst=2)

    assert limit.tokens(0.0) == 2
    assert [passes(limit, 0.0) for _ in range(3)] == [True, True, False]


@given(
    st.lists(
        st.tuples(st.floats(0.1, 100), st.integers(1, 10), st.lists(st.floats(0, 2), max_size=10)),
        min_size=1,
        max_size=6,
    )
)
def test_over_any_changes_there_is_never_more_than_the_biggest_burst_and_what_flowed_in(
    plan: list[tuple[float, int, list[float]]],
) -> None:
    limit, now, passed, inflow = RateLimit(*plan[0][:2]), 0.0, 0, 0.0
    for rate, burst, gaps in plan:
        limit.change(now, rate, burst)
        for gap in gaps:
            now += gap
            inflow += gap * rate
            while passes(limit, now):
                passed += 1

    assert passed <= max(burst for _, burst, _ in plan) + inflow + 1e-6


# Configuration -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), 1e-300, True, "10"], ids=str)
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ConfigurationError, match=r"rate.per_second .* want a number above 0"):
        RateLimit(rate)


@pytest.mark.parametrize("burst", [0, -1, 1.5, True], ids=str)
def test_a_burst_that_is_none_is_refused(burst: int) -> None:
    with pytest.raises(ConfigurationError, match=r"rate.burst .* want a number from 1"):
        RateLimit(1, burst)


def test_a_change_that_is_refused_changes_nothing() -> None:
    limit = RateLimit(4, burst=1)

    with pytest.raises(ConfigurationError):
        limit.change(0.0, 100, burst=0)

    assert repr(limit) == "<RateLimit 4/s burst=1>"
    assert [limit.take(0.0), limit.take(0.0)] == [0.0, 0.25]
