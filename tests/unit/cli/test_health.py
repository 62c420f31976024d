"""`redrive health`, against the server that it is for, and against others."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import redrive
from redrive.cli import main
from redrive.integrations.health_server import HealthServer
from redrive.testing import free_port


def health(*words: str) -> Result:
    return CliRunner().invoke(main, ["health", *words])


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/readyz"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_worker_that_is_ready_says_so_and_one_that_is_not_says_why() -> None:
    problems = ["not started yet", "and more"]
    async with HealthServer(ready=lambda: problems) as server:
        told = await asyncio.to_thread(health, f"{server.url}/readyz")
        assert (told.exit_code, told.stderr) == (7, f"redrive: {server.url}/readyz: not started yet, and more\n")
        problems.clear()
        told = await asyncio.to_thread(health, f"{server.url}/readyz")
        assert (told.exit_code, told.stdout) == (0, "ready\n")


async def test_it_asks_again_until_it_is_ready() -> None:
    answers = iter([["not started yet"], ["not started yet"], []])
    async with HealthServer(ready=lambda: next(answers)) as server:
        told = await asyncio.to_thread(health, f"{server.url}/readyz", "--within", "60s")
    assert told.exit_code == 0


@pytest.mark.parametrize(
    ("body", "problem"),
    [(b"the broker is away\nthe database is away\n", "the broker is away, the database is away"), (b"", "status 503")],
)
def test_what_another_server_says_is_told_as_it_is(body: bytes, problem: str) -> None:
    with answering(503, body) as url:
        assert health(url).stderr == f"redrive: {url}: {problem}\n"


def test_nobody_there_is_not_ready() -> None:
    told = health(f"http://127.0.0.1:{free_port()}/readyz")
    assert told.exit_code == 7
    assert "Connection refused" in told.stderr


def test_a_proxy_for_the_world_outside_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    with answering(200, b"ok\n") as url:
        assert health(url).exit_code == 0


@pytest.mark.parametrize("words", [["file:///etc/passwd"], ["127.0.0.1:9000"], ["--within", "soon"]])
def test_what_makes_no_sense_is_a_usage_error(words: list[str]) -> None:
    assert health(*words).exit_code == 2


def test_it_loads_no_database_and_no_client() -> None:
    program = (
        "import sys, redrive.cli.health; print(sorted({'sqlalchemy', 'asyncio', 'redrive.client'} & set(sys.modules)))"
    )
    here = {**os.environ, "PYTHONPATH": str(Path(redrive.__file__).parents[1])}
    assert subprocess.check_output([sys.executable, "-c", program], env=here, text=True) == "[]\n"
