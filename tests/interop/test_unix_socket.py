"""`redrive broker --unix PATH`: the same broker behind a file instead of a port."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from interop.embedded import run
from interop.raw import RawClient
from redrive.cli.exit_codes import CONFLICT
from redrive.testing import free_port
from redrive.wire.methods.basic import BasicGet, BasicPublish
from redrive.wire.methods.queue import QueueDeclare

Serve = Callable[..., subprocess.Popen[str]]

COMMAND = [sys.executable, "-m", "redrive", "broker", "--memory"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.sock"


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start the command and wait for its one line, which is kept in `announced`."""
    with ExitStack() as stack:

        def start(*options: str | Path) -> subprocess.Popen[str]:
            process = stack.enter_context(
                subprocess.Popen([*COMMAND, *map(str, options)], stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            process.announced = process.stdout.readline()  # type: ignore[attr-defined]
            return process

        yield start


def a_message_goes_through(at: int | Path) -> None:
    with RawClient(at).open() as client:
        client.call(QueueDeclare(queue="orders"))
        client.tell(BasicPublish(routing_key="orders"), body=b"hello")
        assert b"hello" in client.call(BasicGet(queue="orders", no_ack=True))


def test_clients_come_in_through_the_file_and_nowhere_else(serve: Serve, path: Path) -> None:
    broker = serve("--unix", path)

    assert broker.announced == f"listening on unix:{path}\n"  # type: ignore[attr-defined]
    a_message_goes_through(path)


def test_with_a_port_they_come_in_on_both_ways(serve: Serve, path: Path) -> None:
    port = free_port()

    broker = serve("--unix", path, "--port", str(port))

    assert broker.announced == f"listening on amqp://127.0.0.1:{port}/ and unix:{path}\n"  # type: ignore[attr-defined]
    a_message_goes_through(path)
    a_message_goes_through(port)


def test_only_its_owner_may_connect(serve: Serve, path: Path) -> None:
    before = os.umask(0)
    try:
        serve("--unix", path)
    finally:
        os.umask(before)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_file_goes_with_the_broker(serve: Serve, path: Path) -> None:
    broker = serve("--unix", path)

    broker.send_signal(signal.SIGTERM)

    assert broker.wait(20) == 0
    assert not path.exists()


def test_what_a_killed_broker_left_behind_is_replaced(serve: Serve, path: Path) -> None:
    killed = serve("--unix", path)
    killed.kill()
    killed.wait(20)
    assert path.is_socket()

    serve("--unix", path)

    a_message_goes_through(path)


def test_a_socket_at_which_somebody_answers_is_left_alone(serve: Serve, path: Path) -> None:
    serve("--unix", path)

    second = run(*COMMAND, "--unix", str(path))

    assert (second.returncode, second.stdout) == (CONFLICT, "")
    assert f"cannot listen on {path}: another process is listening there" in second.stderr
    a_message_goes_through(path)


def test_a_file_of_another_kind_is_left_alone(path: Path) -> None:
    path.write_text("precious")

    refused = run(*COMMAND, "--unix", str(path))

    assert refused.returncode == CONFLICT
    assert f"cannot listen on {path}: there is a file that is not a socket" in refused.stderr
    assert path.read_text() == "precious"


def test_a_path_that_is_too_long_for_the_kernel_is_told(tmp_path: Path) -> None:
    refused = run(*COMMAND, "--unix", str(tmp_path / ("long" * 40)))

    assert refused.returncode == CONFLICT
    assert "AF_UNIX path too long" in refused.stderr


def test_the_option_is_in_the_help() -> None:
    assert "--unix PATH" in run(*COMMAND, "--help").stdout
