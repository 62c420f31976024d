"""`redrive outbox relay`, as a process: it publishes what is committed, and ends with the counts when told to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from redrive.app import App
from redrive.inspection import connect
from redrive.outbox.outbox import OutboxPolicy

PROGRAM = """
from redrive import App
from redrive.outbox.outbox import OutboxPolicy
app = App("shop", outbox_policy=OutboxPolicy(attempts=1))
orders = app.queue("orders", dlq=False)

@app.consumer("receipts", inbox=True)
async def handle(body: dict) -> None:
    print("handled", body["id"], flush=True)
"""

READY = "shop publishes redrive_outbox of sqlite:///.redrive/redrive.db"


class Command:
    """`redrive ...` in a folder."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "redrive", *arguments],
            cwd=folder,
            env={**environment, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def errors(self) -> str:
        return self.process.communicate(timeout=60)[1]


Start = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "shop.py").write_text(PROGRAM)
    started: list[Command] = []

    def start(*arguments: str) -> Command:
        started.append(Command(tmp_path, *arguments))
        return started[-1]

    yield start
    for command in started:
        if command.process.poll() is None:
            command.process.kill()
        command.process.communicate()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[App]:
    """The application, as another process of it sees it: the one that takes orders."""
    app = App("shop", data=tmp_path / ".redrive", outbox_policy=OutboxPolicy(attempts=1))
    app.queue("orders", dlq=False)
    app.upgrade_database()
    yield app
    asyncio.run(app.database.close())


def add(shop: App, *keys: str) -> None:
    with shop.database.sessions()() as session, session.begin():
        for number, key in enumerate(keys, 1):
            shop.outbox.add(session, "", key, {"id": number})


def published(shop: App, count: int) -> list[bytes]:
    """Wait for so many messages in the queue, and take them."""

    async def take() -> list[bytes]:
        async with (
            asyncio.timeout(60),
            connect(None, data=shop.data) as connection,
            await connection.consume("orders", prefetch=count) as consumer,
        ):
            found = []
            for _ in range(count):
                delivery = await anext(consumer)
                delivery.ack()
                found.append(delivery.body)
            return found

    return asyncio.run(take())


def bring(shop: App) -> None:
    """The queue is there before anything is published to it."""

    async def bring() -> None:
        async with shop:
            pass

    asyncio.run(bring())


def until_told(url: str, metric: str, value: float) -> str:
    """The metrics, once one of the outbox's has this value: a batch is marked after it is published."""
    while True:
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
            told = answer.read().decode()
        if f'redrive_outbox{metric}{{table="redrive_outbox"}} {value}' in told:
            return str(told)


def test_it_publishes_what_is_committed_and_sigterm_ends_it_with_the_counts(start: Start, shop: App) -> None:
    bring(shop)
    add(shop, "orders", "nowhere")
    relay = start("outbox", "relay", "shop:app", "--health-port", "0")
    url = relay.line().removeprefix("health at ")
    assert relay.line() == READY
    add(shop, "orders")
    assert published(shop, 2) == [b'{"id":1}', b'{"id":1}']
    assert 'redrive_outbox_parked{table="redrive_outbox"} 1.0' in until_told(url, "_published_total", 2)
    assert relay.end(signal.SIGTERM) == 0
    assert relay.line() == "published 2, parked 1"


def test_one_that_is_killed_loses_nothing_and_the_next_can_start_at_once(start: Start, shop: App) -> None:
    bring(shop)
    relay = start("outbox", "relay", "shop:app")
    assert relay.line() == READY
    assert relay.end(signal.SIGKILL) == -9
    add(shop, "orders")
    following = start("outbox", "relay", "shop:app")
    assert following.line() == READY
    assert published(shop, 1) == [b'{"id":1}']
    assert following.end(signal.SIGINT) == 0


def test_a_second_one_on_sqlite_is_exit_code_2(start: Start, shop: App) -> None:
    first = start("outbox", "relay", "shop:app")
    assert first.line() == READY
    second = start("outbox", "relay", "shop:app")
    assert second.process.wait(60) == 2
    assert "another relay works on this outbox, and SQLite is for one" in second.errors()
    add(shop, "nowhere")
    assert first.end(signal.SIGTERM) == 0


def test_a_worker_can_relay_too(start: Start, shop: App) -> None:
    worker = start("worker", "--relay", "shop:app")
    assert worker.line().startswith("shop is working on the embedded broker")
    add(shop, "receipts")
    assert worker.line() == "handled 1"
    assert worker.end(signal.SIGTERM) == 0


def test_a_database_that_is_not_there_is_exit_code_7_for_a_worker_with_an_inbox(start: Start, tmp_path: Path) -> None:
    url = "postgresql+psycopg://me:secret@127.0.0.1:1/shop"
    (tmp_path / "shop.py").write_text(PROGRAM.replace('App("shop"', f'App("shop", database="{url}"'))
    worker = start("worker", "shop:app")
    assert worker.process.wait(60) == 7
    errors = worker.errors()
    assert "127.0.0.1" in errors
    assert "secret" not in errors


def test_a_broker_that_is_not_there_is_exit_code_7(start: Start, shop: App, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM.replace('App("shop"', 'App("shop", broker="amqp://127.0.0.1:1/"'))
    add(shop, "orders")
    assert start("outbox", "relay", "shop:app").process.wait(60) == 7


@pytest.mark.parametrize(("words", "is_json"), [((), True), (("--log-format", "text"), False)])
def test_its_log_is_json_where_no_terminal_is(start: Start, shop: App, words: tuple[str, ...], is_json: bool) -> None:
    bring(shop)
    add(shop, "nowhere")
    relay = start("outbox", "relay", "shop:app", *words)
    assert relay.line() == READY
    add(shop, "orders")
    published(shop, 1)
    assert relay.end(signal.SIGTERM) == 0
    [parked] = [line for line in relay.errors().splitlines() if "is parked" in line]
    assert parked.startswith("{") is is_json
    if is_json:
        line = json.loads(parked)
        assert (line["level"], line["logger"]) == ("error", "redrive.outbox")
