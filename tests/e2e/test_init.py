"""What `redrive init` makes works at once: its tests, its types, its worker on either broker."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import yaml

from e2e.services import environment_for, run, running, scaffold
from redrive.cli.init.names import LONGEST

NAMES = ["shop", "a", "order-desk", "x" * 19 + "-" + "y" * (LONGEST - 20)]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return scaffold(tmp_path, "shop")


@pytest.mark.parametrize("name", NAMES)
def test_it_is_tidy_whatever_its_name(tmp_path: Path, name: str) -> None:
    service = scaffold(tmp_path, name)
    run(service, "ruff", "check", "--no-cache", ".")
    run(service, "ruff", "format", "--no-cache", "--check", ".")
    assert tomllib.loads((service / "pyproject.toml").read_text())["project"]["name"] == name
    services = yaml.safe_load((service / "compose.yaml").read_text())["services"]
    assert set(services) == {"worker", "relay", "admin", "tables", "rabbitmq", "postgres"}


def test_its_own_tests_pass_at_once(shop: Path) -> None:
    told = run(shop, "pytest", "-p", "no:cacheprovider", "-W", "error").stdout
    assert " passed" in told
    assert "warning" not in told


@pytest.mark.slow
def test_its_types_are_checked_strictly(shop: Path) -> None:
    run(shop, "mypy", "--cache-dir", str(shop / "cache"))


@pytest.mark.parametrize("name", ["shop", "order-desk"])
def test_its_worker_handles_an_order_on_the_embedded_broker(tmp_path: Path, name: str) -> None:
    handle_orders(scaffold(tmp_path, name), name)


def test_the_same_program_works_on_rabbitmq_and_postgresql(shop: Path, amqp_url: str, postgres_url: str) -> None:
    there = {"REDRIVE_BROKER": amqp_url, "REDRIVE_DATABASE": postgres_url}
    run(shop, "redrive", "db", "upgrade", "shop.app:app", **there)
    handle_orders(shop, "shop", **there)
    assert not (shop / ".redrive" / "broker.db").exists()


def handle_orders(service: Path, name: str, **there: str) -> None:
    """Two orders are placed, accepted in a transaction, told of by the relay, and confirmed."""
    package = name.replace("-", "_")
    worker = ["redrive", "worker", "--relay", f"{package}.app:app"]
    with running(worker, environment_for(service, **there), service / "worker.log") as process:
        process.wait_for(f"{name} is working on")
        placed = run(service, f"{package}.place", "2", **there).stdout.split()[1::4]
        process.wait_for("is accepted, it comes to 25.00", 2)
        assert all(f"order {order} is accepted" in process.said for order in placed)


def test_the_environment_sets_how_often_and_how_soon(shop: Path) -> None:
    program = "from shop.app import app; print([(s.queue.retry.attempts, s.concurrency) for s in app.consumers])"
    (shop / "show.py").write_text(program)
    assert run(shop, "show", SHOP_ATTEMPTS="2", SHOP_CONCURRENCY="3").stdout.strip() == "[(2, 3), (2, 3)]"
