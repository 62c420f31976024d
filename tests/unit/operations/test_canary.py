import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.operations.canary import CanaryFacts, CanarySettled, StepClock, exceeds_limit, step_count, steps
from redrive.operations.operation import CanarySchedule


def test_without_a_ramp_there_is_one_step_of_everything() -> None:
    assert list(steps(None)) == [(1, None)]
    assert list(steps(None, moved=500)) == [(1, None)]
    assert step_count(None) == 1


def test_a_ramp_ends_with_everything_else() -> None:
    ramp = CanarySchedule((1, 5, 20))
    assert list(steps(ramp)) == [(1, 1), (2, 5), (3, 20), (4, None)]
    assert step_count(ramp) == 4


@pytest.mark.parametrize(
    ("moved", "first"),
    [(0, (1, 1)), (1, (2, 5)), (3, (2, 3)), (6, (3, 20)), (25, (3, 1)), (26, (4, None)), (99, (4, None))],
)
def test_who_goes_on_begins_in_the_step_where_it_stopped(moved: int, first: tuple[int, int | None]) -> None:
    assert next(steps(CanarySchedule((1, 5, 20)), moved)) == first


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=6).map(sorted), moved=st.integers(0, 400))
def test_however_often_it_stops_the_steps_end_where_they_should(sizes: list[int], moved: int) -> None:
    ramp = CanarySchedule(tuple(sizes))
    left = [size for _, size in steps(ramp, moved) if size is not None]
    assert sum(left) == max(0, sum(sizes) - moved)
    assert [number for number, _ in steps(ramp, moved)][-1] == step_count(ramp)


@pytest.mark.parametrize(
    ("moved", "returned", "stops"),
    [(0, 0, False), (1, 0, False), (1, 1, True), (10, 1, False), (10, 2, True), (100, 10, False), (100, 11, True)],
)
def test_more_than_the_share_stops_it(moved: int, returned: int, stops: bool) -> None:
    assert exceeds_limit(CanarySchedule(returned_pct=10), moved, returned) is stops


def test_with_a_share_of_nothing_one_is_too_many() -> None:
    assert exceeds_limit(CanarySchedule(returned_pct=0), 1000, 1)
    assert not exceeds_limit(CanarySchedule(returned_pct=0), 1000, 0)


# Is a step settled? ---------------------------------------------------------------------------------


def judged(wait: float, *looks: CanaryFacts) -> list[CanarySettled]:
    """Look once a second."""
    clock = StepClock(wait, 0)
    return [clock.observe(facts, now) for now, facts in enumerate(looks)]


NOT_YET, YES, UNDECIDED = CanarySettled.NOT_YET, CanarySettled.YES, CanarySettled.UNDECIDED


def test_a_step_is_settled_at_once_when_nothing_is_left() -> None:
    assert judged(9, CanaryFacts(0, 1, 0), CanaryFacts(0, 0, 1), CanaryFacts(0, 0, 0)) == [NOT_YET, NOT_YET, YES]


def test_where_unacknowledged_messages_cannot_be_seen_a_step_has_its_time() -> None:
    assert judged(2, CanaryFacts(0), CanaryFacts(0), CanaryFacts(0)) == [NOT_YET, NOT_YET, YES]


def test_a_backlog_stops_the_clock_of_a_step() -> None:
    looks = [
        CanaryFacts(3),
        CanaryFacts(2),
        CanaryFacts(1),
        CanaryFacts(0),
        CanaryFacts(0),
        CanaryFacts(5),
        CanaryFacts(0),
        CanaryFacts(0),
    ]
    assert judged(2, *looks) == [NOT_YET] * 7 + [YES]


def test_a_step_is_undecided_when_the_backlog_does_not_shrink() -> None:
    assert judged(2, *[CanaryFacts(935)] * 4) == [NOT_YET, NOT_YET, NOT_YET, UNDECIDED]
    assert judged(2, CanaryFacts(9), CanaryFacts(8), CanaryFacts(7), CanaryFacts(6), CanaryFacts(5)) == [NOT_YET] * 5


def test_a_step_is_undecided_while_a_consumer_is_seen_to_hold_messages() -> None:
    assert judged(2, *[CanaryFacts(0, 1, 0)] * 6) == [NOT_YET] * 5 + [UNDECIDED]


def test_a_step_is_settled_on_a_busy_queue_once_nothing_was_held() -> None:
    assert judged(2, CanaryFacts(0, 2, 3), CanaryFacts(0, 0, 3), CanaryFacts(0, 1, 3)) == [NOT_YET, NOT_YET, YES]
