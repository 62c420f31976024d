"""A delay grows, is bounded, and is the same for the same attempt and the same chance. A spell is one, for many."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigurationError
from redrive.recovery.backoff import Backoff, OutageBackoff

SECOND = timedelta(seconds=1)

chances = st.floats(0, 1)
attempts = st.integers(1, 10**9)
backoffs = st.builds(
    lambda first, more, factor, jitter: Backoff(first, factor, first + more, jitter),
    first=st.timedeltas(timedelta(0), timedelta(days=1)),
    more=st.timedeltas(timedelta(0), timedelta(days=30)),
    factor=st.floats(1, 1e6),
    jitter=st.floats(0, 1),
)


def test_the_wait_doubles_from_try_to_try_up_to_the_ceiling() -> None:
    backoff = Backoff(first=SECOND, factor=2, ceiling=5 * SECOND, jitter=0)

    waits = [backoff.delay(attempt, chance=0.7) for attempt in range(1, 6)]

    assert waits == [SECOND, 2 * SECOND, 4 * SECOND, 5 * SECOND, 5 * SECOND]


@pytest.mark.parametrize(("chance", "wait"), [(0, 10 * SECOND), (0.5, 8 * SECOND), (1, 6 * SECOND)])
def test_chance_takes_away_as_much_as_jitter_allows(chance: float, wait: timedelta) -> None:
    assert Backoff(first=10 * SECOND, ceiling=10 * SECOND, jitter=0.4).delay(1, chance) == wait


def test_full_jitter_can_leave_nothing() -> None:
    assert Backoff(jitter=1).delay(3, chance=1) == timedelta(0)


def test_no_wait_at_all_can_be_asked_for() -> None:
    assert Backoff(first=timedelta(0)).delay(9, chance=0) == timedelta(0)


@given(backoffs, attempts, chances)
def test_a_wait_is_never_negative_and_never_above_the_ceiling(backoff: Backoff, attempt: int, chance: float) -> None:
    assert timedelta(0) <= backoff.delay(attempt, chance) <= backoff.ceiling


@given(backoffs, attempts, chances)
def test_a_later_try_never_waits_less_by_the_same_chance(backoff: Backoff, attempt: int, chance: float) -> None:
    assert backoff.delay(attempt, chance) <= backoff.delay(attempt + 1, chance)


@given(backoffs, attempts, chances)
def test_asking_twice_gives_the_same_answer(backoff: Backoff, attempt: int, chance: float) -> None:
    assert backoff.delay(attempt, chance) == backoff.delay(attempt, chance)


@pytest.mark.parametrize(
    "settings",
    [
        {"first": -SECOND},
        {"first": 2 * SECOND, "ceiling": SECOND},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"factor": float("inf")},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"jitter": float("nan")},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused_when_they_are_made(settings: dict[str, timedelta]) -> None:
    with pytest.raises(ConfigurationError, match="want"):
        Backoff(**settings)  # type: ignore[arg-type]


# Spells -------------------------------------------------------------------------------------------


def spell() -> OutageBackoff:
    return OutageBackoff(Backoff(first=SECOND, factor=2, ceiling=5 * SECOND, jitter=0.5))


def test_pauses_grow_for_as_long_as_it_goes_on_failing() -> None:
    trouble, now, pauses = spell(), 100.0, []
    for _ in range(5):
        pauses.append(trouble.pause(now, 0))
        now += pauses[-1].total_seconds()

    assert pauses == [SECOND, 2 * SECOND, 4 * SECOND, 5 * SECOND, 5 * SECOND]


def test_a_thousand_that_fail_together_have_failed_once() -> None:
    trouble = spell()

    assert {trouble.pause(100.0 + number / 10_000, 0) for number in range(1000)} == {SECOND}
    assert trouble.pause(101.0, 0) == 2 * SECOND


def test_each_has_a_chance_of_its_own_and_who_is_early_does_not_make_it_grow() -> None:
    trouble = spell()

    assert trouble.pause(100.0, 0) == SECOND
    assert trouble.pause(100.0, 1) == SECOND / 2
    assert trouble.pause(100.5, 0) == SECOND


def test_when_something_went_well_pauses_begin_anew() -> None:
    trouble = spell()
    trouble.pause(100.0, 0)
    trouble.pause(102.0, 0)
    trouble.end()

    assert trouble.pause(102.1, 0) == SECOND
