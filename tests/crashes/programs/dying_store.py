"""Outbox, relay and inbox whose side effects are numbered, in a process that dies by SIGKILL before one of them.

    write      the application's own row
    add        a row of the outbox, by the application or by a handler
    claim      rows of the outbox are taken
    publish    a claimed batch, or a round of it, leaves the relay
    confirm    it has left, and the broker's answer has not been heard
    mark       the rows are to be deleted
    note       the message is entered in the inbox
    handle     what a handler writes, through its session
    commit     whatever was written or claimed before, in one transaction
    ack

A life: add the orders that are missing, relay until nothing is pending, work until the queues are empty, and so on
until there is nothing left to do. The journal, and how a life ends, are those of `dying_worker`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from crashes.programs.dying_worker import Fate, MortalConsumes, id_of
from redrive import App, Batch, Retry
from redrive.client import Connection
from redrive.client.publisher import AnyPublish
from redrive.connected_app import ConnectedApp
from redrive.outbox.outbox import OutboxPolicy
from redrive.outbox.relay import Relay
from redrive.outbox.repository import OutboxRepository
from redrive.worker.events import DeliveryOutcome, DeliverySettled, Observer
from working import Recorder

_PATIENCE = 40  # seconds for one life: nothing here takes so long unless it hangs

METADATA = sa.MetaData()
ORDERS = sa.Table("orders", METADATA, sa.Column("id", sa.Integer, primary_key=True, autoincrement=False))
EFFECTS = sa.Table(
    "effects",
    METADATA,
    sa.Column("place", sa.Integer, primary_key=True),
    sa.Column("n", sa.Integer),
    sa.Column("step", sa.String(20)),
)


# What is played -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    """Orders, who handles them, and the side effects of a run in which nobody dies.

    `/` ends a claim: on PostgreSQL that is the commit of its transaction, on SQLite it is nothing.
    """

    effects: str
    handler: str = "async"
    orders: int = 1
    receipts: bool = False  # handling an order adds a receipt to the outbox, which is handled in its turn
    ordered: bool = False

    def steps(self) -> list[str]:
        return ["book", "receipt"] if self.receipts else ["book"]

    def expected(self, kind: str) -> list[str]:
        return self.effects.replace("/", "commit" if kind == "postgresql" else "").split()


ADD = "write add commit "
NOTHING_LEFT = "claim / "
RELAYED = "claim publish confirm mark commit " + NOTHING_LEFT
WITH_RECEIPT = ADD + RELAYED + "note handle add commit ack " + RELAYED + "note handle commit ack " + NOTHING_LEFT

SCENARIOS = {
    "one hop": Scenario(ADD + RELAYED + "note handle commit ack " + NOTHING_LEFT),
    "two hops": Scenario(WITH_RECEIPT, receipts=True),
    "plain function": Scenario(WITH_RECEIPT, handler="plain", receipts=True),
    "batch": Scenario(ADD * 3 + RELAYED + "note handle commit ack ack ack " + NOTHING_LEFT, handler="batch", orders=3),
    "one key": Scenario(
        ADD * 2
        + "claim publish confirm publish confirm mark commit "
        + NOTHING_LEFT
        + "note handle commit ack " * 2
        + NOTHING_LEFT,
        orders=2,
        ordered=True,
    ),
}


# The database and the relay's connection ----------------------------------------------------------------


_STATEMENTS = {
    "INSERT INTO orders": "write",
    "INSERT INTO redrive_outbox": "add",
    "DELETE FROM redrive_outbox": "mark",
    "INSERT INTO redrive_inbox": "note",
    "INSERT INTO effects": "handle",
}


def name_of(statement: str) -> str | None:
    if statement.startswith("SELECT") and "next_attempt_at <=" in statement:
        return "claim"
    return next((effect for beginning, effect in _STATEMENTS.items() if statement.startswith(beginning)), None)


def make_mortal(engine: sa.Engine, fate: Fate) -> None:
    """Number what the engine writes and commits."""

    @sa.event.listens_for(engine, "before_cursor_execute")
    def executing(connection: sa.Connection, _cursor: Any, statement: str, *_: Any) -> None:
        if (effect := name_of(statement)) is not None:
            fate.before(effect)
            connection.info["counts"] = True

    @sa.event.listens_for(engine, "commit")
    def committing(connection: sa.Connection) -> None:
        if connection.info.pop("counts", False):
            fate.before("commit")

    @sa.event.listens_for(engine, "rollback")
    def rolling_back(connection: sa.Connection) -> None:
        connection.info.pop("counts", None)


class MortalPipeline:
    def __init__(self, inner: Connection, fate: Fate) -> None:
        self._inner = inner
        self._fate = fate

    async def publish_many(self, messages: Iterable[AnyPublish]) -> int:
        messages = list(messages)
        ids = [id_of(message[2]) for message in messages]
        self._fate.before("publish", *ids)
        publishing = asyncio.ensure_future(self._inner.publish_many(messages))
        for _ in range(2):  # one turn of the loop for the task, one for what it has written
            await asyncio.sleep(0)
        self._fate.before("confirm", *ids)
        return await publishing


class Never:
    """Nobody waits here: a relay that is asked for one batch after the other."""

    async def wait(self, since: float) -> None:  # noqa: ARG002
        raise AssertionError


# The application ----------------------------------------------------------------------------------------


class Teller(Observer):
    def __init__(self, fate: Fate) -> None:
        self._fate = fate

    def settled(self, event: DeliverySettled) -> None:
        if event.outcome is DeliveryOutcome.DUPLICATE:
            self._fate.tell(duplicate=event.queue)


class Play:
    """The application of a scenario: it adds orders, and handles them."""

    def __init__(self, scenario: Scenario, app: App, queue: str) -> None:
        self.app = app
        self.scenario = scenario
        self.queues = [queue, f"{queue}, receipts"][: len(scenario.steps())]
        self.watcher = Recorder()
        app.observers.append(self.watcher)
        # With a prefetch below 8 every ack is written at once, and not with the next ones.
        options: dict[str, Any] = {"retry": Retry(attempts=1), "inbox": True, "prefetch": 7}
        if scenario.handler == "batch":
            app.batch_consumer(queue, size=scenario.orders, max_wait="200ms", **options)(self.book_many)
        else:
            book: Callable[..., Any] = self.book if scenario.handler == "async" else self.book_plainly
            app.consumer(queue, **options)(book)
        if scenario.receipts:
            app.consumer(self.queues[1], **options)(self.file_receipt)

    def add_orders(self) -> None:
        """What an API does for its clients, who ask again, with the same number, if they got no answer."""
        for number in range(1, self.scenario.orders + 1):
            with self.app.database.sessions()() as session, session.begin():
                if session.scalar(sa.select(ORDERS.c.id).where(ORDERS.c.id == number)) is None:
                    session.execute(sa.insert(ORDERS).values(id=number))
                    key = "one" if self.scenario.ordered else None
                    self.app.outbox.add(session, "", self.queues[0], {"id": number}, ordering_key=key)

    async def book(self, order: dict[str, int], session: AsyncSession) -> None:
        await session.execute(sa.insert(EFFECTS).values(n=order["id"], step="book"))
        if self.scenario.receipts:
            await self.app.publish("", self.queues[1], order, session=session)

    def book_plainly(self, order: dict[str, int], session: Session) -> None:
        session.execute(sa.insert(EFFECTS).values(n=order["id"], step="book"))
        self.app.outbox.add(session, "", self.queues[1], order)

    async def book_many(self, batch: Batch[dict[str, int]], session: AsyncSession) -> None:
        await session.execute(sa.insert(EFFECTS), [{"n": order["id"], "step": "book"} for order in batch.bodies])

    async def file_receipt(self, order: dict[str, int], session: AsyncSession) -> None:
        await session.execute(sa.insert(EFFECTS).values(n=order["id"], step="receipt"))


# A life -------------------------------------------------------------------------------------------------


def live(scenario: str, broker: str | Path, database: str, queue: str, journal: Path, die_before: int) -> None:
    """Work until nothing is left to do, or until the side effect before which to die.

    A folder for a broker: the transport is LOCAL, and the broker in the folder dies together with this life.
    """
    if isinstance(broker, Path):
        app = App("mortal", data=broker, database=database, outbox_policy=OutboxPolicy(transport="LOCAL"))
    else:
        app = App("mortal", broker=broker, database=database)
    asyncio.run(_live(SCENARIOS[scenario], app, queue, Fate(journal, die_before)))


async def _live(scenario: Scenario, app: App, queue: str, fate: Fate) -> None:
    app.observers.append(Teller(fate))
    make_mortal(app.database.engine, fate)
    make_mortal(app.database.async_engine.sync_engine, fate)
    play = Play(scenario, app, queue)
    async with asyncio.timeout(_PATIENCE), app.connect() as running:
        for name in play.queues:
            await _nobody_consumes(running.publishing, name)
        await asyncio.to_thread(play.add_orders)
        relay = Relay(
            OutboxRepository(app.database, app.outbox.table),
            MortalPipeline(running.publishing, fate),
            Never(),
        )
        running.consuming = MortalConsumes(running.consuming, fate)  # type: ignore[assignment]
        await _relay(relay)
        while await _work(play, running):
            await _relay(relay)
        for name in play.queues:
            left = await running.publishing.queue_info(f"{name}.dlq")
            fate.tell(parked=left.messages)
    await app.database.close()


async def _nobody_consumes(connection: Connection, queue: str) -> None:
    """Wait until the broker has noticed the death of the life before, and has its messages back."""
    while (await connection.queue_info(queue)).consumers:  # noqa: ASYNC110 - the broker is the one to ask
        await asyncio.sleep(0.005)


async def _relay(relay: Relay) -> None:
    while await relay.relay_batch():
        pass


async def _work(play: Play, running: ConnectedApp) -> bool:
    """Handle what is in the queues. Whether there was anything."""
    waiting = [await running.publishing.queue_info(name) for name in play.queues]
    count = sum(info.messages for info in waiting)
    if count:
        settled = sum(play.watcher.counts.values()) + count
        worker = running.worker(play.app.select_consumers(()))
        await worker.start()
        await play.watcher.until(lambda: sum(play.watcher.counts.values()) >= settled)
        await worker.stop()
    return count > 0
