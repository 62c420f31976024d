"""Processes that tests start end with them, and not before. The servers here are `sleep`s."""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from redrive.testing.ports import free_port
from redrive.testing.processes import ServerFailed, ServerProcess
from redrive.testing.reaper import left_behind

SLEEP = ["sleep", "600"]
ENVIRONMENT = {"PATH": os.environ["PATH"]}

A_RUN_THAT_STARTS_A_SERVER = f"""
import sys
from pathlib import Path
from redrive.testing.processes import ServerProcess, delete_at_exit
folder = Path(sys.argv[1])
delete_at_exit(folder)
server = ServerProcess({SLEEP!r}, environment={ENVIRONMENT!r}, log=folder / "log")
print(server.pid, flush=True)
"""

Start = Callable[[list[str]], ServerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[ServerProcess] = []

    def start(command: list[str]) -> ServerProcess:
        started.append(ServerProcess(command, environment=ENVIRONMENT, log=tmp_path / "server.log"))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def ends(descriptor: int) -> bool:
    """A pidfd becomes readable when its process ends."""
    readable, _, _ = select.select([descriptor], [], [], 10)
    return bool(readable)


@pytest.mark.parametrize("end_of_run", ["", "pass", "raise SystemExit(3)"], ids=["kill -9", "exit", "failure"])
def test_servers_and_folders_end_with_the_run_that_made_them(end_of_run: str, tmp_path: Path) -> None:
    folder = tmp_path / "of the run"
    folder.mkdir()
    run = [sys.executable, "-c", f"{A_RUN_THAT_STARTS_A_SERVER}input()\n{end_of_run}", str(folder)]
    with subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        server = os.pidfd_open(int(process.stdout.readline()))
        reaper = os.pidfd_open(psutil.Process(process.pid).children()[0].pid)
        if end_of_run:
            process.stdin.write("\n")
        else:
            process.kill()

    assert ends(server)
    assert ends(reaper)
    assert not folder.exists()
    os.close(server)
    os.close(reaper)


def test_a_server_outlives_the_thread_that_started_it(start: Start) -> None:
    started: list[ServerProcess] = []
    thread = threading.Thread(target=lambda: started.append(start(SLEEP)))
    thread.start()
    thread.join()

    assert started[0].running


def test_an_interrupt_of_the_test_run_does_not_reach_the_server(start: Start) -> None:
    assert os.getpgid(start(SLEEP).pid) != os.getpgid(0)


def test_a_server_that_obeys_is_stopped_by_the_signal(start: Start) -> None:
    server = start(SLEEP)

    server.stop(signal.SIGTERM)

    assert repr(server) == f"<ServerProcess {server.pid} ENDED>"


def test_a_server_that_does_not_obey_is_killed(start: Start, tmp_path: Path) -> None:
    server = start(["sh", "-c", "trap '' TERM; echo deaf; while true; do sleep 600; done"])
    server.wait_until(lambda: "deaf" in (tmp_path / "server.log").read_text(), timeout=10)

    server.stop(signal.SIGTERM, timeout=0.1)

    assert not server.running


def test_waiting_for_a_server_that_ended_tells_its_status(start: Start) -> None:
    with pytest.raises(ServerFailed, match="it ended with status 7"):
        start(["sh", "-c", "exit 7"]).wait_until(lambda: False, timeout=10)


def test_waiting_for_a_server_has_an_end(start: Start) -> None:
    with pytest.raises(ServerFailed, match="it was not ready after 0 s"):
        start(SLEEP).wait_until(lambda: False, timeout=0.05)


def test_the_reaper_ends_only_what_was_not_waited_for() -> None:
    assert left_behind(["+1\n", "+2\n", "-1\n", "/a/folder\n", "+3\n"]) == ({2, 3}, {"/a/folder"})


def test_free_ports_are_below_those_of_outgoing_connections() -> None:
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    ports = [free_port() for _ in range(50)]

    assert len(set(ports)) == 50
    assert all(port < first_outgoing for port in ports)


A_RUN_THAT_WANTS_A_CERTAIN_PORT = """
import sys
from redrive.testing import ports
ports._candidates = lambda: [int(sys.argv[1])]
print(ports.free_port())
"""


def test_a_port_belongs_to_the_process_that_chose_it_before_anybody_binds_it() -> None:
    command = [sys.executable, "-c", A_RUN_THAT_WANTS_A_CERTAIN_PORT, str(free_port())]

    other = subprocess.run(command, capture_output=True, text=True, check=False)

    assert "no free loopback port" in other.stderr
