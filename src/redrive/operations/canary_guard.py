"""Watch a step of a canary, and say whether the operation may go on."""

from __future__ import annotations

from dataclasses import replace

from redrive.operations.canary import CanarySettled, StepClock, exceeds_limit
from redrive.operations.control import OperationControl
from redrive.operations.operation import CanarySchedule, OperationState
from redrive.operations.ports import OperationPort
from redrive.operations.returns import Counted, Returns
from redrive.worker.clock import Clock

DEFAULT_WAIT = 30.0  # seconds that a canary waits for failures, where nothing else is known


class CanaryGuard:
    def __init__(
        self, ramp: CanarySchedule, returns: Returns, steering: OperationControl, broker: OperationPort, clock: Clock
    ) -> None:
        self._ramp = ramp
        self._returns = returns
        self._steering = steering
        self._broker = broker
        self._clock = clock
        self._wait = ramp.wait if ramp.wait is not None else DEFAULT_WAIT

    async def objection(self) -> str:
        """Give what was moved its time. Return why the canary must not go on; nothing if it may."""
        clock, known = self._step_clock(), await self._returns.depths()
        settled = CanarySettled.NOT_YET
        while settled is CanarySettled.NOT_YET and not self._steering.is_cancelled:
            self._broker.check()
            depths = await self._returns.depths()
            if any(depth > known[queue] for queue, depth in depths.items()):
                await self._count()
                if why := self._share():
                    return why
            known = depths
            settled = clock.observe(await self._returns.canary_facts(), self._clock.monotonic())
            if settled is CanarySettled.NOT_YET:
                await self._steering.idle(min(max(self._wait / 10, 0.05), 1.0))
            if self._steering.operation.state is OperationState.PAUSED:
                await self._steering.wait_while_paused()
                clock = self._step_clock()
        return await self._conclude(settled)

    def _step_clock(self) -> StepClock:
        return StepClock(self._wait, self._clock.monotonic())

    async def _conclude(self, settled: CanarySettled) -> str:
        counted = await self._count()
        if (why := self._share()) or self._steering.is_cancelled:
            return why
        counts = self._steering.operation.counts
        unsure = f"undecided: {counts.returned} of {counts.moved} came back, and "
        if counted.unseen:
            return f"{unsure}there may be more: {counted.unseen}"
        if settled is CanarySettled.UNDECIDED:
            return (
                f"{unsure}the others may not have been handled: {self._returns} made no progress for {self._wait:g} s"
            )
        return ""

    async def _count(self) -> Counted:
        counted = await self._returns.count()
        operation = self._steering.operation
        counts = replace(operation.counts, returned=counted.returned)
        await self._steering.change_to(replace(operation, counts=counts))
        return counted

    def _share(self) -> str:
        """Return what is said if too many came back; nothing if not."""
        counts = self._steering.operation.counts
        if not exceeds_limit(self._ramp, counts.moved, counts.returned):
            return ""
        return f"{counts.returned} of {counts.moved} came back, more than {self._ramp.returned_pct:g} %"

    def __repr__(self) -> str:
        return f"<CanaryGuard of {self._returns!r}>"
