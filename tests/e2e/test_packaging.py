"""What `make build` makes: its contents, its version, and that it works where nothing else is.

The short form borrows the dependencies of the environment that runs the tests; the slow one installs everything from
the package index, in the versions of constraints.txt.
"""

from __future__ import annotations

import re
import signal
import subprocess
import tarfile
import urllib.request
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

import pytest

from e2e.checkouts import ROOT, Environment, build, clean_environment, copy_tracked, git, run, set_version
from redrive.testing.processes import ServerProcess, tail

SHOP = """
from redrive import App, Message, Retry

app = App("shop")

@app.consumer("orders", retry=Retry(attempts=2, delay="50ms"))
async def handle(order: dict, message: Message) -> None:
    print(f"order {order['id']}, attempt {message.attempt}", flush=True)
    if order["id"] == 13:
        raise ConnectionError("the warehouse does not answer")
"""
PUBLISH = """
import asyncio
from shop import app

async def main() -> None:
    async with app:
        for number in (1, 13):
            await app.publish("", "orders", {"id": number})

asyncio.run(main())
"""


@dataclass(frozen=True)
class Built:
    sdist: Path
    wheel: Path

    @property
    def version(self) -> str:
        return self.wheel.name.split("-")[1]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = copy_tracked(tmp_path_factory.mktemp("checkout") / "redrive")
    set_version(made, "4.5.6")
    git(made, "commit", "--quiet", "--all", "--message", "Release 4.5.6")
    return made


