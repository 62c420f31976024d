"""`redrive serve` as a process: what the first system's operators asked for, over the network, on both brokers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import pytest

from admin_api import bearing
from dead_lettering import DLQ, dead_letter, prepare
from e2e.serving import ROOT, Server, serving
from redrive.client import Connection
from redrive.inspection import connect

T = TypeVar("T")

UPLOADS = str(ROOT / "examples" / "uploads" / "topology.toml")
VALIDATOR = "q.validator.dlq"


@pytest.fixture(params=["embedded", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def broker(request: pytest.FixtureRequest) -> str | None:
    return str(request.getfixturevalue("amqp_url")) if request.param == "rabbitmq" else None


@pytest.fixture
def server(tmp_path: Path, broker: str | None) -> Iterator[Server]:
    """For the uploads of the first system."""
    apply = [sys.executable, "-m", "redrive", "topology", "apply", UPLOADS]
    started = Server(tmp_path, broker, UPLOADS)
    subprocess.run(apply, cwd=tmp_path, env=started.environment, check=True, capture_output=True)
    with serving(tmp_path, broker, UPLOADS) as server:
        yield server


def use(server: Server, work: Callable[[Connection], Awaitable[T]]) -> T:
    async def connected() -> T:
        async with connect(server.environment.get("REDRIVE_BROKER"), data=server.folder / ".redrive") as connection:
            return await work(connection)

    return asyncio.run(connected())


def until_over(client: httpx.Client, path: str, within: float = 60) -> dict[str, Any]:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        told: dict[str, Any] = client.get(path).json()
        if told.get("ended_at") is not None:
            return told
        time.sleep(0.05)
    raise AssertionError(f"not over within {within} s: {told}")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
def test_a_server_that_is_told_to_end_ends_well(tmp_path: Path, how: signal.Signals) -> None:
    with serving(tmp_path, None, UPLOADS) as server:
        assert server.process is not None
        os.kill(server.process.pid, how)

        assert server.process.join() == 0


def test_the_first_systems_endpoints(server: Server) -> None:
    async def die(connection: Connection) -> None:
        for number in range(12):
            letter = dead_letter(number, **{"x-redrive-queue": "q.validator"})
            await connection.publish("", VALIDATOR, letter.body, letter.properties)

    use(server, die)
    queue = f"/admin/dlq/queues/{VALIDATOR}"
    with httpx.Client(base_url=server.address, headers=bearing("admin"), timeout=30) as client:
        queues = client.get("/admin/dlq/queues").json()["items"]
        assert {one["name"]: one["depth"] for one in queues} == {
            "q.audit.dlq": 0,
            "q.extractor.dlq": 0,
            "q.notification.dlq": 0,
            "q.projection.dlq": 0,
            "q.thumbnail.dlq": 0,
            "q.upload.commands.dlq": 0,
            VALIDATOR: 12,
        }
        assert len(client.get(f"{queue}/messages?limit=20").json()["items"]) == 12
        accepted = client.post(f"{queue}/re-drive", json={"limit": 10})
        assert accepted.status_code == 202
        over = until_over(client, accepted.headers["location"])
        assert (over["state"], over["counts"]["moved"]) == ("SUCCEEDED", 10)
        for headers, status in (({"Authorization": ""}, 401), (bearing("viewer"), 403), (bearing(None), 403)):
            assert client.post(f"{queue}/re-drive", json={"limit": 10}, headers=headers).status_code == status
    left, waiting, back = use(
        server, lambda connection: _depths(connection, VALIDATOR, "q.validator.retry", "q.validator")
    )
    assert (left, waiting + back) == (2, 10)  # by the retry exchange


async def _depths(connection: Connection, *queues: str) -> list[int]:
    return [(await connection.queue_info(queue)).messages for queue in queues]


def test_an_operation_survives_kill_9_of_its_server(tmp_path: Path, broker: str | None) -> None:
    """Nothing is lost, the next server goes on by itself, and what comes twice is within the window."""
    server = Server(tmp_path, broker)
    server.start()
    use(server, lambda connection: prepare(connection, 3000))
    with httpx.Client(base_url=server.address, headers=bearing("admin"), timeout=30) as client:
        begun = client.post(f"/admin/dlq/queues/{DLQ}/re-drive", json={"rate": 400}).json()
        path = f"/admin/operations/{begun['id']}"
        while client.get(path).json()["counts"]["moved"] < 100:
            time.sleep(0.05)
    server.kill()
    server.start()
    with httpx.Client(base_url=server.address, headers=bearing("admin"), timeout=30) as client:
        client.patch(path, json={"rate": 100000})
        over = until_over(client, path, within=120)
    server.stop()
    assert over["state"] == "SUCCEEDED", over
    left, arrived = use(server, lambda connection: _depths(connection, DLQ, "orders"))
    assert left == 0
    assert 3000 <= arrived <= 4000


def test_the_process_that_moves_messages_may_die_as_well(tmp_path: Path, broker: str | None) -> None:
    with serving(tmp_path, broker) as server:
        use(server, lambda connection: prepare(connection, 2000))
        with httpx.Client(base_url=server.address, headers=bearing("admin"), timeout=30) as client:
            begun = client.post(f"/admin/dlq/queues/{DLQ}/re-drive", json={"rate": 400}).json()
            path = f"/admin/operations/{begun['id']}"
            while client.get(path).json()["counts"]["moved"] < 100:
                time.sleep(0.05)
            assert server.process is not None
            [mover] = psutil.Process(server.process.pid).children()
            mover.kill()
            again = client.patch(path, json={"rate": 100000})
            assert again.status_code == 200
            over = until_over(client, path, within=120)
            assert over["state"] == "SUCCEEDED", over
            left, arrived = use(server, lambda connection: _depths(connection, DLQ, "orders"))
    assert left == 0
    assert 2000 <= arrived <= 3000


def test_a_server_that_ends_in_order_leaves_no_duplicates(tmp_path: Path, broker: str | None) -> None:
    server = Server(tmp_path, broker)
    server.start()
    use(server, lambda connection: prepare(connection, 1000))
    with httpx.Client(base_url=server.address, headers=bearing("admin"), timeout=30) as client:
        begun = client.post(f"/admin/dlq/queues/{DLQ}/re-drive", json={"rate": 200}).json()
        path = f"/admin/operations/{begun['id']}"
        while client.get(path).json()["counts"]["moved"] < 50:
            time.sleep(0.05)
    server.stop()
    server.start()
    with httpx.Client(base_url=server.address, headers=bearing("admin"), timeout=30) as client:
        client.patch(path, json={"rate": 100000})
        over = until_over(client, path)
    server.stop()
    assert (over["state"], over["counts"]["moved"]) == ("SUCCEEDED", 1000)
    assert use(server, lambda connection: _depths(connection, DLQ, "orders")) == [0, 1000]


# Starting ---------------------------------------------------------------------------------------------


def run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    return subprocess.run(
        [sys.executable, "-m", "redrive", "serve", *words],
        cwd=folder,
        env=ours | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--dev", "--host", "0.0.0.0"), "--dev is for this machine alone"),
        (("nonsense",), "want module:app"),
        (("--tls-cert", "/etc/hostname"), "go together"),
        (("--own-queues-only",), "own_queues_only needs an application or a topology file"),
        (("--database", "mysql://x/y"), "Redrive knows sqlite and postgresql"),
    ],
)
def test_what_makes_no_sense_is_said_at_once(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    told = run(tmp_path, *words)
    assert told.returncode == 2
    assert says in told.stderr


@pytest.mark.parametrize(("words", "is_json"), [((), True), (("--log-format", "text"), False)])
def test_its_log_is_json_where_no_terminal_is(tmp_path: Path, words: tuple[str, ...], is_json: bool) -> None:
    """Also that of the process of operations, which hosts the embedded broker."""
    command = [sys.executable, "-m", "redrive", "serve", "--port", "0", "--log-level", "debug", *words]
    ours = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    with subprocess.Popen(
        command, cwd=tmp_path, env=ours, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split(" and the API")[0].split(" at ")[1]
        with httpx.Client(base_url=address, timeout=30, transport=httpx.HTTPTransport(retries=20)) as client:
            assert client.get("healthz").status_code == 200
        server.send_signal(signal.SIGTERM)
        errors = server.communicate(timeout=60)[1]
    assert server.returncode == 0
    lines = errors.splitlines()
    assert lines
    assert all(line.startswith("{") is is_json for line in lines), errors
    if is_json:
        assert {json.loads(line)["logger"] for line in lines} >= {"uvicorn.error", "redrive.broker"}


def test_it_is_closed_unless_somebody_opens_it(tmp_path: Path) -> None:
    with serving(tmp_path, None, REDRIVE_ADMIN_JWT_SECRET=None) as server:
        assert "nobody can sign in yet. Make a key: redrive admin keys create" in server.log.read_text()
        assert httpx.get(f"{server.address}/admin/dlq/queues", headers=bearing()).status_code == 401
        assert httpx.get(f"{server.address}/admin/dlq/queues").status_code == 401


def test_it_can_accept_the_queues_of_its_application_only(tmp_path: Path) -> None:
    with serving(tmp_path, None, UPLOADS, "--own-queues-only") as server:
        listed = httpx.get(f"{server.address}/admin/dlq/queues/q.validator", headers=bearing())
    assert (listed.status_code, listed.json()["error"]) == (404, "queue-not-accepted")


def test_it_can_require_a_role_of_everybody(tmp_path: Path) -> None:
    with serving(tmp_path, None, "--least-role", "operator") as server:
        listed = f"{server.address}/admin/dlq/queues"
        answers = [httpx.get(listed, headers=bearing(role)).status_code for role in ("viewer", "operator", "admin")]
    assert answers == [403, 200, 200]


def test_a_key_of_another_data_folder_is_answered_with_where_to_look(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    made = subprocess.run(
        [sys.executable, "-m", "redrive", "admin", "keys", "create", "ci", "--role", "admin"],
        cwd=other,
        env={name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(other / ".redrive" / "redrive.db") in made.stderr
    with serving(tmp_path, None) as server:
        answer = httpx.get(
            f"{server.address}/admin/dlq/queues", headers={"Authorization": f"Bearer {made.stdout.strip()}"}
        )
        log = server.log.read_text()

    assert answer.status_code == 401
    assert "`redrive admin keys ls`, run with the server's data folder or database, lists" in answer.json()["detail"]
    assert str(tmp_path) not in answer.text
    assert re.search(rf"API keys are those of {re.escape(str(tmp_path))}\S*redrive\.db\n", log)


def test_a_secret_that_is_too_short_is_refused(tmp_path: Path) -> None:
    told = run(tmp_path, REDRIVE_ADMIN_JWT_SECRET="short")
    assert told.returncode == 2
    assert "32" in told.stderr
    assert "short" not in told.stderr.replace("shorter", "")
