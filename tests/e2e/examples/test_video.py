"""The videos, sentence by sentence as their document (seed 001) says."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
import yaml

from e2e.examples.checklist import Checklist
from e2e.examples.stacks import ROOT, Program, Stack
from examples.video import clips
from redrive.client import Connection, Delivery, Properties
from redrive.testing import RabbitMQ
from redrive.topology import Server, expand
from servers import rabbitmq_root
from topology_systems import system
from working import take

EXAMPLE = ROOT / "examples" / "video"
DEFINITIONS = EXAMPLE / "rabbitmq" / "definitions.json"
WAITS = ("300ms", "600ms", "900ms", "1200ms")
RUNGS = [f"video_retry_{wait}" for wait in WAITS]
WITHOUT_BACK_KEY = RUNGS[1]  # video_retry_60s in the document
TRANSCODE = "examples.video.worker.tasks.transcode"

says = Checklist(
    {
        # Purpose
        "broker": "RabbitMQ is the broker of Celery's tasks.",
        "why": "RabbitMQ was chosen for durable queues, confirms, native dead-lettering and operator tools. All of "
        "them are used.",
        # Provision
        "provision": "Queues, exchanges and bindings are made when RabbitMQ starts, by rabbitmq/definitions.json.",
        "mounted": "That file is mounted into the container.",
        "before": "They exist before the application starts.",
        # Exchanges
        "video": "video is a direct exchange, to which tasks are published.",
        "video-dlx": "video-dlx is a direct exchange, to which dead letters go.",
        "video-retry": "video-retry is a direct exchange for the retry queues with a TTL.",
        # Queues
        "tasks": "video_tasks is durable, with x-dead-letter-exchange video-dlx and x-dead-letter-routing-key "
        "video.dlq.",
        "rejected": "A message that is rejected, or sent to the dead-letter exchange, ends in video_dlq.",
        "60s": "video_retry_60s is durable, with x-message-ttl 60000 and x-dead-letter-exchange video, and no other "
        "dead-letter argument.",
        "delay": "To publish into it delays the delivery by about its TTL: also by the queue's name, for which "
        "video_tasks has a binding to video that the document does not mention.",
        "dlq": "video_dlq is durable, and is where messages end that could not be processed.",
        # Normal flow
        "normal 1": "A producer (API or Celery) publishes a message to the exchange video with the routing key video.",
        "normal 2": "The message arrives in video_tasks.",
        "normal 3": "The worker consumes from video_tasks, with late acks.",
        # Retry flow
        "option 1": "A task can be retried by Celery's task.retry, by logic in the application, which need not use the "
        "TTL queues. Deliberate difference: here it uses them, so that no worker holds the waiting task.",
        "option 2.1": "The worker publishes the message into video_retry_60s, or another retry queue.",
        "option 2.2": "RabbitMQ keeps the message for the TTL.",
        "option 2.3": "When the TTL is over, the broker publishes it to the exchange video.",
        "option 2.4": "The message returns to video_tasks and is processed again.",
        # Dead-letter flow
        "dead 1": "A message that exceeds the limit of retries, or is rejected without requeue, is sent to video-dlx.",
        "dead 2": "By the binding it ends in video_dlq.",
        "dead 3": "It can be inspected there.",
        # Advantages
        "durable": "The queues are durable: they survive restarts of the broker.",
        "native": "RabbitMQ dead-letters by itself, with x-dead-letter-exchange.",
        "simple backoff": "The tasks contain no code for backoff: the TTL queues do it.",
        "separation": "The broker handles redelivery and expiry, the application only executes the task.",
        # Celery
        "late": "worker/celery_app.py has task_acks_late = True.",
        "prefetch": "worker/celery_app.py has worker_prefetch_multiplier = 1.",
        "task_queues": "task_queues has the names and arguments of the definitions.",
        # Tools
        "ui": "The management UI listens on port 15672 for the user rabbit with the password rabbitpass.",
        "ui shows": "It shows exchanges, queues, bindings and messages.",
        "ctl": "rabbitmqctl list_queues name messages consumers lists the queues.",
        "inspect": "Dead letters are inspected in the UI or with rabbitmqadmin. rabbitmqctl counts them, it cannot "
        "show them.",
        # Re-queue
        "requeue 1": "Messages of video_dlq can be published again with the management UI, to the exchange video or "
        "straight to video_tasks.",
        "requeue 2": "A program (kombu, pika) can read video_dlq, parse the JSON payload and publish to the exchange "
        "video with the wanted headers.",
        "requeue 3": "rabbitmqadmin can publish them again, in pipelines.",
        # Backoff
        "backoff 1": "There are video_retry_30s, video_retry_2m and video_retry_10m with their TTLs.",
        "backoff 2": "A task is published into the queue that fits the number of its attempt.",
        "backoff 3": "The pattern is the same for all of them: TTL, dead-letter exchange, back to video_tasks.",
        # Commands
        "compose": "compose.yaml has a worker to build and start: docker compose build worker, docker compose up -d.",
        "loaded": "The definitions that were loaded are in /etc/rabbitmq/definitions.json.",
        # Notes
        "development": "The credentials in compose.yaml are for development.",
        "secrets": "In production, secrets and access control replace them.",
        "by the app": "The application can make the queues itself, in worker/celery_app.py.",
        "cluster": "In production, a cluster with high availability is to be considered.",
    },
    untested={
        "secrets": "Advice to the operator; every setting of the example is an environment variable.",
        "cluster": "Advice to the operator; quorum queues on clusters are the subject of docs/reliability.md.",
    },
)


# What is made -------------------------------------------------------------------------------------


in_the_definitions = says(
    "video", "video-dlx", "video-retry", "tasks", "60s", "dlq", "native", "backoff 1", "backoff 3"
)


@in_the_definitions
def test_a_broker_holds_the_definitions(stack: Stack) -> None:
    stack.hold(DEFINITIONS)


@in_the_definitions
def test_the_definitions_are_the_topology_of_the_text() -> None:
    definitions = json.loads(DEFINITIONS.read_text())
    queues = {one["name"]: one for one in definitions["queues"]}

    assert {one["name"]: (one["type"], one["durable"]) for one in definitions["exchanges"]} == dict.fromkeys(
        ("video", "video-dlx", "video-retry"), ("direct", True)
    )
    assert {name: one["durable"] for name, one in queues.items()} == dict.fromkeys(
        ("video_tasks", "video_dlq", "video_retry_30s", "video_retry_60s", "video_retry_2m", "video_retry_10m"), True
    )
    arguments = {name: {**one["arguments"]} for name, one in queues.items()}
    assert {one.pop("x-queue-type") for one in arguments.values()} == {"classic"}
    assert arguments["video_tasks"] == {
        "x-dead-letter-exchange": "video-dlx",
        "x-dead-letter-routing-key": "video.dlq",
    }
    assert arguments["video_retry_60s"] == {"x-message-ttl": 60_000, "x-dead-letter-exchange": "video"}
    assert arguments["video_dlq"] == {}
    ttls = {name: one["x-message-ttl"] for name, one in arguments.items() if "retry" in name}
    assert ttls == {
        "video_retry_30s": 30_000, "video_retry_60s": 60_000, "video_retry_2m": 120_000, "video_retry_10m": 600_000,
    }  # fmt: skip
    assert {one["x-dead-letter-exchange"] for name, one in arguments.items() if "retry" in name} == {"video"}
    assert {(one["source"], one["routing_key"], one["destination"]) for one in definitions["bindings"]} == {
        ("video", "video", "video_tasks"),
        ("video", "video_retry_60s", "video_tasks"),  # the key of what is published to that queue by its name
        ("video-dlx", "video.dlq", "video_dlq"),
        ("video-retry", "video", "video_retry_60s"),
        *(("video-retry", f"video.retry.{wait}", f"video_retry_{wait}") for wait in ("30s", "2m", "10m")),
    }


def test_the_application_the_file_and_the_definitions_are_one_topology(tmp_path: Path) -> None:
    from examples.video.topology import topology

    server = Server(version=(3, 10))
    assert expand(topology, server) == expand(system("video"), server)
    exported = Stack(tmp_path).run("redrive", "topology", "export", "examples.video.topology:topology", "--for", "3.10")
    definitions = json.loads(DEFINITIONS.read_text())
    (user,) = definitions.pop("users")
    del definitions["permissions"]  # users are no part of a topology, and a broker that loads definitions has no other
    assert json.loads(exported.stdout) == definitions
    salt, hashed = (raw := base64.b64decode(user["password_hash"]))[:4], raw[4:]
    assert (user["name"], hashed) == ("rabbit", hashlib.sha256(salt + b"rabbitpass").digest())


@says("why", "late", "prefetch", "task_queues", "by the app")
def test_celery_has_the_settings_and_queues_of_the_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REDRIVE_DATA", str(tmp_path))
    from examples.video.worker.celery_app import app

    assert (app.conf.task_acks_late, app.conf.worker_prefetch_multiplier) == (True, 1)
    assert (app.conf.task_reject_on_worker_lost, app.conf.broker_transport_options["confirm_publish"]) == (True, True)
    (queue,) = app.conf.task_queues
    (defined,) = [one for one in json.loads(DEFINITIONS.read_text())["queues"] if one["name"] == "video_tasks"]
    assert (queue.name, queue.durable, queue.queue_arguments) == ("video_tasks", True, defined["arguments"])
    assert (queue.exchange.name, queue.exchange.type, queue.routing_key) == ("video", "direct", "video")
    assert app.steps["consumer"]  # that which makes the rest


@says("mounted", "compose", "loaded", "development", "ui")
def test_compose_has_what_the_text_asks_for() -> None:
    text = (EXAMPLE / "compose.yaml").read_text()
    services = yaml.safe_load(text)["services"]

    assert "for development" in text
    rabbitmq, worker = services["rabbitmq"], services["worker"]
    assert "./rabbitmq/definitions.json:/etc/rabbitmq/definitions.json:ro" in rabbitmq["volumes"]
    assert "load_definitions = /etc/rabbitmq/definitions.json" in (EXAMPLE / "rabbitmq" / "rabbitmq.conf").read_text()
    assert any(port.endswith("15672:15672") for port in rabbitmq["ports"])
    assert "management" in rabbitmq["image"]
    assert "rabbit:rabbitpass@rabbitmq" in worker["environment"]["REDRIVE_BROKER"]
    assert (EXAMPLE / worker["build"]["context"] / worker["build"]["dockerfile"]).resolve().is_file()


# RabbitMQ as compose starts it --------------------------------------------------------------------


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """With the example's definitions and configuration, and a guest, by whom the fixture sees that it is up."""
    folder = tmp_path_factory.mktemp("video")  # the node's own: one that runs from another root sees no other
    definitions = json.loads(DEFINITIONS.read_text())
    guest = {"name": "guest", "tags": ["administrator"], "hashing_algorithm": "rabbit_password_hashing_sha256"}
    hashed = base64.b64encode(b"salt" + hashlib.sha256(b"salt" + b"guest").digest()).decode()
    definitions["users"].append({**guest, "password_hash": hashed})
    (folder / "definitions.json").write_text(json.dumps(definitions))
    config = (EXAMPLE / "rabbitmq" / "rabbitmq.conf").read_text().replace("/etc/rabbitmq", str(folder))
    with RabbitMQ(folder, name="video", root=rabbitmq_root(), management=True, config=config) as node:
        yield node


