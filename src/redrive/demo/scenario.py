"""The scenario of the demo: traffic, a catalogue that becomes unavailable, and the account of every message.

It runs until it is stopped; or once: three hundred pictures, an outage in the middle of them, a re-drive of what was
parked, and a summary.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from time import monotonic

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from redrive.admin.service import Service
from redrive.admin.target import BrokerTarget
from redrive.demo.pipeline import app, books, catalogue, upload
from redrive.errors import RedriveError, Stuck
from redrive.operations.audit_log import AuditLog
from redrive.operations.operation import OperationKind, OperationRequest
from redrive.operations.repository import OperationRepository

PICTURES = 300
EXTRACTOR = "q.extractor"
_AT_A_TIME = 20
_LOOK = 0.25  # seconds between looks at the queues
_OUTAGE = (12.0, 8.0)  # seconds that the catalogue is up, and away
_PATIENCE = 120.0  # seconds until every message is settled


@dataclass(frozen=True, slots=True)
class Depth:
    waiting: int
    retrying: int
    dead: int


class Scenario:
    def __init__(self, chance: Random, screen: Console) -> None:
        self._chance = chance
        self._screen = screen
        self._depths: dict[str, Depth] = {spec.queue.name: Depth(0, 0, 0) for spec in app.consumers}
        self._began = monotonic()
        self._turn = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Run the catalogue and the consumers."""
        await asyncio.to_thread(app.upgrade_database)
        await catalogue.up()
        app.observers.append(books)
        try:
            async with app.worker(within=timedelta(seconds=10)):
                yield
        finally:
            await catalogue.down()

    # Until it is stopped ------------------------------------------------------------------------------

    async def go_on(self, stop: asyncio.Event, rate: float, below: Callable[[], RenderableType]) -> None:
        """Run traffic and outages, with live counters on the screen, until `stop` is set."""
        jobs = [asyncio.create_task(self._traffic(rate)), asyncio.create_task(self._outages())]
        stopping = asyncio.create_task(stop.wait())
        with Live(self.picture(below), console=self._screen, auto_refresh=False) as live:
            while not stopping.done() and not any(job.done() for job in jobs):
                await self._look()
                live.update(self.picture(below), refresh=True)
                await asyncio.wait([stopping, *jobs], timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
        for job in jobs:
            job.cancel()
        for ended in await asyncio.gather(*jobs, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        stopping.cancel()
        if not catalogue.is_up:
            await catalogue.up()

    async def _traffic(self, rate: float) -> None:
        while True:
            await upload(self._chance)
            await asyncio.sleep(self._chance.expovariate(rate))

    async def _outages(self) -> None:
        up, away = _OUTAGE
        while True:
            await self._count_down(up, "[green]up[/green], for {} s")
            await catalogue.down()
            await self._count_down(away, "[red]away[/red] for {} s more")
            await catalogue.up()

    async def _count_down(self, seconds: float, words: str) -> None:
        until = monotonic() + seconds
        while (left := until - monotonic()) > 0:
            self._turn = words.format(round(left))
            await asyncio.sleep(min(left, 1))

    def picture(self, below: Callable[[], RenderableType]) -> RenderableType:
        passed = int(monotonic() - self._began)
        head = (
            f"[bold]Redrive[/bold]   pictures go through seven queues, and some fail   {passed // 60}:{passed % 60:02}"
        )
        return Group(
            Text.from_markup(head),
            "",
            self._queues(),
            "",
            Text.from_markup(f"{EXTRACTOR} depends on a catalogue, which is {self._turn}"),
            self._totals(),
            "",
            below(),
        )

    def _queues(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("queue")
        for name in ("processed", "waiting", "to be retried", "dead"):
            table.add_column(name, justify="right")
        for queue, depth in self._depths.items():
            dead = f"[red]{depth.dead:,}[/red]" if depth.dead else "0"
            retrying = f"[yellow]{depth.retrying:,}[/yellow]" if depth.retrying else "0"
            table.add_row(queue, f"{books.processed[queue]:,}", f"{depth.waiting:,}", retrying, dead)
        return table

    def _totals(self) -> Text:
        facts = {
            "published": books.sent,
            "processed": books.processed.total(),
            "retried": books.retried.total(),
            "parked": books.parked.total(),
            "re-driven": books.redriven.total(),
        }
        return Text("   ".join(f"{name} {count:,}" for name, count in facts.items()))

    # Once ---------------------------------------------------------------------------------------------

    async def once(self) -> None:
        self._say(f"{PICTURES} pictures are uploaded; the catalogue, on which {EXTRACTOR} depends, goes away meanwhile")
        await self._upload(PICTURES // 3)
        await self._quiet()
        await catalogue.down()
        await self._upload(PICTURES // 3)
        await self._quiet()
        parked = self._depths[EXTRACTOR].dead
        self._say(f"what needed it was tried three times and parked: {parked} messages in {EXTRACTOR}.dlq")
        await catalogue.up()
        await self._upload(PICTURES - 2 * (PICTURES // 3))
        await self._quiet()
        moved = await self._redrive(f"{EXTRACTOR}.dlq")
        self._say(f"it is back: redrive dlq redrive {EXTRACTOR}.dlq … {moved} sent back to work")
        await self._quiet()

    async def _upload(self, count: int) -> None:
        pictures = iter(range(count))

        async def some() -> None:
            for _ in pictures:
                await upload(self._chance)

        await asyncio.gather(*(some() for _ in range(_AT_A_TIME)))

    async def _redrive(self, queue: str) -> int:
        service = _service()
        operation = await service.begin(OperationRequest(OperationKind.REDRIVE, queue, reason="demo"))
        return (await service.run(operation)).counts.moved

    def _say(self, words: str) -> None:
        self._screen.print(f"  {words}", soft_wrap=True)

    # The account --------------------------------------------------------------------------------------

    async def settle(self) -> int:
        """Wait until all work is done, print the summary, and return how many messages are lost."""
        await self._quiet()
        dead: set[tuple[str, str | None]] = set()
        for queue, depth in self._depths.items():
            if depth.dead:
                page = await _service().peek(f"{queue}.dlq", limit=depth.dead)
                dead |= {(queue, letter.message_id) for letter in page.dead_letters}
        lost = len(books.lost_debts(dead))
        table = Table(show_header=False, box=None, padding=(0, 2))
        table.add_row("published", f"{books.sent:,}", "messages, to one or more of seven queues each")
        table.add_row("processed", f"{books.processed.total():,}", "")
        table.add_row("retried", f"{books.retried.total():,}", "times a message failed, waited, and came back")
        table.add_row("parked", f"{books.parked.total():,}", "given up, with their story")
        table.add_row("re-driven", f"{books.redriven.total():,}", "sent back to work")
        table.add_row("still dead", f"{len(dead):,}", ", ".join(sorted({f"{queue}.dlq" for queue, _ in dead})))
        table.add_row("[bold]lost[/bold]", f"[bold {'red' if lost else 'green'}]{lost:,}[/]", "")
        self._screen.print()
        self._screen.print(table)
        return lost

    async def _quiet(self) -> None:
        """Wait until every message is processed or parked."""
        until = monotonic() + _PATIENCE
        while True:
            await self._look()
            every = self._depths.values()
            idle = not any(depth.waiting or depth.retrying for depth in every)
            if idle and len(books.owed) <= sum(depth.dead for depth in every):
                return
            if monotonic() > until:
                raise Stuck(f"after {_PATIENCE:g} s messages are still unsettled: {self._depths}")
            await asyncio.sleep(_LOOK)

    async def _look(self) -> None:
        if app.connected is None:
            return
        with suppress(RedriveError):  # the connection is being restored: the next look succeeds
            found = await app.connected.queue_infos(app.consumers)
            for queue in self._depths:
                waits = [
                    info.messages
                    for (name, role), info in found.items()
                    if role == "retry" and name.startswith(f"{queue}.")
                ]
                ready, dead = found.get((queue, "main")), found.get((f"{queue}.dlq", "dlq"))
                self._depths[queue] = Depth(
                    ready.messages if ready is not None else 0, sum(waits), dead.messages if dead is not None else 0
                )


def _service() -> Service:
    target = BrokerTarget(data=app.data, topology=app.topology)
    return Service(target, OperationRepository(app.database), AuditLog(app.database), by="demo")
