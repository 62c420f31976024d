"""The commands that `deploy/` starts, without a container: with their own words, environment and health checks.

Only where things are is changed: hosts become loopback, and ports become free ones, as containers have ports of their
own. The servers are private, with the users and passwords that the files name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from psycopg import sql

from deployment.reading import (
    DEPLOY,
    ROOT,
    Page,
    Start,
    compose_starts,
    kubernetes_starts,
    read_dockerfile,
    read_variables,
    systemd_starts,
)
from e2e.checkouts import clean_environment, copy_tracked, need_index, set_version
from e2e.checkouts import run as finish
from e2e.services import environment_for, run, scaffold
from redrive.integrations.prometheus import METRICS
from redrive.testing import RabbitMQ, ServerFailed, free_port
from redrive.testing.processes import ServerProcess, tail
from servers import open_directory, rabbitmq_root
from tests.support.postgres import Postgres

WITHIN = 120.0
DEVELOPMENT = read_variables((DEPLOY / ".env.example").read_text())


def starts_of(way: str, service: Path) -> list[Start]:
    match way:
        case "compose":
            return compose_starts(DEPLOY / "compose.yaml", DEPLOY / "Dockerfile", DEVELOPMENT)
        case "kubernetes":
            return kubernetes_starts(DEPLOY / "kubernetes", DEPLOY / "Dockerfile")
        case "systemd":
            return systemd_starts(DEPLOY / "systemd")
        case _:  # the files that `redrive init` wrote
            return compose_starts(
                service / "compose.yaml", service / "Dockerfile", read_variables((service / ".env.example").read_text())
            )


# Where things are ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Servers:
    """A RabbitMQ and a PostgreSQL, as the files expect them under the names `rabbitmq` and `postgres`."""

    rabbitmq: RabbitMQ
    postgres: Postgres

    def prepare(self, environment: dict[str, str]) -> dict[str, str]:
        """Give the users the passwords that the environment names; the environment, on this machine."""
        broker, database = urlsplit(environment["REDRIVE_BROKER"]), urlsplit(environment["REDRIVE_DATABASE"])
        assert broker.username == database.username == "shop"
        told = {"password": broker.password, "tags": "administrator"}
        self.rabbitmq.api("/users/shop", "PUT", told)
        self.rabbitmq.api("/permissions/%2F/shop", "PUT", {"configure": ".*", "write": ".*", "read": ".*"})
        self._new_database(database.password or "")
        places = {
            "@rabbitmq:5672": f"@127.0.0.1:{self.rabbitmq.port}",
            "@rabbitmq:15672": f"@127.0.0.1:{self.rabbitmq.management_port}",
            "@postgres:5432": f"@127.0.0.1:{self.postgres.port}",
        }
        return {name: _replaced(value, places) for name, value in environment.items()}

    def _new_database(self, password: str) -> None:
        with psycopg.connect(self.postgres.dsn, autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS shop WITH (FORCE)")
            connection.execute("DROP ROLE IF EXISTS shop")
            connection.execute(sql.SQL("CREATE ROLE shop LOGIN PASSWORD {}").format(password))
            connection.execute("CREATE DATABASE shop OWNER shop")

    def forget(self) -> None:
        """What the last ones left in the broker."""
        for queue in self.rabbitmq.api("/queues/%2F"):
            self.rabbitmq.api(f"/queues/%2F/{queue['name']}", "DELETE")


def _replaced(text: str, places: dict[str, str]) -> str:
    for there, here in places.items():
        text = text.replace(there, here)
    return text


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    directory = open_directory()
    folder = tmp_path_factory.mktemp("servers")
    with (
        RabbitMQ(folder / "rabbitmq", name="deployed", root=rabbitmq_root(), management=True) as rabbitmq,
        Postgres(directory / "postgres", fsync=False) as postgres,
    ):
        yield Servers(rabbitmq, postgres)
    directory.rmdir()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scaffold(tmp_path_factory.mktemp("service"), "shop")


def moved(start: Start) -> Start:
    """On loopback, with a free port in place of its own."""
    if not start.lasts:
        return start
    own = start.words[start.words.index("--health-port" if "--health-port" in start.words else "--port") + 1]
    port = str(free_port())
    words = tuple({own: port, "0.0.0.0": "127.0.0.1"}.get(word, word) for word in start.words)
    health = [
        Page(int(port), one.path)
        if isinstance(one, Page)
        else tuple(word.replace(f":{own}/", f":{port}/") for word in one)
        for one in start.health
    ]
    assert all(isinstance(one, Page) or any(f":{port}/" in word for word in one) for one in health)
    return replace(start, words=words, health=tuple(health))


# What is started ----------------------------------------------------------------------------------


class Running:
    """A command of the files, as a process in an empty folder."""

    def __init__(self, start: Start, service: Path, environment: dict[str, str], folder: Path) -> None:
        self.start = start
        self.folder = folder / start.name
        self.folder.mkdir(parents=True)
        self.log = self.folder / "output.log"
        self.environment = environment_for(service, **environment)
        command = [sys.executable, "-m", "redrive", *start.words]
        self.process = ServerProcess(command, environment=self.environment, log=self.log)

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, condition: Callable[[], bool]) -> None:
        try:
            self.process.wait_until(condition, timeout=WITHIN)
        except ServerFailed as error:
            raise AssertionError(f"{self.start.name}: {error}\n{tail(self.log)}") from None

    def is_healthy(self) -> bool:
        return all(self._passes(check) for check in self.start.health)

    def _passes(self, check: tuple[str, ...] | Page) -> bool:
        if isinstance(check, Page):
            try:
                page(f"http://127.0.0.1:{check.port}{check.path}")
            except OSError:
                return False
            return True
        asked = [sys.executable, "-m", "redrive", *check]
        return subprocess.run(asked, env=self.environment, capture_output=True, check=False).returncode == 0

    @property
    def metrics(self) -> str:
        port = self.start.words[self.start.words.index("--health-port") + 1]
        return page(f"http://127.0.0.1:{port}/metrics")

    def end(self) -> None:
        """SIGTERM, as all three send it, and a clean end."""
        self.process.stop(signal.SIGTERM, timeout=WITHIN)
        # uvicorn passes the signal on when it is done, so that whoever waits for the process knows why it ended.
        assert self.process.join() in ((0, -signal.SIGTERM) if "serve" in self.start.words else (0,)), tail(self.log)
        assert "Traceback" not in self.said, self.said


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=15) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.rabbitmq
@pytest.mark.postgres
@pytest.mark.parametrize("way", ["compose", "kubernetes", "systemd", "init"])
def test_what_is_written_there_starts_is_healthy_works_and_ends(
    servers: Servers, service: Path, tmp_path: Path, way: str
) -> None:
    starts = [moved(start) for start in starts_of(way, service)]
    environment = servers.prepare(dict(starts[0].environment))
    assert all(start.environment == starts[0].environment for start in starts)
    started: list[Running] = []
    try:
        for start in starts:
            started.append(Running(start, service, environment, tmp_path))
            if not start.lasts:
                assert started[-1].process.join() == 0, tail(started[-1].log)
        lasting = {one.start.words[0]: one for one in started if one.start.lasts}
        assert lasting.keys() == {"worker", "outbox", "serve"}
        for one in lasting.values():
            one.until(one.is_healthy)
        run(service, "shop.place", "2", **environment)
        lasting["worker"].until(lambda: lasting["worker"].said.count("is accepted, it comes to 25.00") == 2)
        check_metrics(lasting["worker"].metrics, lasting["outbox"].metrics)
    finally:
        for one in started:
            one.end()
        servers.forget()
    for one in started:
        if one.start.words[0] != "serve":  # a file system that it may only read is enough for it
            assert [file.name for file in one.folder.iterdir()] == ["output.log"]


def check_metrics(*pages: str) -> None:
    """A worker and a relay tell what is known, and all that alerts and dashboard ask for."""
    told = {family.name for text in pages for family in text_string_to_metric_families(text)}
    assert told == {metric.removesuffix("_total") for metric in METRICS}
    folder = ROOT / "src/redrive/integrations/dashboards"
    rules = yaml.safe_load((folder / "alerts.yml").read_text())
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    panels = json.loads((folder / "grafana.json").read_text())["panels"]
    expressions += [target["expr"] for panel in panels for target in panel.get("targets", [])]
    asked = {name for expression in expressions for name in re.findall(r"redrive_\w+", expression)}
    assert {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in asked} <= told


# The image, without an engine ---------------------------------------------------------------------


@pytest.mark.slow
def test_what_the_dockerfile_installs_knows_its_version_and_its_service(tmp_path: Path) -> None:
    """The first stage, step by step, in a folder that stands for the root of its file system."""
    checkout = copy_tracked(tmp_path / "checkout")
    set_version(checkout, "4.5.6")
    at = tmp_path
    python = {"PATH": f"{Path(sys.base_prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    for one in read_dockerfile((DEPLOY / "Dockerfile").read_text()):
        match one.stage, one.name, one.rest:
            case 0, "WORKDIR", folder:
                at = tmp_path / folder.lstrip("/")
                at.mkdir()
            case 0, "COPY", ". .":
                shutil.copytree(checkout, at, dirs_exist_ok=True)
            case 0, "RUN", command:
                command = command.replace("/venv", f"{tmp_path}/venv")
                done = subprocess.run(
                    ["sh", "-ec", command],
                    cwd=at,
                    env=clean_environment(**python),
                    capture_output=True,
                    text=True,
                    check=False,
                )
                need_index(done)
                assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    redrive = tmp_path / "venv" / "bin" / "redrive"
    assert finish(redrive, "--version", cwd=elsewhere).stdout == "redrive, version 4.5.6\n"
    assert "shop.orders" in finish(redrive, "topology", "export", "shop.app:app", cwd=elsewhere).stdout
