"""The uploads, sentence by sentence as their document (seed 000) says."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from PIL import Image

from admin_api import SECRET, bearing
from e2e.examples.checklist import Checklist
from e2e.examples.stacks import ROOT, Program, Stack
from redrive.client import Connection, Delivery, Properties
from redrive.recovery.retry import RetryRoute
from redrive.testing import RabbitMQ
from redrive.testing.ports import free_port
from redrive.topology import Server, expand
from servers import rabbitmq_root
from topology_systems import system
from working import take

EXAMPLE = ROOT / "examples" / "uploads"
INFRA = EXAMPLE / "infra"
BINDS = {
    "q.upload.commands": [("domain.commands", "commands.file.reprocess.*"), ("domain.commands", "commands.upload.#")],
    "q.validator": [("domain.events", "files.uploaded.*")],
    "q.thumbnail": [("domain.events", "files.validated.*")],
    "q.extractor": [("domain.events", "files.validated.*")],
    "q.projection": [("domain.events", "#")],
    "q.notification": [("domain.events", "files.rejected.*"), ("domain.events", "processing.#")],
    "q.audit": [("domain.events", "#")],
}

says = Checklist(
    {
        "init": "The topology is imported after the broker's start by the service rabbitmq-init.",
        "files": "It is imported from infra/rabbitmq/definitions.json by infra/rabbitmq/import-definitions.sh.",
        "creates exchanges": "The definitions create the main exchanges domain.events and domain.commands.",
        "creates queues": "The definitions create the queues q.upload.commands, q.validator, q.thumbnail, q.extractor, "
        "q.projection, q.notification and q.audit.",
        "creates parts": "The definitions create exchanges and queues for retry and for dead letters of each queue.",
        "domain.events": "domain.events is a topic exchange.",
        "domain.commands": "domain.commands is a topic exchange.",
        **{
            f"bind {queue}": f"{queue} is bound to {pairs[0][0]} by {' and '.join(key for _, key in pairs)}."
            for queue, pairs in BINDS.items()
        },
        "goal": "A retry of one consumer is not published to the main exchange: no other consumer receives it twice.",
        "retry exchange": "Each q.X has the retry exchange retry.q.X (direct).",
        "retry queue": "Each q.X has the retry queue q.X.retry, with a TTL.",
        "dlq exchange": "Each q.X has the dead-letter exchange dlq.q.X (direct).",
        "dlq queue": "Each q.X has the dead-letter queue q.X.dlq.",
        "retry 1": "On an error that can be retried the consumer rejects the message without requeue.",
        "retry 2": "q.X dead-letters to retry.q.X with the fixed routing key retry.",
        "retry 3": "The message enters q.X.retry, whose TTL is 15,000 ms by default.",
        "retry 4": "When the TTL expires, q.X.retry dead-letters to the default exchange with the routing key q.X.",
        "retry 5": "The message comes back to q.X only, and is not published to domain.events or domain.commands.",
        "attempts": "A message is parked after 3 attempts.",
        "parking": "The consumer parks it by a publish to dlq.q.X with the routing key parking.",
        "ack": "The consumer acknowledges the message that it has parked.",
        "no loop": "There is no endless loop of retries, and the other consumers are not affected.",
        "counter": "The broker counts the attempts in x-death, once for each time that the message waits in q.X.retry.",
        "helper": "One shared helper applies the policy by x-death of the original queue q.X. Here it is one Retry "
        "value that the seven consumers share.",
        "admin": "The three endpoints are protected by the role admin: viewers and operators are refused.",
        "list": "GET /admin/dlq/queues lists the dead-letter queues.",
        "peek": "GET /admin/dlq/queues/:queue/messages?limit=20 shows messages and leaves them in the queue.",
        "re-drive": 'POST /admin/dlq/queues/:queue/re-drive takes the body {"limit": 10}.',
        "accepted": f"The endpoints accept {', '.join(f'{queue}.dlq' for queue in BINDS)}, and no other queue (404).",
        "management": "The document reads the dead-letter queue by the management API (queue/get). This does not hold "
        "here, on purpose: that read removes a message before its copy is published. Redrive reads over AMQP and "
        "needs no management API.",
        "strategy": "A re-drive publishes to the retry exchange of the queue (retry.q.X) with the routing key retry.",
        "headers": "A re-drive adds headers for the audit, x-redriven-*.",
        "logs": "Failures, retries and parkings are logged as JSON, with correlationId, queue, routingKey, messageType "
        "and the attempts.",
        "caveat": "In the document a publish that fails after the message was removed may need manual recovery. This "
        "does not hold here, on purpose: a message leaves the dead-letter queue after its copy is confirmed.",
        "v0.2": "The document plans a safe re-drive by a dedicated admin consumer. Redrive has it: after a failed "
        "re-drive the same messages are re-driven by the next one.",
        "again": "The topology is applied again by another run of rabbitmq-init.",
        "command": "docker compose -f infra/docker-compose.yml up -d --force-recreate rabbitmq rabbitmq-init names "
        "two services of that file. No Docker runs in this test; it runs what the service runs.",
        "references": "The infrastructure is infra/docker-compose.yml, infra/rabbitmq/definitions.json and "
        "infra/rabbitmq/import-definitions.sh.",
    }
)


# What is made -------------------------------------------------------------------------------------


in_the_definitions = says(
    "creates exchanges", "creates queues", "creates parts", "domain.events", "domain.commands",
    *(f"bind {queue}" for queue in BINDS), "retry exchange", "retry queue", "dlq exchange", "dlq queue",
    "retry 2", "retry 3", "retry 4",
)  # fmt: skip


@in_the_definitions
def test_a_broker_holds_the_definitions(stack: Stack) -> None:
    stack.hold(INFRA / "rabbitmq" / "definitions.json")


@in_the_definitions
def test_the_definitions_are_the_topology_of_the_text() -> None:
    definitions = json.loads((INFRA / "rabbitmq" / "definitions.json").read_text())
    exchanges = {one["name"]: one["type"] for one in definitions["exchanges"]}
    queues = {one["name"]: one["arguments"] for one in definitions["queues"]}
    bindings = Counter((one["source"], one["destination"], one["routing_key"]) for one in definitions["bindings"])

    assert exchanges == {"domain.events": "topic", "domain.commands": "topic"} | {
        f"{role}.{queue}": "direct" for queue in BINDS for role in ("retry", "dlq")
    }
    assert sorted(queues) == sorted(f"{queue}{end}" for queue in BINDS for end in ("", ".retry", ".dlq"))
    wanted = Counter((source, queue, key) for queue, pairs in BINDS.items() for source, key in pairs)
    wanted.update((f"retry.{queue}", f"{queue}.retry", "retry") for queue in BINDS)
    wanted.update((f"dlq.{queue}", f"{queue}.dlq", "parking") for queue in BINDS)
    assert bindings == wanted
    for queue in BINDS:
        assert queues[queue]["x-dead-letter-exchange"] == f"retry.{queue}"
        assert queues[queue]["x-dead-letter-routing-key"] == "retry"
        assert queues[f"{queue}.retry"]["x-message-ttl"] == 15_000
        assert queues[f"{queue}.retry"]["x-dead-letter-exchange"] == ""
        assert queues[f"{queue}.retry"]["x-dead-letter-routing-key"] == queue


def test_the_application_the_file_and_the_definitions_are_one_topology(tmp_path: Path) -> None:
    from examples.uploads.app import app

    server = Server(version=(3, 10))
    assert expand(app.topology, server) == expand(system("uploads"), server)
    assert {queue.redrive_to for queue in (*app.topology.queues, *system("uploads").queues)} == {"retry"}
    exported = Stack(tmp_path).run("redrive", "topology", "export", "examples.uploads.app:app", "--for", "3.10")
    assert json.loads(exported.stdout) == json.loads((INFRA / "rabbitmq" / "definitions.json").read_text())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    folder = tmp_path_factory.mktemp("uploads") / "rabbitmq"
    with RabbitMQ(folder, name="uploads", root=rabbitmq_root(), management=True) as node:
        yield node


def import_definitions(node: RabbitMQ, **said: str) -> subprocess.CompletedProcess[str]:
    there = f"http://guest:guest@127.0.0.1:{node.management_port}"
    environment = {"PATH": os.environ["PATH"], "RABBITMQ_MANAGEMENT": there, "WITHIN": "30", **said}
    script = INFRA / "rabbitmq" / "import-definitions.sh"
    return subprocess.run(["sh", str(script)], env=environment, text=True, capture_output=True, check=False)


@says("helper")
def test_the_consumers_share_one_policy_that_counts_by_x_death() -> None:
    from examples.uploads.app import again, app

    assert [spec.queue.name for spec in app.consumers] == list(BINDS)
    assert all(spec.queue.retry is again for spec in app.consumers)
    assert (again.attempts, again.via) == (3, RetryRoute.REJECT)


@says("files", "init", "again", "command")
@pytest.mark.rabbitmq
async def test_the_script_imports_into_a_running_broker_and_can_be_repeated(node: RabbitMQ) -> None:
    assert import_definitions(node).returncode == 0
    async with Connection(node.url) as connection:
        await connection.publish("domain.events", "files.uploaded.png", b"{}")

        again = import_definitions(node)

        assert (again.returncode, again.stderr) == (0, "")
        held = {queue: (await connection.queue_info(queue)).messages for queue in BINDS}
    assert held == dict.fromkeys(BINDS, 0) | {"q.validator": 1, "q.projection": 1, "q.audit": 1}


@pytest.mark.rabbitmq
def test_the_script_says_what_is_wrong(node: RabbitMQ, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"queues": [{"name": "q", "vhost": "/", "durable": true, "arguments": 7}]}')

    stranger = import_definitions(node, RABBITMQ_MANAGEMENT=f"http://me:no@127.0.0.1:{node.management_port}")
    refused = import_definitions(node, DEFINITIONS=str(tmp_path / "other.json"))
    missing = import_definitions(node, DEFINITIONS=str(tmp_path / "none.json"))
    nobody = import_definitions(node, RABBITMQ_MANAGEMENT=f"http://127.0.0.1:{free_port()}", WITHIN="0")

    assert (stranger.returncode, "does not know this user" in stranger.stderr) == (1, True)
    assert (refused.returncode, "RabbitMQ refused" in refused.stderr) == (1, True)
    assert (missing.returncode, "cannot read" in missing.stderr) == (2, True)
    assert (nobody.returncode, "did not answer within 0 s" in nobody.stderr) == (1, True)


@says("init", "command", "references")
def test_the_services_start_in_the_order_that_the_text_wants() -> None:
    """Docker is not asked here: that what the file names is there, and who waits for whom."""
    for name in ("docker-compose.yml", "rabbitmq/definitions.json", "rabbitmq/import-definitions.sh"):
        assert (INFRA / name).is_file()
    services = yaml.safe_load((INFRA / "docker-compose.yml").read_text())["services"]

    assert {"rabbitmq", "rabbitmq-init"} <= services.keys()
    init = services["rabbitmq-init"]
    assert init["depends_on"] == {"rabbitmq": {"condition": "service_healthy"}}
    assert init["entrypoint"] == ["sh", "/definitions/import-definitions.sh"]
    assert init["volumes"] == ["./rabbitmq:/definitions:ro"]
    assert services["uploads"]["depends_on"]["rabbitmq-init"] == {"condition": "service_completed_successfully"}
    assert (INFRA / "../../..").resolve() == ROOT  # what the service mounts


# At work ------------------------------------------------------------------------------------------


def picture(kind: str = "PNG", size: int = 300) -> bytes:
    content = BytesIO()
    Image.effect_noise((size, size), 90).convert("RGB").save(content, kind)
    return content.getvalue()


class Listener:
    """Somebody who wants to hear of files, and is slow until he is not."""

    def __init__(self) -> None:
        self.awake = threading.Event()
        self.told: list[tuple[str, str]] = []
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                news = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                listener.awake.wait(10)
                self.send_response(204)
                self.end_headers()
                listener.told.append((news["text"], self.headers["Idempotency-Key"]))

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True  # he did not wait for us

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"

    @contextmanager
    def listening(self) -> Iterator[Listener]:
        thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield self
        finally:
            self.awake.set()
            self.server.shutdown()
            thread.join()
            self.server.server_close()


class Uploads:
    """The example as a process, and what its users do."""

    def __init__(self, stack: Stack, program: Program, port: int) -> None:
        self.stack = stack
        self.program = program
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)

    def upload(self, name: str, content: bytes) -> str:
        answer = self.client.post("/files", files={"file": (name, content)})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def until(self, condition: Callable[[], Any], within: float = 60) -> Any:
        deadline = time.monotonic() + within
        while not (found := condition()):
            assert time.monotonic() < deadline, self.program.output[-3000:]
            time.sleep(0.05)
        return found

    def file(self, identity: str) -> dict[str, Any]:
        answer = self.client.get(f"/files/{identity}")
        return answer.json() if answer.status_code == 200 else {"id": None}

    def lines(self, **wanted: Any) -> list[dict[str, Any]]:
        """What was logged of settled messages."""
        found = [json.loads(line) for line in self.program.output.splitlines() if line.startswith("{")]
        return [line for line in found if wanted.items() <= line.items()]

    def dead(self, queue: str) -> list[dict[str, Any]]:
        answer = self.client.get(f"/admin/dlq/queues/{queue}/messages?limit=20&fresh=true", headers=bearing())
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["items"]
        return found

    def use(self, work: Callable[[Connection], Awaitable[Any]]) -> None:
        """Do something at its broker, as another client."""

        async def connected() -> None:
            async with self.stack.connection() as connection:
                await work(connection)

        asyncio.run(connected())

    def redrive(self, queue: str, **order: Any) -> dict[str, Any]:
        path, headers = f"/admin/dlq/queues/{queue}/re-drive", bearing() | {"Prefer": "wait=30"}
        answer = self.client.post(path, json={"limit": 10} | order, headers=headers)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener().listening() as listener:
        yield listener


@pytest.fixture
def uploads(stack: Stack, listener: Listener) -> Iterator[Uploads]:
    port = free_port()
    said = {
        "RETRY_TTL_MS": "300",
        "NOTIFY_URL": listener.url,
        "NOTIFY_TIMEOUT": "0.3",
        "REDRIVE_ADMIN_JWT_SECRET": SECRET,
    }
    with stack.running("examples.uploads", "--port", str(port), **said) as program:
        uploads = Uploads(stack, program, port)
        with uploads.client as client:
            uploads.until(lambda: answers(client))
            yield uploads


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


class Witness:
    """Queues of the test's own, each with the exchanges and routing keys that it is bound by."""

    def __init__(self, stack: Stack, **queues: Sequence[tuple[str, str]]) -> None:
        self._stack = stack
        asyncio.run(self._bind(queues))

    async def _bind(self, queues: Mapping[str, Sequence[tuple[str, str]]]) -> None:
        async with self._stack.connection() as connection:
            for queue, bindings in queues.items():
                await connection.declare_queue(queue)
                for exchange, key in bindings:
                    await connection.bind_queue(queue, exchange, key)

    def saw(self, queue: str) -> list[Delivery]:
        async def read() -> list[Delivery]:
            async with self._stack.connection() as connection:
                count = (await connection.queue_info(queue)).messages
                found = [await take(connection, queue) for _ in range(count)]
                await connection.delete_queue(queue)  # or it would receive what comes later, too
                return found

        return asyncio.run(read())


