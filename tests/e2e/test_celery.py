"""Celery workers, equipped, as processes: retries wait in the broker, what fails for good is parked, and all else is
Celery's, on the embedded broker and on RabbitMQ.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
from celery import Celery, Signature, chain, chord, group
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from redrive.client import Connection, Delivery, Properties
from redrive.integrations.celery import equip
from redrive.testing import Endpoint, RabbitMQ
from redrive.testing.broker_process import EmbeddedBroker
from redrive.testing.processes import ServerProcess, tail
from working import take

T = TypeVar("T")

WITHIN = 40
PROGRAM = Path(__file__).parent / "celery_program"
TOPOLOGY = PROGRAM / "topology.toml"
ROOT = Path(__file__).parent.parent.parent
RUNGS = ["tasks.retry.150ms", "tasks.retry.300ms", "tasks.retry.450ms", "tasks.retry.600ms"]


class Workplace:
    """Workers of the program, an application that sends to them, and what was seen."""

    def __init__(self, folder: Path, broker: str, topology: Path = TOPOLOGY) -> None:
        self.folder, self.broker, self.topology = folder, broker, topology
        self.workers: list[ServerProcess] = []
        ours = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        self.environment = ours | {
            "CELERY_FOLDER": str(folder),
            "CELERY_BROKER": broker,
            "CELERY_TOPOLOGY": str(topology),
            "PYTHONPATH": os.pathsep.join((str(PROGRAM), str(ROOT / "src"))),
            "REDRIVE_BROKER": broker,
            "REDRIVE_USER": "ada",
            "C_FORCE_ROOT": "1",
        }

    def start(self, name: str = "one", *options: str, **said: str) -> ServerProcess:
        log = self.folder / f"{name}.log"
        command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "--hostname", f"{name}@here"]
        worker = ServerProcess(
            [*command, "--loglevel", "INFO", *(options or ("--concurrency", "2"))],
            environment=self.environment | said,
            log=log,
        )
        self.workers.append(worker)
        worker.wait_until(lambda: f"{name}@here ready" in log.read_text(), timeout=WITHIN)
        return worker

    def log(self, name: str = "one") -> str:
        return tail(self.folder / f"{name}.log")

    def end(self) -> None:
        for worker in self.workers:
            if worker.running:
                worker.kill()

    @contextmanager
    def sending(self) -> Iterator[Celery]:
        """Somebody else's application, which knows the tasks by their names and the topology by its file."""
        backend = f"db+sqlite:///{self.folder}/results.db"
        self.app = Celery("test", broker=self.broker, backend=backend, set_as_current=False)
        equip(self.app, self.topology)
        yield self.app
        self.app.close()

    def task(self, name: str, *args: Any, **kwargs: Any) -> Signature:
        return self.app.signature(f"celery_app.{name}", args=args, kwargs=kwargs)

    def send(self, name: str, *args: Any, **kwargs: Any) -> AsyncResult[Any]:
        return self.task(name, *args, **kwargs).apply_async()

    def seen(self, identity: str) -> list[dict[str, Any]]:
        lines = (self.folder / "seen").read_text().splitlines() if (self.folder / "seen").exists() else []
        return [told for line in lines if (told := json.loads(line))["id"] == identity]

    def until(self, condition: Callable[[], Any], within: float = WITHIN) -> Any:
        deadline = time.monotonic() + within
        while not (found := condition()):
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)
        return found

    def use(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        async def connected() -> T:
            async with Connection(self.broker, name="test") as connection:
                return await work(connection)

        return asyncio.run(connected())

    def depth(self, queue: str) -> int:
        async def ask(connection: Connection) -> int:
            return (await connection.queue_info(queue)).messages

        return self.use(ask)

    def dead(self, queue: str = "tasks_dead") -> tuple[Delivery, dict[str, Any]]:
        """The next dead letter, taken; with its headers."""
        found = self.use(lambda connection: take(connection, queue, within=WITHIN))
        return found, dict(found.properties.headers or {})

    def redrive(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "redrive", *words]
        told = subprocess.run(
            command, env=self.environment, cwd=self.folder, text=True, capture_output=True, timeout=120, check=False
        )
        assert told.returncode == 0, told.stderr
        return told


@pytest.fixture(scope="module", params=["embedded", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "embedded":
        with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
            yield broker.url
    else:
        node: Endpoint = request.getfixturevalue("rabbitmq")
        vhost = f"celery-{secrets.token_hex(4)}"
        node.add_vhost(vhost)
        yield node.url_for(vhost)
        node.delete_vhost(vhost)


@pytest.fixture(scope="module")
def place(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """With one worker of two processes, which all tests share."""
    workplace = Workplace(tmp_path_factory.mktemp("celery"), broker)
    try:
        workplace.start()
        with workplace.sending():
            yield workplace
    finally:
        workplace.end()


# Retries ------------------------------------------------------------------------------------------


def test_each_retry_waits_in_the_queue_of_its_attempt_and_not_in_a_worker(place: Workplace) -> None:
    task = place.send("again", 4)

    assert task.get(timeout=WITHIN) == 4
    seen = place.seen(task.id)
    assert [(one["retries"], one["from"], one["attempts"]) for one in seen] == [
        (0, None, None),
        *((number, queue, number) for number, queue in enumerate(RUNGS, 1)),
    ]
    assert {one["eta"] for one in seen} == {None}  # nothing for a worker to hold
    assert seen[0]["exchange"] == "work"
    waits = [after["at"] - before["at"] for before, after in pairwise(seen)]
    assert all(wait >= rung for wait, rung in zip(waits, (0.15, 0.3, 0.45, 0.6), strict=True))


def test_a_wait_that_is_asked_for_is_the_nearest_that_is_not_sooner(place: Workplace) -> None:
    task = place.send("again", 1, countdown=0.31)

    assert task.get(timeout=WITHIN) == 1
    assert [one["from"] for one in place.seen(task.id)] == [None, "tasks.retry.450ms"]


def test_a_wait_longer_than_the_longest_queue_goes_round_in_it(place: Workplace) -> None:
    task = place.send("again", 1, countdown=1.3)

    assert task.get(timeout=WITHIN) == 1
    first, second = place.seen(task.id)  # run twice, and not at each round
    assert second["at"] - first["at"] >= 1.3
    assert (second["retries"], second["attempts"]) == (1, 1)


def test_max_retries_ends_it_and_autoretry_and_backoff_go_by_the_ladder(place: Workplace) -> None:
    task = place.send("stubborn")

    with pytest.raises(ConnectionError, match="nobody is there"):
        task.get(timeout=WITHIN)
    _, headers = place.dead()

    # A backoff of at most 1, 2 s, with jitter: 150ms to 600ms, and never sooner.
    seen = place.seen(task.id)
    assert [one["retries"] for one in seen] == [0, 1, 2]
    assert all(one["from"] in RUNGS for one in seen[1:])
    assert (headers["id"], headers["retries"]) == (task.id, 2)
    assert (headers["x-redrive-reason"], headers["x-redrive-attempts"]) == ("exhausted", 3)
    assert (headers["x-redrive-error"], headers["x-redrive-message"]) == ("ConnectionError", "nobody is there")
    assert "in stubborn" in headers["x-redrive-stack"]
    assert (headers["x-redrive-exchange"], headers["x-redrive-routing-key"]) == ("work", "task")
    assert (headers["x-redrive-queue"], headers["x-redrive-app"], headers["x-redrive-host"]) == (
        *("tasks", "shop", "one@here"),
    )
    history = headers["x-redrive-history"]
    assert [one["number"] for one in history] == [1, 2, 3]
    assert {one["fingerprint"] for one in history} == {headers["x-redrive-fingerprint"]}  # one kind of failure


def test_a_task_that_says_no_number_has_as_many_retries_as_the_ladder_has_rungs(place: Workplace) -> None:
    task = place.send("again", 99)

    with pytest.raises(ConnectionError):
        task.get(timeout=WITHIN)
    assert [one["retries"] for one in place.seen(task.id)] == [0, 1, 2, 3, 4]
    assert place.dead()[1]["x-redrive-attempts"] == 5


# The end ------------------------------------------------------------------------------------------


def test_a_failure_that_is_not_retried_is_parked_and_the_caller_hears_of_it(place: Workplace) -> None:
    task = place.task("broken", "film").apply_async(link_error=place.task("told_of_a_failure"))

    with pytest.raises(ValueError, match="film is broken"):
        task.get(timeout=WITHIN)
    letter, headers = place.dead()

    assert task.state == "FAILURE"
    place.until((place.folder / "errback").exists)
    assert (place.folder / "errback").read_text() == f"{task.id} film is broken"
    assert (letter.exchange, letter.routing_key) == ("dead", "task.dead")
    assert (headers["x-redrive-reason"], headers["x-redrive-attempts"]) == ("permanent", 1)
    assert (letter.properties.correlation_id, letter.properties.delivery_mode) == (task.id, 2)
    assert json.loads(letter.body)[:2] == [["film"], {}]


def test_reject_and_a_time_limit_are_ends_and_ignore_is_none(place: Workplace) -> None:
    place.send("ignored")
    rejected = place.send("refused")
    first = place.dead()[1]
    late = place.send("endless")
    second = place.dead()[1]

    assert (first["id"], first["x-redrive-reason"]) == (rejected.id, "requested")
    assert "no hope" in first["x-redrive-message"]
    assert (second["id"], second["x-redrive-error"]) == (late.id, "billiard.exceptions.TimeLimitExceeded")
    assert place.depth("tasks_dead") == 0


def test_what_is_no_task_is_parked_whatever_is_wrong_with_it(place: Workplace) -> None:
    async def publish(connection: Connection) -> None:
        json_task = {"task": "celery_app.add", "id": "t-1", "lang": "py", "retries": 0}
        of = "application/json"
        unknown = Properties(content_type=of, content_encoding="utf-8", headers={**json_task, "task": "no.such.task"})
        garbled = Properties(content_type=of, content_encoding="utf-8", headers=json_task)
        await connection.publish("work", "task", b"[[], {}, {}]", unknown)
        await connection.publish("work", "task", b"[[1, 2", garbled)
        await connection.publish("work", "task", b"\x80garbled", Properties(content_type=of, content_encoding="utf-8"))
        await connection.publish("work", "task", b"hello", Properties(content_type="text/plain"))

    place.use(publish)
    found = [place.dead() for _ in range(4)]

    assert {headers["x-redrive-reason"] for _, headers in found} == {"malformed"}
    assert {letter.body for letter, _ in found} == {b"[[], {}, {}]", b"[[1, 2", b"\x80garbled", b"hello"}
    errors = {letter.body: headers["x-redrive-error"] for letter, headers in found}
    assert errors[b"[[], {}, {}]"] == "celery.exceptions.NotRegistered"


def test_a_retry_that_no_queue_takes_is_not_lost(place: Workplace) -> None:
    place.use(lambda connection: connection.delete_queue("tasks.retry.150ms"))
    try:
        task = place.send("again", 1)
        _, headers = place.dead()
    finally:
        place.redrive("topology", "apply", str(TOPOLOGY))

    assert (headers["id"], headers["x-redrive-reason"]) == (task.id, "permanent")
    assert headers["x-redrive-error"] == "redrive.errors.Unroutable"
    assert "ConnectionError: not yet" in headers["x-redrive-stack"]  # what it failed with in the first place
    assert task.state == "FAILURE"


def test_a_pool_without_processes_and_parking_by_reject(place: Workplace) -> None:
    place.app.control.cancel_consumer("tasks", reply=True, destination=["one@here"], timeout=10)
    alone = place.start("alone", "--pool", "solo", CELERY_PARK="reject")
    try:
        assert place.send("again", 1).get(timeout=WITHIN) == 1
        place.send("again", 99)
        letter, headers = place.dead()
    finally:
        alone.stop(timeout=10)
        place.app.control.add_consumer("tasks", reply=True, destination=["one@here"], timeout=10)

    (death, *_) = headers["x-death"]
    assert (death["queue"], death["reason"]) == ("tasks", "rejected")
    assert (letter.exchange, letter.routing_key) == ("dead", "task.dead")
    assert [one["number"] for one in headers["x-redrive-history"]] == [1, 2, 3, 4]  # up to the attempt before


# Crashes ------------------------------------------------------------------------------------------


def test_a_task_that_kills_its_process_is_parked_after_as_many_as_are_allowed(place: Workplace) -> None:
    task = place.send("deadly")

    _, headers = place.dead()

    seen = place.seen(task.id)
    assert headers["id"] == task.id
    assert len({one["pid"] for one in seen}) == 3
    assert {one["retries"] for one in seen} == {0}
    assert (headers["x-redrive-reason"], headers["x-redrive-crashes"]) == ("crashed", 2)
    assert "SIGKILL" in headers["x-redrive-message"]
    with pytest.raises(Exception, match="it ended its process 3 times"):
        task.get(timeout=WITHIN)


def test_on_a_quorum_queue_the_broker_counts_the_crashes(broker: str, tmp_path: Path) -> None:
    place = Workplace(tmp_path, broker, PROGRAM / "quorum.toml")
    try:
        place.start("quorum")
        with place.sending():
            assert place.send("again", 1).get(timeout=WITHIN) == 1
            task = place.send("deadly")
            _, headers = place.dead("quorum.dlq")
    finally:
        place.end()

    assert (headers["id"], headers["x-redrive-reason"]) == (task.id, "crashed")
    assert len(place.seen(task.id)) == 3


def test_a_task_whose_worker_is_killed_comes_back_to_another_and_is_counted(place: Workplace) -> None:
    doomed = place.start("doomed", "--concurrency", "1", "--queues", "tasks")
    place.app.control.cancel_consumer("tasks", reply=True, destination=["one@here"], timeout=10)
    task = place.send("held", "open")
    place.until(lambda: place.seen(task.id))

    doomed.kill()
    for child in place.seen(task.id):
        os.kill(child["pid"], signal.SIGKILL)
    place.app.control.add_consumer("tasks", reply=True, destination=["one@here"], timeout=10)
    place.until(lambda: len(place.seen(task.id)) == 2)
    (place.folder / "open").touch()

    assert task.get(timeout=WITHIN) == "open"
    assert [one["retries"] for one in place.seen(task.id)] == [0, 0]


# Celery's own -------------------------------------------------------------------------------------


def test_chains_groups_and_chords_go_through_retries(place: Workplace) -> None:
    steps = chain(place.task("again", 1), place.task("add", 10))()
    many = group([place.task("again", number) for number in (0, 1, 2)], app=place.app)()
    both = chord([place.task("again", 1), place.task("add", 2, 3)], place.task("total"), app=place.app)()

    assert steps.get(timeout=WITHIN) == 11
    assert steps.parent.get(timeout=WITHIN) == 1
    assert many.get(timeout=WITHIN) == [0, 1, 2]
    assert both.get(timeout=WITHIN) == 6


def test_options_of_apply_async_do_what_they_do(place: Workplace) -> None:
    own = f"mine-{secrets.token_hex(4)}"
    late = place.task("add", 1, 2).apply_async(countdown=0.3)
    named = place.task("again", 1).apply_async(task_id=own, priority=5, queue="tasks", expires=60)
    packed = place.task("again", 1).apply_async(compression="gzip", serializer="json", headers={"tenant": "acme"})
    over = place.task("add", 1, 2).apply_async(expires=-1)

    assert late.get(timeout=WITHIN) == 3
    assert (named.get(timeout=WITHIN), packed.get(timeout=WITHIN)) == (1, 1)
    assert {one["priority"] for one in place.seen(named.id)} == {5}
    # What has expired is not run. In the queue the broker finds that out, and keeps it; in a worker Celery drops it.
    place.until(lambda: over.state == "REVOKED" or place.depth("tasks_dead"))
    assert place.seen(over.id) == []
    if place.depth("tasks_dead"):
        place.dead()


def test_workers_are_asked_and_told_by_remote_control(place: Workplace) -> None:
    inspect = place.app.control.inspect(["one@here"], timeout=10)
    assert inspect.ping() == {"one@here": {"ok": "pong"}}
    (queue,) = inspect.active_queues()["one@here"]
    assert (queue["name"], queue["exchange"]["name"], queue["routing_key"]) == ("tasks", "work", "task")

    waiting = place.task("add", 1, 2).apply_async(countdown=3)
    place.until(lambda: inspect.scheduled()["one@here"])
    place.app.control.revoke(waiting.id, reply=True, timeout=10, destination=["one@here"])
    with pytest.raises(TaskRevokedError):
        waiting.get(timeout=WITHIN)

    running = place.send("held", "never")
    place.until(lambda: place.seen(running.id))
    place.app.control.terminate(running.id, reply=True, timeout=10, destination=["one@here"])
    with pytest.raises(TaskRevokedError):
        running.get(timeout=WITHIN)
    assert place.depth("tasks_dead") == 0  # that was wanted


# Operators ----------------------------------------------------------------------------------------


def test_dead_tasks_are_listed_explained_and_driven_again_with_all_their_retries(place: Workplace) -> None:
    task = place.send("mended", "bridge")
    with pytest.raises(FileNotFoundError):
        task.get(timeout=WITHIN)
    place.until(lambda: place.depth("tasks_dead") == 1)

    listed = json.loads(place.redrive("dlq", "ls", "--app", str(TOPOLOGY), "--json").stdout)
    (queue,) = [queue for queue in listed if queue["name"] == "tasks_dead"]  # other tests have queues of their own
    assert (queue["depth"], queue["source"]) == (1, "tasks")
    (kind,) = json.loads(place.redrive("dlq", "groups", "tasks_dead", "--json").stdout)["groups"]
    assert (kind["count"], kind["error"]) == (1, "FileNotFoundError")
    (letter,) = json.loads(place.redrive("dlq", "peek", "tasks_dead", "--json").stdout)["letters"]
    assert (letter["type"], letter["correlation_id"]) == ("celery_app.mended", task.id)
    shown = place.redrive("dlq", "show", "tasks_dead", letter["id"]).stdout
    for words in ("celery_app.mended", task.id, '"bridge"', "FileNotFoundError", "in mended"):
        assert words in shown

    place.redrive("dlq", "redrive", "tasks_dead", "--yes")  # nothing is mended yet: it is tried five times more
    place.until(lambda: len(place.seen(task.id)) == 10)
    place.until(lambda: place.depth("tasks_dead") == 1)
    assert [one["retries"] for one in place.seen(task.id)] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]

    (place.folder / "bridge").touch()
    place.redrive("dlq", "redrive", "tasks_dead", "--yes", "--reason", "INC-42")
    place.until(lambda: place.app.AsyncResult(task.id).state == "SUCCESS")
    assert place.app.AsyncResult(task.id).result == "bridge"
    assert place.depth("tasks_dead") == 0


# A broker that dies -------------------------------------------------------------------------------


@pytest.fixture(params=["embedded", pytest.param("rabbitmq", marks=[pytest.mark.rabbitmq, pytest.mark.slow])])
def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedBroker | RabbitMQ]:
    if request.param == "rabbitmq":
        yield request.getfixturevalue("own_rabbitmq")
    else:
        with EmbeddedBroker(tmp_path / "broker", data=tmp_path / "data") as broker:
            yield broker


def test_a_broker_that_dies_while_a_task_waits_brings_it_back_all_the_same(
    mortal: EmbeddedBroker | RabbitMQ, tmp_path: Path
) -> None:
    place = Workplace(tmp_path, mortal.url)
    try:
        place.start()
        with place.sending():
            task = place.send("again", 1, countdown=3)
            place.until(lambda: sum(map(place.depth, RUNGS)) == 1)

            mortal.kill()
            mortal.start()

            assert task.get(timeout=WITHIN) == 1
            # A broker that dies between a confirm and the ack brings both the copy and the original: twice, never not.
            assert {one["retries"] for one in place.seen(task.id)} == {0, 1}
    finally:
        place.end()
