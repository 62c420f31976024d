"""How the console says numbers, times and states."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

from redrive.operations.canary import step_count
from redrive.operations.operation import Operation, OperationState
from redrive.operations.plan import RedrivePlan
from redrive.recovery.durations import format_roughly
from redrive.text import group_digits, pluralise

number = partial(group_digits, separator="\u202f")  # a narrow space, at which no line breaks
counted = partial(pluralise, shown=number)

STATES = {
    OperationState.PENDING: ("waits", "about to begin"),
    OperationState.RUNNING: ("runs", "running"),
    OperationState.PAUSED: ("waits", "paused"),
    OperationState.CANCELLING: ("waits", "cancelling"),
    OperationState.CANCELLED: ("over", "cancelled"),
    OperationState.SUCCEEDED: ("well", "succeeded"),
    OperationState.PARTIAL: ("ill", "partial"),
    OperationState.STOPPED_BY_GUARD: ("bad", "stopped by guard"),
    OperationState.FAILED: ("bad", "failed"),
}


def age(moment: datetime, now: datetime) -> str:
    passed = now - moment
    if passed < timedelta(seconds=-5):  # clocks differ a little
        return f"in {format_roughly(-passed)}"
    return f"{format_roughly(passed)} ago" if passed >= timedelta(seconds=2) else "just now"


def stamp(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def size(count: int) -> str:
    for unit, power in (("MB", 1_000_000), ("kB", 1_000)):
        if count >= power:
            return f"{count / power:.1f} {unit}"
    return counted(count, "byte")


def percent(part: int, whole: int) -> str:
    if not whole:
        return "0 %"
    share = 100 * part / whole
    return "< 1 %" if 0 < share < 1 else f"{share:.0f} %"


# Operations and plans -----------------------------------------------------------------------------------


def state_tone(operation: Operation) -> str:
    return STATES[operation.state][0]


def state_word(operation: Operation) -> str:
    return STATES[operation.state][1]


def total(operation: Operation) -> int | None:
    return operation.total


def finished(operation: Operation) -> int:
    """How many need no more work. What was planned does not count those that are skipped."""
    counts = operation.counts
    return counts.moved + counts.failed + (counts.skipped if counts.planned is None else 0)


def step(operation: Operation) -> str:
    ramp = operation.order.ramp
    return f"step {max(1, operation.step)} of {step_count(ramp)}" if ramp is not None else ""


def pace(operation: Operation, now: datetime) -> str:
    """How fast it goes, and for how long yet, when that can be told."""
    began = operation.started_at
    if began is None or not operation.counts.moved:
        return ""
    passed = ((operation.ended_at or now) - began).total_seconds()
    if passed < 1:
        return ""
    rate = operation.counts.moved / passed
    said = f"{number(round(rate))}/s" if rate >= 1 else f"{number(max(1, round(rate * 60)))}/min"
    whole = total(operation)
    if operation.state is not OperationState.RUNNING or operation.order.ramp is not None or whole is None:
        return said
    left = timedelta(seconds=round(max(0, whole - finished(operation)) / rate))
    return f"{said}, about {format_roughly(left)} left" if left else said


def elapsed(operation: Operation, now: datetime) -> str:
    if operation.started_at is None:
        return ""
    return format_roughly((operation.ended_at or now) - operation.started_at)


def in_short(operation: Operation) -> str:
    """For those who have the page read to them: it changes when something happens, not with every message."""
    parts = [state_word(operation), step(operation), operation.note]
    return f"Operation {', '.join(filter(None, parts))}."


def where_to(plan: RedrivePlan) -> str:
    if len(plan.targets) == 1:
        return str(plan.targets[0])
    return f"{len(plan.targets)} destinations"