@says(
    "goal", "retry 1", "retry 5", "attempts", "parking", "ack", "no loop", "counter", "list", "peek", "re-drive",
    "strategy", "headers", "logs", "caveat", "v0.2",
)  # fmt: skip
def test_uploads_go_through_fail_for_real_and_are_driven_again(uploads: Uploads, listener: Listener) -> None:
    witness = Witness(
        uploads.stack,
        published=[("domain.events", "#"), ("domain.commands", "#")],
        rejected=[("retry.q.thumbnail", "retry")],
    )
    good = uploads.upload("good.png", picture())
    broken = uploads.upload("broken.png", picture()[:100] + b"xxxx" + picture()[104:])
    short = uploads.upload("short.jpg", picture("JPEG")[:-2000])

    # A good one goes through, and a broken one is refused: that is no failure.
    made = uploads.until(lambda: (found := uploads.file(good))["id"] and found["thumbnail"] and found)
    uploads.until(lambda: uploads.file(good)["metadata"])
    assert made["name"] == "good.png"
    thumbnail = Image.open(BytesIO(uploads.client.get(f"/files/{good}/thumbnail").content))
    assert (thumbnail.format, thumbnail.size) == ("JPEG", (128, 128))
    refused = uploads.until(lambda: (found := uploads.file(broken))["id"] and found["rejected"])
    assert "broken PNG file" in refused

    # One that ends too early is found out by those who read its pixels: three attempts, then parked.
    for queue in ("q.thumbnail", "q.extractor"):
        uploads.until(lambda queue=queue: uploads.lines(queue=queue, outcome="parked"))
        told = uploads.lines(queue=queue, correlationId=short)
        assert [(line["outcome"], line["attempt"], line["maxAttempts"]) for line in told] == [
            ("retried", 1, 3), ("retried", 2, 3), ("parked", 3, 3),
        ]  # fmt: skip
        assert {line["routingKey"] for line in told} == {"files.validated.jpeg"}
        assert {line["messageType"] for line in told} == {"FileValidated"}
        assert all("truncated" in line["error"] for line in told)

    # Nobody listens, so three notifications fail as well; their file is not touched by that.
    uploads.until(lambda: len(uploads.lines(queue="q.notification", outcome="parked")) == 3)
    assert {line["error"].partition(":")[0] for line in uploads.lines(queue="q.notification")} == {"TimeoutError"}
    assert uploads.file(good)["notifications"] == []

    # Whatever was retried, no other consumer heard of it again.
    seen = Counter((one.routing_key, one.properties.message_id) for one in witness.saw("published"))
    assert max(seen.values()) == 1
    assert len([key for key, _ in seen if key == "files.validated.jpeg"]) == 1

    # Each rejection went by retry.q.thumbnail, with what the broker counts the attempts by.
    first, second = witness.saw("rejected")
    deaths = [
        {(death["queue"], death["reason"]): (death["count"], death["exchange"]) for death in one["x-death"]}
        for one in (dict(first.properties.headers or {}), dict(second.properties.headers or {}))
    ]
    assert deaths[0] == {("q.thumbnail", "rejected"): (1, "domain.events")}
    assert deaths[1]["q.thumbnail.retry", "expired"] == (1, "retry.q.thumbnail")
    assert deaths[1]["q.thumbnail", "rejected"][0] == 2
    assert (second.exchange, second.routing_key, second.body) == ("retry.q.thumbnail", "retry", first.body)

    operators_see_what_failed(uploads)
    a_dead_letter_tells_its_story(uploads, short)
    a_re_drive_that_cannot_publish_loses_nothing(uploads)
    what_is_mended_is_driven_again(uploads, listener, good)
    what_is_not_mended_comes_back(uploads, short)
    what_is_parked_is_in_no_other_queue(uploads)