@pytest.fixture(scope="module")
def built(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(*build(checkout, tmp_path_factory.mktemp("dist") / "dist"))


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel alone, and our dependencies."""
    made = Environment(tmp_path_factory.mktemp("installed") / "venv")
    made.install("--no-deps", built.wheel)
    made.borrow_dependencies()
    return made


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "publish.py").write_text(PUBLISH)
    return tmp_path


# Contents -----------------------------------------------------------------------------------------


def source_files() -> set[str]:
    known = subprocess.run(["git", "ls-files", "src/redrive"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name.removeprefix("src/") for name in known.stdout.split()}


def test_the_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as file:
        names = set(file.namelist())
    beside = {name for name in names if not name.startswith("redrive/")}
    assert names - beside == source_files()
    info = f"redrive-{built.version}.dist-info"
    assert beside == {
        f"{info}/{name}"
        for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt")
    }


def test_the_source_distribution_holds_what_the_wheel_is_made_from_and_no_tests(built: Built) -> None:
    with tarfile.open(built.sdist) as file:
        members = [member.name.partition("/")[2] for member in file.getmembers() if member.isfile()]
    ours = {name for name in members if ".egg-info/" not in name}
    others = {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "constraints.txt", "pyproject.toml"}
    assert ours == {f"src/{name}" for name in source_files()} | others | {"setup.cfg"}


def test_the_metadata_say_what_it_is_and_what_it_needs(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as file:
        metadata = Parser().parsestr(file.read(f"redrive-{built.version}.dist-info/METADATA").decode())
    assert metadata["Version"] == "4.5.6"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert {"admin", "celery", "fastapi", "postgres", "speed", "yaml"} <= set(metadata.get_all("Provides-Extra", []))
    assert metadata.get_payload().startswith("# Redrive")


# Versions -----------------------------------------------------------------------------------------


def test_both_are_named_after_the_version(built: Built) -> None:
    assert built.wheel.name == "redrive-4.5.6-py3-none-any.whl"
    assert built.sdist.name == "redrive-4.5.6.tar.gz"


def test_an_installed_one_knows_its_version_without_git(installed: Environment, tmp_path: Path) -> None:
    assert installed.version(tmp_path) == "4.5.6"
    assert run(installed.bin / "redrive", "--version", cwd=tmp_path, PATH="/nowhere").stdout.endswith(" 4.5.6\n")


def test_an_unpacked_source_distribution_knows_its_version(
    built: Built, installed: Environment, tmp_path: Path
) -> None:
    with tarfile.open(built.sdist) as file:
        file.extractall(tmp_path, filter="data")
    source = tmp_path / "redrive-4.5.6" / "src"
    told = run(installed.bin / "python", "-m", "redrive", "--version", cwd=source)
    assert told.stdout == "redrive, version 4.5.6\n"


@pytest.mark.slow
def test_an_editable_install_follows_its_checkout(checkout: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(checkout), str(clone))
    environment = Environment(tmp_path / "venv")
    environment.install("--no-deps", "--editable", clone)
    environment.borrow_dependencies()
    assert environment.version(tmp_path) == "4.5.6"

    set_version(clone, "5.0.0")
    assert environment.version(tmp_path) == "5.0.0"


# At work ------------------------------------------------------------------------------------------


def test_the_wheel_alone_handles_retries_parks_and_lists(installed: Environment, shop: Path) -> None:
    work_and_look(installed, shop)


def work_and_look(environment: Environment, shop: Path) -> None:
    """A worker, a message that is done and one that is parked after its second attempt, and a look at what is dead."""
    log = shop / "worker.log"
    worker = ServerProcess(
        [str(environment.bin / "redrive"), "worker", "shop:app"], environment=clean_environment(), log=log
    )
    try:
        worker.wait_until(lambda: "shop is working on" in log.read_text(), timeout=60)
        run(environment.bin / "python", "publish.py", cwd=shop)
        worker.wait_until(lambda: "parked" in log.read_text(), timeout=60)
    finally:
        worker.stop()
    said = log.read_text()
    assert worker.join() == 0, tail(log)
    assert re.findall(r"order 1, attempt \d", said) == ["order 1, attempt 1"]
    assert re.findall(r"order 13, attempt \d", said) == ["order 13, attempt 1", "order 13, attempt 2"]
    dead = environment.redrive("dlq", "ls", "--json", cwd=shop).stdout
    assert '"orders.dlq"' in dead
    assert "the warehouse does not answer" in environment.redrive("dlq", "peek", "orders.dlq", cwd=shop).stdout


@pytest.mark.slow
def test_a_stranger_installs_it_where_nothing_is_and_it_works(built: Built, shop: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.install(built.wheel)
    assert environment.version(tmp_path) == "4.5.6"

    told = environment.redrive("demo", "--once", cwd=tmp_path).stdout
    assert [line.split()[:2] for line in told.splitlines() if "lost" in line] == [["lost", "0"]]
    work_and_look(environment, shop)

    refused = environment.redrive("serve", "shop:app", cwd=shop, expect=2)
    assert "pip install 'redrive[admin]'" in refused.stderr
    environment.install(f"redrive[admin] @ {built.wheel.as_uri()}")
    serve_and_ask(environment, shop)


def serve_and_ask(environment: Environment, shop: Path) -> None:
    log = shop / "serve.log"
    command = [str(environment.bin / "redrive"), "serve", "shop:app", "--port", "0"]
    server = ServerProcess(command, environment=clean_environment(), log=log)
    try:
        server.wait_until(lambda: "the console is at" in log.read_text(), timeout=60)
        address = log.read_text().split("the console is at ")[1].split("/ and")[0]
        server.wait_until(lambda: "startup complete" in log.read_text(), timeout=60)
        with urllib.request.urlopen(f"{address}/healthz", timeout=30) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(f"{address}/sign-in", timeout=30) as answer:
            assert b"<form" in answer.read()
    finally:
        server.stop()
    assert server.join() in (0, -signal.SIGTERM), tail(log)


@pytest.mark.slow
def test_a_fresh_clone_is_installed_by_pip(checkout: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(checkout), str(clone))
    environment = Environment(tmp_path / "venv")
    environment.install(clone)
    assert environment.version(tmp_path) == "4.5.6"
