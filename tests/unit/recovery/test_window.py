"""A batch closes when it is full, heavy or old, and no message waits longer than it was promised."""

from collections import defaultdict
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigurationError
from redrive.recovery.window import BatchPolicy, BatchWindow, Closing, KeyedWindows
from redrive.testing.clock import FakeClock

THREE = BatchPolicy(size=3, timeout="1s")


def test_a_batch_closes_with_the_message_that_fills_it() -> None:
    window = BatchWindow(THREE)

    assert [window.add(0.0) for _ in range(6)] == [None, None, Closing.SIZE, None, None, Closing.SIZE]


def test_a_batch_of_one_closes_with_every_message() -> None:
    window = BatchWindow(BatchPolicy(size=1))

    assert [window.add(0.0), window.add(0.0)] == [Closing.SIZE, Closing.SIZE]


def test_a_batch_is_as_old_as_its_first_message() -> None:
    window = BatchWindow(THREE)
    window.add(10.0)
    window.add(10.9)

    assert window.deadline == 11.0
    assert [window.due(10.99), window.due(11.0)] == [None, Closing.AGE]


def test_an_empty_window_is_never_due_and_wants_no_alarm() -> None:
    window = BatchWindow(THREE)

    assert (window.deadline, window.due(1e9), window.flush()) == (None, None, None)


def test_a_closed_batch_leaves_nothing_to_the_next() -> None:
    window = BatchWindow(BatchPolicy(size=2, timeout="1s", max_bytes=100))
    window.add(0.0, 60)
    window.add(0.5, 10)

    assert (window.count, window.bytes, window.deadline) == (0, 0, None)
    assert window.add(0.9, 60) is None
    assert window.due(1.0) is None
    assert window.deadline == 1.9


def test_a_message_that_comes_after_the_deadline_and_before_the_alarm_goes_along() -> None:
    window = BatchWindow(THREE)
    window.add(0.0)

    assert window.add(1.5) is Closing.AGE
    assert window.count == 0


def test_a_batch_closes_when_it_is_heavy_enough() -> None:
    window = BatchWindow(BatchPolicy(size=1000, max_bytes=100))

    assert [window.add(0.0, 40), window.add(0.0, 40), window.add(0.0, 40)] == [None, None, Closing.BYTES]


def test_one_message_can_be_heavy_enough() -> None:
    assert BatchWindow(BatchPolicy(max_bytes=100)).add(0.0, 10**9) is Closing.BYTES


def test_without_a_limit_bytes_do_not_matter() -> None:
    assert BatchWindow(THREE).add(0.0, 10**12) is None


def test_what_is_left_is_flushed() -> None:
    window = BatchWindow(THREE)
    window.add(0.0)

    assert [window.flush(), window.flush()] == [Closing.FLUSH, None]


# With keys ---------------------------------------------------------------------------------------------


def test_each_key_fills_a_batch_of_its_own() -> None:
    windows = KeyedWindows[str](BatchPolicy(size=2))

    assert [windows.add(key, 0.0) for key in "abab"] == [None, None, Closing.SIZE, Closing.SIZE]


def test_keys_are_due_in_the_order_of_their_first_messages() -> None:
    windows = KeyedWindows[str](THREE)
    for now, key in [(0.0, "a"), (0.25, "b"), (0.5, "a"), (0.75, "c")]:
        windows.add(key, now)

    assert windows.deadline == 1.0
    assert windows.due(0.99) == []
    assert windows.due(1.25) == ["a", "b"]
    assert windows.deadline == 1.75


def test_a_key_that_starts_anew_is_young_again() -> None:
    windows = KeyedWindows[str](BatchPolicy(size=2, timeout="1s"))
    windows.add("a", 0.0)
    windows.add("b", 0.1)
    windows.add("a", 0.2)  # closes
    windows.add("a", 0.3)

    assert windows.due(1.2) == ["b"]
    assert windows.due(1.3) == ["a"]


def test_a_key_without_messages_costs_no_memory() -> None:
    windows = KeyedWindows[int](BatchPolicy(size=1))
    for key in range(1000):
        windows.add(key, 0.0)

    assert repr(windows) == "<KeyedWindows keys=0 messages=0>"


def test_everything_that_is_left_is_flushed_the_oldest_first() -> None:
    windows = KeyedWindows[str](THREE)
    for key in "bab":
        windows.add(key, 0.0)

    assert [windows.flush(), windows.flush(), windows.deadline] == [["b", "a"], [], None]


# Whatever comes, whenever ------------------------------------------------------------------------------

arrivals = st.lists(
    st.tuples(st.floats(0, 2), st.sampled_from("abc"), st.integers(0, 50)),  # after how long, which key, how heavy
    max_size=60,
)
timeouts = st.timedeltas(timedelta(milliseconds=1), timedelta(seconds=3))
policies = st.builds(BatchPolicy, st.integers(1, 5), timeouts, st.none() | st.integers(1, 100))


class Batcher:
    """What a worker does with keyed windows: it keeps the messages and one alarm."""

    def __init__(self, policy: BatchPolicy, clock: FakeClock) -> None:
        self.windows = KeyedWindows[str](policy)
        self.clock = clock
        self.open: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self.closed: list[tuple[str, float, list[tuple[float, int]]]] = []

    def comes(self, key: str, size: int) -> None:
        now = self.clock.now()
        self.open[key].append((now, size))
        if self.windows.add(key, now, size):
            self.close(key)
        self.set_alarm()

    def rings(self) -> None:
        for key in self.windows.due(self.clock.now()):
            self.close(key)
        self.set_alarm()

    def set_alarm(self) -> None:
        deadline = self.windows.deadline
        if deadline is not None:
            self.clock.call_at(deadline, self.rings)

    def close(self, key: str) -> None:
        self.closed.append((key, self.clock.now(), self.open.pop(key)))


@given(policies, arrivals)
def test_batches_hold_everything_once_and_are_neither_too_big_nor_too_heavy_nor_too_old(
    policy: BatchPolicy, coming: list[tuple[float, str, int]]
) -> None:
    clock = FakeClock()
    batcher = Batcher(policy, clock)
    for gap, key, size in coming:
        clock.advance(timedelta(seconds=gap))
        batcher.comes(key, size)
    clock.advance(timedelta(seconds=10))

    assert not batcher.open
    assert sum(len(batch) for _, _, batch in batcher.closed) == len(coming)
    assert isinstance(policy.timeout, timedelta)
    for _, when, batch in batcher.closed:
        assert 1 <= len(batch) <= policy.size
        assert sum(size for _, size in batch[:-1]) < (policy.max_bytes or 10**9)
        assert when - batch[0][0] <= policy.timeout.total_seconds() + 1e-6


# Configuration -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"size": 0}, "batch.size 0: want a number from 1"),
        ({"size": True}, "batch.size True"),
        ({"size": 1.5}, "batch.size 1.5"),
        ({"timeout": "0s"}, "batch.timeout '0s': want more than nothing"),
        ({"timeout": 1000}, "batch.timeout 1000 has no unit"),
        ({"max_bytes": 0}, "batch.max_bytes 0: want a number from 1"),
    ],
    ids=str,
)
def test_a_window_that_makes_no_sense_is_refused_when_it_is_made(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        BatchPolicy(**settings)  # type: ignore[arg-type]

    assert complaint in str(refusal.value)


def test_a_window_introduces_itself() -> None:
    window = BatchWindow(THREE)
    assert repr(window) == "<BatchWindow 0/3 bytes=0 deadline=->"

    window.add(5.0, 7)
    assert repr(window) == "<BatchWindow 1/3 bytes=7 deadline=6.000>"