def operators_see_what_failed(uploads: Uploads) -> None:
    queues = uploads.client.get("/admin/dlq/queues", headers=bearing()).json()["items"]
    assert {one["name"]: one["depth"] for one in queues if one["depth"]} == {
        "q.thumbnail.dlq": 1, "q.extractor.dlq": 1, "q.notification.dlq": 3,
    }  # fmt: skip
    assert {one["redrive_to"] for one in queues} == {"retry"}
    for queue in BINDS:
        assert len(uploads.dead(f"{queue}.dlq")) == len(uploads.dead(f"{queue}.dlq"))  # a look takes nothing


def a_dead_letter_tells_its_story(uploads: Uploads, short: str) -> None:
    async def look() -> tuple[str, str, dict[str, Any]]:
        async with uploads.stack.connection() as connection:
            delivery = await connection.get("q.thumbnail.dlq")
            assert delivery is not None
            found = delivery.exchange, delivery.routing_key, dict(delivery.properties.headers or {})
            assert delivery.properties.correlation_id == short
            delivery.nack(requeue=True)
            return found

    exchange, key, headers = asyncio.run(look())

    assert (exchange, key) == ("dlq.q.thumbnail", "parking")  # published there by the consumer
    assert (headers["x-redrive-exchange"], headers["x-redrive-routing-key"]) == (
        "domain.events",
        "files.validated.jpeg",
    )