@says("why", "provision", "before", "ui", "ui shows", "ctl", "inspect", "rejected", "native", "durable")
@pytest.mark.rabbitmq
def test_rabbitmq_makes_it_all_when_it_starts_and_operators_can_use_its_own_tools(node: RabbitMQ) -> None:
    url = f"amqp://rabbit:rabbitpass@127.0.0.1:{node.port}/"
    auth = ("rabbit", "rabbitpass")
    with httpx.Client(base_url=f"http://127.0.0.1:{node.management_port}/api", auth=auth, timeout=30) as ui:
        made = {one["name"] for one in ui.get("/queues/%2F").json()}
        assert made == {one["name"] for one in json.loads(DEFINITIONS.read_text())["queues"]}
        assert ui.get("/exchanges/%2F/video-retry").json()["type"] == "direct"
        assert len(ui.get("/queues/%2F/video_tasks/bindings").json()) == 3  # and the default exchange's

        asyncio.run(reject_one(url))
        listed = node.ctl("list_queues", "--quiet", "--no-table-headers", "name", "messages", "consumers")
        assert "video_dlq\t1\t0" in listed.splitlines()

        node.restart()

        look = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "base64"}
        (found,) = ui.post("/queues/%2F/video_dlq/get", json=look).json()
        death = found["properties"]["headers"]["x-death"][0]
        assert (death["queue"], death["reason"], found["exchange"]) == ("video_tasks", "rejected", "video-dlx")
        assert base64.b64decode(found["payload"]) == b'[["v"], {}, {}]'


