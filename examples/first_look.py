"""A first look: a broker is killed in the middle of the work, and nothing is lost.

Starts the embedded broker on a port of its own, publishes numbered orders while a consumer handles them, kills the
broker with `kill -9`, starts it again, and settles the account: every order that was confirmed has been handled.
Publishing repeats what the broker did not confirm, so an order may arrive twice and is counted once. With `--rabbitmq`
it does the same to a private RabbitMQ node, if RabbitMQ is installed.

Run it with `make demo`.
"""

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

from redrive.client import Connection, Delivery, Properties
from redrive.errors import PublishUnknown, Unroutable
from redrive.testing import RabbitMQ
from redrive.testing.embedded import EmbeddedBroker

ORDERS = 20_000
PUBLISHERS = 100
JSON = "application/json"

console = Console(highlight=False)


class Shop:
    """Publishes orders, handles them, and keeps the books."""

    def __init__(self) -> None:
        self.confirmed = 0
        self.repeated = 0
        self.handled: Counter[str | None] = Counter()
        self.half_way = asyncio.Event()
        self.all_handled = asyncio.Event()

    async def publish(self, connection: Connection, numbers: Iterator[int]) -> None:
        for number in numbers:
            order = Properties(content_type=JSON, message_id=f"order-{number}")
            while not await self._published(connection, order):
                self.repeated += 1  # same message id: whoever receives it twice can tell
            self.confirmed += 1
            if self.confirmed == ORDERS // 2:
                self.half_way.set()

    async def _published(self, connection: Connection, order: Properties) -> bool:
        try:
            await connection.publish("", "orders", b'{"total": 12.5}', order)
        except PublishUnknown:
            return False
        return True

    async def handle(self, delivery: Delivery) -> None:
        self.handled[delivery.properties.message_id] += 1
        delivery.ack()
        if len(self.handled) == ORDERS:
            self.all_handled.set()


async def main(broker: EmbeddedBroker | RabbitMQ) -> None:
    shop = Shop()
    # Two connections: a broker in trouble stops reading the one that publishes.
    async with (
        Connection(broker.url, name="shop", patience=timedelta(minutes=1)) as publishing,
        Connection(broker.url, name="kitchen") as consuming,
    ):
        await publishing.declare_queue("orders")
        consumer = await consuming.consume("orders", shop.handle, prefetch=200)
        await show_an_unroutable_message(publishing)
        began = time.perf_counter()
        numbers = iter(range(ORDERS))
        work = [asyncio.create_task(shop.publish(publishing, numbers)) for _ in range(PUBLISHERS)]
        await kill_half_way(broker, shop)
        await asyncio.gather(*work)
        await shop.all_handled.wait()
        took = time.perf_counter() - began
        console.print(f"  consumer: [bold]{consumer!r}[/bold]", soft_wrap=True)
    show_the_books(shop, took)


async def show_an_unroutable_message(connection: Connection) -> None:
    console.print("\n[bold]A message that no queue takes is an error, not a silence[/bold]")
    try:
        await connection.publish("", "ordres", b"{}")
    except Unroutable as error:
        console.print(f"  {type(error).__name__}: {error}", soft_wrap=True)


async def kill_half_way(broker: EmbeddedBroker | RabbitMQ, shop: Shop) -> None:
    console.print(f"\n[bold]{ORDERS:,} orders, and the broker dies half way[/bold]")
    await shop.half_way.wait()
    console.print(f"  {shop.confirmed:,} confirmed, {len(shop.handled):,} handled … [red]kill -9 {broker.pid}[/red]")
    await asyncio.to_thread(broker.kill)
    began = time.perf_counter()
    await asyncio.to_thread(broker.start)
    console.print(f"  the broker is back after {time.perf_counter() - began:.1f} s, and so are we")


def show_the_books(shop: Shop, took: float) -> None:
    lost = shop.confirmed - len(shop.handled)
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_row("confirmed by the broker", f"{shop.confirmed:,}")
    table.add_row("published again, because unconfirmed when it died", f"{shop.repeated:,}")
    table.add_row("handled", f"{len(shop.handled):,}")
    table.add_row("delivered more than once", f"{sum(times > 1 for times in shop.handled.values()):,}")
    table.add_row("[bold]lost[/bold]", f"[bold green]{lost:,}[/bold green]" if lost == 0 else f"[red]{lost:,}[/red]")
    console.print(f"\n[bold]The books[/bold], after {took:.1f} s")
    console.print(table)
    raise SystemExit(1 if lost else 0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        wanted = RabbitMQ(folder / "node") if "--rabbitmq" in sys.argv else EmbeddedBroker(folder, data=folder / "data")
        console.print("Starting a broker …")
        with wanted as broker:
            console.print(f"  {type(broker).__name__} at {broker.url}, process {broker.pid}")
            asyncio.run(main(broker))