def a_re_drive_that_cannot_publish_loses_nothing(uploads: Uploads) -> None:
    """Its copies are unroutable, because the retry queue is not bound; or there is no such destination at all."""
    before = [one["id"] for one in uploads.dead("q.notification.dlq")]
    uploads.use(lambda broker: broker.unbind_queue("q.notification.retry", "retry.q.notification", "retry"))
    failed = uploads.redrive("q.notification.dlq")
    uploads.use(lambda broker: broker.bind_queue("q.notification.retry", "retry.q.notification", "retry"))

    assert (failed["state"], failed["counts"]["moved"], failed["counts"]["failed"]) == ("PARTIAL", 0, 3)
    assert [one["id"] for one in uploads.dead("q.notification.dlq")] == before
    path = "/admin/dlq/queues/q.notification.dlq/re-drive"
    answer = uploads.client.post(path, json={"limit": 10, "to": "no.such.queue"}, headers=bearing())
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:redrive:problem:target-unroutable")
    assert [one["id"] for one in uploads.dead("q.notification.dlq")] == before


def what_is_mended_is_driven_again(uploads: Uploads, listener: Listener, good: str) -> None:
    listener.awake.set()
    witness = Witness(uploads.stack, redriven=[("retry.q.notification", "retry")])

    done = uploads.redrive("q.notification.dlq")

    assert (done["state"], done["counts"]["moved"], done["to"]) == ("SUCCEEDED", 3, "retry")
    uploads.until(lambda: uploads.file(good)["notifications"] == ["metadata is ready", "thumbnail is ready"])
    uploads.until(lambda: len(listener.told) >= 3)
    assert {text.partition(":")[0] for text, _ in listener.told} == {
        "metadata is ready", "thumbnail is ready", "rejected",
    }  # fmt: skip
    assert uploads.dead("q.notification.dlq") == []
    # A retry comes by the same exchange, and has x-death; a copy has not, and so all its attempts again.
    copies = [one for one in witness.saw("redriven") if "x-death" not in dict(one.properties.headers or {})]
    assert [(copy.exchange, copy.routing_key) for copy in copies] == [("retry.q.notification", "retry")] * 3
    for copy in copies:
        headers = dict(copy.properties.headers or {})
        assert (headers["x-redriven-by"], headers["x-redriven-from"]) == ("ada", "q.notification.dlq")
        assert (headers["x-redriven-count"], headers["x-redriven-op"]) == (1, done["id"])
        assert "x-redriven-at" in headers


