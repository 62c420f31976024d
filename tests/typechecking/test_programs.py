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

Errors = set[tuple[str, int]]  # a file's name and a line


def mypy(*programs: Path) -> Errors:
    command = [BIN / "mypy", "--strict", "--config-file", ROOT / "pyproject.toml", *programs]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return {(Path(file).name, int(line)) for file, line in re.findall(r"^(.+):(\d+): error", run.stdout, re.MULTILINE)}


def pyright(*programs: Path) -> Errors:
    command = [BIN / "basedpyright", "--project", HERE / "pyright.json", "--pythonpath", sys.executable, "--outputjson"]
    run = subprocess.run([*command, *programs], cwd=ROOT, capture_output=True, text=True, check=False)
    found = [one for one in json.loads(run.stdout)["generalDiagnostics"] if one["severity"] == "error"]
    return {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in found}


@pytest.mark.parametrize("check", [mypy, pyright], ids=["mypy", "pyright"])
def test_each_mistake_is_reported_and_nothing_else(check: Callable[..., Errors]) -> None:
    """Both programs in one run, since two runs of mypy at a time would share a cache."""
    good, wrong = HERE / "good_program.py", HERE / "wrong_program.py"
    lines = enumerate(wrong.read_text().splitlines(), 1)
    assert check(good, wrong) == {(wrong.name, number) for number, line in lines if line.endswith("# wrong")}


def test_the_ticket_service_is_accepted() -> None:
    """An example of everything at once. mypy checks it, and the other examples, in `make lint`."""
    assert pyright(ROOT / "examples/tickets") == set()
