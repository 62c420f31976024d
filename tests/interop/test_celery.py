"""Celery, unmodified, against the embedded broker: a worker process, its tasks, and remote control."""

import json
import os
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import kombu
import pika
import pytest
from amqp.exceptions import PreconditionFailed
from celery import Celery
from celery.exceptions import TaskRevokedError

from interop.embedded import run
from redrive.testing.processes import ServerProcess

WITHIN = 30
HERE = Path(__file__).parent


@dataclass
class Workplace:
    """A Celery worker, and an application to send to it."""

    name: str
    url: str
    app: Celery
    environment: dict[str, str]
    log: Path

    def celery(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "celery", "-A", "celery_app", *arguments]
        done = run(*command, within=WITHIN, cwd=HERE, environment=self.environment)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def workplace(broker_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    directory = tmp_path_factory.mktemp("celery")
    name = f"celery-{secrets.token_hex(4)}"
    environment = {
        "PATH": os.environ["PATH"],
        "INTEROP_BROKER": broker_url,
        "INTEROP_NAME": name,
        "PYTHONPATH": str(HERE),
        "C_FORCE_ROOT": "1",
    }
    with pika.BlockingConnection(pika.URLParameters(broker_url)) as connection:
        connection.channel().queue_declare(f"{name}.dead", durable=True)
    command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker"]
    options = ["--pool", "solo", "--hostname", f"{name}@here", "--loglevel", "INFO", "--task-events"]
    log = directory / "worker.log"
    worker = ServerProcess([*command, *options], environment=environment, log=log)
    try:
        worker.wait_until(lambda: f"{name}@here ready" in log.read_text(), timeout=WITHIN)
        with pytest.MonkeyPatch.context() as patch:
            for variable in ("INTEROP_BROKER", "INTEROP_NAME"):
                patch.setenv(variable, environment[variable])
            patch.syspath_prepend(HERE)
            patch.delitem(sys.modules, "celery_app", raising=False)
            from celery_app import app

            yield Workplace(name, broker_url, app, environment, log)
            app.close()
    finally:
        worker.stop(timeout=10)


def test_a_task_runs_and_its_result_comes_back(workplace: Workplace) -> None:
    assert workplace.app.send_task("add", (2, 3)).get(timeout=WITHIN) == 5


def test_a_task_for_later_runs(workplace: Workplace) -> None:
    assert workplace.app.send_task("add", (1, 1), countdown=0.1).get(timeout=WITHIN) == 2


def test_a_task_that_fails_is_retried_until_it_succeeds(workplace: Workplace) -> None:
    assert workplace.app.send_task("attempts").get(timeout=WITHIN) == 2


def test_a_task_that_gives_up_ends_in_the_dead_letter_queue(workplace: Workplace) -> None:
    task = workplace.app.send_task("give_up")

    with pika.BlockingConnection(pika.URLParameters(workplace.url)) as connection:
        dead = connection.channel().consume(f"{workplace.name}.dead", auto_ack=True, inactivity_timeout=WITHIN)
        _, properties, _ = next(dead)

    assert (properties.headers["id"], properties.headers["retries"]) == (task.id, 1)
    [death] = properties.headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == (workplace.name, "rejected", 1)


def test_workers_answer_inspect_ping(workplace: Workplace) -> None:
    answer = json.loads(
        workplace.celery("inspect", "ping", "--json", "--timeout", "10", "-d", f"{workplace.name}@here")
    )

    assert answer == {f"{workplace.name}@here": {"ok": "pong"}}


def test_workers_are_asked_and_told_by_remote_control(workplace: Workplace) -> None:
    control, worker = workplace.app.control, f"{workplace.name}@here"
    inspect = control.inspect([worker], timeout=10)

    assert {"add", "attempts", "give_up"} <= set(inspect.registered()[worker])
    assert [queue["name"] for queue in inspect.active_queues()[worker]] == [workplace.name]
    assert control.add_consumer(f"{workplace.name}.more", reply=True, destination=[worker], timeout=10) == [
        {worker: {"ok": f"add consumer {workplace.name}.more"}}
    ]
    assert workplace.app.send_task("add", (4, 4), queue=f"{workplace.name}.more").get(timeout=WITHIN) == 8


def test_a_revoked_task_does_not_run(workplace: Workplace) -> None:
    task = workplace.app.send_task("add", (1, 2), countdown=0.5)

    workplace.app.control.revoke(task.id, reply=True, timeout=10, destination=[f"{workplace.name}@here"])

    with pytest.raises(TaskRevokedError):
        task.get(timeout=WITHIN)


def test_kombu_hears_of_a_queue_that_exists_with_other_arguments(workplace: Workplace) -> None:
    with (
        workplace.app.connection_for_write() as connection,
        pytest.raises(PreconditionFailed, match="inequivalent arg 'x-dead-letter-exchange'"),
    ):
        connection.default_channel.queue_declare(workplace.name, durable=True, auto_delete=False)


def test_kombu_hears_that_a_queue_goes(workplace: Workplace) -> None:
    with workplace.app.connection_for_read() as connection, connection.channel() as other:
        queue = kombu.Queue(f"{workplace.name}.short", channel=connection.default_channel)
        queue.declare()
        told: list[str] = []
        connection.default_channel.basic_consume(queue.name, on_cancel=told.append, consumer_tag="c")

        other.queue_delete(queue.name)  # which reads the news of the other channel, too, if they are there
        while not told:
            connection.drain_events(timeout=WITHIN)

        assert told == ["c"]


def test_events_of_the_worker_can_be_followed(workplace: Workplace) -> None:
    """A worker sends them by the handful: those of the task before this one may be among them."""
    sent = secrets.token_hex(16)
    seen: list[str] = []
    with workplace.app.connection_for_read() as connection:

        def see(event: dict[str, str]) -> None:
            seen.append(event["uuid"])
            receiver.should_stop = sent in seen

        receiver = workplace.app.events.Receiver(connection, handlers={"task-succeeded": see})

        def ready(*_: object, **__: object) -> None:
            workplace.app.send_task("add", (1, 1), task_id=sent)

        receiver.on_consume_ready = ready  # type: ignore[method-assign]
        receiver.capture(limit=None, timeout=WITHIN, wakeup=False)

    assert seen.count(sent) == 1