def what_is_not_mended_comes_back(uploads: Uploads, short: str) -> None:
    assert uploads.redrive("q.thumbnail.dlq")["counts"]["moved"] == 1

    uploads.until(lambda: len(uploads.lines(queue="q.thumbnail", outcome="parked", correlationId=short)) == 2)
    told = uploads.lines(queue="q.thumbnail", correlationId=short)
    assert [line["attempt"] for line in told] == [1, 2, 3, 1, 2, 3]  # a full set of attempts again
    (letter,) = uploads.dead("q.thumbnail.dlq")
    whole = uploads.client.get(f"/admin/dlq/queues/q.thumbnail.dlq/messages/{letter['id']}", headers=bearing()).json()
    headers = whole["headers"]
    assert headers["x-redriven-count"] == 1
    assert (headers["x-redriven-from"], headers["x-redriven-by"]) == ("q.thumbnail.dlq", "ada")
    assert {"x-redriven-at", "x-redriven-op"} <= headers.keys()


def what_is_parked_is_in_no_other_queue(uploads: Uploads) -> None:
    """A message that was not acknowledged would be ready again when its consumer has ended."""
    uploads.program.stop()

    async def ready() -> dict[str, int]:
        names = [f"{queue}{end}" for queue in ("q.thumbnail", "q.extractor") for end in ("", ".retry", ".dlq")]
        async with uploads.stack.connection() as connection:
            return {name: count for name in names if (count := (await connection.queue_info(name)).messages)}

    assert asyncio.run(ready()) == {"q.thumbnail.dlq": 1, "q.extractor.dlq": 1}


