"""The crash guard's decisions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.recovery.admission import ALONE, REJECT, Admission, Mark, Requeue, admit, after_check, after_crash
from redrive.recovery.story import ParkReason
from redrive.recovery.verdict import Bury

WORKER = "0123456789ab"
BESIDE_OTHERS = Mark(WORKER, 7)
BY_ITSELF = Mark(WORKER, 7, alone=True)


@pytest.mark.parametrize("mark", [BESIDE_OTHERS, BY_ITSELF, ALONE, REJECT])
def test_a_mark_is_read_back_as_it_was_written(mark: Mark) -> None:
    assert Mark.read(str(mark)) == mark


@given(st.one_of(st.text(), st.integers(), st.binary(), st.none(), st.lists(st.text())))
def test_any_header_value_can_be_read(value: object) -> None:
    mark = Mark.read(value)
    assert mark is None or str(mark) == value


@pytest.mark.parametrize(
    "value", ["alone ", f"{WORKER}/x", f"{WORKER}/7/", "../../etc/7", f"{WORKER.upper()}/7", "", 7, None]
)
def test_what_is_not_a_mark_counts_as_none(value: object) -> None:
    assert Mark.read(value) is None


@pytest.mark.parametrize(
    ("mark", "redelivered", "expected"),
    [
        (None, False, Admission.HANDLE),
        (None, True, Admission.WATCH),
        (ALONE, False, Admission.WATCH_ALONE),
        (ALONE, True, Admission.WATCH_ALONE),
        (BESIDE_OTHERS, False, Admission.CHECK_WORKER),
        (BY_ITSELF, True, Admission.CHECK_WORKER),
        (REJECT, False, Admission.REJECT),
    ],
)
def test_admission(mark: Mark | None, redelivered: bool, expected: Admission) -> None:
    assert admit(mark, redelivered=redelivered) is expected


@pytest.mark.parametrize("crashes", [0, 3, 4, 100])
def test_nothing_is_counted_while_the_worker_is_alive(crashes: int) -> None:
    assert after_check(BESIDE_OTHERS, crashes, 5, survived=True) == Requeue(None, crashes)
    assert after_check(BY_ITSELF, crashes, 5, survived=True) == Requeue(ALONE, crashes)


@pytest.mark.parametrize("limit", [1, 5])
def test_a_death_among_neighbours_is_never_counted(limit: int) -> None:
    assert after_check(BESIDE_OTHERS, 0, limit, survived=False) == Requeue(ALONE, 0)
    assert after_crash(99, limit, alone=False) == Requeue(ALONE, 99)


def test_the_death_of_a_worker_that_handled_nothing_else_is_counted_and_the_last_one_parks() -> None:
    crashes = 0
    for expected in (1, 2):
        after = after_check(BY_ITSELF, crashes, 3, survived=False)
        assert after == Requeue(ALONE, expected)
        crashes = expected
    assert after_check(BY_ITSELF, crashes, 3, survived=False) == Bury(ParkReason.CRASHED)


def test_a_count_that_no_worker_can_have_written_is_not_believed() -> None:
    """It would have parked the message at the limit."""
    assert after_crash(99, 5, alone=True) == Requeue(ALONE, 1)
    assert after_crash(4, 5, alone=True) == Bury(ParkReason.CRASHED)
