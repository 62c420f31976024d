"""`redrive worker`, as a process: it works, drains on SIGTERM, quits on a second one, and loses nothing when killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.client import Connection
from redrive.inspection import connect

PROGRAM = """
import asyncio, pathlib
from redrive import App, Retry
app = App("shop")

@app.consumer("orders", retry=Retry(attempts=2, delay="50ms"), prefetch=5)
async def handle(order: dict) -> None:
    pathlib.Path("started").touch()
    await asyncio.sleep(order.get("seconds", 0))
    with open("handled", "a") as file:
        file.write(f"{order['id']}\\n")
"""


class Command:
    def __init__(self, folder: Path, *options: str) -> None:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        environment.pop("REDRIVE_BROKER", None)
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "redrive", "worker", "shop:app", *options],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip()

    def end(self, *signals: signal.Signals) -> int:
        for number in signals:
            self.process.send_signal(number)
        return self.process.wait(90)


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[list[Command]]:
    (tmp_path / "shop.py").write_text(PROGRAM)
    started: list[Command] = []
    yield started
    for command in started:
        if command.process.poll() is None:
            command.process.kill()
        command.process.communicate()


def start(commands: list[Command], folder: Path, *options: str) -> Command:
    commands.append(Command(folder, *options))
    return commands[-1]


def publish(folder: Path, *bodies: str) -> None:
    async def work() -> None:
        async with connect(None, data=folder / ".redrive") as connection:
            for body in bodies:
                await connection.publish("", "orders", body.encode())

    asyncio.run(work())


def left(folder: Path) -> int:
    async def work() -> int:
        async with connect(None, data=folder / ".redrive") as connection:
            return (await connection.queue_info("orders")).messages

    return asyncio.run(work())


async def _appears(path: Path, text: str) -> None:
    async with asyncio.timeout(90):
        while not path.exists() or text not in path.read_text():  # noqa: ASYNC110, ASYNC240 - another process writes it
            await asyncio.sleep(0.02)


def wait_for(path: Path, text: str = "") -> None:
    asyncio.run(_appears(path, text))


def test_it_says_what_it_does_and_drains_on_sigterm(commands: list[Command], tmp_path: Path) -> None:
    command = start(commands, tmp_path)
    assert command.line() == "shop is working on the embedded broker (as RabbitMQ 4.3.6): orders"
    publish(tmp_path, '{"id": 1}', '{"id": 2}')
    wait_for(tmp_path / "handled", "2")
    assert command.end(signal.SIGTERM) == 0
    publish(tmp_path, '{"id": 3}')
    assert left(tmp_path) == 1


def test_what_is_being_handled_is_finished_first(commands: list[Command], tmp_path: Path) -> None:
    command = start(commands, tmp_path)
    command.line()
    publish(tmp_path, '{"id": 1, "seconds": 0.5}')
    wait_for(tmp_path / "started")
    assert command.end(signal.SIGTERM) == 0
    assert (tmp_path / "handled").read_text() == "1\n"
    assert left(tmp_path) == 0


def test_what_takes_too_long_comes_back_and_the_exit_code_says_so(commands: list[Command], tmp_path: Path) -> None:
    command = start(commands, tmp_path, "--drain", "200ms")
    command.line()
    publish(tmp_path, '{"id": 1, "seconds": 60}')
    wait_for(tmp_path / "started")
    assert command.end(signal.SIGTERM) == 3
    assert left(tmp_path) == 1


@pytest.mark.parametrize("how", ["second signal", "kill"])
def test_a_hard_end_loses_nothing(commands: list[Command], tmp_path: Path, how: str) -> None:
    command = start(commands, tmp_path)
    command.line()
    publish(tmp_path, '{"id": 1, "seconds": 60}')
    wait_for(tmp_path / "started")
    if how == "kill":
        assert command.end(signal.SIGKILL) == -9
    else:
        command.process.send_signal(signal.SIGTERM)
        assert command.process.stderr is not None
        assert "draining" in command.process.stderr.readline()
        assert command.end(signal.SIGTERM) == -9
    assert left(tmp_path) == 1


def test_only_some_queues_and_unknown_ones(commands: list[Command], tmp_path: Path) -> None:
    command = start(commands, tmp_path, "--queues", "orders,nope")
    assert command.process.wait(90) == 2
    assert command.process.stderr is not None
    assert "no consumer of nope; there are consumers of orders" in command.process.stderr.read()


def test_several_processes_share_the_work_and_a_dead_one_is_replaced(commands: list[Command], tmp_path: Path) -> None:
    command = start(commands, tmp_path, "--processes", "2")
    assert {command.line().split(":")[0].split(" on ")[0] for _ in range(2)} == {"shop is working"}
    first = int(subprocess.check_output(["pgrep", "-P", str(command.process.pid)], text=True).split()[0])
    os.kill(first, signal.SIGKILL)
    assert command.line().startswith("shop is working")
    publish(tmp_path, '{"id": 7}')
    wait_for(tmp_path / "handled", "7")
    assert command.end(signal.SIGTERM) == 0


def test_a_broker_that_is_not_there_is_exit_code_7(commands: list[Command], tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM.replace('App("shop")', 'App("shop", broker="amqp://127.0.0.1:1/")'))
    assert start(commands, tmp_path).process.wait(90) == 7


def test_a_conflicting_topology_is_exit_code_6(commands: list[Command], tmp_path: Path) -> None:
    async def declare() -> None:
        async with connect(None, data=tmp_path / ".redrive") as connection:
            assert isinstance(connection, Connection)
            await connection.declare_queue("orders", arguments={"x-max-length": 5})

    asyncio.run(declare())
    command = start(commands, tmp_path)
    assert command.process.wait(90) == 6
    assert command.process.stderr is not None
    assert "x-max-length: has 5, wanted nothing" in command.process.stderr.read()


def test_health_metrics_and_log_lines_are_for_machines(commands: list[Command], tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        PROGRAM.replace("    await asyncio.sleep", "    assert order['id'] != 13\n    await asyncio.sleep")
    )
    command = start(commands, tmp_path, "--health-port", "0", "--log-format", "json")
    url = command.line().removeprefix("health at ")
    assert command.line().startswith("shop is working")
    publish(tmp_path, '{"id": 1}', '{"id": 13}')
    assert command.process.stderr is not None
    retried, parked = (json.loads(command.process.stderr.readline()) for _ in range(2))
    assert (retried["outcome"], retried["queue"], retried["attempt"], retried["delayMs"]) == (
        "retried",
        "orders",
        1,
        50,
    )
    assert (parked["outcome"], parked["reason"], parked["attempt"], parked["maxAttempts"]) == (
        "parked",
        "exhausted",
        2,
        2,
    )
    assert parked["fingerprint"] == retried["fingerprint"]
    assert fetch(f"{url}/healthz")[0] == fetch(f"{url}/readyz")[0] == 200
    metrics = fetch(f"{url}/metrics")[1]
    assert 'redrive_processed_total{outcome="done",queue="orders"} 1.0' in metrics
    assert 'redrive_processed_total{outcome="parked",queue="orders"} 1.0' in metrics
    assert 'queue="orders.dlq",role="dlq"} 1.0' in metrics
    assert command.end(signal.SIGTERM) == 0


def fetch(url: str) -> tuple[int, str]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.status, answer.read().decode()
