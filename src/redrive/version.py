"""The version, which is a tag of git's and nowhere else written down.

| where the package is                   | its version is                                                        |
|----------------------------------------|-----------------------------------------------------------------------|
| in a checkout, also an editable install| what `git describe` says of the commit, now                           |
| in an unpacked source distribution     | that of its `PKG-INFO`                                                |
| installed                              | that of its metadata                                                  |
| elsewhere, or without git              | unknown, and it says so                                               |

A tagged commit is its tag: `v0.2.0` is 0.2.0. Five commits later it is a preview of what comes next, `0.2.1.dev5`, and
after a release candidate `v1.0.0rc1` of the next one, `1.0.0rc2.dev5`. Behind a `+` is which commit it is, and `dirty`
if files were changed since. Before the first tag all commits count, towards 0.1.0.

It is looked up when somebody asks, and once.
"""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from pathlib import Path

FIRST = "0.1.0"  # what is released first, while there is no tag
UNKNOWN = f"{FIRST}.dev0+unknown"

_TAGS = "v[0-9]*"
_DESCRIBED = re.compile(r"(?:v(?P<tag>.+)-(?P<since>\d+)-g)?(?P<commit>[0-9a-f]{4,64})(?P<dirty>-dirty)?")
_LAST_NUMBER = re.compile(r"\d+(?=\D*$)")
_NAMES_REDRIVE = re.compile(r'^name *= *"redrive"', re.MULTILINE)
_VERSION_LINE = re.compile(r"^Version: *(\S+)", re.MULTILINE)


@cache
def version() -> str:
    return version_of(Path(__file__).parents[2])


def version_of(home: Path) -> str:
    """Of the package under this folder's `src`, which may be a checkout, a source distribution, or neither."""
    if not _is_ours(home):
        return _installed()
    if (home / ".git").exists():
        return _committed(home)
    if (home / "PKG-INFO").exists():
        return _packed((home / "PKG-INFO").read_text())
    return UNKNOWN


def read_description(text: str, commits: int) -> str:
    """A version, as Python's rules (PEP 440) have it, from what `git describe --long --always --dirty` says.

    `commits`: how many there are in all, for when no tag is among them.
    """
    found = _DESCRIBED.fullmatch(text.strip())
    if found is None:
        return UNKNOWN
    tag, since, dirty = found["tag"], int(found["since"] or commits), found["dirty"]
    if tag is not None and not since and not dirty:
        return tag
    base = _after(tag) if tag is not None else FIRST
    return f"{base}.dev{since}+g{found['commit']}{'.dirty' if dirty else ''}"


def _after(tag: str) -> str:
    return _LAST_NUMBER.sub(lambda number: str(int(number[0]) + 1), tag)


def _is_ours(home: Path) -> bool:
    """Somebody may have put the package into a project of theirs: its tags are not ours."""
    try:
        return bool(_NAMES_REDRIVE.search((home / "pyproject.toml").read_text()))
    except OSError:
        return False


def _committed(home: Path) -> str:
    try:
        described = _git(home, "describe", "--tags", "--long", "--always", "--dirty", "--match", _TAGS)
        tagged = "-g" in described
        return read_description(described, 0 if tagged else int(_git(home, "rev-list", "--count", "HEAD")))
    except (OSError, subprocess.CalledProcessError):  # no git, no commit yet, or somebody else's folder
        return UNKNOWN


def _git(home: Path, *words: str) -> str:
    # A hook of another repository has its own GIT_DIR in the environment. Asking is no reason to write an index.
    others = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        ["git", "-C", str(home), *words],
        env=others | {"GIT_OPTIONAL_LOCKS": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def _packed(metadata: str) -> str:
    found = _VERSION_LINE.search(metadata)
    return found[1] if found else UNKNOWN


def _installed() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_in_metadata

    try:
        return version_in_metadata("redrive")
    except PackageNotFoundError:
        return UNKNOWN


def __getattr__(name: str) -> str:
    if name == "__version__":
        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
