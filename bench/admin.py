"""How long somebody waits for a page of the console: `python -m bench.admin`.

Two hundred people have the console open, each loads a page every few seconds, and meanwhile the same server re-drives
100,000 messages. On the embedded broker, then on a private RabbitMQ. The goal: 95 of 100 pages within 200 ms, and none
fails.

Goals are reported and never asserted.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import httpx
import jwt
import msgspec
from rich.console import Console
from rich.table import Table

from bench import machine
from bench.broker import Broker
from bench.dead_letters import DLQ, SOURCE, parked
from bench.messages import encode
from redrive.inspection import connect
from redrive.testing.processes import ServerProcess

SECRET = "only for this run, and long enough to be taken"
PAGES = ("/", f"/queues/{DLQ}", f"/queues/{DLQ}/messages", "/operations", "/operations/{id}", "/audit", "/topology")
GOAL = 0.2  # seconds, for 95 of 100
_ADDRESS = re.compile(r"the console is at (http://[^ ]+)/ and the API")
_BODY = encode({"order": 4711, "customer": "ada", "lines": [1, 2, 3]})


@contextmanager
def server(folder: Path, broker: str | None) -> Iterator[str]:
    environment = {**os.environ, "REDRIVE_ADMIN_JWT_SECRET": SECRET}
    environment.pop("REDRIVE_BROKER", None)
    if broker is not None:
        environment["REDRIVE_BROKER"] = broker
    log = folder / "serve.log"
    words = ["serve", "--port", "0", "--log-level", "warning"]
    process = ServerProcess([sys.executable, "-m", "redrive", *words], environment=environment, log=log)
    try:
        process.wait_until(lambda: bool(_ADDRESS.search(log.read_text())), timeout=60)
        found = _ADDRESS.search(log.read_text())
        assert found is not None
        yield found[1]
    finally:
        process.stop()


def headers() -> dict[str, str]:
    claims = {"sub": "bench", "roles": ["admin"], "exp": datetime.now(UTC) + timedelta(hours=2)}
    return {"Authorization": f"Bearer {jwt.encode(claims, SECRET, algorithm='HS256')}"}


async def fill(broker: str | None, folder: Path, count: int) -> None:
    async with connect(broker, data=folder / ".redrive") as connection:
        await connection.declare_queue(SOURCE)
        await connection.declare_queue(DLQ)
        await connection.publish_many(parked(number, _BODY) for number in range(count))


class Crowd:
    """People with the console open."""

    def __init__(self, client: httpx.AsyncClient, pause: float) -> None:
        self._client = client
        self._pause = pause
        self.times: list[tuple[float, str]] = []
        self.failed: list[str] = []

    async def look(self, operation: str, stop: asyncio.Event, dice: random.Random) -> None:
        await asyncio.sleep(dice.random() * self._pause)
        while not stop.is_set():
            page = dice.choice(PAGES).format(id=operation)
            began = time.perf_counter()
            try:
                answer = await self._client.get(page)
                if answer.status_code != 200:
                    self.failed.append(f"{page}: {answer.status_code}")
            except httpx.HTTPError as error:
                self.failed.append(f"{page}: {error!r}")
            self.times.append((time.perf_counter() - began, page))
            await asyncio.sleep(dice.expovariate(1 / self._pause))


async def measure(address: str, viewers: int, pause: float) -> dict[str, Any]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=viewers)
    async with httpx.AsyncClient(base_url=address, headers=headers(), timeout=30, limits=limits) as client:
        await client.get(f"/queues/{DLQ}")
        begun = (await client.post(f"/admin/dlq/queues/{DLQ}/re-drive", json={})).json()
        crowd, stop, dice = Crowd(client, pause), asyncio.Event(), random.Random(1)
        looking = [asyncio.create_task(crowd.look(begun["id"], stop, dice)) for _ in range(viewers)]
        began = time.perf_counter()
        while True:
            told = (await client.get(f"/admin/operations/{begun['id']}")).json()
            if told["ended_at"] is not None:
                break
            await asyncio.sleep(0.5)
        took = time.perf_counter() - began
        stop.set()
        await asyncio.gather(*looking)
    times = sorted(seconds for seconds, _ in crowd.times)
    by_page = {
        page: round(_share(sorted(seconds for seconds, name in crowd.times if _is(name, page)), 0.95) * 1000, 1)
        for page in PAGES
    }
    return {
        "state": told["state"],
        "moved": told["counts"]["moved"],
        "re-driven a second": round(told["counts"]["moved"] / took),
        "pages": len(times),
        "pages a second": round(len(times) / took, 1),
        "failed": crowd.failed[:10],
        "p50 ms": round(_share(times, 0.5) * 1000, 1),
        "p95 ms": round(_share(times, 0.95) * 1000, 1),
        "p99 ms": round(_share(times, 0.99) * 1000, 1),
        "p95 ms by page": by_page,
    }


def _is(name: str, page: str) -> bool:
    return name == page or (page.endswith("{id}") and name.startswith("/operations/op_"))


def _share(times: list[float], share: float) -> float:
    return times[min(len(times) - 1, int(len(times) * share))] if times else 0.0


@click.command()
@click.option("--messages", default=100_000, show_default=True)
@click.option("--viewers", default=200, show_default=True)
@click.option("--pause", default=5.0, show_default=True, help="Seconds between the pages of one viewer, on average.")
@click.option("--only", type=click.Choice(["embedded", "RabbitMQ"]), help="On this broker alone.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there.")
def main(messages: int, viewers: int, pause: float, only: str | None, file: Path | None) -> None:
    began = datetime.now(UTC)
    found: dict[str, dict[str, Any]] = {}
    with Broker(management=False) as broker:
        for name, url in (("embedded", None), ("RabbitMQ", broker.url)):
            if only not in (None, name):
                continue
            with tempfile.TemporaryDirectory(prefix="redrive-bench-") as text:
                folder = Path(text)
                with server(folder, url) as address:
                    asyncio.run(fill(url, folder, messages))
                    found[name] = asyncio.run(measure(address, viewers, pause))
        versions = broker.versions()
    table = Table("", *found)
    for row in next(iter(found.values())):
        table.add_row(row, *(str(one[row]) for one in found.values()))
    Console().print(table)
    for name, one in found.items():
        reached = "reached" if one["p95 ms"] <= GOAL * 1000 and not one["failed"] else "not reached"
        click.echo(f"{name}: 95 of 100 pages within {one['p95 ms']} ms, goal {GOAL * 1000:.0f} ms: {reached}")
    if file is not None:
        run = {
            "began": began.isoformat(timespec="seconds"),
            "machine": machine.describe(),
            "versions": versions,
            "settings": {"messages": messages, "viewers": viewers, "pause": pause},
            "measured": found,
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")


if __name__ == "__main__":
    main()
