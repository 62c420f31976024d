"""Programs that begin at once are programs."""

import os
import signal
from pathlib import Path

import pytest

from docs.nursery import nursery, words_of
from docs.running import environment
from redrive.testing.processes import ServerFailed

WITHIN = 30.0


def test_a_command_says_what_it_would_say(tmp_path: Path) -> None:
    done = nursery().run(["redrive", "--version"], tmp_path, environment(), within=WITHIN)
    assert (done.returncode, done.stdout.startswith("redrive, version")) == (0, True)


def test_a_command_fails_with_its_status(tmp_path: Path) -> None:
    done = nursery().run(["redrive", "worker", "nothing:app"], tmp_path, environment(), within=WITHIN)
    assert done.returncode == 2
    assert "nothing" in done.stdout


def test_a_program_has_its_folder_its_environment_and_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(
        "import os, sys\nprint(os.getcwd(), os.environ['WHO'], sys.argv[1:], __name__, sys.path[0])\n"
    )
    done = nursery().run(["python", "show.py", "a"], tmp_path, environment() | {"WHO": "ada"}, within=WITHIN)
    assert done.stdout == f"{tmp_path} ada ['a'] __main__ {tmp_path}\n"


def test_an_error_is_a_traceback_and_a_status(tmp_path: Path) -> None:
    done = nursery().run(["python", "-c", "raise ValueError('no')"], tmp_path, environment(), within=WITHIN)
    assert done.returncode == 1
    assert "ValueError: no" in done.stdout


def test_what_takes_too_long_is_ended(tmp_path: Path) -> None:
    done = nursery().run(["python", "-c", "import time; time.sleep(600)"], tmp_path, environment(), within=0.2)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("terminal", [True, False])
def test_a_program_that_goes_on_is_told_to_end(tmp_path: Path, terminal: bool) -> None:
    log = tmp_path / "log"
    with open(os.devnull) as nothing, log.open("wb") as said:
        files = (nothing.fileno(), said.fileno(), said.fileno())
        words = ["redrive", "broker", "--memory", "--port", "0"]
        child = nursery().start(words, tmp_path, environment(), files, terminal=terminal)
    child.wait_until(lambda: b"listening" in log.read_bytes(), timeout=WITHIN)
    child.stop()
    assert child.join() == 0


def test_a_program_that_ends_before_it_is_ready_is_told_of(tmp_path: Path) -> None:
    with open(os.devnull, "r+") as nothing:
        files = (nothing.fileno(),) * 3
        child = nursery().start(["python", "-c", "pass"], tmp_path, environment(), files)
    with pytest.raises(ServerFailed, match="status 0"):
        child.wait_until(lambda: False, timeout=WITHIN)


def test_what_is_for_a_shell_is_not_for_here() -> None:
    assert words_of("redrive dlq ls | head") is None
    assert words_of("redrive doctor > findings.json") is None
    assert words_of("celery -A x worker") is None
    assert words_of("pytest -q") is None
    assert words_of("""redrive dlq transform q --patch '[{"op": "x"}]' # why""") == [
        *("redrive", "dlq", "transform", "q", "--patch", '[{"op": "x"}]'),
    ]
