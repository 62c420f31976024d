"""An API with the transport LOCAL, as a process: it is killed while it handles its own event, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, os, signal, sys
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from redrive import App, Message
from redrive.outbox.outbox import OutboxPolicy

app = App("shop", outbox_policy=OutboxPolicy(transport="LOCAL"))
events = app.exchange("events", "topic")

@app.consumer("orders", bind=events.on("order.*"), inbox=True)
async def book(order: dict, message: Message, session: AsyncSession) -> None:
    await session.execute(sa.text("INSERT INTO effects VALUES (:id)"), order)
    if "die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    print("handled", order["id"], flush=True)

async def serve() -> None:
    with app.database.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE IF NOT EXISTS effects (id INTEGER)"))
    async with app.local_worker():
        print("listening", flush=True)
        if "order" in sys.argv:
            async with app.database.async_sessions()() as session, session.begin():
                await app.publish(events, "order.placed", {"id": 1}, session=session)
        await asyncio.Event().wait()

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        asyncio.run(serve())
    except KeyboardInterrupt:
        with app.database.engine.connect() as connection:
            print("effects", list(connection.execute(sa.text("SELECT id FROM effects")).scalars()), flush=True)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "shop.py").write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, *arguments]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


def test_an_api_that_dies_while_it_handles_its_event_handles_it_when_it_is_back(start: Start) -> None:
    dying = start("shop.py", "order", "die")
    assert line(dying) == "listening"
    assert dying.wait(60) == -signal.SIGKILL

    following = start("shop.py")
    assert {line(following), line(following)} == {"listening", "handled 1"}
    following.send_signal(signal.SIGINT)
    assert line(following) == "effects [1]"
    assert following.wait(60) == 0


def test_a_worker_beside_it_shares_its_broker_and_a_relay_has_no_business_there(start: Start) -> None:
    api = start("shop.py")
    assert line(api) == "listening"
    worker = start("-m", "redrive", "worker", "shop:app")
    assert line(worker).startswith("shop is working on the embedded broker")
    relay = start("-m", "redrive", "outbox", "relay", "shop:app")
    assert relay.wait(60) == 2
    assert "the outbox's transport is LOCAL" in relay.communicate()[1]
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
