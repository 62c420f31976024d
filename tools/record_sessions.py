"""Record the command line sessions of docs/dead-letters.md: run the commands on an embedded broker, keep what they say.

    python tools/record_sessions.py

Each session becomes a file in docs/sessions and stands in the page between its marks. Ids and times are made the same
in every run, so that a difference is one in what the commands do.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from click.testing import CliRunner

from redrive.cli import main
from redrive.client import Connection, Properties
from redrive.client.publisher import Publish
from redrive.inspection import connect

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "dead-letters.md"
SESSIONS = DOCS / "sessions"

DLQ, SOURCE = "orders.dlq", "orders"

LOOKING = [
    "redrive dlq ls",
    "redrive dlq groups orders.dlq",
    "redrive dlq peek orders.dlq -q 'error:Timeout body.customer:42'",
    "redrive dlq show orders.dlq m-3",
]
REDRIVING = [
    "redrive dlq plan orders.dlq --group 3fa9",
    "redrive dlq redrive orders.dlq --group 3fa9 --limit 2 --reason INC-42 --yes",
    "redrive ops ls",
    "redrive ops show op_01",
    "redrive audit",
]
CANARY = ["redrive dlq redrive again.dlq --ramp 1,5,20 --stop-if 10 --step-wait 1s --yes"]
CHECKING = ["redrive dlq check orders.dlq --older-than 15m"]
COMMANDS: dict[str, Sequence[str]] = {
    "looking": LOOKING,
    "redriving": REDRIVING,
    "canary": CANARY,
    "checking": CHECKING,
}


def record() -> dict[str, str]:
    """Every session, by its name."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"REDRIVE_DATA": folder, "REDRIVE_USER": "ada", "NO_COLOR": "1", "COLUMNS": "160"}
        asyncio.run(_prepare(Path(folder)))
        silence = {name: None for name in os.environ if name.startswith("REDRIVE_") and name not in environment}
        runner = CliRunner(env={**silence, **environment})
        return {name: "\n".join(_run(runner, line) for line in lines) for name, lines in COMMANDS.items()}


def _run(runner: CliRunner, line: str) -> str:
    result = runner.invoke(main, shlex.split(line)[1:], prog_name="redrive")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    said = stable(result.output)
    code = f"$ echo $?\n{result.exit_code}\n" if result.exit_code else ""
    return f"$ {line}\n{said}{code}"


def stable(text: str) -> str:
    """Without what differs from run to run."""
    text = re.sub(r"\bop_[0-9a-z]{26}\b", "op_01k3v6x8q2r5n7m4t9w0c1d2e3", text)
    text = re.sub(r"\bop_[0-9a-z]{8}…", "op_01k3v6x8…", text)
    text = re.sub(r"\bm-(\d+)-[0-9a-f]{16}\b", r"m-\1-5f0c2a9e1b7d4836", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "2026-03-02 09:41:07", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[0-9:.]+(Z|\+00:00)", "2026-03-02T07:41:07Z", text)
    text = re.sub(r"\b(\d+m)?\d+(ms|s) ago\b", "1s ago", text)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


# What there is to see -----------------------------------------------------------------------------


async def _prepare(folder: Path) -> None:
    async with connect(None, data=folder) as connection:
        await connection.declare_queue(SOURCE)
        await connection.declare_queue(DLQ)
        await connection.publish_many(_letter(number, DLQ) for number in range(1, 7))
        await _prepare_failing(connection)


async def _prepare_failing(connection: Connection) -> None:
    """Whatever is sent back to this queue fails at once, and dies again."""
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "again.dlq", "x-message-ttl": 1}
    await connection.declare_queue("again", arguments=back)
    await connection.declare_queue("again.dlq")
    await connection.publish_many(_letter(number, "again.dlq") for number in range(1, 31))


def _letter(number: int, queue: str) -> Publish:
    """As a worker parked one, two days ago."""
    slow = number % 2
    story = {
        "x-redrive-queue": queue.removesuffix(".dlq"),
        "x-redrive-exchange": "events",
        "x-redrive-routing-key": "order.placed",
        "x-redrive-reason": "exhausted",
        "x-redrive-error": "TimeoutError" if slow else "ValueError",
        "x-redrive-message": "no answer from stock within 5s" if slow else "no such currency: EURO",
        "x-redrive-fingerprint": "3fa9c0ffee24" if slow else "77d1beef0042",
        "x-redrive-attempts": 3 if slow else 1,
        "x-redrive-parked-at": (datetime.now(UTC) - timedelta(days=2, hours=3, minutes=10)).isoformat(),
    }
    body = b'{"order": %d, "customer": 42, "card_number": "4111 1111 1111 1111"}' % number
    properties = Properties(
        content_type="application/json", delivery_mode=2, message_id=f"m-{number}", type="OrderPlaced", headers=story
    )
    return Publish("", queue, body, properties)


# The page -----------------------------------------------------------------------------------------


def page(text: str, sessions: dict[str, str]) -> str:
    """The page with these sessions in it."""
    for name, said in sessions.items():
        begin, end = f"<!-- session {name} -->\n", "<!-- end of session -->"
        before, found, rest = text.partition(begin)
        if not found:
            raise LookupError(f"{PAGE.name} has no place for the session {name}")
        text = f"{before}{begin}```console\n{said}```\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    recorded = record()
    SESSIONS.mkdir(exist_ok=True)
    for name, said in recorded.items():
        (SESSIONS / f"{name}.txt").write_text(said)
    PAGE.write_text(page(PAGE.read_text(), recorded))
