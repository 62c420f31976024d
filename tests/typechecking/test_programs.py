"""What a type checker says of programs that use the public API: mypy, and the engine of Pylance and Pyright."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BIN = Path(sys.executable).parent


def mypy(program: Path) -> set[int]:
    command = [BIN / "mypy", "--strict", "--config-file", ROOT / "pyproject.toml", program]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return {int(found[1]) for found in re.finditer(rf"{program.name}:(\d+): error", run.stdout)}


def pyright(program: Path) -> set[int]:
    command = [
        BIN / "basedpyright",
        "--project",
        HERE / "pyright.json",
        "--pythonpath",
        sys.executable,
        "--outputjson",
        program,
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = [one for one in json.loads(run.stdout)["generalDiagnostics"] if one["severity"] == "error"]
    return {one["range"]["start"]["line"] + 1 for one in found}


CHECKERS = pytest.mark.parametrize("check", [mypy, pyright], ids=["mypy", "pyright"])


@CHECKERS
def test_a_good_program_is_accepted(check: Callable[[Path], set[int]]) -> None:
    assert check(HERE / "good_program.py") == set()


def test_the_ticket_service_is_accepted() -> None:
    """An example of everything at once. mypy checks it, and the other examples, in `make lint`."""
    assert pyright(ROOT / "examples/tickets") == set()


@CHECKERS
def test_each_mistake_is_reported_and_nothing_else(check: Callable[[Path], set[int]]) -> None:
    program = HERE / "wrong_program.py"
    lines = enumerate(program.read_text().splitlines(), 1)
    assert check(program) == {number for number, line in lines if line.endswith("# wrong")}
