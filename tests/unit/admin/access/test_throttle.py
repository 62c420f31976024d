"""Failures make the next failures wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from redrive.admin.access.throttle import CEILING, FORGET, FREE, LONGEST, MOST, Throttle, place_of

HERE, THERE = "192.0.2.1", "192.0.2.2"


def after(failures: int, address: str = HERE, now: float = 0.0) -> Throttle:
    throttle = Throttle()
    for _ in range(failures):
        throttle.record_failure(address, now)
    return throttle


def test_the_first_failures_are_free() -> None:
    assert after(FREE - 1).wait(HERE, 0) == 0


def test_each_failure_from_then_on_doubles_the_wait_up_to_five_minutes() -> None:
    waits = [after(FREE + more).wait(HERE, 0) for more in range(11)]
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, LONGEST, LONGEST]
    assert after(2000).wait(HERE, 0) == LONGEST


def test_the_wait_is_over_when_it_is_over() -> None:
    throttle = after(FREE + 3)
    assert throttle.wait(HERE, 7.5) == 0.5
    assert throttle.wait(HERE, 8) == 0


def test_another_address_does_not_wait_for_it() -> None:
    assert after(FREE + 3).wait(THERE, 0) == 0


def test_a_quarter_of_an_hour_forgets_failures_but_not_less() -> None:
    throttle = after(FREE + 3)
    throttle.record_failure(HERE, FORGET - 1)
    assert throttle.wait(HERE, FORGET - 1) == 16
    throttle.record_failure(HERE, 2 * FORGET)
    assert throttle.wait(HERE, 2 * FORGET) == 0


# All together -------------------------------------------------------------------------------------


def crowd(throttle: Throttle, count: int, now: float = 0.0) -> None:
    for number in range(count):
        throttle.record_failure(f"10.0.{number // 250}.{number % 250}", now)


def test_at_the_ceiling_a_newcomer_waits_for_seconds() -> None:
    throttle = Throttle()
    crowd(throttle, CEILING - 1)
    assert throttle.wait(HERE, 0) == 0
    crowd(throttle, 1)
    assert 0 < throttle.wait(HERE, 0) <= 1
    assert throttle.wait(HERE, 1) == 0


def test_no_crowd_makes_the_wait_of_a_newcomer_long() -> None:
    throttle = Throttle()
    crowd(throttle, 20 * CEILING)
    assert throttle.wait(HERE, 0) <= 1


# Memory, and addresses ----------------------------------------------------------------------------


def test_what_is_remembered_is_bounded_and_the_oldest_is_forgotten() -> None:
    throttle = after(FREE + 9)
    for number in range(MOST):
        throttle.record_failure(f"2001:db8:{number:x}::1", 1)
    assert len(throttle) == MOST
    assert throttle.wait(HERE, 61) == 0


def test_asking_remembers_nothing() -> None:
    throttle = Throttle()
    throttle.wait(HERE, 0)
    assert len(throttle) == 0
    assert repr(throttle) == "<Throttle addresses=0 failures=0/100>"


def test_all_of_an_ipv6_network_is_one_place() -> None:
    throttle = after(FREE, "2001:db8:0:1::1")
    assert throttle.wait("2001:db8:0:1:ffff::2", 0) == 1
    assert throttle.wait("2001:db8:0:2::1", 0) == 0


def test_an_address_is_the_same_however_it_is_written() -> None:
    assert place_of("::ffff:192.0.2.1") == HERE
    assert place_of("fe80::1%eth0") == place_of("fe80::2%eth1") == "fe80::"
    assert place_of("unix") == "unix"
    assert len(place_of("x" * 10_000)) == 64


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.floats(0, 1000)), max_size=200))
def test_whatever_happens_no_wait_is_longer_than_five_minutes(steps: list[tuple[str, float]]) -> None:
    throttle, now = Throttle(), 0.0
    for address, passed in steps:
        now += passed
        throttle.record_failure(address, now)
        assert 0 <= throttle.wait(address, now) <= LONGEST
        assert throttle.wait(address, now + LONGEST) == 0


@given(st.text())
def test_whatever_is_said_to_be_an_address_has_a_place(address: str) -> None:
    assert len(place_of(address)) <= 64