# The admin API ------------------------------------------------------------------------------------


@says("admin", "accepted", "list", "peek", "re-drive")
def test_the_endpoints_are_for_admins_and_accept_seven_queues(uploads: Uploads) -> None:
    uploads.use(lambda broker: broker.declare_queue("theirs.dlq"))
    client, listed = uploads.client, "/admin/dlq/queues"
    mine = [f"{queue}.dlq" for queue in BINDS]
    for queue in mine:
        for method, path in (("GET", listed), ("GET", f"{listed}/{queue}/messages?limit=20"),
                             ("POST", f"{listed}/{queue}/re-drive")):  # fmt: skip
            asked: dict[str, Any] = {"json": {"limit": 10}} if method == "POST" else {}
            by = {"": {}} | {role or "no role": bearing(role) for role in (None, "viewer", "operator", "admin")}
            answers = {who: client.request(method, path, headers=headers, **asked) for who, headers in by.items()}
            refused = {who: answer.status_code for who, answer in answers.items() if who != "admin"}
            assert refused == {"": 401, "no role": 403, "viewer": 403, "operator": 403}
            assert answers["admin"].status_code in (200, 202), answers["admin"].text

    assert [one["name"] for one in client.get(listed, headers=bearing()).json()["items"]] == sorted(mine)
    others = {
        "q.validator": "is a queue for work",
        "q.validator.retry": "is a retry queue of q.validator",
        "theirs.dlq": "is not a queue of this application",
        "q.unknown.dlq": "is not a queue of this application",
    }
    for queue, why in others.items():
        peek = client.get(f"{listed}/{queue}/messages?limit=20", headers=bearing())
        redrive = client.post(f"{listed}/{queue}/re-drive", json={"limit": 10}, headers=bearing())
        page = client.get(f"/queues/{queue}", headers=bearing())
        for answer in (peek, redrive):
            assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
            assert answer.json()["detail"] == (
                f"{queue} {why}; this server accepts only the dead-letter queues of uploads: {', '.join(sorted(mine))}"
            )
        assert (page.status_code, why in page.text) == (404, True)


