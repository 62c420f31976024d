"""What Prometheus reads of an application, also while what it asks about is away."""

from pathlib import Path

import pytest

from redrive import App
from redrive.integrations.monitoring import Monitoring


async def test_a_database_that_is_away_takes_no_other_figure_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away() -> dict[str, float]:
        raise ConnectionError("the database is away\n[SQL: SELECT secret]")

    app = App("shop", broker="amqp://nowhere", database=f"sqlite:///{tmp_path / 'shop.db'}")
    app.consumer("orders")(lambda: None)
    monitoring = Monitoring(app, relay=True)
    app.upgrade_database()
    assert b"redrive_outbox_pending" in await monitoring.metrics()

    monkeypatch.setattr(app, "outbox_facts", away)
    page = await monitoring.metrics()

    assert b"redrive_outbox_pending{" not in page
    assert b'redrive_in_flight{queue="orders"}' in page
    assert "not known for this scrape: the database is away" in caplog.text
    assert "SELECT" not in caplog.text
