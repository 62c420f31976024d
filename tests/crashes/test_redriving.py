"""A re-drive is killed before each of its side effects, and another goes on: nothing lost, few twice, all in order.

And a discard, after which another discards the rest: at any time each message is in an archive or in the queue.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dead_lettering import DLQ, SOURCE, bodies, orders, prepare, until_depth
from redrive.client import Connection
from redrive.database.engine import Database
from redrive.database.schema import Schema
from redrive.operations.archive import Archive, read_archive
from redrive.operations.operation import OperationState
from redrive.operations.pipeline import in_flight
from redrive.operations.repository import OperationRepository
from redrive.testing import Endpoint
from redrive.testing.broker import ThreadedBroker

TESTS = Path(__file__).parent.parent
MESSAGES = 1000
BROKERS = ["embedded", "rabbitmq"]


@pytest.fixture(params=BROKERS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "embedded":
        with ThreadedBroker(data=tmp_path / "broker") as broker:
            yield broker.url
        return
    node: Endpoint = request.getfixturevalue("rabbitmq")
    vhost = f"redriving-{secrets.token_hex(8)}"
    node.add_vhost(vhost)
    yield node.url_for(vhost)
    node.delete_vhost(vhost)


class Scene:
    """A dead-letter queue, a database, and the processes that work on them."""

    def __init__(self, url: str, folder: Path, queue_type: str) -> None:
        self.url = url
        self.database = f"sqlite:///{folder / 'operations.db'}"
        self.queue_type = queue_type
        self.folder = folder
        Schema().upgrade(Database(self.database))

    async def process(self, operation: str, die_before: int, *archive: str) -> tuple[int, str]:
        """How it ended, and what it said."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "crashes.programs.redriving", self.url, self.database, operation, str(die_before), *archive),
            cwd=TESTS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await process.communicate()
        return process.returncode or 0, said.decode()

    async def survive(self, connection: Connection, die_before: int) -> int:
        """Let one die and another go on. Gives how many messages came twice."""
        await prepare(connection, MESSAGES, self.queue_type)
        id = f"op_{secrets.token_hex(6)}"
        code, said = await self.process(id, die_before)
        if was_killed(code, said, die_before):
            await until_everything_is_somewhere(connection)
            code, said = await self.process(id, 0)
        assert code == 0, said
        over = OperationRepository(Database(self.database)).get(id)
        assert over is not None
        assert over.state is OperationState.SUCCEEDED

        arrived = await bodies(connection, SOURCE)
        counts = Counter(arrived)
        assert sorted(counts) == sorted(orders(*range(MESSAGES))), "a message is lost, or made up"
        assert list(dict.fromkeys(arrived)) == orders(*range(MESSAGES)) or self.queue_type == "quorum", "out of order"
        await until_depth(connection, DLQ, 0)
        twice = len(arrived) - MESSAGES
        assert over.counts.moved == MESSAGES
        assert 0 <= twice <= over.counts.possibly_duplicated <= in_flight(0)
        return twice

    async def discard(self, connection: Connection, die_before: int) -> int:
        """Let one die, and another discard what is left. Gives how many messages were archived twice."""
        await prepare(connection, MESSAGES, self.queue_type)
        first, second = (self.folder / f"{secrets.token_hex(6)}.ndjson" for _ in range(2))
        was_killed(*await self.process(f"op_{first.stem}", die_before, str(first)), die_before)

        Archive(first).close()  # moves half a line aside, which a death in the middle of a write leaves
        archived = [letter.body for _, letter in read_archive(first)]
        await until_depth_is_at_least(connection, MESSAGES - len(archived))
        code, said = await self.process(f"op_{second.stem}", 0, str(second))
        assert (code, "SUCCEEDED" in said) == (0, True), said

        left = [letter.body for _, letter in read_archive(second)]
        assert {*archived, *left} == {*orders(*range(MESSAGES))}, "a message is lost, or made up"
        await until_depth(connection, DLQ, 0)
        return len(archived) + len(left) - MESSAGES

    async def effects_of_a_discard(self, connection: Connection) -> int:
        await prepare(connection, MESSAGES, self.queue_type)
        archive = self.folder / "whole.ndjson"
        code, said = await self.process("op_whole", 0, str(archive))
        assert code == 0
        assert f"SUCCEEDED {MESSAGES}" in said
        assert [letter.body for _, letter in read_archive(archive)] == orders(*range(MESSAGES))
        return int(said.split()[0])

    async def effects(self, connection: Connection) -> int:
        await prepare(connection, MESSAGES, self.queue_type)
        code, said = await self.process("op_whole", 0)
        assert code == 0
        assert f"SUCCEEDED {MESSAGES}" in said
        assert await bodies(connection, SOURCE) == orders(*range(MESSAGES))
        return int(said.split()[0])


def was_killed(code: int, said: str, die_before: int) -> bool:
    """Portions that are done at the same time are settled together: then there are fewer side effects to die before."""
    if code == 0 and not 0 < die_before <= int(said.split()[0]):
        return False
    assert code == -signal.SIGKILL, said
    return True


async def until_everything_is_somewhere(connection: Connection) -> None:
    """The broker notices a moment later that a process is gone, and has its messages back."""
    async with asyncio.timeout(30):
        while True:
            dead = (await connection.queue_info(DLQ)).messages
            alive = (await connection.queue_info(SOURCE)).messages
            if dead + alive >= MESSAGES and not (await connection.queue_info(DLQ)).consumers:
                return
            await asyncio.sleep(0.05)


async def until_depth_is_at_least(connection: Connection, messages: int) -> None:
    async with asyncio.timeout(30):
        while True:
            found = await connection.queue_info(DLQ)
            if found.messages >= messages and not found.consumers:
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("die_before", [3, 7, 12])
async def test_a_re_drive_that_is_killed_costs_no_message(url: str, tmp_path: Path, die_before: int) -> None:
    scene = Scene(url, tmp_path, "classic")
    async with Connection(url) as connection:
        await scene.survive(connection, die_before)


@pytest.mark.slow
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_a_re_drive_killed_before_each_side_effect_costs_no_message(
    url: str, tmp_path: Path, queue_type: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene(url, tmp_path, queue_type)
    async with Connection(url) as connection:
        effects = await scene.effects(connection)
        twice = [await scene.survive(connection, die_before) for die_before in range(1, effects + 1)]

    with capsys.disabled():
        print(f"\n{queue_type}: killed before each of {effects} side effects, {MESSAGES} messages each: none lost, "
              f"at most {max(twice)} twice (in flight {in_flight(0)})")  # fmt: skip


@pytest.mark.parametrize("die_before", [4, 7, 9])
async def test_a_discard_that_is_killed_costs_no_message(url: str, tmp_path: Path, die_before: int) -> None:
    scene = Scene(url, tmp_path, "classic")
    async with Connection(url) as connection:
        await scene.discard(connection, die_before)


@pytest.mark.slow
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_a_discard_killed_before_each_side_effect_costs_no_message(
    url: str, tmp_path: Path, queue_type: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene(url, tmp_path, queue_type)
    async with Connection(url) as connection:
        effects = await scene.effects_of_a_discard(connection)
        twice = [await scene.discard(connection, die_before) for die_before in range(1, effects + 1)]

    assert max(twice) > 0  # whoever died between the archive and the ack
    with capsys.disabled():
        print(f"\n{queue_type}: killed before each of {effects} side effects of a discard, {MESSAGES} messages each: "
              f"none lost, at most {max(twice)} archived twice")  # fmt: skip
