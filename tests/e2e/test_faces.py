"""One service, three faces: what the command line can do with dead letters, the API and the console can, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from redrive.cli import main

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "src" / "redrive" / "admin" / "console"
_ROUTE = re.compile(r"@router\.(get|post)\(\s*\"(/[^\"]*)\"")
_QUEUE, _MESSAGE, _OPERATION = "/queues/{queue:path}", "/queues/{queue:path}/messages/{id}", "/operations/{id}"


class Face(NamedTuple):
    command: str
    operations: tuple[str, ...]  # of the API
    page: str


FACES = [
    Face("dlq ls", ("queues", "queue"), "GET /"),
    Face("dlq groups", ("groups", "peek_groups"), f"GET {_QUEUE}"),
    Face("dlq peek", ("messages", "peek_messages"), f"GET {_QUEUE}/messages"),
    Face("dlq show", ("message", "peek_message"), f"GET {_MESSAGE}"),
    Face("dlq plan", ("plan",), f"GET {_QUEUE}/re-drive"),
    Face("dlq redrive", ("redrive",), f"POST {_QUEUE}/re-drive"),
    Face("dlq edit", ("edit",), f"POST {_MESSAGE}/edit"),
    Face("dlq move", ("move",), f"POST {_QUEUE}/move"),
    Face("dlq discard", ("discard",), f"POST {_QUEUE}/discard"),
    Face("dlq import", ("import",), f"POST {_QUEUE}/import"),
    Face("ops ls", ("operations",), "GET /operations"),
    Face("ops show", ("operation", "items"), f"GET {_OPERATION}"),
    Face("ops pause", ("pause",), f"POST {_OPERATION}/{{wish}}"),
    Face("ops resume", ("resume",), f"POST {_OPERATION}/{{wish}}"),
    Face("ops cancel", ("cancel",), f"POST {_OPERATION}/{{wish}}"),
    Face("ops rate", ("steer",), f"POST {_OPERATION}/{{wish}}"),
    Face("outbox status", ("outbox",), "GET /outbox"),
    Face("outbox retry", ("retry_outbox",), "POST /outbox/{id}/retry"),
    Face("outbox discard", ("discard_outbox",), "POST /outbox/{id}/discard"),
    Face("topology plan", ("topology",), "GET /topology"),
    Face("doctor", ("doctor",), "GET /doctor"),
    Face("audit", ("audit",), "GET /audit"),
]
# Pages link to the API for these: a file that is saved, events that a script listens to.
LINKED = {"dlq export": "export", "ops watch": "events"}
# For scripts and for those who have the code at hand: exit codes, notices, functions of their own.
COMMANDS_ONLY = {"dlq check", "dlq query", "dlq transform", "dlq watch", "outbox ls", "outbox prune", "outbox relay"}
API_ONLY = {"me"}


def commands(command: click.Command, context: click.Context, *before: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, context, *before, name)
    else:
        yield " ".join(before)


def test_every_command_for_dead_letters_has_its_request_and_its_page() -> None:
    ours = {name for name in commands(main, click.Context(main)) if name.startswith(("dlq", "ops", "outbox"))}
    known = {face.command for face in FACES} | LINKED.keys() | COMMANDS_ONLY
    assert ours <= known
    assert known - {"doctor", "audit", "topology plan"} <= ours


def test_every_request_has_its_command() -> None:
    document = json.loads((ROOT / "docs" / "openapi.json").read_text())
    served = {way["operationId"] for ways in document["paths"].values() for way in ways.values()}
    assert served == {name for face in FACES for name in face.operations} | set(LINKED.values()) | API_ONLY


def test_every_page_is_there() -> None:
    served = {
        f"{method.upper()} {path}"
        for module in PAGES.glob("*.py")
        for method, path in _ROUTE.findall(module.read_text())
    }
    assert {face.page for face in FACES} - served == set()
    templates = "".join(template.read_text() for template in (PAGES / "templates").glob("*.html"))
    linked = set(re.findall(r"to\('admin', .*?'(\w+)'\) }}", templates))
    assert linked == set(LINKED.values())
