"""Node's amqplib and amqp-connection-manager, unmodified, against the embedded broker.

Each test runs one script of `node/`, which tells what it saw as a line of JSON. The packages come from npm, at the
versions of package-lock.json, into `.cache/node-interop` when they are first needed. Without Node on the machine
these tests are skipped; where Node is there, in CI they must run.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interop.conftest import Names
from interop.embedded import EmbeddedBroker, run

SCRIPTS = Path(__file__).parent / "node"
CACHE = Path(__file__).parents[2] / ".cache" / "node-interop"

Story = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="session")
def packages() -> Path:
    """The folder with node_modules, installed once for all runs and all workers."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no Node on this machine: install node and npm")
    version = hashlib.sha256((SCRIPTS / "package-lock.json").read_bytes()).hexdigest()[:12]
    folder = CACHE / version
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "installed").exists() and (why := install(folder)):
            if os.environ.get("CI") == "true":
                pytest.fail(f"npm could not install the packages: {why}", pytrace=False)
            pytest.skip(f"npm could not install the packages: {why}")
    return folder


def install(folder: Path) -> str | None:
    """Why it did not work; None when it did."""
    folder.mkdir(exist_ok=True)
    for file in ("package.json", "package-lock.json"):
        shutil.copy(SCRIPTS / file, folder)
    done = run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", within=180, cwd=folder)
    if done.returncode:
        return done.stderr[-1000:]
    (folder / "installed").touch()
    return None


@pytest.fixture
def scripts(packages: Path, tmp_path: Path) -> Path:
    """The scripts beside the packages: Node looks for imports next to the file that imports."""
    folder = tmp_path / "scripts"
    shutil.copytree(SCRIPTS, folder)
    (folder / "node_modules").symlink_to(packages / "node_modules")
    return folder


@pytest.fixture
def story(scripts: Path, broker_url: str, names: Names) -> Story:
    """Run a script and return what it tells."""

    def play(script: str) -> dict[str, Any]:
        done = run("node", str(scripts / script), broker_url, names("node"))
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    return play


def test_a_confirmed_message_goes_through_an_exchange_to_a_consumer(story: Story) -> None:
    told = story("round_trip.mjs")

    assert told == {
        "size": 300_000,
        "key": "orders.new",
        "redelivered": False,
        "headers": {"text": "zoë", "list": [1, {"deep": True}]},
        "mode": 2,
    }


def test_prefetch_holds_back_what_is_beyond_it(story: Story) -> None:
    assert story("prefetch.mjs") == {"held": 2, "waiting": 1, "bodies": ["a", "b", "c"]}


def test_a_rejected_message_tells_its_death(story: Story, names: Names) -> None:
    told = story("dead_letter.mjs")

    [death] = told["headers"]["x-death"]
    assert told["body"] == "poison"
    assert (death["queue"], death["reason"], death["count"]) == (names("node"), "rejected", 1)
    assert (death["exchange"], death["routing-keys"]) == ("", [names("node")])
    assert death["time"]["!"] == "timestamp"
    assert (told["headers"]["x-first-death-queue"], told["headers"]["tenant"]) == (names("node"), "acme")


def test_what_is_refused_comes_as_the_errors_that_amqplib_users_know(story: Story, names: Names) -> None:
    told = story("errors.mjs")

    assert told["mismatch"]["code"] == 406
    assert "PRECONDITION_FAILED - inequivalent arg 'durable' for queue" in told["mismatch"]["message"]
    assert told["missing"]["code"] == 404
    assert f"NOT_FOUND - no queue '{names('node')}.missing'" in told["missing"]["message"]
    assert told["returned"] == [312, "lost?"]
    assert told["nacked"] == "message nacked"
    assert "ACCESS_REFUSED" in told["wrong"]


def test_a_consumer_is_told_when_its_queue_goes(story: Story) -> None:
    """amqplib calls the consumer with null."""
    assert story("cancel.mjs") == {"message": None}


def test_the_connection_manager_goes_on_over_a_killed_broker(own_broker: EmbeddedBroker, scripts: Path) -> None:
    with subprocess.Popen(
        ["node", str(scripts / "reconnect.mjs"), own_broker.url, "managed"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as node:
        assert node.stdout is not None
        assert node.stdout.readline() == "consuming\n"
        own_broker.kill()
        assert node.stdout.readline() == "disconnected\n"
        own_broker.start()

        assert json.loads(node.stdout.readline()) == {"bodies": ["before", "meanwhile"]}
