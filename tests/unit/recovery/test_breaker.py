"""The table is whole, the breaker keeps to it, and neither a dependency nor a consumer is ever forgotten."""

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from redrive.errors import ConfigurationError
from redrive.recovery.breaker import LIFECYCLE, Breaker, BreakerPolicy, BreakerState, Cause
from redrive.worker import events

CLOSED, OPEN, PROBING = BreakerState

QUICK = BreakerPolicy(failure_rate=0.5, minimum_calls=4, window=10, pause="30s", factor=2, ceiling="100s")


def tripped(policy: BreakerPolicy = QUICK, now: float = 0.0) -> Breaker:
    breaker = Breaker(policy)
    while breaker.state is CLOSED:
        breaker.record_failure(now)
    return breaker


def probing(policy: BreakerPolicy = QUICK) -> Breaker:
    """Tripped at 0, rested at 30, and the first probe is under way."""
    breaker = tripped(policy)
    assert breaker.permits(30.0) == 0.0
    assert breaker.state is PROBING
    return breaker


# The table ---------------------------------------------------------------------------------------------


def test_every_state_has_a_row_and_a_way_out_and_can_be_reached() -> None:
    assert set(LIFECYCLE) == set(BreakerState)
    assert all(LIFECYCLE.values())
    assert {after for row in LIFECYCLE.values() for after in row.values()} == set(BreakerState)


def test_every_cause_leads_from_one_state_to_another() -> None:
    for cause in Cause:
        [(before, after)] = [(state, row[cause]) for state, row in LIFECYCLE.items() if cause in row]
        assert before is not after


def test_from_every_state_the_way_leads_back_to_closed() -> None:
    for state in BreakerState:
        seen, todo = set[BreakerState](), [state]
        while todo:
            if (here := todo.pop()) not in seen:
                seen.add(here)
                todo += LIFECYCLE[here].values()
        assert CLOSED in seen


def test_the_states_are_those_that_observers_are_told() -> None:
    assert [state.value for state in BreakerState] == [state.value for state in events.BreakerState]


STATES: dict[BreakerState, Callable[[], Breaker]] = {
    CLOSED: lambda: Breaker(BreakerPolicy(minimum_calls=1, failure_rate=1)),
    OPEN: tripped,
    PROBING: probing,
}
HAPPENS: dict[str, Callable[[Breaker], object]] = {
    "asked soon": lambda breaker: breaker.permits(31.0 if breaker.state is PROBING else 1.0),
    "asked late": lambda breaker: breaker.permits(1000.0),
    "succeeded": lambda breaker: breaker.record_success(30.0),
    "failed": lambda breaker: breaker.record_failure(30.0),
    "inconclusive": lambda breaker: breaker.record_inconclusive(),
}
CAUSED = {
    (CLOSED, "failed"): Cause.TRIPPED,
    (OPEN, "asked late"): Cause.RESTED,
    (PROBING, "succeeded"): Cause.RECOVERED,
    (PROBING, "failed"): Cause.RELAPSED,
}


@pytest.mark.parametrize(("state", "happens"), list(product(BreakerState, HAPPENS)), ids=str)
def test_whatever_happens_in_a_state_leads_where_the_table_says_or_nowhere(state: BreakerState, happens: str) -> None:
    breaker = STATES[state]()
    assert breaker.state is state

    told = HAPPENS[happens](breaker)

    cause = CAUSED.get((state, happens))
    after = state if cause is None else LIFECYCLE[state][cause]
    assert breaker.state is after
    if not happens.startswith("asked"):
        assert told == (after if after is not state else None)


# Tripping ----------------------------------------------------------------------------------------------


def test_while_closed_every_message_may_be_handled() -> None:
    assert Breaker().permits(0.0) == 0.0


def test_it_trips_when_the_share_of_failures_is_reached() -> None:
    breaker = Breaker(QUICK)
    breaker.record_success(0.0)
    breaker.record_success(0.0)
    assert breaker.record_failure(0.0) is None

    assert breaker.record_failure(7.0) is OPEN
    assert breaker.failure_rate == 0.5


def test_it_does_not_trip_over_a_few_calls() -> None:
    breaker = Breaker(QUICK)

    assert [breaker.record_failure(0.0) for _ in range(3)] == [None, None, None]
    assert breaker.record_failure(0.0) is OPEN


def test_it_does_not_trip_below_the_share() -> None:
    breaker = Breaker(QUICK)

    for _ in range(1000):
        breaker.record_success(0.0)
        breaker.record_success(0.0)
        assert breaker.record_failure(0.0) is None


