"""Dead letters with secrets in everything that they have, through every interface: none of them shows one, unless it is
asked for by a principal who may reveal, and then the audit says so.

The commands are those of `redrive dlq`, `redrive ops` and `redrive audit`, and the routes are those of the server: a
new command or route without a line here fails the test.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import httpx
import msgspec
import pytest
from click.testing import CliRunner

from admin_api import admin_context, bearing
from contracts.test_permissions import BODIES, NEEDS, REVEALS, Route, routes
from dead_lettering import DEAD_AT, DLQ, dead_letter
from e2e.serving import Server, serving
from e2e.test_dlq_command import Shell
from redrive.admin.access.roles import Role
from redrive.cli import main
from redrive.cli.dlq import dlq
from redrive.cli.ops import ops
from redrive.client.publisher import Publish
from redrive.database.engine import Database
from redrive.operations.audit_log import AuditLog
from redrive.operations.browse import GroupBy
from redrive.testing.broker_process import EmbeddedBroker

CARD = "4111111111111111"
SECRETS = (
    *("s3cret-body", "s3cret-header", "s3cret-bearer", "s3cret-error", "s3cret-stack", "s3cret-history"),
    *("s3cret-redrive", "s3cret-past", "s3cret-death", "s3cret-reason", "s3cret-import", "s3cret-new", CARD),
)
DEATH = {
    "queue": "orders",
    "reason": "exhausted",
    "count": 3,
    "fingerprint": "f",
    "error": "Failed: pwd=s3cret-death",
    "redriven-at": DEAD_AT,
    "redriven-by": "ada",
    "redriven-op": "op_0",
    "redriven-reason": "token=s3cret-past",
}
HEADERS: dict[str, Any] = {
    "api-token": "s3cret-header",
    "note": "Authorization: Bearer s3cret-bearer-0123456789",
    "nested": {"credentials": {"user": "ada", "key": "s3cret-header"}},
    "x-redrive-error": "LoginFailed",
    "x-redrive-message": f"no login with password=s3cret-error and card {CARD}",
    "x-redrive-stack": "Traceback:\n  connect(user='ada', password='s3cret-stack')\nLoginFailed",
    "x-redrive-history": [{"at": DEAD_AT, "error": "LoginFailed", "message": "password=s3cret-history", "n": 1}],
    "x-redriven-count": 1,
    "x-redriven-op": "op_1",
    "x-redriven-by": "ada",
    "x-redriven-at": DEAD_AT,
    "x-redriven-reason": "because password=s3cret-redrive",
    "x-redriven-deaths": [DEATH],
}
BODY = {"order": 1, "password": "s3cret-body", "card": int(CARD), "amount": 7}
JSON = json.dumps(BODY).encode()
BODIES_OF_LETTERS: list[tuple[bytes, dict[str, str]]] = [
    (JSON, {}),
    (gzip.compress(JSON), {"content_encoding": "gzip"}),
    (msgspec.msgpack.encode(BODY), {"content_type": "application/msgpack"}),
    (f"password=s3cret-body&card={CARD}&amount=7".encode(), {"content_type": "application/x-www-form-urlencoded"}),
    (f"<order><password>s3cret-body</password><card>{CARD}</card></order>".encode(), {"content_type": "text/xml"}),
    (JSON[:-1], {}),  # it was cut off
]
IDS = [f"m-{number}" for number in range(len(BODIES_OF_LETTERS))]
REASON = "INC-7 password=s3cret-reason"
PATCH = json.dumps([{"op": "test", "path": "/password", "value": "a guess"}])
BROKEN = b'{"format": 1, "body": {"password": "s3cret-import"}'
EDIT = "/queues/{queue}/messages/{id}/edit"  # shows the whole body to an admin, who changes it


def letter(number: int) -> Publish:
    body, properties = BODIES_OF_LETTERS[number]
    made = dead_letter(number, **HEADERS)
    return made._replace(body=body, properties=replace(made.properties, **properties))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "home").mkdir()
    with EmbeddedBroker(tmp_path / "broker", data=tmp_path / "data") as broker:
        shell = Shell(tmp_path / "home", broker.url, None)
        yield shell
        shell.end()


def test_no_interface_shows_a_secret_and_each_reveal_is_in_the_audit(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "redrive")
    monkeypatch.chdir(shell.folder)
    shell.prepare(0)
    shell.publish(*map(letter, range(len(IDS))))

    told = commands(shell) | {"notification": notification(shell)}
    with serving(
        shell.folder, shell.broker, "--log-level", "debug",
        REDRIVE_DATA=str(shell.folder / ".redrive"), REDRIVE_ADMIN_EDITING="1",
    ) as server:  # fmt: skip
        told |= web(shell, server)
        told |= {"log": caplog.text + server.log.read_text(), "audit": str(recorded(shell))}

        assert shown(told) == []
        hiding = ("dlq peek", "dlq show", "dlq export", "GET /admin/dlq/queues/{queue}/messages/{id}", "audit")
        assert [one for one in hiding if "[redacted]" not in told[one]] == []
        assert [entry for entry in recorded(shell) if entry[0] == "reveal"] == []

        revealed = reveals(shell, server)

    assert [where for where, text in revealed.items() if "s3cret-body" not in text] == []
    audited = [entry[:3] for entry in recorded(shell) if entry[0] == "reveal" or entry[2] == "with secrets"]
    assert sorted(audited) == sorted(
        [
            ("reveal", "ada", ""),  # show
            ("reveal", "ada", ""),  # edit
            ("export", "ada", "with secrets"),
            ("reveal", "root", ""),  # the API
            ("reveal", "root", ""),  # the page of the message
            ("reveal", "root", ""),  # the form by which it is changed
            ("export", "root", "with secrets"),
        ]
    )


def shown(told: dict[str, str]) -> list[tuple[str, str]]:
    return [(where, secret) for where, text in told.items() for secret in SECRETS if secret in text]


# Commands -----------------------------------------------------------------------------------------------


def commands(shell: Shell) -> dict[str, str]:
    """What each command prints, on either stream, by its name."""
    told = Told(shell)
    (shell.folder / "broken.ndjson").write_bytes(BROKEN)
    told.run("dlq ls")
    told.run("dlq ls", "--json")
    told.run("dlq query")
    told.run("dlq check", DLQ, code=9)
    told.run("dlq check", DLQ, "--json", code=9)
    for options in ((), ("--json",)):
        told.run("dlq peek", DLQ, *options)
        told.run("dlq plan", DLQ, *options)
        for by in GroupBy:
            told.run("dlq groups", DLQ, "--by", str(by), *options)
        for id in IDS:
            told.run("dlq show", DLQ, id, *(options or ("--headers",)))
    told.run("dlq export", DLQ)
    told.run("dlq import", DLQ, "broken.ndjson", "--yes", code=2)
    told.run("dlq redrive", DLQ, "--dry-run", "--json")
    told.run("dlq edit", DLQ, "m-0", "--set-header", "password=s3cret-new", "--dry-run")
    told.run("dlq transform", DLQ, "--patch", PATCH, "--dry-run")
    told.run("dlq transform", DLQ, "--id", "m-0", "--patch", PATCH, "--yes", "--reason", REASON, code=3)
    told.run("dlq move", DLQ, "--to", "other.dlq", "--id", "m-0", "--yes", "--reason", REASON, code=3)  # no such queue
    told.run("dlq discard", DLQ, "-q", "body.password:s3cret-nothing", "--confirm", DLQ, code=4)
    told.run("ops ls")
    for operation in json.loads(told.run("ops ls", "--json")):
        told.run("ops show", operation["id"], "--items", "failed")
        told.run("ops show", operation["id"], "--json")
        told.run("ops watch", operation["id"], code=3)
        for command, *options in (("cancel",), ("pause",), ("rate", "5"), ("resume",)):
            told.run(f"ops {command}", operation["id"], *options, code=6)
    told.run("audit")
    told.run("audit", "--json", "--limit", "500")
    assert "the test failed" in told.text["ops show"]
    assert told.text.keys() | {"dlq watch"} == {*_names("dlq", dlq), *_names("ops", ops), "audit"}
    return told.text


def _names(group: str, command: click.Group) -> set[str]:
    return {f"{group} {name}" for name in command.commands}


class Told:
    """What commands print. They run in this process: there are many."""

    def __init__(self, shell: Shell) -> None:
        self._environment = {name: value for name, value in shell.environment.items() if name.startswith("REDRIVE_")}
        self.text: dict[str, str] = {}

    def run(self, name: str, *arguments: str, code: int = 0) -> str:
        found = CliRunner().invoke(main, [*name.split(), *arguments], env=self._environment)
        assert found.exit_code == code, (name, found.exception, found.output)
        self.text[name] = self.text.get(name, "") + found.output
        return found.stdout


def notification(shell: Shell) -> str:
    file = shell.folder / "notice.json"
    process = shell.start("dlq", "watch", DLQ, "--command", f"tee {file}", "--every", "50ms")

    async def until_notified() -> str:
        async with asyncio.timeout(60):
            while not file.exists() or not file.read_text():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return file.read_text()

    told = asyncio.run(until_notified())
    process.terminate()
    return told + "".join(process.communicate())


# The server ---------------------------------------------------------------------------------------------


def web(shell: Shell, server: Server) -> dict[str, str]:
    """What every route answers to everybody who does not ask for secrets, by its name."""
    told: dict[str, str] = {}
    operation = shell.json("ops", "ls")[-1]["id"]
    with httpx.Client(base_url=server.address, timeout=60) as client:
        for route in routes(admin_context(shell.broker, shell.folder / "unused", editing=True)):
            for role in Role:
                if REVEALS in route.name or (role is Role.ADMIN and route.path == EDIT):
                    continue
                for path in _paths(route, operation):
                    for sent in _sent(route):
                        headers = bearing(role, role) | {"Sec-Fetch-Site": "same-origin", "Prefer": "wait=20"}
                        answer = client.request(route.method, path, headers=headers, **sent)
                        assert answer.status_code < 500, (route.name, answer.text)
                        told[route.name] = told.get(route.name, "") + answer.text + str(answer.headers)
    assert told.keys() == {name for name in NEEDS if REVEALS not in name}
    return told


def _paths(route: Route, operation: str) -> Iterator[str]:
    ids = IDS if "/messages/{id}" in route.path else ["1"] if "/outbox/" in route.path else [operation]
    for id in ids:
        values = {"queue": DLQ, "id": id, "wish": "pause", "name": "console.css", "token": "t"}
        path = re.sub(r"{([^}]+)}", lambda part, known=values: known[part[1]], route.path)  # type: ignore[misc]
        yield path
        if "{id}" not in route.path:
            return


def _sent(route: Route) -> Iterator[dict[str, Any]]:
    """What is sent to a route: nothing of it changes a message that has its secrets."""
    match route.operation:
        case _ if route.method == "GET":
            yield {}
            if route.operation in ("messages", "groups"):  # a page would show what was typed
                yield {"params": {"q": "body.amount:7 -body.password:s3cret-body"}}
        case "import":
            yield {"content": BROKEN}
        case "edit":
            for change in ({"patch": json.loads(PATCH)}, {"body": '{"password": "s3cret-new"}', "force": True}):
                yield {"json": change | {"dry_run": True, "reason": REASON}}
            yield {"json": {"patch": json.loads(PATCH), "reason": REASON}}
        case str() as operation:
            yield {"json": BODIES.get(operation, {}) | ({} if operation == "steer" else {"reason": REASON})}
        case None:
            yield {"data": {"form": "1", "to": "other.dlq"}}  # the form would be shown again with a reason
            if route.path.endswith("/import"):
                yield {"files": {"file": ("broken.ndjson", BROKEN)}}


def reveals(shell: Shell, server: Server) -> dict[str, str]:
    told = {
        "dlq show --reveal": "".join(shell.run("dlq", "show", DLQ, "m-1", "--reveal")),
        "dlq export --reveal": "".join(shell.run("dlq", "export", DLQ, "--reveal")),
        "dlq edit --editor": "".join(shell.run("dlq", "edit", DLQ, "m-3", "--editor", code=2, EDITOR="cat")),
    }
    with httpx.Client(base_url=server.address, headers=bearing("admin", "root"), timeout=60) as client:
        for name in (name for name in NEEDS if name.endswith(REVEALS)):
            path = name.removeprefix("GET ").replace("{queue}", DLQ).replace("{id}", "m-1")
            assert client.get(path, headers=bearing("operator", "bob")).status_code == 403
            told[name] = client.get(path).text
        told[EDIT] = client.get(EDIT.replace("{queue}", DLQ).replace("{id}", "m-0")).text
    return told


def recorded(shell: Shell) -> list[tuple[str, ...]]:
    entries = [entry for _, entry in AuditLog(Database.embedded(shell.folder / ".redrive")).list_entries(limit=5000)]
    return [(one.action, one.by, one.detail, one.filter, one.reason) for one in entries if one.allowed]
