"""All that an admin server has, whoever asks: the service, what was seen, what runs, who may come in.

A context opens for as long as a server runs. Each principal gets an `AuthorizedService` of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

from redrive import environment
from redrive.admin.access.authenticator import Authenticator
from redrive.admin.access.roles import Role
from redrive.admin.access.settings import AccessSettings
from redrive.admin.cache import QueryCache
from redrive.admin.cached_target import CachedTarget
from redrive.admin.executor import OperationExecutor
from redrive.admin.executor.local import LocalExecutor
from redrive.admin.executor.recovery import OrphanRecovery, owner_name, server_mark
from redrive.admin.executor.subprocess import SubprocessExecutor, WorkerConfig, configure_plain_logs
from redrive.admin.service import Service
from redrive.admin.target import BrokerTarget
from redrive.app import App
from redrive.database.engine import Database
from redrive.database.schema import Schema
from redrive.errors import ConfigurationError, RedriveError
from redrive.operations.audit_log import AuditLog
from redrive.operations.idempotency_keys import IdempotencyKeys
from redrive.operations.operation import Operation
from redrive.operations.plan_tokens import PlanTokens
from redrive.operations.repository import OperationRepository
from redrive.outbox.repository import OutboxRepository
from redrive.worker.clock import Clock, SystemClock

_SAMPLE = 30.0  # seconds between two looks at the depths
_SAMPLES = 240  # of each queue: two hours


@dataclass(slots=True)
class Trends:
    """How deep the queues were."""

    times: deque[datetime] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    depths: dict[str, deque[int]] = field(default_factory=dict)

    def add(self, at: datetime, depths: dict[str, int]) -> None:
        self.times.append(at)
        for queue in self.depths.keys() - depths.keys():
            del self.depths[queue]
        for queue, depth in depths.items():
            self.depths.setdefault(queue, deque(maxlen=_SAMPLES)).append(depth)

    def of(self, queue: str) -> tuple[int, ...]:
        return tuple(self.depths.get(queue, ()))


def _role(name: str) -> Role:
    try:
        return Role(name)
    except ValueError:
        raise ConfigurationError(f"least_role {name!r}: want one of {', '.join(Role)}") from None


class AdminContext:
    def __init__(
        self,
        target: BrokerTarget,
        database: Database,
        *,
        access: AccessSettings | None = None,
        app: App | None = None,
        archives: Path | None = None,
        name: str = "",
        apart: bool = True,
        least_role: Role | str | None = None,
        own_queues_only: bool = False,
        clock: Clock | None = None,
        configure_logs: Callable[[], object] = configure_plain_logs,
    ) -> None:
        """`app`: whose outbox is shown. `archives`: where what is discarded is written to first. `apart`: operations
        have a process of their own, so that requests do not wait for them. `least_role`: principals with a lower role
        are refused, whatever they ask for; without it, that of `access`. `own_queues_only`: the dead-letter queues that
        the topology declares are the only ones to be listed, looked into and operated on. `configure_logs` sets up
        logging in the process of the operations; it can be pickled.
        """
        self.clock = clock or SystemClock()
        self.target = target
        self.database = database
        self.settings = access or AccessSettings.from_environment()
        if least_role is not None:
            self.settings = replace(self.settings, least_role=_role(least_role))
        self.accepted = target.own_dead_letter_queues() if own_queues_only else None  # None: all dead-letter queues
        if own_queues_only and not self.accepted:
            raise ConfigurationError("own_queues_only needs an application or a topology file with dead-letter queues")
        self.app = app
        self.name = name or (app.name if app is not None else "redrive")
        self.archives = archives or (target.data or environment.data()) / "archive"
        self.gate = Authenticator.of(database, self.settings, self.clock)
        self.cached_target = CachedTarget(target)
        self.service = Service(
            self.cached_target,
            OperationRepository(database),
            AuditLog(database),
            by="redrive serve",
            clock=self.clock,
            named=False,
        )
        self.snapshots = QueryCache(self.clock)
        self.peeks = QueryCache(self.clock)  # that are in the audit: who looks twice within half a minute is in it once
        mark = server_mark(target)
        self.service.owner = owner_name(mark)
        self.local = LocalExecutor(self.service, self._on_operation_end)
        self.executor: OperationExecutor = self._subprocess(mark, configure_logs) if apart else self.local
        self.recovery = OrphanRecovery(self.service, mark, self.executor, self.local)
        self.plans = PlanTokens(database)
        self.requests = IdempotencyKeys(database)
        self.outbox = OutboxRepository(app.database, app.outbox.table) if app is not None else None
        self.trends = Trends()
        self._sampling: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, app: App, **options: Any) -> Self:
        """For an application, with its broker and its database."""
        options = {"app": app, "archives": app.data / "archive", **options}
        return cls(BrokerTarget.of(app), app.database, **options)

    def _on_operation_end(self, operation: Operation) -> None:
        self.snapshots.invalidate(operation.order.queue)

    def _subprocess(self, mark: str, configure_logs: Callable[[], object]) -> OperationExecutor:
        target = replace(self.target.for_another_process(), data=self.target.data or environment.data())
        url = self.database.url.render_as_string(hide_password=False)
        config = WorkerConfig(target, url, mark, self.service.owner, configure_logs)
        return SubprocessExecutor(self.service, config, self._on_operation_end)

    @property
    def owns_database(self) -> bool:
        """SQLite in the data folder is nobody else's: its tables are made when they are needed."""
        return self.app is None or self.app.owns_database

    async def open(self) -> Self:
        if self.owns_database and not self.database.is_postgresql:
            await asyncio.to_thread(Schema().upgrade, self.database)
        await self.executor.open()
        self.recovery.start()
        self._sampling = asyncio.create_task(self._sample(), name="redrive-trends")
        return self

    async def close(self) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.gather(self._sampling, return_exceptions=True)
        await self.cached_target.close()  # first: who leaves last would take over the embedded broker
        await self.recovery.stop()
        await asyncio.gather(*(executor.close() for executor in {self.executor, self.local}))

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _sample(self) -> None:
        """Depths only: no message is touched."""
        while True:
            with suppress(RedriveError, OSError):
                views = await self.service.queues(oldest=False)
                self.trends.add(self.clock.now(), {view.name: view.depth for view in views})
            await asyncio.sleep(_SAMPLE)

    @property
    def sampled_every(self) -> timedelta:
        return timedelta(seconds=_SAMPLE)
