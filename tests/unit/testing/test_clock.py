"""A clock that moves when a test says so: timers, time limits, threads."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from redrive import App
from redrive.errors import ConfigurationError
from redrive.testing import ManualClock
from redrive.worker.clock import SystemClock, wait

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


@contextmanager
def loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def in_loop(loop: asyncio.AbstractEventLoop, action: object) -> None:
    async def act() -> None:
        action()  # type: ignore[operator]

    asyncio.run_coroutine_threadsafe(act(), loop).result(10)


# The time ---------------------------------------------------------------------------------------------


def test_it_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(NEW_YEAR)
    assert (clock.now(), clock.monotonic(), clock.time()) == (NEW_YEAR, 0, NEW_YEAR.timestamp())
    clock.advance("1m30s")
    clock.advance(timedelta(microseconds=1))
    assert clock.now() == NEW_YEAR + timedelta(seconds=90, microseconds=1)
    assert clock.monotonic() == 90.000001
    assert clock.ahead == timedelta(seconds=90, microseconds=1)


def test_it_starts_now_unless_a_start_is_given() -> None:
    assert abs(ManualClock().now() - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.parametrize("by", ["15", "-1s", timedelta(seconds=-1), "soon", 15, 15.0, None])
def test_an_advance_without_a_unit_or_back_is_refused(by: object) -> None:
    clock = ManualClock(NEW_YEAR)
    with pytest.raises(ConfigurationError, match="advance"):
        clock.advance(by)  # type: ignore[arg-type]
    assert clock.now() == NEW_YEAR


def test_a_start_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="time zone"):
        ManualClock(datetime(2026, 1, 1))  # noqa: DTZ001


def test_fifty_advances_are_as_long_as_their_sum() -> None:
    clock, fired = ManualClock(), list[float]()
    clock.call_later(5, lambda: fired.append(clock.monotonic()))
    for _ in range(49):
        clock.advance("100ms")
    assert fired == []
    clock.advance("100ms")
    assert fired == [5.0]


@pytest.mark.parametrize("start", [NEW_YEAR, NEW_YEAR + timedelta(microseconds=123457)])
@pytest.mark.parametrize("step", [timedelta(milliseconds=1), timedelta(microseconds=333_333), timedelta(seconds=7)])
def test_a_timer_never_fires_before_its_time_as_its_owner_computes_it(start: datetime, step: timedelta) -> None:
    """The broker adds a TTL to a time since the epoch, whose float is good for a quarter of a microsecond."""
    clock, early, fired = ManualClock(start), list[float](), 0
    clock.advance("100ms")

    def fire() -> None:
        nonlocal due, fired
        fired += 1
        if clock.time() < due:
            early.append(due - clock.time())
        due = clock.time() + step.total_seconds()
        clock.call_at(due, fire)

    due = clock.time() + step.total_seconds()
    clock.call_at(due, fire)
    for _ in range(200):
        clock.advance(step)
    assert early == []
    assert fired >= 199  # rounding may put one off by a microsecond, into the next advance


# Timers -----------------------------------------------------------------------------------------------


def test_timers_fire_in_the_order_of_their_times_each_at_its_own() -> None:
    clock, fired = ManualClock(), list[tuple[str, float]]()
    for name, seconds in (("c", 3), ("a", 1), ("b", 2), ("a again", 1), ("d", 10)):
        clock.call_later(seconds, lambda name=name: fired.append((name, clock.monotonic())))  # type: ignore[misc]
    clock.advance("5s")
    assert fired == [("a", 1), ("a again", 1), ("b", 2), ("c", 3)]
    assert clock.monotonic() == 5


def test_timers_that_timers_add_fire_in_the_same_advance_if_they_are_due() -> None:
    clock, fired = ManualClock(), list[float]()

    def tick() -> None:
        fired.append(clock.monotonic())
        clock.call_later(2, tick)

    clock.call_later(2, tick)
    clock.advance("7s")
    assert fired == [2, 4, 6]
    clock.advance("1s")
    assert fired == [2, 4, 6, 8]


def test_a_cancelled_timer_never_fires_and_is_forgotten() -> None:
    clock, fired = ManualClock(), list[str]()
    timers = [clock.call_later(1, lambda: fired.append("cancelled")) for _ in range(1000)]
    clock.call_later(1, timers[-1].cancel)
    clock.call_later(1, lambda: fired.append("kept"))
    for timer in timers[:-1]:
        timer.cancel()
        timer.cancel()
    assert "timers=3" in repr(clock)
    clock.advance("1s")
    assert fired == ["cancelled", "kept"]  # the last was due before the one that would have cancelled it
    timers[-1].cancel()
    assert repr(clock).endswith(" +1s timers=0>")


def test_a_timer_that_cancels_another_of_the_same_moment_prevents_it() -> None:
    clock, fired = ManualClock(), list[str]()
    clock.call_later(1, lambda: second.cancel())  # noqa: PLW0108 - it is set below
    second = clock.call_later(1, lambda: fired.append("second"))
    clock.advance("1s")
    assert fired == []


def test_a_timer_cannot_advance_the_clock() -> None:
    clock = ManualClock()
    clock.call_later(1, lambda: clock.advance("1s"))
    with pytest.raises(RuntimeError, match="being advanced"):
        clock.advance("5s")
    clock.advance("5s")  # and it goes on
    assert clock.monotonic() == 6


async def test_a_timer_that_is_due_at_once_fires_without_an_advance() -> None:
    clock, fired = ManualClock(), asyncio.Event()
    clock.call_later(0, fired.set)
    await asyncio.wait_for(fired.wait(), 10)
    later = clock.call_later(-1, fired.clear)
    later.cancel()
    assert not await wait(asyncio.Event(), clock, 0)
    assert fired.is_set()


# Waiting ----------------------------------------------------------------------------------------------


async def test_a_time_limit_ends_what_waits_and_is_one_of_asyncio() -> None:
    clock, began = ManualClock(), asyncio.Event()

    async def limited() -> None:
        async with clock.timeout(30):
            began.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(limited())
    await began.wait()
    clock.advance("29s")
    clock.advance("1s")
    with pytest.raises(TimeoutError):
        await task
    assert "timers=0" in repr(clock)


async def test_a_time_limit_that_is_not_reached_leaves_no_timer() -> None:
    clock = ManualClock()
    async with clock.timeout(30):
        clock.advance("10s")
    clock.advance("1h")
    assert "timers=0" in repr(clock)
    with pytest.raises(ZeroDivisionError):
        async with clock.timeout(30):
            raise ZeroDivisionError


async def test_a_cancelled_task_is_cancelled_and_not_out_of_time() -> None:
    clock, event = ManualClock(), asyncio.Event()
    task = asyncio.create_task(wait(event, clock, 30))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "timers=0" in repr(clock)


@pytest.mark.parametrize("clock", [ManualClock(), SystemClock()])
async def test_an_event_that_happens_in_time_ends_the_wait(clock: ManualClock | SystemClock) -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(wait(event, clock, 3600))
    await asyncio.sleep(0)
    event.set()
    assert await waiting


# Threads ----------------------------------------------------------------------------------------------


def test_timers_fire_in_the_loop_that_set_them() -> None:
    clock, threads, done = ManualClock(), list[int](), threading.Event()
    with loop_in_a_thread() as loop:
        in_loop(loop, lambda: clock.call_later(1, lambda: (threads.append(threading.get_ident()), done.set())))
        clock.advance("1s")
        assert done.wait(10)
    assert threads == [threads[0]]
    assert threads[0] != threading.get_ident()


def test_an_advance_returns_when_the_brokers_timers_have_run_each_at_its_time() -> None:
    clock, fired = ManualClock(NEW_YEAR), list[float]()
    with loop_in_a_thread() as loop:

        def tick() -> None:
            fired.append(clock.time() - NEW_YEAR.timestamp())
            clock.call_at(clock.time() + 2, tick)

        in_loop(loop, lambda: clock.call_at(clock.time() + 2, tick))
        clock.advance("7s")
        assert fired == [2, 4, 6]


def test_an_error_in_a_brokers_timer_is_the_caller_s_and_the_clock_goes_on() -> None:
    clock = ManualClock()
    with loop_in_a_thread() as loop:
        in_loop(loop, lambda: clock.call_at(clock.time() + 1, lambda: 1 / 0))  # type: ignore[arg-type,return-value]
        with pytest.raises(ZeroDivisionError):
            clock.advance("2s")
        clock.advance("2s")
    assert clock.monotonic() == 3


def test_timers_of_a_loop_that_is_closed_are_forgotten() -> None:
    clock, fired = ManualClock(), list[str]()
    with loop_in_a_thread() as loop:
        in_loop(loop, lambda: clock.call_at(clock.time() + 1, lambda: fired.append("broker")))
        in_loop(loop, lambda: clock.call_later(1, lambda: fired.append("app")))
    clock.advance("2s")
    assert fired == []
    assert "timers=0" in repr(clock)


def test_several_threads_advance_it_together() -> None:
    clock, fired = ManualClock(), list[float]()
    for second in range(1, 401):
        clock.call_later(second, lambda: fired.append(clock.monotonic()))

    def advance() -> None:
        for _ in range(100):
            clock.advance("1s")

    threads = [threading.Thread(target=advance) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.monotonic() == 400
    assert fired == [float(second) for second in range(1, 401)]


async def test_a_thread_may_advance_it_while_the_loop_waits_for_that_thread() -> None:
    clock, woken = ManualClock(), asyncio.Event()
    clock.call_later(15, woken.set)
    thread = threading.Thread(target=clock.advance, args=("15s",))
    thread.start()
    thread.join()
    await asyncio.wait_for(woken.wait(), 10)


# What does not fit ------------------------------------------------------------------------------------


class SecondsClock:
    def now(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 0.0


class NaiveClock(SystemClock):
    def now(self) -> datetime:
        return datetime(2026, 1, 1)  # noqa: DTZ001


@pytest.mark.parametrize(
    ("clock", "problem"),
    [
        (SecondsClock(), "app shop: clock <"),
        (NaiveClock(), "clock NaiveClock: now() returned datetime.datetime(2026, 1, 1, 0, 0), want a datetime with"),
        (ManualClock, "clock: got the class ManualClock, want an object"),
        (12.5, "app shop: clock 12.5: want a Clock or None, such as redrive.testing.ManualClock()"),
    ],
)
def test_a_clock_that_does_not_fit_is_refused_and_the_fitting_one_is_named(clock: object, problem: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        App("shop", clock=clock)  # type: ignore[arg-type]
    assert str(refused.value).startswith(problem)
    assert "redrive.testing.ManualClock" in str(refused.value)


def test_the_clocks_of_production_and_of_tests_fit() -> None:
    for clock in (SystemClock(), ManualClock()):
        assert App("shop", clock=clock).clock is clock