@dataclass(frozen=True)
class Operator:
    """What an operator of the document does with RabbitMQ's own tools, and nothing of ours."""

    node: RabbitMQ

    @property
    def ui(self) -> httpx.Client:
        """The HTTP API: what the management UI calls when the operator gets, publishes and purges messages."""
        address = f"http://127.0.0.1:{self.node.management_port}"
        return httpx.Client(base_url=address, auth=("rabbit", "rabbitpass"), timeout=30)

    def requeue_by_ui(self, exchange: str, routing_key: str) -> None:
        with self.ui as ui:
            take = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
            (dead,) = ui.post("/api/queues/%2F/video_dlq/get", json=take).json()
            again = {name: dead[name] for name in ("payload", "payload_encoding", "properties")}
            told = ui.post(f"/api/exchanges/%2F/{exchange}/publish", json={**again, "routing_key": routing_key})
            assert told.json() == {"routed": True}

    def requeue_by_rabbitmqadmin(self, folder: Path) -> None:
        with self.ui as ui:
            script = ui.get("/cli/rabbitmqadmin")
        if script.status_code == httpx.codes.NOT_FOUND:
            pytest.skip("this RabbitMQ does not serve rabbitmqadmin")
        (folder / "rabbitmqadmin").write_text(script.text)
        (dead,) = json.loads(self.rabbitmqadmin(folder, "get", "queue=video_dlq", "ackmode=ack_requeue_false"))
        again = (f"payload={dead['payload']}", f"properties={json.dumps(dead['properties'])}")
        assert "NOT routed" not in self.rabbitmqadmin(folder, "publish", "exchange=video", "routing_key=video", *again)

    def rabbitmqadmin(self, folder: Path, *command: str) -> str:
        login = ("-P", str(self.node.management_port), "-u", "rabbit", "-p", "rabbitpass", "-f", "raw_json")
        return subprocess.run(
            [sys.executable, str(folder / "rabbitmqadmin"), "-H", "127.0.0.1", *login, *command],
            text=True,
            capture_output=True,
            timeout=60,
            check=True,
        ).stdout


