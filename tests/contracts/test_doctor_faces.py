"""The command line, the API and the console report the same findings for the same application and broker."""

from __future__ import annotations

import asyncio
import html
import json
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from admin_api import admin_context, asking
from redrive import App
from redrive.admin.target import BrokerTarget
from redrive.cli import main
from redrive.cli.loading import load_target
from redrive.client import Connection

Findings = set[tuple[str, str]]  # the rule, and what it is about

# A file may want exchanges alone.
DEFINITIONS = {
    "queues": [],
    "exchanges": [
        {
            "name": "later",
            "vhost": "/",
            "type": "x-delayed-message",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {"x-delayed-type": "direct"},
        }
    ],
    "bindings": [],
}


@dataclass
class Shop:
    source: str  # the application, as commands name it
    folder: Path
    management: str | None

    async def commanded(self) -> Findings:
        words = ["doctor", self.source, "--json"]
        words += ["--management", self.management] if self.management is not None else []
        done = await asyncio.to_thread(CliRunner().invoke, main, words)
        return {(one["id"], one["subject"]) for one in json.loads(done.stdout)}

    async def asked(self) -> tuple[Findings, Findings]:
        """What the API and the console report."""
        target = load_target(self.source, None, self.management)
        async with asking(admin_context(None, self.folder, target=target)) as client:
            rows = (await client.get("/admin/doctor")).json()["items"]
            page = (await client.get("/doctor")).text
        shown: Findings = set()
        for entry in page.split("<li")[1:]:
            subject = re.search(r'<p class="name">(.*?)</p>', entry)
            rule = re.search(r'<p class="muted"><code>(.*?)</code>', entry)
            if rule is not None:
                shown.add((rule[1], html.unescape(subject[1]) if subject is not None else ""))
        return {(row["id"], row["subject"]) for row in rows}, shown


@pytest.fixture
async def shop(
    amqp_url: str, management_url: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Shop]:
    """A shop whose handlers may take longer than RabbitMQ waits, and whose dead-letter queue forgets messages."""
    app = App("shop", broker=amqp_url, data=tmp_path)
    app.consumer("orders", timeout="2h")(lambda: None)
    app.batch_consumer("lines", timeout="3h")(lambda: None)
    app.dlq_consumer("lines", timeout="4h")(lambda: None)
    module = ModuleType("shop_of_the_doctor")
    module.app = app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    async with Connection(amqp_url) as connection:
        await connection.declare_queue("left.dlq", arguments={"x-message-ttl": 60_000})
    async with app:
        yield Shop("shop_of_the_doctor:app", tmp_path, management_url)


async def test_they_report_the_same_findings(shop: Shop, request: pytest.FixtureRequest) -> None:
    commanded = await shop.commanded()
    asked, shown = await shop.asked()
    assert commanded == asked == shown
    if request.node.callspec.params["amqp_url"] == "rabbitmq":  # the embedded broker waits indefinitely
        assert {subject for rule, subject in commanded if rule == "consumer-timeout"} == {
            "orders",
            "lines",
            "lines.dlq",
        }
    assert commanded


async def test_they_report_the_same_findings_for_a_definitions_file(
    amqp_url: str, management_url: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_BROKER", amqp_url)
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(DEFINITIONS))
    shop = Shop(str(file), tmp_path, management_url)
    commanded = await shop.commanded()
    asked, shown = await shop.asked()
    assert commanded == asked == shown


def test_the_limits_of_all_handlers_are_known() -> None:
    app = App("shop", broker="amqp://nowhere")
    app.consumer("orders", timeout="2h")(lambda: None)
    app.consumer("lines")(lambda: None)
    app.dlq_consumer("orders", timeout="4h")(lambda: None)
    limits = BrokerTarget.of(app).handler_limits
    assert {queue: limit.total_seconds() for queue, limit in limits.items()} == {"orders": 7200, "orders.dlq": 14400}