def test_old_outcomes_are_forgotten() -> None:
    breaker = Breaker(QUICK)
    for _ in range(3):
        breaker.record_failure(0.0)
    for _ in range(10):
        breaker.record_success(0.0)

    assert [breaker.record_failure(0.0) for _ in range(4)] == [None] * 4
    assert breaker.record_failure(0.0) is OPEN  # 5 of the last 10


def test_outcomes_grow_old_by_the_clock_where_the_window_is_a_time() -> None:
    breaker = Breaker(BreakerPolicy(minimum_calls=4, window="10s"))
    for _ in range(3):
        breaker.record_failure(0.0)

    assert breaker.record_failure(11.0) is None
    assert breaker.failure_rate == 1.0


# Open --------------------------------------------------------------------------------------------------


def test_while_open_nothing_passes_until_the_pause_is_over() -> None:
    breaker = tripped(now=100.0)

    assert [breaker.permits(now) for now in (100.0, 110.0, 129.5)] == [30.0, 20.0, 0.5]
    assert breaker.state is OPEN


def test_outcomes_of_what_was_under_way_do_not_count_while_open() -> None:
    breaker = tripped()

    assert breaker.record_failure(20.0) is None
    assert breaker.record_success(25.0) is None
    assert breaker.permits(25.0) == 5.0


# Probing -----------------------------------------------------------------------------------------------


def test_after_the_pause_one_message_passes_and_the_next_asks_again_soon() -> None:
    breaker = tripped()

    assert breaker.permits(30.0) == 0.0
    assert breaker.state is PROBING
    assert breaker.permits(31.0) == 0.1


