"""The child process that runs operations is killed before each of its side effects: every operation has an end.

A re-drive goes on in the next child, and no message is lost. A discard is closed, and no message is lost either: each
is in the archive or in the queue. An operation that the child has not even claimed has failed, and nothing was moved.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from crashes.test_redriving import until_depth_is_at_least
from crashes.test_redriving import url as url
from dead_lettering import DLQ, SOURCE, a_service, an_order, bodies, orders, prepare
from redrive.admin.executor.recovery import OrphanRecovery, owner_name
from redrive.admin.executor.subprocess import SubprocessExecutor, WorkerConfig
from redrive.admin.service import Service
from redrive.admin.target import BrokerTarget
from redrive.client import Connection
from redrive.database.engine import Database
from redrive.errors import RedriveError
from redrive.operations.archive import Archive, read_archive
from redrive.operations.operation import Operation, OperationKind, OperationState

MARK = "server:mark"
MESSAGES = 20
SHORT = [1, 2, 4, 6, 8]


@pytest.fixture(autouse=True)
def _child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        "redrive.admin.executor.subprocess._MAIN", "from crashes.programs.executing import main; main()"
    )
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent.parent), *sys.path])
    monkeypatch.setenv("DIED", str(tmp_path / "died"))


async def run_to_its_end(url: str, folder: Path, kind: OperationKind) -> tuple[Service, Operation]:
    service = a_service(url, folder)
    service.owner = owner_name(MARK)
    config = WorkerConfig(BrokerTarget(url), str(Database.embedded(folder).url), MARK, service.owner)
    executor = SubprocessExecutor(service, config)
    recovery = OrphanRecovery(service, MARK, executor)
    operation = await service.begin(an_order(kind=kind), archives=folder if kind is OperationKind.DISCARD else None)
    with suppress(RedriveError):  # the child died before it began
        await executor.start(operation.id)
    try:
        async with asyncio.timeout(60):
            while not (operation := await service.operation(operation.id)).state.is_over:
                await recovery.recover()
                await asyncio.sleep(0.05)
    finally:
        await executor.close()
    return service, operation


@pytest.mark.parametrize("die_before", SHORT)
async def test_a_re_drive_whose_process_is_killed_ends_and_costs_no_message(
    url: str, tmp_path: Path, die_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIE_BEFORE", str(die_before))
    async with Connection(url) as connection:
        await prepare(connection, MESSAGES)
        service, over = await run_to_its_end(url, tmp_path, OperationKind.REDRIVE)
        arrived = await bodies(connection, SOURCE)
        left = await bodies(connection, DLQ)

    assert (tmp_path / "died").exists()
    if die_before == 1:  # it was not claimed
        assert (over.state, arrived, len(left)) == (OperationState.FAILED, [], MESSAGES)
        return
    assert (over.state, left) == (OperationState.SUCCEEDED, [])
    assert sorted(Counter(arrived)) == sorted(orders(*range(MESSAGES)))
    assert len(arrived) - MESSAGES <= over.counts.possibly_duplicated
    assert "resume" in [entry.action for _, entry in service.audit.list_entries()]


@pytest.mark.parametrize("die_before", SHORT)
async def test_a_discard_whose_process_is_killed_is_closed_and_costs_no_message(
    url: str, tmp_path: Path, die_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIE_BEFORE", str(die_before))
    async with Connection(url) as connection:
        await prepare(connection, MESSAGES)
        _, over = await run_to_its_end(url, tmp_path, OperationKind.DISCARD)
        archived = archived_in(Path(over.order.archive))
        await until_depth_is_at_least(connection, MESSAGES - len(archived))
        left = await bodies(connection, DLQ)

    assert over.state in (OperationState.FAILED, OperationState.SUCCEEDED)
    assert {*archived, *left} == {*orders(*range(MESSAGES))}


def archived_in(path: Path) -> list[bytes]:
    if not path.exists():
        return []
    Archive(path).close()  # moves half a line aside, which a death in the middle of a write leaves
    return [letter.body for _, letter in read_archive(path)]
