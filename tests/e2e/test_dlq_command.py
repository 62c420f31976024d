"""`redrive dlq`, `redrive ops` and `redrive audit` as processes, on the embedded broker and on RabbitMQ."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dead_lettering import DLQ, SOURCE, bodies, dead_letter, orders, prepare, until_depth
from redrive.client import Connection, Properties
from redrive.client.publisher import Publish
from redrive.database.engine import Database
from redrive.database.schema import Schema
from redrive.inspection import connect
from redrive.operations.repository import OperationRepository
from redrive.testing import Endpoint
from redrive.testing.broker_process import EmbeddedBroker
from redrive.wire.raw_properties import with_property

T = TypeVar("T")

BIDI = [chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)]
NAMES = ["orders/eu.dlq", "100%.dlq", "a#b.dlq", "größe.dlq", "the dead.dlq", "%2F?x=1&y.dlq"]


class Shell:
    """Somebody at a terminal, in a folder of their own."""

    def __init__(self, folder: Path, broker: str | None, management: str | None) -> None:
        self.folder = folder
        self.broker = broker
        ours = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        told = {"REDRIVE_BROKER": broker, "REDRIVE_MANAGEMENT": management, "REDRIVE_USER": "ada"}
        self.environment = ours | {name: value for name, value in told.items() if value is not None}
        self.started: list[subprocess.Popen[str]] = []
        (folder / ".redrive").mkdir()
        Schema().upgrade(Database.embedded(folder / ".redrive"))

    def start(self, *words: str, stdin: int = subprocess.DEVNULL, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "redrive", *words],
            cwd=self.folder,
            env=self.environment | environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *words: str, code: int = 0, stdin: str | None = None, **environment: str) -> tuple[str, str]:
        """What it said on stdout and on stderr."""
        process = self.start(*words, stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL, **environment)
        out, err = process.communicate(stdin, timeout=120)
        assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
        assert "Traceback" not in err
        return out, err

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", code=code)[0])

    def use(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        async def connected() -> T:
            async with connect(self.broker, data=self.folder / ".redrive") as connection:
                return await work(connection)

        return asyncio.run(connected())

    def prepare(self, count: int) -> None:
        self.use(lambda connection: prepare(connection, count))

    def publish(self, *messages: Publish) -> None:
        async def work(connection: Connection) -> None:
            await connection.publish_many(messages)

        self.use(work)

    def holds(self, queue: str) -> list[bytes]:
        """Everything in a queue, taken."""
        return self.use(lambda connection: bodies(connection, queue))

    def until_everything_is_back(self, count: int) -> None:
        async def work(connection: Connection) -> None:
            async with asyncio.timeout(30):
                while await self._ready(connection) < count:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

        self.use(work)

    async def _ready(self, connection: Connection) -> int:
        """In both queues. What was under way when a process was killed may be in both."""
        return sum([(await connection.queue_info(queue)).messages for queue in (SOURCE, DLQ)])

    @property
    def store(self) -> OperationRepository:
        return OperationRepository(Database.embedded(self.folder / ".redrive"))

    def running(self, moved: int = 1) -> str:
        """The id of an operation that has moved so many, as soon as there is one."""

        async def wait() -> str:
            async with asyncio.timeout(60):
                while True:
                    found = [each for each in self.store.running_operations() if each.counts.moved >= moved]
                    if found:
                        return found[0].id
                    await asyncio.sleep(0.05)

        return asyncio.run(wait())

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def own_folder(tmp_path: Path) -> Iterator[Shell]:
    """With the broker in the data folder: whoever needs it hosts it."""
    shell = Shell(tmp_path, None, None)
    yield shell
    shell.end()


@pytest.fixture(params=["embedded", "rabbitmq"])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "home").mkdir()
    if request.param == "embedded":
        with EmbeddedBroker(tmp_path / "broker", data=tmp_path / "data") as broker:
            shell = Shell(tmp_path / "home", broker.url, None)
            yield shell
            shell.end()
        return
    node: Endpoint = request.getfixturevalue("rabbitmq")
    vhost = f"dlq-{secrets.token_hex(8)}"
    node.add_vhost(vhost)
    shell = Shell(tmp_path / "home", node.url_for(vhost), f"http://guest:guest@127.0.0.1:{node.management_port}")
    yield shell
    shell.end()
    node.delete_vhost(vhost)


# A whole story ------------------------------------------------------------------------------------


def test_from_looking_to_the_audit(shell: Shell) -> None:
    shell.prepare(4)

    out, err = shell.run("dlq", "ls")
    assert out.split()[:7] == ["QUEUE", "MESSAGES", "OLDEST", "SOURCE", "TYPE", "LOOKING", "OPERATION"]
    assert DLQ in out
    out, err = shell.run("dlq", "groups", DLQ)
    assert "3fa9c0ffee" in out
    assert "2 groups, 4 of 4 messages" in err
    out, err = shell.run("dlq", "peek", DLQ, "-q", "body.order:>1", "--limit", "1")
    assert "no answer to 2" in out
    assert "go on with --from 4" in err
    out, _ = shell.run("dlq", "show", DLQ, "m-3", "--headers")
    assert '"order": 3' in out
    assert "TimeoutError: no answer to 3" in out
    out, err = shell.run("dlq", "plan", DLQ, "--group", "3fa9")
    assert out == ""
    assert "2 match · 2 eligible" in err
    out, err = shell.run("dlq", "redrive", DLQ, "--group", "3fa9", "--dry-run")
    assert shell.json("dlq", "ls", DLQ)[0]["depth"] == 4

    _, err = shell.run("dlq", "redrive", DLQ, "--group", "3fa9", "--reason", "INC-42", "--yes")
    assert "SUCCEEDED: 2 moved" in err
    assert shell.holds(SOURCE) == orders(1, 3)

    (operation,) = shell.json("ops", "ls")
    assert (operation["state"], operation["counts"]["moved"], operation["order"]["by"]) == ("SUCCEEDED", 2, "ada")
    out, _ = shell.run("ops", "show", operation["id"][:20], "--items", "moved")
    assert out.count("moved") >= 2
    assert "INC-42" in out
    _, err = shell.run("ops", "watch", operation["id"])
    assert "SUCCEEDED" in err
    actions = [entry["action"] for entry in shell.json("audit")]
    assert actions[:3] == ["re-drive ended", "re-drive", "plan"]
    assert {"peek", "plan"} == set(actions[2:])
    out, _ = shell.run("audit", "--queue", DLQ)
    assert "INC-42" in out


def test_the_embedded_broker_of_the_data_folder_needs_nothing_running(own_folder: Shell) -> None:
    own_folder.prepare(2)
    assert [view["name"] for view in own_folder.json("dlq", "ls")] == [DLQ]
    own_folder.run("dlq", "redrive", DLQ, "--yes")
    assert own_folder.holds(SOURCE) == orders(0, 1)


@pytest.mark.parametrize(
    "words",
    [
        ("dlq", "ls"),
        ("dlq", "ls", DLQ),
        ("dlq", "groups", DLQ),
        ("dlq", "peek", DLQ),
        ("dlq", "show", DLQ, "m-0"),
        ("dlq", "plan", DLQ),
        ("dlq", "redrive", DLQ, "--dry-run"),
        ("dlq", "redrive", DLQ, "--yes", "--limit", "1"),
        ("ops", "ls"),
        ("audit",),
    ],
)
def test_json_is_one_document_on_stdout(own_folder: Shell, words: tuple[str, ...]) -> None:
    own_folder.prepare(2)
    assert own_folder.json(*words) is not None


# Exit codes ---------------------------------------------------------------------------------------


def test_without_a_terminal_nothing_is_done_unasked(shell: Shell) -> None:
    shell.prepare(2)
    for option in ([], ["--no-input"]):
        _, err = shell.run("dlq", "redrive", DLQ, *option, code=2)
        assert "say --yes" in err
    assert shell.holds(DLQ) == orders(0, 1)
    assert shell.json("ops", "ls") == []


def test_what_makes_no_sense_is_2(own_folder: Shell) -> None:
    own_folder.prepare(1)
    _, err = own_folder.run("dlq", "peek", DLQ, "-q", "since:yesterdayish", code=2)
    assert "^" in err
    own_folder.run("dlq", "redrive", DLQ, "--ramp", "5,1", "--yes", code=2)
    own_folder.run("dlq", "redrive", DLQ, "--to", "exchange:x", "--yes", code=2)
    own_folder.run("dlq", "peek", code=2)


def test_a_part_that_fails_is_3(shell: Shell) -> None:
    shell.prepare(2)
    _, err = shell.run("dlq", "redrive", DLQ, "--to", "nowhere", "--yes", code=3)
    assert "nowhere does not exist" in err
    assert "PARTIAL: 0 moved, 2 failed" in err
    assert shell.holds(DLQ) == orders(0, 1)


def test_what_is_not_there_is_4(shell: Shell) -> None:
    shell.prepare(1)
    for words in (
        ("dlq", "ls", "nobody.dlq"),
        ("dlq", "peek", "nobody.dlq"),
        ("dlq", "show", DLQ, "m-77"),
        ("dlq", "plan", DLQ, "--id", "m-77"),
        ("dlq", "redrive", DLQ, "--id", "m-77", "--yes"),
        ("ops", "show", "op_nobody"),
        ("ops", "cancel", "op_nobody"),
    ):
        shell.run(*words, code=4)


def test_what_is_not_allowed_is_5(own_folder: Shell) -> None:
    """The audit cannot be written: its tables are not there."""
    own_folder.prepare(1)
    elsewhere = f"sqlite:///{own_folder.folder / 'empty.db'}"
    Database(elsewhere).engine.connect().close()
    _, err = own_folder.run("dlq", "show", DLQ, "m-0", "--reveal", "--database", elsewhere, code=5)
    assert "nothing was done" in err


def test_a_queue_that_somebody_holds_is_6(shell: Shell) -> None:
    shell.prepare(300)
    first = shell.start("dlq", "redrive", DLQ, "--rate", "5", "--yes")
    id = shell.running()
    _, err = shell.run("dlq", "peek", DLQ, code=6)
    assert id in err
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 3


def test_a_broker_that_is_away_is_7(own_folder: Shell) -> None:
    own_folder.run("dlq", "ls", "--broker", "amqp://127.0.0.1:1/", code=7)


def test_a_canary_that_falls_silent_is_8(shell: Shell) -> None:
    """Everything that is re-driven fails again at once: the queue rejects it, and its dead letters go back."""

    async def work(connection: Connection) -> None:
        back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DLQ, "x-message-ttl": 1}
        await connection.declare_queue(SOURCE, arguments=back)
        await connection.declare_queue(DLQ)
        await connection.publish_many(dead_letter(number) for number in range(20))
        await until_depth(connection, DLQ, 20)

    shell.use(work)
    _, err = shell.run("dlq", "redrive", DLQ, "--ramp", "1,5", "--step-wait", "1s", "--yes", code=8)
    assert "1 of 1 came back, more than 10 %: the rest was left where it is" in err
    assert len(shell.holds(DLQ)) == 20


def test_dead_letters_are_moved_with_their_failure_records(shell: Shell) -> None:
    shell.prepare(4)
    shell.use(lambda connection: connection.declare_queue("odd.dlq"))
    shell.run("dlq", "move", DLQ, "--to", "odd.dlq", "--no-input", code=2)
    _, err = shell.run("dlq", "redrive", DLQ, "--to", "odd.dlq", "--dry-run")
    assert f"To keep them: redrive dlq move {DLQ} --to odd.dlq" in err

    _, err = shell.run("dlq", "move", DLQ, "--to", "odd.dlq", "--group", "3fa9", "--yes")

    assert "SUCCEEDED: 2 moved" in err
    moved = shell.json("dlq", "peek", "odd.dlq")["letters"]
    assert [(one["source"], one["reason"], one["attempts"]) for one in moved] == [(SOURCE, "exhausted", 3)] * 2
    shell.run("dlq", "move", DLQ, "--to", DLQ, "--yes", code=2)


def test_a_re_drive_goes_where_the_topology_says_and_else_to_the_queue_it_failed_in(shell: Shell) -> None:
    (shell.folder / "shop.toml").write_text(
        f'[[queues]]\nname = "{SOURCE}"\nretry = {{ attempts = 3, delay = "1h" }}\nredrive_to = "retry"\n'
    )
    shell.run("topology", "apply", "shop.toml")
    shell.publish(dead_letter(0), dead_letter(1), dead_letter(2))

    (listed,) = shell.json("dlq", "ls", "--app", "shop.toml", DLQ)
    planned = shell.run("dlq", "plan", DLQ, "--app", "shop.toml")[1]
    shell.run("dlq", "redrive", DLQ, "--app", "shop.toml", "--limit", "1", "--yes")
    named = shell.run("dlq", "plan", DLQ, "--app", "shop.toml", "--to", "own", code=0)[1]
    shell.run("dlq", "redrive", DLQ, "--limit", "1", "--yes")  # without the topology

    assert listed["redrive_to"] == "retry"
    assert "3 → retry.orders (retry)" in planned
    assert "2 → orders (0 consumers)" in named
    assert (shell.holds("orders.retry"), shell.holds(SOURCE)) == (orders(0), orders(1))


def test_dead_letters_that_should_not_be_there_are_9(shell: Shell) -> None:
    shell.prepare(2)
    out, _ = shell.run("dlq", "check", DLQ, code=9)
    assert f"{DLQ}: 2 dead letters" in out
    assert [view["name"] for view in shell.json("dlq", "check", "--older-than", "15m", code=9)] == [DLQ]
    shell.run("dlq", "check", DLQ, "--max", "2")
    young = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
    assert len(shell.holds(DLQ)) == 2
    shell.publish(dead_letter(1, **{"x-redrive-parked-at": young}))
    shell.run("dlq", "check", DLQ, "--older-than", "15m")


# In the middle of it ------------------------------------------------------------------------------


def test_ctrl_c_says_what_was_done_and_how_to_go_on(shell: Shell) -> None:
    shell.prepare(200)
    process = shell.start("dlq", "redrive", DLQ, "--rate", "20", "--yes")
    id = shell.running(moved=3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)

    assert process.returncode == 3
    over = shell.store.get(id)
    assert over is not None
    assert f"{id} CANCELLED: {over.counts.moved} moved" in err
    assert f"to go on: redrive dlq redrive {DLQ}" in err
    moved = over.counts.moved
    assert 0 < moved < 200
    assert shell.holds(SOURCE) == orders(*range(moved))
    assert shell.holds(DLQ) == orders(*range(moved, 200))


def test_after_kill_9_it_is_resumed(shell: Shell) -> None:
    shell.prepare(100)
    process = shell.start("dlq", "redrive", DLQ, "--rate", "20", "--yes")
    id = shell.running(moved=3)
    process.kill()
    process.wait()
    shell.until_everything_is_back(100)
    long_ago = datetime.now(UTC) - timedelta(minutes=5)
    shell.store.take_over(id, "nobody", long_ago, shell.store.find(id)[0].owner)

    assert "(interrupted)" in shell.run("ops", "ls")[0]
    assert f"redrive ops resume {id}" in shell.run("ops", "show", id)[0]
    rated = shell.store.find(id)[0]
    assert rated.order.rate == 20
    _, err = shell.run("ops", "resume", id)
    assert f"{id} SUCCEEDED: 100 moved, 4 possibly duplicated" in err
    assert "planned 100, moved 100, possibly duplicated 4" in shell.run("ops", "show", id)[0]
    arrived = shell.holds(SOURCE)
    assert len(arrived) <= 100 + 4
    assert set(arrived) == set(orders(*range(100)))
    assert shell.holds(DLQ) == []


def test_an_operation_is_steered_from_another_process(shell: Shell) -> None:
    shell.prepare(400)
    process = shell.start("dlq", "redrive", DLQ, "--rate", "5", "--yes")
    id = shell.running()
    assert "will pause" in shell.run("ops", "pause", id)[0]
    assert wait_for_state(shell, id, "PAUSED")
    assert "will go on" in shell.run("ops", "resume", id)[0]
    assert wait_for_state(shell, id, "RUNNING")
    assert "with 10 messages a second" in shell.run("ops", "rate", id, "10")[0]
    watching = shell.start("ops", "watch", id)
    assert "will stop" in shell.run("ops", "cancel", id)[0]
    assert process.wait(60) == 3
    _, err = watching.communicate(timeout=60)
    assert "CANCELLED" in err
    found = shell.store.get(id)
    assert found is not None
    assert len(shell.holds(SOURCE)) == found.counts.moved


def wait_for_state(shell: Shell, id: str, state: str) -> bool:
    async def wait() -> bool:
        async with asyncio.timeout(30):
            while (found := shell.store.get(id)) is None or found.state != state:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return True

    return asyncio.run(wait())


# Names and payloads -------------------------------------------------------------------------------


def test_queues_may_be_called_anything(shell: Shell) -> None:
    async def work(connection: Connection) -> None:
        for name in NAMES:
            await connection.declare_queue(name)
            await connection.declare_queue(name.removesuffix(".dlq"))
            story = {"x-redrive-queue": name.removesuffix(".dlq"), "x-redrive-reason": "exhausted"}
            await connection.publish("", name, name.encode(), Properties(message_id="m-1", headers=story))

    shell.use(work)
    assert {view["name"] for view in shell.json("dlq", "ls")} >= set(NAMES)
    for name in NAMES:
        assert shell.json("dlq", "peek", name)["letters"][0]["message_id"] == "m-1"
        shell.run("dlq", "redrive", name, "--yes")
        assert shell.holds(name.removesuffix(".dlq")) == [name.encode()]
    assert {operation["order"]["queue"] for operation in shell.json("ops", "ls")} == set(NAMES)


HOSTILE: dict[str, bytes] = {
    "escapes": b"\x1b[2J\x1b]0;owned\x07\x9b31m\x1b[31mred",
    "bidi": "".join(BIDI).encode() + b"evil",
    "invalid": b"\xff\xfe\x80 not utf-8 \xc3\x28",
    "large": b"\x1b[31m" + b"A" * 10_000_000,
}


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/json"])
def test_a_payload_cannot_write_to_the_terminal(own_folder: Shell, content_type: str | None) -> None:
    hostile = "\x1b[31m" + "".join(BIDI) + "\x07\r"
    words = {name: f"{hostile}{name}" for name in ("x-redrive-error", "x-redrive-message", "x-redrive-stack")}
    headers = words | {f"odd{hostile}": hostile, "x-redrive-queue": f"q{hostile}", "x-redrive-reason": "exhausted"}

    async def work(connection: Connection) -> None:
        await connection.declare_queue(DLQ)
        for name, payload in HOSTILE.items():
            properties = Properties(content_type=content_type, type=hostile, message_id=name, headers=headers)
            await connection.publish("", DLQ, payload, properties)

    own_folder.use(work)
    commands = [("dlq", "peek", DLQ), ("dlq", "groups", DLQ), ("dlq", "plan", DLQ), ("dlq", "ls")]
    for name in HOSTILE:
        commands += [("dlq", "show", DLQ, name, "--headers"), ("dlq", "show", DLQ, name, "--reveal")]
    for command in commands:
        said = "".join(own_folder.run(*command, FORCE_COLOR=""))
        assert said
        assert not [char for char in said if char in BIDI or (char < " " and char != "\n") or "\x7f" <= char < "\xa0"]
        assert len(said) < 200_000


def test_what_an_error_says_is_shown_without_secrets(own_folder: Shell) -> None:
    card, password = "4111 1111 1111 1111", "hunter2"
    quoting = {"x-redrive-message": f"card {card}", "x-redrive-stack": f"password={password}", "api-token": password}
    own_folder.prepare(0)
    own_folder.publish(dead_letter(1, **quoting))

    for words in ((), ("--headers",), ("--json",)):
        out, _ = own_folder.run("dlq", "show", DLQ, "m-1", *words)
        assert "card [redacted]" in out
        assert card not in out
        assert password not in out
    out, _ = own_folder.run("dlq", "show", DLQ, "m-1", "--headers", "--reveal")
    assert card in out
    assert password in out


def test_nothing_is_coloured_where_nobody_sees_it(own_folder: Shell) -> None:
    own_folder.prepare(1)
    for environment in ({}, {"NO_COLOR": "1"}):
        for words in (("dlq", "ls"), ("dlq", "show", DLQ, "m-0"), ("dlq", "peek", DLQ)):
            assert "\x1b" not in "".join(own_folder.run(*words, **environment))


def test_the_shell_completes_commands(own_folder: Shell) -> None:
    environment = own_folder.environment | {"_REDRIVE_COMPLETE": "bash_source"}
    script = subprocess.check_output([sys.executable, "-m", "redrive"], env=environment, text=True)
    assert "complete -o nosort -F _redrive_completion redrive" in script
    asked = {"_REDRIVE_COMPLETE": "bash_complete", "COMP_WORDS": "redrive dlq re", "COMP_CWORD": "2"}
    completed = subprocess.check_output(
        [sys.executable, "-m", "redrive"], env=own_folder.environment | asked, text=True
    )
    assert "redrive" in completed


@pytest.mark.parametrize("group", ["dlq", "ops"])
def test_every_help_begins_with_examples(own_folder: Shell, group: str) -> None:
    out, _ = own_folder.run(group, "--help")
    assert f"redrive {group} " in out.split("Options:")[0]


# Out of a queue and into it -----------------------------------------------------------------------------


def test_what_is_exported_discarded_and_changed_comes_back_as_it_was(own_folder: Shell) -> None:
    shell = own_folder
    shell.prepare(4)

    out, err = shell.run("dlq", "export", DLQ, "-q", "body.order:<2")
    assert [json.loads(line)["body"] for line in out.splitlines()] == ['{"order": 0}', '{"order": 1}']
    assert "2 messages exported" in err

    for option in ([], ["--no-input"]):
        _, err = shell.run("dlq", "discard", DLQ, "--limit", "1", *option, code=2)
        assert f"say --confirm {DLQ}\n" in err
    assert "without --confirm nothing is done" in shell.run("dlq", "discard", "--help")[0]
    shell.run("dlq", "discard", DLQ, "--limit", "1", "--confirm", "another", code=2)
    shell.run("dlq", "discard", DLQ, "--limit", "1", "--confirm", DLQ)
    (archive,) = (shell.folder / ".redrive" / "archive").iterdir()
    _, err = shell.run("dlq", "import", DLQ, str(archive), "--yes")
    assert "1 message imported" in err

    patch = '[{"op": "add", "path": "/currency", "value": "EUR"}]'
    out, _ = shell.run("dlq", "transform", DLQ, "--patch", patch, "--id", "m-1", "--dry-run")
    assert '+  "currency": "EUR"' in out
    shell.run("dlq", "transform", DLQ, "--patch", patch, "--id", "m-1", "--yes")
    (shell.folder / "fixed.json").write_text('{"order": "two"}')
    shell.run("dlq", "edit", DLQ, "m-2", "--body", "fixed.json", "--set-header", "tenant=acme", "--yes")

    assert [json.loads(body) for body in shell.holds(SOURCE)] == [{"order": 1, "currency": "EUR"}, {"order": "two"}]
    assert shell.holds(DLQ) == orders(3, 0)
    actions = [entry["action"] for entry in shell.json("audit", "--limit", "50")]
    assert {"export", "discard", "import", "edit-and-re-drive"} <= set(actions)


def test_show_and_edit_refuse_an_id_that_stands_for_several_messages(own_folder: Shell) -> None:
    own_folder.prepare(2)
    own_folder.publish(dead_letter(1, copy=1))
    ids = [letter["id"] for letter in own_folder.json("dlq", "peek", DLQ)["letters"] if letter["message_id"] == "m-1"]

    for words in (("show", DLQ, "m-1"), ("edit", DLQ, "m-1", "--set-header", "tenant=x", "--yes")):
        _, err = own_folder.run("dlq", *words, code=2)
        assert f"m-1 stands for 2 messages in {DLQ}: {ids[0]}, {ids[1]}; give the id of one" in err
    own_folder.run("dlq", "show", DLQ, ids[1])


def test_a_compressed_body_is_found_and_shown_and_moved_as_it_is(own_folder: Shell) -> None:
    own_folder.prepare(2)
    plain = dead_letter(7)
    body = gzip.compress(plain.body)
    assert isinstance(plain.properties, Properties)
    raw = plain.properties.encode()
    own_folder.publish(plain._replace(body=body, properties=with_property(raw, "content_encoding", b"\x04gzip")))

    (found,) = own_folder.json("dlq", "peek", DLQ, "-q", "body.order:7")["letters"]
    out, err = own_folder.run("dlq", "show", DLQ, found["id"])
    assert '"order": 7' in out
    assert "it is not" not in err
    own_folder.run("dlq", "redrive", DLQ, "-q", "body.order:7", "--yes")
    assert own_folder.holds(SOURCE) == [body]


def test_an_operation_that_has_ended_cannot_be_steered(own_folder: Shell) -> None:
    own_folder.prepare(1)
    operation = own_folder.json("dlq", "redrive", DLQ, "--yes")["id"]

    for words in (("cancel",), ("pause",), ("resume",)):
        _, err = own_folder.run("ops", *words, operation, code=6)
        assert f"operation {operation} has ended: SUCCEEDED" in err


def test_an_import_from_stdin_needs_a_yes(own_folder: Shell) -> None:
    own_folder.prepare(2)
    lines, _ = own_folder.run("dlq", "export", DLQ, "--reveal")

    _, err = own_folder.run("dlq", "import", DLQ, "-", stdin=lines, code=2)
    assert "say --yes" in err
    assert own_folder.holds(DLQ) == orders(0, 1)

    own_folder.run("dlq", "import", DLQ, "-", "--yes", stdin=lines)
    assert own_folder.holds(DLQ) == orders(0, 1)


def test_a_watch_reports_the_backlog_and_not_as_new(own_folder: Shell) -> None:
    shell = own_folder
    shell.prepare(2)
    told = shell.folder / "told.json"

    process = shell.start("dlq", "watch", DLQ, "--command", f"tee {told}", "--every", "100ms")

    async def told_of() -> Any:
        async with asyncio.timeout(60):
            while True:
                try:
                    return json.loads(told.read_text())
                except (OSError, ValueError):
                    await asyncio.sleep(0.05)

    notice = asyncio.run(told_of())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert (notice["kind"], notice["queue"], notice["new"], notice["depth"]) == ("backlog", DLQ, 0, 2)