WAYS: dict[str, Callable[[Operator, Path], None]] = {
    "the UI, to the exchange": lambda operator, _: operator.requeue_by_ui("video", "video"),
    "the UI, to the queue": lambda operator, _: operator.requeue_by_ui("amq.default", "video_tasks"),
    "rabbitmqadmin": Operator.requeue_by_rabbitmqadmin,
}


@says("requeue 1", "requeue 3", "inspect")
@pytest.mark.rabbitmq
@pytest.mark.parametrize("way", WAYS)
def test_a_dead_task_that_an_operator_publishes_again_is_executed(node: RabbitMQ, tmp_path: Path, way: str) -> None:
    """The management API returns a null header as the text "undefined", and publishes that text."""
    operator = Operator(node)
    stack = Stack(tmp_path, broker=f"amqp://rabbit:rabbitpass@127.0.0.1:{node.port}/")
    with operator.ui as ui:
        ui.delete("/api/queues/%2F/video_dlq/contents").raise_for_status()
    (tmp_path / "film.y4m").write_bytes(b"This was a film once." * 50)
    command = ("celery", "-A", "examples.video.worker.celery_app", "worker", "--loglevel", "INFO", "--concurrency", "1")
    with stack.running(*command, VIDEO_DECLARE="0", C_FORCE_ROOT="1") as program:
        videos = Videos(stack, program)
        videos.run("examples.video.producer", str(tmp_path / "film.y4m"))
        task, video = program.wait_for(r"\[([0-9a-f-]{36})\] is parked \(permanent\)")[1], videos.only_original()
        video.write_bytes(clips.film(0.2))

        WAYS[way](operator, tmp_path)

        videos.until(lambda: videos.logged(task, "succeeded"))
        videos.until((videos.folder / "thumbnails" / video.name).is_file)  # its chain goes on
    assert videos.depth("video_dlq") == 0


