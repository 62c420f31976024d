"""What Redrive depends on: each with its reason, none by accident, and none with a hole that is known."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import audit_dependencies
from audit_dependencies import judge

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "redrive"
RECORD = ROOT / "docs" / "decisions" / "0013-runtime-dependencies.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Extras for who uses Redrive; the others are for who works on it.
EXTRAS = ("postgres", "admin", "celery", "fastapi", "yaml", "speed")
# Which modules need which extra: what is imported there, and nowhere else, comes with it.
NEEDS = {
    "admin/api": ("admin",),
    "admin/console": ("admin",),
    "admin/access": ("admin",),
    "cli/serve.py": ("admin",),
    "demo/web.py": ("admin",),
    "outbox/listener.py": ("postgres",),
    "integrations/celery": ("celery",),
    "integrations/fastapi.py": ("fastapi",),
    "topology/serialization.py": ("yaml",),
    "testing": ("pytest",),
}
# What a dependency brings along and shows on purpose: its own parts, not packages of its own.
PARTS = {
    **dict.fromkeys(("starlette", "pydantic"), "fastapi"),
    **dict.fromkeys(("kombu", "billiard", "amqp"), "celery"),
    "markupsafe": "jinja2",
    "cryptography": "jwt",
}


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found
    return normal(found[0])


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


CORE = {name_of(one) for one in PROJECT["dependencies"]}
OF_EXTRA = {extra: {name_of(one) for one in PROJECT["optional-dependencies"][extra]} for extra in EXTRAS}


# Reasons ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(CORE.union(*OF_EXTRA.values())))
def test_every_dependency_has_its_reason_in_the_record(name: str) -> None:
    told = {normal(found) for found in re.findall(r"^\| `([^`\[]+)", RECORD.read_text(), re.MULTILINE)}
    assert name in told


def test_the_record_names_nothing_that_is_not_a_dependency() -> None:
    told = {normal(found) for found in re.findall(r"^\| `([^`\[]+)", RECORD.read_text(), re.MULTILINE)}
    assert told == CORE.union(*OF_EXTRA.values())


# Imports ----------------------------------------------------------------------------------------------


def imported(path: Path) -> set[str]:
    """The packages that a module imports, other than Python's and our own, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return {name for name in found if name not in sys.stdlib_module_names and name not in ("redrive", "__future__")}


INSTALLED = packages_distributions()


def distributions(package: str) -> set[str]:
    package = PARTS.get(package, package)
    return {normal(name) for name in INSTALLED.get(package, [package])}


MODULES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_whatever_a_module_imports_is_declared_for_it(path: Path) -> None:
    where = path.relative_to(SOURCE).as_posix()
    extras = [extra for place, needs in NEEDS.items() if where.startswith(place) for extra in needs]
    allowed = CORE.union(*(OF_EXTRA.get(extra, {extra}) for extra in extras))
    strangers = {package for package in imported(path) if not distributions(package) & allowed}
    assert strangers == set()


def test_every_dependency_of_the_core_is_imported() -> None:
    used = {name for path in MODULES for package in imported(path) for name in distributions(package)}
    # SQLAlchemy finds its driver by the URL of a database.
    assert CORE - used == {"aiosqlite"}


# Pins -------------------------------------------------------------------------------------------------


def test_every_dependency_is_pinned_to_one_version() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []
    pinned = {normal(line.partition("==")[0]) for line in lines}
    every = {name_of(one) for many in PROJECT["optional-dependencies"].values() for one in many} | CORE
    assert every - pinned - {"redrive"} == set()


# The audit --------------------------------------------------------------------------------------------


def output(*dependencies: dict[str, object]) -> str:
    return json.dumps({"dependencies": dependencies, "fixes": []})


SOUND = {"name": "click", "version": "8.1", "vulns": []}
HOLED = {"name": "jinja2", "version": "3.1.2", "vulns": [{"id": "CVE-1", "fix_versions": ["3.1.3"]}]}
SKIPPED = {"name": "odd", "skip_reason": "not found"}


def test_a_known_hole_is_named_and_fails() -> None:
    verdict = judge(output(SOUND, HOLED), "")
    assert verdict.failed
    assert verdict.lines[1] == "  jinja2 3.1.2: CVE-1, mended in 3.1.3"


def test_none_that_is_known_passes_and_says_of_how_many() -> None:
    verdict = judge(output(SOUND, SKIPPED), "")
    assert not verdict.failed
    assert verdict.lines == ("audit: no known vulnerability in 1 packages; of 1 more nothing is known",)


@pytest.mark.parametrize(
    ("said", "complained", "why"),
    [
        ("", "Traceback\nConnectionError: no route", "ConnectionError: no route"),
        ("", "", "pip-audit said nothing"),
        ("[]", "", "pip-audit said nothing"),
        (output(SKIPPED, SKIPPED), "", "knows none of 2 packages"),
    ],
)
def test_where_nobody_can_be_asked_it_is_left_out_in_one_line(said: str, complained: str, why: str) -> None:
    verdict = judge(said, complained)
    assert not verdict.failed
    assert len(verdict.lines) == 1
    assert why in verdict.lines[0]


def test_who_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_dependencies.sys, "executable", str(ROOT / "tests" / "infrastructure" / "silent.sh"))
    verdict = audit_dependencies.audit(within=0.2)
    assert verdict == audit_dependencies.left_out("no answer within 0.2 s")