def test_as_many_probes_pass_as_were_asked_for() -> None:
    breaker = tripped(BreakerPolicy(minimum_calls=1, probes=3))

    assert [breaker.permits(30.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.1]


def test_every_probe_must_succeed() -> None:
    breaker = probing(BreakerPolicy(minimum_calls=1, probes=2))
    assert breaker.record_success(31.0) is None

    assert breaker.record_success(32.0) is CLOSED
    assert breaker.permits(32.0) == 0.0


def test_what_succeeded_before_a_relapse_does_not_count_for_the_next_probing() -> None:
    breaker = probing(BreakerPolicy(minimum_calls=1, probes=2))
    breaker.record_success(31.0)
    breaker.record_failure(31.0)
    breaker.permits(100.0)

    assert [breaker.record_success(100.0), breaker.record_success(100.0)] == [None, CLOSED]


def test_what_failed_before_the_trip_is_forgotten_when_it_recovers() -> None:
    breaker = probing()
    assert breaker.failure_rate == 1.0
    breaker.record_success(31.0)
    assert breaker.failure_rate == 0.0

    assert [breaker.record_failure(32.0) for _ in range(3)] == [None] * 3


def test_each_relapse_makes_the_pause_longer_up_to_the_ceiling() -> None:
    breaker, now, pauses = tripped(), 0.0, []
    for _ in range(4):
        pause = breaker.permits(now)
        now += pause
        breaker.permits(now)
        pauses.append(pause)
        breaker.record_failure(now)

    assert pauses == [30.0, 60.0, 100.0, 100.0]


def test_after_a_recovery_the_first_pause_is_short_again() -> None:
    breaker = probing()
    breaker.record_failure(30.0)
    breaker.permits(90.0)
    breaker.record_success(90.0)

    for _ in range(4):
        breaker.record_failure(100.0)

    assert breaker.permits(100.0) == 30.0


def test_a_probe_that_tells_nothing_lets_another_pass() -> None:
    breaker = probing()
    assert breaker.permits(31.0) > 0

    breaker.record_inconclusive()

    assert [breaker.permits(31.0) == 0.0, breaker.permits(31.0) == 0.0] == [True, False]


def test_what_tells_nothing_does_not_add_probes_that_nobody_asked_for() -> None:
    breaker = probing()
    breaker.record_inconclusive()
    breaker.record_inconclusive()

    assert [breaker.permits(31.0) == 0.0 for _ in range(2)] == [True, False]


def test_a_probe_that_is_never_heard_of_does_not_close_the_door_for_good() -> None:
    breaker = probing()
    assert breaker.permits(59.9375) == 0.0625

    assert breaker.permits(60.0) == 0.0
    assert breaker.permits(60.0) > 0
    assert breaker.record_success(61.0) is CLOSED


# Configuration -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"failure_rate": 0}, "failure_rate 0: want a share above 0, at most 1"),
        ({"failure_rate": 1.5}, "failure_rate 1.5"),
        ({"failure_rate": float("nan")}, "failure_rate nan"),
        ({"minimum_calls": 0}, "minimum_calls 0: want a number from 1"),
        ({"minimum_calls": True}, "minimum_calls True"),
        ({"minimum_calls": 101}, "window 100 never holds breaker.minimum_calls 101"),
        ({"window": 0}, "window 0: want a number from 1"),
        ({"window": True}, "window True"),
        ({"window": "0s"}, "window '0s': want more than nothing"),
        ({"window": "100"}, "breaker.window '100' is not a length of time"),
        ({"window": 1.5}, "breaker.window 1.5: want a whole number or a length of time with its unit"),
        ({"pause": "0s"}, "want 0 < pause <= ceiling"),
        ({"pause": "6m"}, "want 0 < pause <= ceiling"),
        ({"pause": 30}, "breaker.pause 30: want a length of time with its unit"),
        ({"factor": 0.5}, "factor 0.5: want at least 1"),
        ({"factor": float("inf")}, "factor inf"),
        ({"probes": 0}, "probes 0: want a number from 1"),
    ],
    ids=str,
)
def test_a_policy_that_makes_no_sense_is_refused_when_it_is_made(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        BreakerPolicy(**settings)  # type: ignore[arg-type]

    assert complaint in str(refusal.value)


def test_without_a_word_every_error_says_something_about_the_dependency() -> None:
    assert Breaker().blames(ValueError())


def test_a_policy_can_name_the_errors_that_do() -> None:
    breaker = Breaker(BreakerPolicy(only=(ConnectionError, TimeoutError)))

    assert breaker.blames(ConnectionResetError())
    assert not breaker.blames(ValueError())


def test_a_breaker_introduces_itself() -> None:
    assert repr(Breaker()) == "<Breaker CLOSED failed=0/0>"
    assert repr(tripped()) == "<Breaker OPEN until=30.000 trips=1>"
    assert repr(probing()) == "<Breaker PROBING succeeded=0/1 trips=1>"


# Whatever happens --------------------------------------------------------------------------------------


class AnyLife(RuleBasedStateMachine):
    """Messages come, succeed, fail and vanish in any order, and time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = BreakerPolicy(minimum_calls=3, window=5, pause="10s", factor=3, ceiling="60s", probes=2)
        self.breaker = Breaker(self.policy)
        self.now = 0.0
        self.under_way = 0
        self.state = CLOSED
        self.opened = 0.0
        self.probes: list[float] = []  # when messages passed while PROBING

    def follow(self, told: BreakerState | None) -> None:
        """Every change is told, once, and is one of the table's."""
        if told is not None:
            assert told in LIFECYCLE[self.state].values()
            self.state = told
            self.probes.clear()
            self.opened = self.now
        assert self.breaker.state is self.state
        assert 0.0 <= self.breaker.failure_rate <= 1.0

    @rule(quarters=st.integers(0, 400))
    def time_passes(self, quarters: int) -> None:
        self.now += quarters / 4  # which sums up without rounding

    @rule()
    def a_message_comes(self) -> None:
        seconds = self.ask()
        assert 0.0 <= seconds <= 60.0
        if seconds:
            assert self.state is not CLOSED
        else:
            assert self.state is not OPEN
            self.under_way += 1
            self.probes += [self.now] * (self.state is PROBING)

    def ask(self) -> float:
        seconds = self.breaker.permits(self.now)
        if self.breaker.state is not self.state:
            assert (self.state, self.breaker.state) == (OPEN, PROBING)
            assert self.now >= self.opened + 10.0
            self.follow(PROBING)
        return seconds

    @precondition(lambda self: self.under_way)
    @rule(end=st.sampled_from(["succeeded", "failed", "inconclusive", "vanished"]))
    def it_ends(self, end: str) -> None:
        self.under_way -= 1
        match end:
            case "succeeded":
                self.follow(self.breaker.record_success(self.now))
            case "failed":
                self.follow(self.breaker.record_failure(self.now))
            case "inconclusive":
                self.breaker.record_inconclusive()
                self.probes.clear()

    @invariant()
    def no_more_probes_at_once_than_allowed(self) -> None:
        assert len([when for when in self.probes if when > self.now - 10.0]) <= 2 * self.policy.probes

    def teardown(self) -> None:
        """From wherever it is, a dependency that works again is found to work, within two of the longest pauses."""
        begun = self.now
        while self.state is not CLOSED:
            assert self.now - begun <= 2 * 60.0 + 1.0
            seconds = self.ask()
            self.now += seconds
            if not seconds:
                self.follow(self.breaker.record_success(self.now))


TestAnyLife = AnyLife.TestCase
