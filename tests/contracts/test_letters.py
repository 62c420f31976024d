"""Out of a dead-letter queue and into it, on every broker: on the disk before it leaves, byte for byte as it was."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from dead_lettering import DLQ, SOURCE, bodies, dead_letter, orders, prepare, until_depth
from redrive.admin.service import Change, Service
from redrive.admin.target import BrokerTarget
from redrive.client import Connection
from redrive.database.engine import Database
from redrive.database.schema import Schema
from redrive.errors import ArchiveError, ConfigurationError, LetterNotFound
from redrive.operations import pipeline
from redrive.operations.archive import read_archive
from redrive.operations.audit_log import AuditLog
from redrive.operations.export_format import Exported, decode_dead_letter
from redrive.operations.operation import (
    ItemOutcome,
    Operation,
    OperationKind,
    OperationRequest,
    OperationState,
    Selection,
)
from redrive.operations.plan import RedrivePlan
from redrive.operations.repository import OperationRepository
from redrive.operations.transforms import Transform, from_function, from_patch
from redrive.topology import Queue, Topology


@pytest.fixture
def service(amqp_url: str, tmp_path: Path) -> Service:
    database = Database(f"sqlite:///{tmp_path / 'memory.db'}")
    Schema().upgrade(database)
    target = BrokerTarget(amqp_url, topology=Topology(queues=[Queue(SOURCE)]))
    return Service(target, OperationRepository(database), AuditLog(database), by="ada")


async def exported(service: Service, **options: object) -> list[bytes]:
    return [line async for line in service.export(DLQ, **options)]  # type: ignore[arg-type]


async def discard(service: Service, plan: RedrivePlan, folder: Path) -> tuple[Operation, Path]:
    operation = await service.begin_discard(plan, folder, confirm=DLQ)
    return await service.run(operation), Path(operation.order.archive)


async def edit(service: Service, plan: RedrivePlan, transform: Transform, folder: Path) -> tuple[Operation, Path]:
    operation = await service.begin_edit(plan, transform, folder)
    return await service.run(operation, Change(transform)), Path(operation.order.archive)


async def test_what_is_discarded_is_in_the_archive_and_can_be_restored(
    connection: Connection, service: Service, tmp_path: Path
) -> None:
    await prepare(connection, 5)
    before = await exported(service, reveal=True)
    plan = await service.plan(
        OperationRequest(OperationKind.DISCARD, DLQ, Selection(query="body.order:<3"), reason="old")
    )

    over, path = await discard(service, plan, tmp_path)

    assert (over.state, over.counts.moved) == (OperationState.SUCCEEDED, 3)
    assert [letter.body for _, letter in read_archive(path)] == orders(0, 1, 2)
    assert await bodies(connection, DLQ) == orders(3, 4)

    lines = [upto async for upto in service.restore(read_archive(path), DLQ, str(path))]
    assert lines == [3]
    await until_depth(connection, DLQ, 3)
    after = await exported(service, reveal=True)
    assert [exact(line) for line in after] == [exact(line) for line in before[:3]]


def exact(line: bytes) -> tuple[bytes, bytes]:
    letter = decode_dead_letter(line, 1)
    return letter.body, letter.raw_properties


async def test_nothing_is_discarded_without_the_name_of_the_queue(
    connection: Connection, service: Service, tmp_path: Path
) -> None:
    await prepare(connection, 2)
    plan = await service.plan(OperationRequest(OperationKind.DISCARD, DLQ))

    with pytest.raises(ConfigurationError, match="once more"):
        await service.begin_discard(plan, tmp_path, confirm="yes")

    assert await bodies(connection, DLQ) == orders(0, 1)


@pytest.mark.parametrize(
    "begin",
    [
        discard,
        lambda service, plan, folder: edit(service, plan, from_patch("[]"), folder),
    ],
    ids=["discard", "change"],
)
async def test_an_operation_without_an_archive_has_failed_and_says_why(
    connection: Connection, service: Service, tmp_path: Path, begin: Callable[..., Awaitable[object]]
) -> None:
    await prepare(connection, 2)
    plan = await service.plan(OperationRequest(OperationKind.DISCARD, DLQ))
    folder = tmp_path / "a file"
    folder.touch()

    with pytest.raises(ArchiveError, match="cannot be opened"):
        await begin(service, plan, folder)

    (over,) = await service.operations()
    assert over.state is OperationState.FAILED
    assert "cannot be opened" in over.note
    assert await bodies(connection, DLQ) == orders(0, 1)


async def test_many_are_changed_and_their_originals_archived(
    connection: Connection, service: Service, tmp_path: Path
) -> None:
    await prepare(connection, 4)
    patch = from_patch('[{"op": "add", "path": "/currency", "value": "EUR"}]')
    plan = await service.plan(OperationRequest(OperationKind.REDRIVE, DLQ, Selection(limit=3)))
    samples = await service.samples(plan.order, patch)
    assert len(samples) == 3
    assert '"currency": "EUR"' in samples[0][1]

    over, path = await edit(service, plan, patch, tmp_path)

    assert (over.state, over.order.kind, over.counts.moved) == (OperationState.SUCCEEDED, OperationKind.EDIT, 3)
    changed = [msgspec.json.decode(body) for body in await bodies(connection, SOURCE)]
    assert changed == [{"order": number, "currency": "EUR"} for number in range(3)]
    assert [letter.body for _, letter in read_archive(path)] == orders(0, 1, 2)
    assert await bodies(connection, DLQ) == orders(3)


async def test_messages_that_a_transform_skips_stay_and_are_no_failures(
    connection: Connection, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "MOST_FAILURES", 2)
    await prepare(connection, 5)

    def fix(body: bytes, headers: object, letter: object) -> bytes | None:  # noqa: ARG001
        return b'{"fixed": true}' if b"4" in body else None

    plan = await service.plan(OperationRequest(OperationKind.REDRIVE, DLQ))
    over, path = await edit(service, plan, from_function(fix), tmp_path)

    assert over.state is OperationState.SUCCEEDED
    assert (over.counts.moved, over.counts.skipped, over.counts.failed) == (1, 4, 0)
    skipped = await service.items(over.id, ItemOutcome.SKIPPED)
    assert [(item.message_id, item.why) for _, item in skipped] == [
        (f"m-{number}", "the transform skipped it") for number in range(4)
    ]
    assert [letter.body for _, letter in read_archive(path)] == orders(4)
    assert await bodies(connection, SOURCE) == [b'{"fixed": true}']
    assert await bodies(connection, DLQ) == orders(0, 1, 2, 3)


async def test_a_message_whose_change_fails_stays(connection: Connection, service: Service, tmp_path: Path) -> None:
    await prepare(connection, 3)

    def fix(body: bytes, headers: object, letter: object) -> bytes | None:  # noqa: ARG001
        if b"1" in body:
            raise ValueError("not this one")
        return b'{"fixed": true}' if b"2" in body else None

    plan = await service.plan(OperationRequest(OperationKind.REDRIVE, DLQ))
    over, _ = await edit(service, plan, from_function(fix), tmp_path)

    assert over.state is OperationState.PARTIAL
    assert (over.counts.moved, over.counts.skipped, over.counts.failed) == (1, 1, 1)
    ((_, failed),) = await service.items(over.id, ItemOutcome.FAILED)
    assert failed.message_id == "m-1"
    assert "not this one" in failed.why
    assert await bodies(connection, SOURCE) == [b'{"fixed": true}']
    assert await bodies(connection, DLQ) == orders(0, 1)


async def test_an_export_leaves_everything_and_can_be_redacted(connection: Connection, service: Service) -> None:
    await prepare(connection, 3)
    await connection.publish_many([dead_letter(9)._replace(body=b'{"password": "hunter2"}')])
    await until_depth(connection, DLQ, 4)

    plain, hidden = await exported(service, reveal=True), await exported(service)

    assert b"hunter2" in plain[3]
    assert b"hunter2" not in hidden[3]
    with pytest.raises(ConfigurationError, match="redacted"):
        decode_dead_letter(hidden[3], 4)
    assert len(await bodies(connection, DLQ)) == 4


async def test_a_restore_into_nothing_is_refused(service: Service, connection: Connection) -> None:
    await prepare(connection, 0)
    letters = iter([(1, Exported("", DLQ, b"\x00\x00", b"x"))])
    with pytest.raises(Exception, match="nowhere"):
        [upto async for upto in service.restore(letters, "nowhere", "a file")]


async def test_a_message_that_is_not_there_is_told(service: Service, connection: Connection) -> None:
    await prepare(connection, 1)
    with pytest.raises(LetterNotFound, match="no message nobody"):
        await service.message(DLQ, "nobody")
