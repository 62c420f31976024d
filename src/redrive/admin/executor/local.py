"""Run operations as tasks of this process."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from redrive.admin.executor import Ended
from redrive.admin.service import Change, Service
from redrive.operations.control import OperationControl
from redrive.operations.operation import Operation, OperationState

log = logging.getLogger("redrive.admin")

_STOP_WITHIN = 10.0  # seconds


class LocalExecutor:
    def __init__(self, service: Service, ended: Ended = lambda _: None) -> None:
        """`ended` is called with each operation that does not run here any more."""
        self._service = service
        self._ended = ended
        self._running: dict[str, _Running] = {}

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(self._running)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        """Let every operation finish what is in flight and give back the rest. The next server goes on with it."""
        await asyncio.gather(*(running.leave(self._service) for running in list(self._running.values())))

    async def start(self, id: str, change: Change | None = None) -> Operation:
        """Run an operation that this process owns. `change`: of an edit."""
        operation = await self._service.operation(id)
        running = self._running[id] = _Running(self._service.for_principal(operation.order.by), operation, change)
        running.task.add_done_callback(lambda _: self._end(running))
        return await running.wait_until_begun()

    def _end(self, running: _Running) -> None:
        del self._running[running.operation.id]
        self._ended(running.operation)
        if not running.task.cancelled() and (error := running.task.exception()) is not None:
            log.warning("an operation was not carried out, or its end not written down: %s", error)

    def __repr__(self) -> str:
        return f"<LocalExecutor {len(self._running)} operations>"


class _Running:
    """One operation, in a task."""

    def __init__(self, service: Service, operation: Operation, change: Change | None) -> None:
        self.operation = operation
        self._control: OperationControl | None = None
        self._changed = asyncio.Event()
        self.task = asyncio.create_task(service.run(operation, change, changed=self._change), name="redrive-operation")
        self.task.add_done_callback(lambda _: self._changed.set())  # the last change comes a little before the end

    def _change(self, steering: OperationControl) -> None:
        self._control = steering
        self._changed.set()

    async def wait_until_begun(self) -> Operation:
        """Wait until it has begun, and return it as it is then."""
        while not self.task.done():
            await self._changed.wait()
            self._changed.clear()
            if self._control is not None and self._control.has_begun:
                return self._control.operation
        return await self.task

    async def leave(self, service: Service) -> None:
        """Let it come to rest, and leave it for the next server."""
        steering = self._control
        if steering is None:  # it has not begun
            await self._cut_off()
            return
        was = steering.operation.state
        try:
            async with asyncio.timeout(_STOP_WITHIN):
                while not self.task.done() and not steering.is_idle:
                    steering.pause()  # in each round: it may begin to run only now
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.warning("operation %s did not come to rest: it is cut off", steering.operation.id)
        if self.task.done():
            return
        await self._cut_off()
        if steering.operation.state.is_over:  # only the record of its end is missing
            return
        state = was if was in (OperationState.PAUSED, OperationState.CANCELLING) else OperationState.RUNNING
        await service.leave(replace(steering.operation, state=state))

    async def _cut_off(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
