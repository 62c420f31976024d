"""Redrive without its extras: whoever does not serve the console needs nothing of what that takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ALONE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
{then}
"""
ADMIN = {"fastapi", "starlette", "uvicorn", "jinja2", "jwt", "multipart", "python_multipart", "pydantic", "httpx"}


def run(then: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = ALONE.format(names=ADMIN, then=then)
    return subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=120, check=False
    )


def test_everything_but_the_server_is_imported_without_its_extra() -> None:
    then = """
import importlib, pkgutil, redrive
for module in pkgutil.walk_packages(redrive.__path__, "redrive."):
    if module.name.startswith(("redrive.admin.api", "redrive.admin.console", "redrive.demo.web")):
        continue
    if module.name == "redrive.testing.pytest_plugin":
        continue
    if module.name == "redrive.integrations.fastapi":
        continue
    if module.name in ("redrive.__main__", "redrive.admin.access.tokens", "redrive.admin.access.settings",
                       "redrive.admin.access.authenticator", "redrive.admin.context",
                       "redrive.admin.authorized_service"):
        continue
    importlib.import_module(module.name)
"""
    told = run(then)
    assert told.returncode == 0, told.stderr


@pytest.mark.parametrize("words", [("serve",), ("serve", "--dev")])
def test_the_server_says_what_it_needs(words: tuple[str, ...], tmp_path: Path) -> None:
    told = run(f"import os; os.chdir({str(tmp_path)!r}); from redrive.cli import main; main()", *words)
    assert told.returncode == 2
    assert "pip install 'redrive[admin]'" in told.stderr


@pytest.mark.parametrize("words", [("dlq", "ls"), ("admin", "keys", "ls"), ("ops", "ls"), ("audit",), ("explain",)])
def test_operators_commands_work_without_it(words: tuple[str, ...], tmp_path: Path) -> None:
    told = run(f"import os; os.chdir({str(tmp_path)!r}); from redrive.cli import main; main()", *words)
    assert told.returncode == 0, told.stderr


def test_the_demo_does_without_it(tmp_path: Path) -> None:
    told = run(f"import os; os.chdir({str(tmp_path)!r}); from redrive.cli import main; main()", "demo", "--once")
    assert told.returncode == 0, told.stderr
    assert "still dead" in told.stdout


def test_the_integration_of_fastapi_says_what_it_needs() -> None:
    told = run("import redrive.integrations.fastapi")
    assert "redrive.integrations.fastapi wants it. pip install 'redrive[fastapi]'" in told.stderr


def test_a_router_says_what_it_needs(tmp_path: Path) -> None:
    then = f"""
from redrive import App
from redrive.admin import router
try:
    router(App("shop", data={str(tmp_path)!r}))
except Exception as error:
    print(error)
"""
    assert "pip install 'redrive[admin]'" in run(then).stdout
