"""`redrive dlq watch`: only dead letters that arrive while it runs are new, on every broker."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from dead_lettering import DLQ, a_service, dead_letter, prepare
from redrive.admin.notifications import Kind, Notice, Notifier
from redrive.admin.service import Service
from redrive.cli.dlq.watch import look
from redrive.client import Connection
from redrive.inspection.embedded import EmbeddedMonitor
from redrive.inspection.management import Management, ManagementMonitor
from redrive.migration.ports import MigrationOptions, QueueMonitor
from redrive.migration.run import migrate
from redrive.migration.steps import migrated_queue
from redrive.topology import Definitions, QueueDefinition

QUICK = timedelta(milliseconds=50)


@pytest.fixture
def service(amqp_url: str, tmp_path: Path) -> Service:
    return a_service(amqp_url, tmp_path)


def told(notifier: Notifier, service: Service) -> list[tuple[Kind, str, int, int | None]]:
    """Deliver what is due, and return it in short."""
    notices: list[Notice] = notifier.due(service.clock.now())
    for notice in notices:
        notifier.record_delivery(notice, service.clock.now())
    return [(notice.kind, notice.queue, notice.new, notice.depth) for notice in notices]


async def test_the_backlog_is_not_new(connection: Connection, service: Service) -> None:
    await prepare(connection, 3)
    notifier = Notifier(interval=timedelta(microseconds=1))

    backlogs = await look(service, (DLQ,), notifier)
    assert told(notifier, service) == [(Kind.BACKLOG, DLQ, 0, 3)]
    await connection.publish_many([dead_letter(7)])
    await look(service, (DLQ,), notifier, backlogs)

    assert told(notifier, service) == [(Kind.DEAD_LETTERS, DLQ, 1, 4)]


@pytest.mark.parametrize("begins", ["before", "during"])
async def test_what_a_migration_moves_is_not_new(
    connection: Connection, service: Service, request: pytest.FixtureRequest, begins: str
) -> None:
    await prepare(connection, 20)
    notifier = Notifier(interval=timedelta(microseconds=1))
    backlogs = await look(service, (DLQ,), notifier) if begins == "before" else None
    seen = told(notifier, service)
    watcher: QueueMonitor = EmbeddedMonitor(connection)
    if "rabbitmq" in request.node.name:
        management = Management(request.getfixturevalue("management_url"))
        watcher = ManagementMonitor(management, connection.url.virtual_host, lag=timedelta(seconds=0.5))
    wanted = Definitions.of([], [QueueDefinition(DLQ, arguments={"x-queue-type": "classic", "x-max-length": 1000})])
    terms = MigrationOptions(settle=QUICK, youth=QUICK)

    migrating = asyncio.create_task(migrate(DLQ, wanted, connection, watcher, terms, user="guest"))
    depths = set()
    while not migrating.done():
        backlogs = await look(service, (DLQ,), notifier, backlogs)
        depths.add((await service.depths([DLQ]))[0].get(DLQ))
        seen += told(notifier, service)
    assert (await migrating).migrated
    await look(service, (DLQ,), notifier, backlogs)
    seen += told(notifier, service)

    assert None in depths  # it was seen while it was migrated
    assert seen == [(Kind.BACKLOG, DLQ, 0, 20)]


@pytest.mark.parametrize(
    ("name", "queue"),
    [
        ("q.dlq.migrating", "q.dlq"),
        ("q.dlq.migrating.2", "q.dlq"),
        ("q.dlq.migrating.old", "q.dlq"),
        ("q.dlq.migration", "q.dlq"),
        ("q.dlq", None),
        ("migrating", None),
    ],
)
def test_the_queues_of_a_migration_are_known_by_their_names(name: str, queue: str | None) -> None:
    assert migrated_queue(name) == queue
