"""What the shipped dashboard and alerts ask for is exported, by a worker of an application that uses everything."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dashboards import EXPRESSIONS, series_in
from redrive import App
from redrive.integrations.monitoring import Monitoring
from redrive.integrations.prometheus import METRICS
from redrive.recovery.breaker import BreakerPolicy
from redrive.recovery.retry import Retry

OLDEST = "redrive_queue_oldest_seconds"  # known only where there is a message

Found = dict[str, list[dict[str, str]]]


class Shop:
    def __init__(self, url: str, management: str | None, folder: Path) -> None:
        self.app = App("shop", broker=url, management=management, database=f"sqlite:///{folder / 'shop.db'}")
        self.busy, self.go_on = asyncio.Event(), asyncio.Event()
        self.app.upgrade_database()
        self.app.exchange("events", "topic")
        app = self.app

        @app.consumer("orders", prefetch=1, inbox=True, breaker=BreakerPolicy(), retry=Retry(attempts=2, delay="1h"))
        async def handle(kind: str) -> None:
            if kind == "fails":
                raise OSError("no answer")
            self.busy.set()
            await self.go_on.wait()

        @app.batch_consumer("lines")
        async def handle_many(kinds: list[str]) -> None: ...

        @app.dlq_consumer("lines")
        async def inspect(kind: str) -> None: ...

        self.monitoring = Monitoring(app, relay=True)

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        async with self.app.worker(relay=True):
            try:
                yield
            finally:
                self.go_on.set()
        await self.app.database.close()

    async def page(self) -> str:
        return (await self.monitoring.metrics()).decode()

    async def samples(self) -> Found:
        """The labels of every sample, by its name."""
        found: Found = {}
        for family in text_string_to_metric_families(await self.page()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(dict(sample.labels))
        return found

    async def until(self, condition: Callable[[str], bool]) -> str:
        """The page on which something is. RabbitMQ's management API lags by up to ten seconds."""
        async with asyncio.timeout(60):
            while not condition(page := await self.page()):  # noqa: ASYNC110 - the page is the one to ask
                await asyncio.sleep(0.1)
        return page


@pytest.fixture
def shop(amqp_url: str, management_url: str | None, tmp_path: Path, cleanliness: None) -> Shop:  # noqa: ARG001
    return Shop(amqp_url, management_url, tmp_path)


def missing(found: Found) -> set[str]:
    """What the dashboard and the alerts ask for, and nobody exports."""
    return {
        f"{name} {wanted}"
        for expression in EXPRESSIONS.values()
        for name, wanted in series_in(expression)
        if not any(_fits(labels, wanted) for labels in found.get(name, ()))
    }


def _fits(labels: dict[str, str], wanted: dict[str, str]) -> bool:
    return all(value.startswith("$") or re.fullmatch(value, labels[label]) for label, value in wanted.items())


async def test_a_healthy_worker_exports_what_dashboard_and_alerts_ask_for_before_any_message(shop: Shop) -> None:
    async with shop.worker():
        found = await shop.samples()
    assert {series for series in missing(found) if not series.startswith(OLDEST)} == set()


async def test_a_healthy_worker_exports_every_metric_before_any_message(shop: Shop) -> None:
    async with shop.worker():
        found = await shop.samples()
    exported = {name.removesuffix("_bucket") for name in found}
    assert set(METRICS) - exported == {OLDEST}


async def test_the_age_of_the_oldest_message_is_exported_where_there_is_one(shop: Shop) -> None:
    async with shop.worker():
        await shop.app.publish("", "orders", "fails")
        await shop.app.publish("", "orders", "waits")
        await shop.busy.wait()
        await shop.app.publish("", "orders", "behind it")
        page = await shop.until(lambda page: page.count(OLDEST + "{") == 2)
        assert missing(await shop.samples()) == set()
    ages = dict(re.findall(OLDEST + r'\{queue=".*",role="(.*)"\} (.*)', page))
    assert ages.keys() == {"main", "retry"}
    assert all(0 <= float(age) < 60 for age in ages.values())


async def test_the_age_does_not_come_from_a_message_that_was_taken(shop: Shop) -> None:
    """A message that is taken and returned is redelivered, which looks like a crash of its handler."""
    async with shop.worker():
        await shop.app.publish("", "orders", "waits")
        await shop.busy.wait()
        await shop.app.publish("", "orders", "behind it")
        await shop.until(lambda page: OLDEST + "{" in page)
        assert shop.app.connected is not None
        delivery = await shop.app.connected.publishing.get("orders")
        assert delivery is not None
        redelivered = delivery.redelivered
        delivery.ack()
    assert not redelivered


async def test_consumers_are_counted_for_each_queue_that_is_consumed(shop: Shop) -> None:
    async with shop.worker():
        page = await shop.page()
    counted = dict(re.findall(r'redrive_queue_consumers\{queue="(.*)"\} (.*)', page))
    assert counted == {"orders": "1.0", "lines": "1.0", "lines.dlq": "1.0"}
