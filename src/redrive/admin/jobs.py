"""What a server can be asked to carry out, as values that go to another process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from redrive.admin.service import Service
from redrive.runtime.dlq.moving import Mover
from redrive.runtime.dlq.operation import Operation, Order
from redrive.runtime.dlq.planning import Plan
from redrive.runtime.dlq.steering import Changed
from redrive.runtime.dlq.transforming import Transform

Started = Callable[[Mover], None]


class Job(Protocol):
    @property
    def by(self) -> str:
        """Who asked for it."""

    async def run(self, service: Service, changed: Changed, started: Started) -> Operation:
        """To its end. `service` acts for whoever asked."""


@dataclass(frozen=True, slots=True)
class Redrive:
    by: str
    order: Order
    planned: int | None = None

    async def run(self, service: Service, changed: Changed, started: Started) -> Operation:
        operation = await service.begin(self.order, planned=self.planned)
        return await service.run(operation, changed=changed, started=started)


@dataclass(frozen=True, slots=True)
class Discard:
    by: str
    plan: Plan
    archives: Path
    confirm: str

    async def run(self, service: Service, changed: Changed, started: Started) -> Operation:
        over, _ = await service.discard(
            self.plan, self.archives, confirm=self.confirm, changed=changed, started=started
        )
        return over


@dataclass(frozen=True, slots=True)
class Change:
    by: str
    plan: Plan
    archives: Path
    transform: Transform
    force: bool = False

    async def run(self, service: Service, changed: Changed, started: Started) -> Operation:
        over, _ = await service.redrive_changed(
            self.plan, self.transform, self.archives, force=self.force, changed=changed, started=started
        )
        return over


@dataclass(frozen=True, slots=True)
class GoOn:
    """With what another process left behind, as it is; or, if somebody asks for it, running."""

    by: str
    operation: Operation
    asked: bool = False

    async def run(self, service: Service, changed: Changed, started: Started) -> Operation:
        if self.asked:
            return await service.resume(self.operation.id, changed=changed, started=started)
        return await service.go_on(self.operation, changed=changed, started=started)