@says("strategy", "management")
def test_a_dead_letter_of_another_tool_is_driven_again(uploads: Uploads) -> None:
    """It has neither x-death nor headers of Redrive: the queue that it belongs to is the only one it can be."""
    properties = Properties(message_id="by-hand", content_type="application/json")
    uploads.use(lambda broker: broker.publish("dlq.q.audit", "parking", b'{"file": "f"}', properties))
    uploads.until(lambda: uploads.dead("q.audit.dlq"))

    done = uploads.redrive("q.audit.dlq")

    assert (done["state"], done["counts"]["moved"], done["counts"]["skipped"]) == ("SUCCEEDED", 1, 0)
    uploads.until(lambda: audited(uploads.stack).total() == 1)
    assert uploads.dead("q.audit.dlq") == []


def test_a_file_can_be_processed_again_and_what_makes_no_sense_is_refused(uploads: Uploads, listener: Listener) -> None:
    listener.awake.set()
    good = uploads.upload("good.png", picture())
    uploads.until(lambda: uploads.file(good)["id"] and uploads.file(good)["thumbnail"])
    uploads.until(lambda: len(listener.told) == 2)

    assert uploads.client.post(f"/files/{good}/reprocess").status_code == 202
    uploads.until(lambda: len(listener.told) == 4)

    every = ("files.uploaded.png", "files.validated.png", "processing.thumbnail.done", "processing.metadata.done")
    uploads.until(lambda: audited(uploads.stack) == Counter(dict.fromkeys(every, 2)))
    nobody = "00000000-0000-4000-8000-000000000000"
    assert uploads.client.post(f"/files/{nobody}/reprocess").status_code == 404
    assert uploads.client.get(f"/files/{nobody}").status_code == 404
    assert uploads.client.get("/files/picture").status_code == 422
    assert uploads.client.post("/files", files={"file": ("none.png", b"")}).status_code == 422
    assert uploads.client.post("/files").status_code == 422


def audited(stack: Stack) -> Counter[str]:
    with stack.looking() as connection:
        return Counter(connection.exec_driver_sql("SELECT event FROM audit").scalars())


def test_every_statement_of_the_text_is_asserted() -> None:
    assert not says.unclaimed
