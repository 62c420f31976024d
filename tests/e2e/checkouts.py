"""A checkout of Redrive that a test may change, build and throw away, and empty environments to install into."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
_NO_INDEX = ("Could not find a version that satisfies the requirement", "No matching distribution found")


def clean_environment(**said: str) -> dict[str, str]:
    """Nothing that leads to the code under test but the environment that was installed into."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("REDRIVE_", "PYTHON", "PIP_"))}
    return ours | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", **said}


def run(*command: str | Path, cwd: Path, expect: int = 0, **said: str) -> subprocess.CompletedProcess[str]:
    """To its end, with everything that it said in the failure if the code is another than expected."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=clean_environment(**said),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == expect, f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
    return run("git", *who, *words, cwd=folder).stdout.strip()


def copy_tracked(to: Path) -> Path:
    """The files of this working tree that git knows, as they are now, in a repository of their own with one commit."""
    to.mkdir(parents=True)
    known = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, known.decode().split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            (to / name).write_bytes((ROOT / name).read_bytes())
            (to / name).chmod((ROOT / name).stat().st_mode)
    git(to, "init", "--quiet")
    git(to, "add", "--all")
    git(to, "commit", "--quiet", "--message", "everything")
    return to


def set_version(checkout: Path, version: str) -> None:
    """Change the version of a checkout, as for a release."""
    package = checkout / "src/redrive/__init__.py"
    package.write_text(re.sub(r'^__version__ = ".*"$', f'__version__ = "{version}"', package.read_text(), flags=re.M))


def build(checkout: Path, into: Path) -> tuple[Path, Path]:
    """What `make build` does: the source distribution, and the wheel made from it."""
    command = [sys.executable, "-m", "build", "--outdir", str(into), str(checkout)]
    done = subprocess.run(
        command, env=clean_environment(), cwd=into.parent, capture_output=True, text=True, check=False
    )
    need_index(done)
    assert done.returncode == 0, done.stdout + done.stderr
    [sdist], [wheel] = into.glob("*.tar.gz"), into.glob("*.whl")
    return sdist, wheel


def need_index(done: subprocess.CompletedProcess[str]) -> None:
    """Where no package index can be reached nothing can be installed: skipped, and in CI a failure."""
    said = done.stdout + done.stderr
    if done.returncode and any(sign in said for sign in _NO_INDEX):
        if os.environ.get("CI") == "true":
            pytest.fail(f"no package index: {said}", pytrace=False)
        pytest.skip("no package index can be reached")


class Environment:
    """A virtual environment with nothing in it but what a test installs."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)  # pip works from outside: nothing is in it
        self.bin = folder / "bin"

    @property
    def site_packages(self) -> Path:
        """Where its packages are, by the same scheme as ours."""
        ours = Path(sysconfig.get_path("purelib"))
        return self.bin.parent / ours.relative_to(sys.prefix)

    def borrow_dependencies(self) -> None:
        """Those of the environment that runs the tests, behind its own. Its editable installs do not come with them."""
        (self.site_packages / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")

    def install(self, *what: str | Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "--disable-pip-version-check"]
        done = subprocess.run(
            [*pip, "install", "--quiet", "--constraint", str(CONSTRAINTS), *map(str, what)],
            cwd=self.bin.parent,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        need_index(done)
        assert done.returncode == 0, done.stdout + done.stderr

    def redrive(self, *words: str, cwd: Path, expect: int = 0, **said: str) -> subprocess.CompletedProcess[str]:
        return run(self.bin / "redrive", *words, cwd=cwd, expect=expect, **said)

    def version(self, cwd: Path) -> str:
        return self.redrive("--version", cwd=cwd).stdout.strip().removeprefix("redrive, version ")
