"""One dead letter with secrets in everything that it has, through every interface: none of them shows one, unless it is
asked for by a principal who may reveal, and then the audit says so.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from admin_api import admin_context, asking, bearing
from dead_lettering import DLQ, dead_letter
from e2e.test_dlq_command import Shell
from redrive.database.engine import Database
from redrive.operations.audit_log import AuditLog
from redrive.testing.broker_process import EmbeddedBroker

CARD = "4111111111111111"
SECRETS = ("s3cret-body", "s3cret-header", "s3cret-bearer", "s3cret-error", "s3cret-stack", CARD)
LETTER = dead_letter(
    1,
    **{
        "api-token": "s3cret-header",
        "note": "Authorization: Bearer s3cret-bearer-0123456789",
        "x-redrive-error": "LoginFailed",
        "x-redrive-message": f"no login with password=s3cret-error and card {CARD}",
        "x-redrive-stack": "Traceback:\n  connect(user='ada', password='s3cret-stack')\nLoginFailed",
    },
)._replace(body=json.dumps({"order": 1, "password": "s3cret-body", "card": int(CARD), "amount": 7}).encode())
PATCH = json.dumps([{"op": "test", "path": "/password", "value": "a guess"}])


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "home").mkdir()
    with EmbeddedBroker(tmp_path / "broker", data=tmp_path / "data") as broker:
        shell = Shell(tmp_path / "home", broker.url, None)
        yield shell
        shell.end()


def test_no_interface_shows_a_secret_and_each_reveal_is_in_the_audit(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "redrive")
    shell.prepare(0)
    shell.publish(LETTER)

    told = {
        **commands(shell),
        "notification": notification(shell),
        **asyncio.run(web(shell)),
        "log": caplog.text,
        "audit table": str(recorded(shell)),
    }

    shown = [(where, secret) for where, text in told.items() for secret in SECRETS if secret in text]
    assert shown == []
    assert all("[redacted]" in told[where] for where in ("dlq peek", "dlq show --json", "GET message", "page message"))
    assert [entry for entry in recorded(shell) if entry[0] == "reveal"] == []

    revealed = reveals(shell)
    assert [where for where, text in revealed.items() if "s3cret-body" not in text] == []
    audited = [entry for entry in recorded(shell) if entry[0] == "reveal" or entry[2] == "with secrets"]
    assert sorted(audited) == sorted(
        [
            ("reveal", "ada", ""),
            ("export", "ada", "with secrets"),
            ("reveal", "root", ""),
            ("reveal", "root", ""),
            ("export", "root", "with secrets"),
        ]
    )


def commands(shell: Shell) -> dict[str, str]:
    """What each command prints, on either stream."""
    told = {}
    for words in (
        "dlq ls",
        "dlq peek",
        "dlq peek --json",
        "dlq groups",
        "dlq groups --json",
        "dlq groups --by error --json",
        "dlq show",
        "dlq show --headers",
        "dlq show --json",
        "dlq plan",
        "dlq plan --json",
        "dlq redrive --dry-run --json",
        "dlq export",
    ):
        group, command, *options = words.split()
        arguments = [DLQ, "m-1"] if command == "show" else [DLQ]
        told[words] = "".join(shell.run(group, command, *arguments, *options))
    told["dry run"] = "".join(shell.run("dlq", "transform", DLQ, "--patch", PATCH, "--dry-run"))
    reason = ("--reason", "password=s3cret-body")
    told["transform"] = "".join(shell.run("dlq", "transform", DLQ, "--patch", PATCH, "--yes", *reason, code=3))
    told["discard"] = "".join(shell.run("dlq", "discard", DLQ, "-q", "s3cret-nothing", "--confirm", DLQ, code=4))
    (operation,) = shell.json("ops", "ls")
    told["ops show"] = "".join(shell.run("ops", "show", operation["id"], "--items", "failed"))
    told["ops show --json"] = "".join(shell.run("ops", "show", operation["id"], "--json"))
    told["audit"] = "".join(shell.run("audit"))
    told["audit --json"] = "".join(shell.run("audit", "--json"))
    assert "the test failed" in told["ops show"]
    return told


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


async def web(shell: Shell) -> dict[str, str]:
    """What the API answers, and what the pages show, to everybody who does not ask for secrets."""
    queue, operations = f"/admin/dlq/queues/{DLQ}", "/admin/operations"
    told = {}
    async with asking(admin_context(shell.broker, shell.folder / ".redrive", editing=True), "admin", "root") as client:
        patch = {"patch": json.loads(PATCH), "reason": "password=s3cret-body"}
        edited = await client.post(f"{queue}/messages/m-1/edit-and-re-drive", json=patch, headers={"Prefer": "wait=20"})
        id = edited.json()["id"]
        told["POST edit"] = edited.text
        for role in ("viewer", "operator", "admin"):
            headers = bearing(role, role)
            for name, path in {
                "GET queues": "/admin/dlq/queues",
                "GET messages": f"{queue}/messages",
                "GET message": f"{queue}/messages/m-1",
                "GET groups": f"{queue}/groups",
                "GET export": f"{queue}/export",
                "GET operations": operations,
                "GET items": f"{operations}/{id}/items",
                "GET events": f"{operations}/{id}/events",
                "GET audit": "/admin/audit?limit=500",
                "GET metrics": "/metrics",
                "page overview": "/",
                "page queue": f"/queues/{DLQ}",
                "page messages": f"/queues/{DLQ}/messages",
                "page message": f"/queues/{DLQ}/messages/m-1",
                "page re-drive": f"/queues/{DLQ}/re-drive",
                "page move": f"/queues/{DLQ}/move",
                "page discard": f"/queues/{DLQ}/discard",
                "page operation": f"/operations/{id}",
                "page audit": "/audit",
            }.items():
                answer = await client.get(path, headers=headers)
                assert answer.status_code in (200, 403), (name, answer.status_code)
                told[name] = told.get(name, "") + answer.text
            told["POST plan"] = (await client.post(f"{queue}/re-drive/plan", json={}, headers=headers)).text
            told["POST peek"] = (await client.post(f"{queue}/messages", json={}, headers=headers)).text
        tried = await client.post(f"{queue}/messages/m-1/edit-and-re-drive", json=patch | {"dry_run": True})
        told["POST edit, dry run"] = tried.text
        changed = {"body": '{"password": "s3cret-body"}', "dry_run": True}
        told["difference"] = (await client.post(f"{queue}/messages/m-1/edit-and-re-drive", json=changed)).text
    return told


def reveals(shell: Shell) -> dict[str, str]:
    told = {
        "dlq show --reveal": "".join(shell.run("dlq", "show", DLQ, "m-1", "--reveal")),
        "dlq export --reveal": "".join(shell.run("dlq", "export", DLQ, "--reveal")),
    }

    async def ask() -> None:
        context = admin_context(shell.broker, shell.folder / ".redrive")
        async with asking(context, "admin", "root") as client:
            for path in (f"/admin/dlq/queues/{DLQ}/messages/m-1", f"/queues/{DLQ}/messages/m-1"):
                told[path] = (await client.get(path, params={"reveal": True})).text
            export: httpx.Response = await client.get(f"/admin/dlq/queues/{DLQ}/export", params={"reveal": True})
            told["export"] = export.text
            for path in told.keys() & {f"/queues/{DLQ}/messages/m-1"}:
                refused = await client.get(path, params={"reveal": True}, headers=bearing("operator", "bob"))
                assert refused.status_code == 403

    asyncio.run(ask())
    return told


def recorded(shell: Shell) -> list[tuple[str, str, str]]:
    entries = [entry for _, entry in AuditLog(Database.embedded(shell.folder / ".redrive")).list_entries(limit=1000)]
    return [(entry.action, entry.by, entry.detail) for entry in entries if entry.allowed]
