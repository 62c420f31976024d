"""Whatever is appended, and whenever the broker ends: what is found is what was there at some moment, and that
moment is not before the last one that was told.

Hypothesis invents the life of a broker. A model keeps, beside it, what a perfect journal would hold after each
call. The broker ends in two ways: it closes, and then nothing may be missing; or it is cut off, and then a copy of
its files, taken as they lie on the disk, must hold one of the states since the last callback that came, whole.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from redrive.broker.storage import Definition, SQLiteJournal, StoredMessage
from unit.broker.storage.samples import Contents, definition, message, on_disk, recovered

QUEUES = st.integers(1, 4)
POSITIONS = st.integers(-5, 40)
NEVER = timedelta(days=1)
T = TypeVar("T")


class State:
    """What a perfect journal holds."""

    def __init__(self) -> None:
        self.definitions: dict[int, Definition] = {}
        self.messages: dict[int, StoredMessage] = {}
        self.delivered: dict[int, int] = {}

    def seen(self) -> Contents:
        """As a broker would find it, except that queues are in order too."""
        messages = sorted(self.messages.values(), key=lambda one: (one.queue, one.position))
        definitions = sorted(self.definitions.values())
        next_id = max([0, *self.messages, *self.definitions]) + 1
        return Contents(definitions, messages, self.delivered.copy(), next_id)


def by_queue(found: Contents) -> Contents:
    """Put queue after queue, without touching the order within each."""
    return found._replace(messages=sorted(found.messages, key=lambda one: one.queue))


class BrokersLife(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.directory = Path(tempfile.mkdtemp(prefix="redrive-journal-"))
        self.last_id = 0
        self.model = State()
        self.states = [self.model.seen()]  # after each change
        self.asked: list[int] = []  # after which of them a callback was asked for
        self.told: list[int] = []  # and came
        self.start()

    def start(self) -> None:
        self.journal = self.run(self._open())
        assert by_queue(recovered(self.journal)) == self.model.seen()

    async def _open(self) -> SQLiteJournal:
        return SQLiteJournal(self.directory, linger=NEVER)

    def run(self, life: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(life)

    def note(self) -> None:
        self.states.append(self.model.seen())

    def new_id(self) -> int:
        self.last_id += 1
        return self.last_id

    # Appending --------------------------------------------------------------------------------------------

    @rule(queue=QUEUES, position=POSITIONS, body=st.binary(max_size=20))
    def store(self, queue: int, position: int, body: bytes) -> None:
        self._store(queue, position, body)
        self.note()

    def _store(self, queue: int, position: int, body: bytes) -> None:
        taken = {one.position for one in self.model.messages.values() if one.queue == queue}
        if position not in taken:
            one = message(self.new_id(), queue, position, body)
            self.journal.store(one)
            self.model.messages[one.id] = one

    @precondition(lambda self: self.model.messages)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.model.messages)))
        self.journal.forget(id)
        del self.model.messages[id]
        self.note()

    @precondition(lambda self: self.model.messages)
    @rule(data=st.data(), queue=QUEUES, position=POSITIONS)
    def move(self, data: st.DataObject, queue: int, position: int) -> None:
        """One change, as nothing is given back to the loop in between."""
        id = data.draw(st.sampled_from(sorted(self.model.messages)))
        self._store(queue, position, self.model.messages[id].body)
        self.journal.forget(id)
        del self.model.messages[id]
        self.note()

    @precondition(lambda self: self.model.messages)
    @rule(data=st.data(), count=st.integers(1, 300))
    def come_back(self, data: st.DataObject, count: int) -> None:
        id = data.draw(st.sampled_from(sorted(self.model.messages)))
        self.journal.note_return(id, count)
        self.model.messages[id] = self.model.messages[id]._replace(delivery_count=count)
        self.note()

    @rule(queue=QUEUES)
    def empty(self, queue: int) -> None:
        self.journal.forget_queue(queue)
        self.model.messages = {id: one for id, one in self.model.messages.items() if one.queue != queue}
        self.note()

    @rule(queue=QUEUES, position=POSITIONS)
    def deliver(self, queue: int, position: int) -> None:
        self.journal.note_delivery(queue, position)
        self.model.delivered[queue] = max(position, self.model.delivered.get(queue, position))
        self.note()

    @rule(value=st.binary(max_size=5))
    def define(self, value: bytes) -> None:
        one = definition(self.new_id(), "orders", value)
        self.journal.define(one)
        self.model.definitions[one.id] = one
        self.note()

    @precondition(lambda self: self.model.definitions)
    @rule(data=st.data(), value=st.none() | st.binary(max_size=5))
    def change(self, data: st.DataObject, value: bytes | None) -> None:
        id = data.draw(st.sampled_from(sorted(self.model.definitions)))
        if value is None:
            self.journal.undefine(id)
            del self.model.definitions[id]
            self.model.delivered.pop(id, None)
        else:
            self.model.definitions[id] = self.model.definitions[id]._replace(value=value)
            self.journal.define(self.model.definitions[id])
        self.note()

    # Time passes ------------------------------------------------------------------------------------------

    @rule(turns=st.integers(1, 3))
    def pass_time(self, turns: int) -> None:
        for _ in range(turns):
            self.run(asyncio.sleep(0))

    @rule()
    def ask(self) -> None:
        state = len(self.states) - 1
        self.asked.append(state)
        self.journal.after_commit(lambda: self.told.append(state))

    @rule()
    def wait(self) -> None:
        self.ask()
        self.run(on_disk(self.journal))
        assert self.told == self.asked
        assert self.journal.pending == 0

    # The end ----------------------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        self.ask()
        self.run(self.journal.close())
        assert self.told == self.asked
        self.start()

    @rule()
    def be_cut_off(self) -> None:
        """In a copy: here life goes on."""
        self.run(self._quiet())
        copy = Path(tempfile.mkdtemp(prefix="redrive-journal-", dir=self.directory))
        for suffix in ("", "-wal"):
            file = Path(f"{self.directory / 'broker.sqlite3'}{suffix}")
            if file.exists():
                shutil.copy(file, copy)
        found = by_queue(self.run(self._look(copy)))
        shutil.rmtree(copy)
        assert found in self.states[self.told[-1] if self.told else 0 :]

    async def _quiet(self) -> None:
        """Copying takes time, and the power goes in an instant: let the disk rest, with what lingers unwritten."""
        while "WRITING" in repr(self.journal):  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def _look(self, directory: Path) -> Contents:
        journal = SQLiteJournal(directory)
        found = recovered(journal)
        await journal.close()
        return found

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            self.run(self.journal.close())
            self.loop.close()
            shutil.rmtree(self.directory)


class TestBrokersLife(BrokersLife.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.slow
class TestLongBrokersLife(BrokersLife.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=500, stateful_step_count=60, deadline=None)
