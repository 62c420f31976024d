"""Both ways of counting are compared with a list of everything that ever happened."""

from hypothesis import given
from hypothesis import strategies as st

from redrive.recovery.failure_window import CountWindow, TimeWindow


@given(st.integers(1, 20), st.lists(st.booleans()))
def test_the_last_calls_are_counted_as_in_the_end_of_a_list(size: int, flags: list[bool]) -> None:
    outcomes = CountWindow(size)

    for number, failed in enumerate(flags, start=1):
        outcomes.add(0.0, failed)

        latest = flags[:number][-size:]
        assert (outcomes.calls, outcomes.failures) == (len(latest), sum(latest))


steps = st.lists(st.tuples(st.integers(0, 30), st.booleans()))


@given(st.integers(0, 10**9), steps)
def test_the_calls_of_the_last_seconds_are_those_of_this_slice_and_the_nine_before(
    start: int, happened: list[tuple[int, bool]]
) -> None:
    outcomes = TimeWindow(10.0)  # slices of a second
    now, everything = float(start), list[tuple[float, bool]]()

    for step, failed in happened:
        now += step / 4
        everything.append((now, failed))
        outcomes.add(now, failed)

        latest = [flag for when, flag in everything if when // 1 > now // 1 - 10]
        assert (outcomes.calls, outcomes.failures) == (len(latest), sum(latest))


def test_a_long_silence_costs_one_turn_of_the_ring_and_forgets_everything() -> None:
    outcomes = TimeWindow(0.001)
    outcomes.add(0.0, True)

    outcomes.add(10.0**9, False)

    assert (outcomes.calls, outcomes.failures) == (1, 0)


def test_cleared_means_nothing_happened() -> None:
    for outcomes in (CountWindow(3), TimeWindow(3.0)):
        outcomes.add(1.0, True)
        outcomes.clear()
        assert (outcomes.calls, outcomes.failures) == (0, 0)

        outcomes.add(1.5, False)
        assert (outcomes.calls, outcomes.failures) == (1, 0)


def test_outcomes_introduce_themselves() -> None:
    calls, seconds = CountWindow(100), TimeWindow(60.0)
    calls.add(0.0, True)
    seconds.add(0.0, True)

    assert repr(calls) == "<LastCalls 1 of 1 failed, at most 100>"
    assert repr(seconds) == "<LastSeconds 1 of 1 failed in 60 s>"
