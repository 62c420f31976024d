"""`redrive admin keys` as processes: the key alone on stdout, all else on stderr, and all of it in the audit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.admin.access.keys import Keys
from redrive.admin.access.roles import Role
from redrive.database.engine import Database
from redrive.database.schema import Schema
from redrive.errors import Unauthenticated
from redrive.worker.clock import SystemClock

KEY = re.compile(r"rdk_([0-9A-Za-z]{12})_[0-9A-Za-z]{43}\n")


class Shell:
    """Somebody at a terminal, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ours = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        self.environment = ours | {"REDRIVE_USER": "ada"}

    def run(self, *words: str, code: int = 0) -> tuple[str, str]:
        command = [sys.executable, "-m", "redrive", *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout, done.stderr

    def keys(self, *words: str, code: int = 0) -> tuple[str, str]:
        return self.run("admin", "keys", *words, code=code)

    def json(self, *words: str) -> Any:
        return json.loads(self.keys(*words, "--json")[0])

    def kept(self) -> Keys:
        return Keys(Database.embedded(self.folder / ".redrive"), SystemClock())


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_a_key_is_made_shown_once_listed_and_revoked(shell: Shell) -> None:
    text, told = shell.keys("create", "ci", "--role", "operator", "--queues", "orders.*", "--queues", "mail")
    found = KEY.fullmatch(text)
    assert found is not None
    assert f"key {found[1]}: ci is operator of orders.*, mail\n" in told
    assert "it is not shown again" in told
    assert f"for servers that use {shell.folder / '.redrive' / 'redrive.db'}\n" in told
    principal = shell.kept().verify(text.strip())
    assert (principal.name, principal.role, principal.queues) == ("ci", Role.OPERATOR, ("orders.*", "mail"))

    listed, _ = shell.keys("ls")
    assert re.search(
        rf"^{found[1]} +ci +operator +orders\.\* mail +live +- +\d+s ago +\d+s ago +ada", listed, re.MULTILINE
    )
    assert text.strip().split("_")[2] not in listed + told

    out, told = shell.keys("revoke", "ci")
    assert out == ""
    assert f"key {found[1]} (ci) is revoked, and its sessions are over" in told
    with pytest.raises(Unauthenticated):
        shell.kept().verify(text.strip())
    assert "revoked" in shell.keys("ls")[0]

    entries = json.loads(shell.run("audit", "--json")[0])
    assert [(each["by"], each["action"], each["queue"], each["allowed"]) for each in entries] == [
        ("ada", "key revoked", "", True),
        ("ada", "key created", "", True),
    ]
    assert {each["detail"] for each in entries} == {f"{found[1]} ci: operator of orders.* mail"}


def test_scripts_get_the_same_as_json(shell: Shell) -> None:
    made = shell.json("create", "ann", "--role", "admin", "--expires", "90d")
    assert KEY.fullmatch(made["key"] + "\n")
    assert (made["name"], made["role"], made["queues"], made["created_by"]) == ("ann", "admin", ["*"], "ada")
    ends = datetime.fromisoformat(made["expires_at"])
    assert timedelta(days=89) < ends - datetime.now(UTC) <= timedelta(days=90)
    (listed,) = shell.json("ls")
    assert listed["state"] == "live"
    assert "key" not in listed
    assert "digest" not in listed
    assert shell.json("revoke", made["id"])["revoked_at"] is not None
    assert shell.json("ls")[0]["state"] == "revoked"


def test_revoking_what_there_is_not_ends_with_code_4(shell: Shell) -> None:
    out, told = shell.keys("revoke", "nobody", code=4)
    assert out == ""
    assert told.splitlines() == [
        "redrive: there is no key nobody: `redrive admin keys ls` shows those there are",
        "  redrive explain key-not-found   docs/reference/errors.md#key-not-found",
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("x\r\nSet-Cookie: a=b", "--role", "viewer"), "is no name for a key"),
        (("\x1b[2J", "--role", "viewer"), r"\x1b[2J"),
        (("ci", "--role", "root"), "'root' is not one of"),
        (("ci",), "Missing option '--role'"),
        (("ci", "--role", "viewer", "--expires", "90"), "--expires '90' is not a length of time"),
        (("ci", "--role", "viewer", "--expires", "0d"), "expires at once"),
        (("ci", "--role", "viewer", "--queues", ""), "is no pattern for queues"),
    ],
)
def test_a_key_that_makes_no_sense_is_not_made(words: tuple[str, ...], told: str, shell: Shell) -> None:
    out, said = shell.keys("create", *words, code=2)
    assert out == ""
    assert told in said
    assert "\x1b" not in said
    kept = shell.folder / ".redrive" / "redrive.db"
    none = f"redrive: no keys in {kept}: make one with `redrive admin keys create NAME --role admin`\n"
    assert shell.keys("ls") == ("", none)


def test_a_name_is_given_once(shell: Shell) -> None:
    shell.keys("create", "ci", "--role", "viewer")
    out, told = shell.keys("create", "ci", "--role", "admin", code=2)
    assert out == ""
    assert "there is a key ci already" in told


async def test_keys_are_kept_in_the_database_that_is_named(shell: Shell, postgres_url: str) -> None:
    url = postgres_url.replace("postgresql://", "postgresql+psycopg://")
    _, told = shell.keys("ls", "--database", url, code=7)
    assert "Make the tables" in told
    database = Database(url)
    Schema().upgrade(database)
    text, _ = shell.keys("create", "ci", "--role", "viewer", "--database", url)
    assert Keys(database, SystemClock()).verify(text.strip()).name == "ci"
    await database.close()
    assert not (shell.folder / ".redrive").exists()


@pytest.mark.parametrize("words", [(), ("keys",), ("keys", "create"), ("keys", "ls"), ("keys", "revoke")])
def test_every_help_has_examples(words: tuple[str, ...], shell: Shell) -> None:
    out, _ = shell.run("admin", *words, "--help")
    assert re.search(rf"^  redrive admin keys .*{words[-1] if len(words) > 1 else 'create'}", out, re.MULTILINE)