async def reject_one(url: str) -> None:
    properties = Properties(content_type="application/json", delivery_mode=2, headers={"task": TRANSCODE, "id": "t-1"})
    async with Connection(url) as connection:
        await connection.publish("video", "video", b'[["v"], {}, {}]', properties)
        delivery = await connection.get("video_tasks")
        assert delivery is not None
        delivery.reject(requeue=False)
        async with asyncio.timeout(20):
            while (await connection.queue_info("video_dlq")).messages < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


# At work ------------------------------------------------------------------------------------------


class Videos:
    """The example as a process, and what its users do."""

    def __init__(self, stack: Stack, program: Program) -> None:
        self.stack, self.program = stack, program
        self.folder = stack.data / "video"

    @property
    def address(self) -> str:
        """The broker's, for other processes."""
        if self.stack.broker is not None:
            return self.stack.broker
        written = json.loads((self.stack.data / "broker.address").read_text())
        return f"amqp://guest:{written['password']}@127.0.0.1:{written['port']}/"

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        told = self.stack.run(*command, REDRIVE_BROKER=self.address, REDRIVE_USER="ada")
        assert told.returncode == 0, told.stderr
        return told

    def until(self, condition: Callable[[], Any], within: float = 60) -> Any:
        deadline = time.monotonic() + within
        while not (found := condition()):
            assert time.monotonic() < deadline, self.program.output[-3000:]
            time.sleep(0.05)
        return found

    def only_original(self) -> Path:
        (found,) = (self.folder / "originals").iterdir()
        return found

    def keep(self, content: bytes) -> str:
        identity = str(uuid.uuid4())
        (self.folder / "originals" / identity).write_bytes(content)
        return identity

    def publish(self, video: str, exchange: str = "video", routing_key: str = "video", **headers: Any) -> str:
        """Publish a task as an API in any language does, with pika; return its id."""
        identity = str(uuid.uuid4())
        properties = pika.BasicProperties(
            content_type="application/json",
            content_encoding="utf-8",
            headers={"lang": "py", "task": TRANSCODE, "id": identity, "root_id": identity, "retries": 0, **headers},
            delivery_mode=2,
            correlation_id=identity,
        )
        with self.channel() as channel:
            channel.basic_publish(exchange, routing_key, json.dumps([[video], {}, {}]), properties, mandatory=True)
        return identity

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """A channel of pika's that confirms and reports what is unroutable."""
        with pika.BlockingConnection(pika.URLParameters(self.address)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            yield channel

    def depth(self, queue: str) -> int:
        async def ask() -> int:
            async with self.stack.connection() as connection:
                return (await connection.queue_info(queue)).messages

        return asyncio.run(ask())

    def logged(self, identity: str, words: str) -> list[str]:
        return [line for line in self.program.output.splitlines() if f"[{identity}]" in line and words in line]


class Witness:
    """Queues of the test's own, bound beside those of the example."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        asyncio.run(self._bind())

    async def _bind(self) -> None:
        async with self._stack.connection() as connection:
            for queue in ("came", "waited"):
                await connection.declare_queue(queue)
            for key in ("video", WITHOUT_BACK_KEY):
                await connection.bind_queue("came", "video", key)
            for key in ("video", *(f"video.retry.{wait}" for wait in WAITS)):
                await connection.bind_queue("waited", "video-retry", key)

    def saw(self, queue: str, identity: str) -> list[Delivery]:
        return self.all(queue)[identity]

    def all(self, queue: str) -> dict[str | None, list[Delivery]]:
        """What came to the queue, by correlation id. The queue is deleted."""

        async def read() -> list[Delivery]:
            async with self._stack.connection() as connection:
                count = (await connection.queue_info(queue)).messages
                found = [await take(connection, queue) for _ in range(count)]
                await connection.delete_queue(queue)
                return found

        found: dict[str | None, list[Delivery]] = defaultdict(list)
        for one in asyncio.run(read()):
            found[one.properties.correlation_id].append(one)
        return found


@pytest.fixture
def videos(stack: Stack) -> Iterator[Videos]:
    with stack.running("examples.video", VIDEO_RETRY_WAITS=",".join(WAITS), C_FORCE_ROOT="1") as program:
        program.wait_for(r"look:\s+redrive dlq groups video_dlq")
        yield Videos(stack, program)


def headers(delivery: Delivery) -> dict[str, Any]:
    return dict(delivery.properties.headers or {})


@says(
    "broker", "normal 1", "normal 2", "normal 3", "option 1", "option 2.1", "option 2.2", "option 2.3", "option 2.4",
    "delay", "backoff 2", "simple backoff", "separation", "dead 1", "dead 2", "dead 3", "dlq", "requeue 2",
)  # fmt: skip
def test_videos_go_through_fail_for_real_and_are_driven_again(videos: Videos) -> None:
    # Two films went through, and what was none was kept at once: it would not become one.
    output = videos.program.output
    assert "short: 345,715 bytes became" in output
    assert "long: 1,440,343 bytes became" in output
    assert videos.depth("video_dlq") == 1
    (kind,) = json.loads(videos.run("redrive", "dlq", "groups", "video_dlq", "--json").stdout)["groups"]
    assert kind["error"] == "examples.video.clips.NotAVideo"
    (letter,) = json.loads(videos.run("redrive", "dlq", "peek", "video_dlq", "--json").stdout)["letters"]
    assert f"submitted: broken, transcode {letter['correlation_id']}, then thumbnail" in output
    assert f"broken: task {letter['correlation_id']} is kept in video_dlq: NotAVideo" in output

    what_passes_is_tried_again(videos)
    what_does_not_pass_in_time_is_kept_and_driven_again(videos)
    what_is_retried_by_hand_waits_as_well(videos)
    a_program_publishes_a_dead_task_again(videos, letter["correlation_id"])


def what_passes_is_tried_again(videos: Videos) -> None:
    """The storage is away, comes back, and nobody has to do anything."""
    witness = Witness(videos.stack)
    film = videos.keep(clips.film(0.2))
    (videos.folder / "originals").rename(videos.folder / "away")

    task = videos.publish(film)
    videos.until(lambda: len(videos.logged(task, "retry: Retry in")) == 2)
    (videos.folder / "away").rename(videos.folder / "originals")

    videos.until(lambda: videos.logged(task, "succeeded"))
    assert (videos.folder / "renditions" / film).stat().st_size
    came, waited = witness.saw("came", task), witness.saw("waited", task)
    assert [one.routing_key for one in waited] == [f"video.retry.{WAITS[0]}", "video"]  # to the queue of its attempt
    assert [headers(one)["retries"] for one in waited] == [1, 2]
    assert "StorageAway" in headers(waited[0])["x-redrive-reason"]
    assert [headers(one)["retries"] for one in came] == [0, 1, 2]
    assert {(one.exchange, one.routing_key) for one in came} == {("video", "video")}
    deaths = [headers(one)["x-death"][0] for one in came[1:]]
    assert [(one["queue"], one["reason"]) for one in deaths] == [(rung, "expired") for rung in RUNGS[:2]]


def what_does_not_pass_in_time_is_kept_and_driven_again(videos: Videos) -> None:
    film = videos.keep(clips.film(0.2))
    (videos.folder / "originals").rename(videos.folder / "away")

    task = videos.publish(film)
    videos.until(lambda: videos.logged(task, "is parked (exhausted)"))
    (videos.folder / "away").rename(videos.folder / "originals")

    waits = [line.partition("Retry in ")[2].split(":")[0] for line in videos.logged(task, "Retry in")]
    assert waits == ["0.3s", "0.6s", "0.9s", "1.2s"]
    page = json.loads(videos.run("redrive", "dlq", "peek", "video_dlq", "--json").stdout)
    (letter,) = [one for one in page["letters"] if one["correlation_id"] == task]
    assert (letter["type"], letter["source"], letter["attempts"]) == (TRANSCODE, "video_tasks", 5)
    shown = videos.run("redrive", "dlq", "show", "video_dlq", letter["id"]).stdout
    assert all(words in shown for words in (film, "StorageAway", "is it mounted?", "in transcode"))

    if videos.stack.database is not None:
        videos.run("redrive", "db", "upgrade")  # for the audit; the embedded database is made when it is needed
    videos.run("redrive", "dlq", "redrive", "video_dlq", "-q", f"correlation:{task}", "--yes")
    videos.until(lambda: videos.logged(task, "succeeded"))
    assert videos.depth("video_dlq") == 1  # the one that is no video


def what_is_retried_by_hand_waits_as_well(videos: Videos) -> None:
    """Submitted by Celery, from another process: the second task of its chain retries by `self.retry`."""
    (videos.folder / "thumbnails").rename(videos.folder / "away")
    (videos.stack.folder / "film.y4m").write_bytes(clips.film(0.2))

    told = videos.run("examples.video.producer", str(videos.stack.folder / "film.y4m"))
    task = told.stdout.split()[-1]
    videos.until(lambda: videos.logged(task, "retry: Retry in 0.3s"))
    (videos.folder / "away").rename(videos.folder / "thumbnails")
    videos.until(lambda: videos.logged(task, "succeeded"))


def a_program_publishes_a_dead_task_again(videos: Videos, task: str) -> None:
    """As the document says: read, parse, publish with the wanted headers."""
    with videos.channel() as channel:
        method, properties, body = channel.basic_get("video_dlq")
        (video,), _, _ = json.loads(body)
        (videos.folder / "originals" / video).write_bytes(clips.film(0.2))
        properties.headers["retries"] = 0
        channel.basic_publish("video", "video", body, properties, mandatory=True)
        channel.basic_ack(method.delivery_tag)

    videos.until(lambda: videos.logged(task, "succeeded"))
    videos.until((videos.folder / "thumbnails" / video).is_file)
    assert videos.depth("video_dlq") == 0


@says("delay", "option 2.1", "option 2.2", "option 2.3", "option 2.4", "backoff 3")
def test_a_task_that_is_published_into_a_retry_queue_returns_by_whichever_key_it_came(videos: Videos) -> None:
    """A task without a dead-letter key returns by its own keys: those of its publisher, and those of the header CC."""
    witness = Witness(videos.stack)
    ways: list[tuple[str, str, str, dict[str, Any]]] = [
        *((rung, "", rung, {}) for rung in RUNGS),
        (WITHOUT_BACK_KEY, "video-retry", "video", {}),
        (WITHOUT_BACK_KEY, "", "nobody", {"CC": [WITHOUT_BACK_KEY]}),
    ]
    film = videos.keep(clips.film(0.2))
    began = time.monotonic()
    tasks = {videos.publish(film, *way, **headers): (rung, headers) for rung, *way, headers in ways}

    longest = videos.until(lambda: all(videos.logged(task, "succeeded") for task in tasks) and time.monotonic())

    assert longest - began >= float(WAITS[-1].removesuffix("ms")) / 1000
    came = witness.all("came")
    for task, (rung, way) in tasks.items():
        (copy,) = came[task]  # it comes once, though two bindings lead to the queue
        assert [(one["queue"], one["reason"]) for one in headers(copy)["x-death"]] == [(rung, "expired")]
        assert copy.exchange == "video"
        assert not way or headers(copy)["CC"] == way["CC"]
    assert videos.depth("video_dlq") == 1  # the one that is no video


def test_without_ffmpeg_the_work_is_done_by_python_which_says_so(embedded: Stack, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    with embedded.running("examples.video", PATH=str(tmp_path / "bin"), C_FORCE_ROOT="1") as program:
        program.wait_for(r"short: 345,715 bytes became 86,\d+, .* by Python, since there is no ffmpeg")
        program.wait_for(r"broken: task [0-9a-f-]{36} is kept in video_dlq: NotAVideo: it does not begin like a video")


def test_every_statement_of_the_text_is_asserted() -> None:
    assert not says.unclaimed
