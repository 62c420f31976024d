"""`deliveries`: messages that somebody made to do harm, for a worker at work; and then as dead letters.

An input is several messages, properties and bodies as they lie on the wire. They are published over the project's own
client, since others refuse to, to a worker with a queue for each way to fail. Promised is:

    every message that the broker took is handled, or parked in the dead-letter queue of its own queue; none is lost
    none goes round without end: attempts stay within their limit, and nothing is given back
    the next good message is handled in every queue, so no consumer has stopped
    what was parked has a story that can be read, and its body is what it was

Then the dead letters go through everything that operators have: lists, groups, searches, plans, the commands, the API,
the console, exports, an edit, a re-drive that brings all of them back. Nothing fails, no terminal gets a control
character, no page holds markup out of a message.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import tempfile
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from random import Random
from struct import Struct
from typing import Any, Self
from urllib.parse import quote

import httpx
import msgspec
from click.testing import CliRunner

from admin_api import admin_context, asking, bearing
from dead_lettering import a_service
from fuzzing import hostile
from fuzzing.mutation import Mutator
from fuzzing.targets import Broken, Target
from redrive import App, Batch, Message, Retry
from redrive.admin.service import Change, Service
from redrive.cli import main
from redrive.cli.exit_codes import NOT_FOUND
from redrive.client import Connection, Properties
from redrive.deadletters.body_preview import show
from redrive.deadletters.dead_letter import DeadLetter, read_dead_letter, read_summary
from redrive.deadletters.edits import Edit
from redrive.deadletters.redaction import REDACTION
from redrive.deadletters.timeline import explain
from redrive.errors import RedriveError
from redrive.operations.browse import GroupBy
from redrive.operations.export_format import decode_dead_letter, encode_dead_letter
from redrive.operations.operation import OperationKind, OperationRequest, OperationState, Selection
from redrive.operations.transforms import ByHand
from redrive.protocol.messages import Delivery
from redrive.recovery.failure_headers import ParkReason
from redrive.recovery.history import HeaderNames
from redrive.testing.broker import ThreadedBroker
from redrive.testing.rabbitmq import RabbitMQ
from redrive.worker.events import DeliveryOutcome
from servers import rabbitmq_root
from working import working

EXCHANGE = "hostile"
ATTEMPTS = 2
PATIENCE = 30.0  # seconds for what takes a hundredth, on a machine that is busy with other things
MOST_BYTES = 120_000  # of properties: with more the broker ends the connection over the frame
OURS = HeaderNames(attempts="x-retries", reason="x-retry-reason")

_HEAD = Struct(">II")
_FINAL = (DeliveryOutcome.DONE, DeliveryOutcome.DUPLICATE, DeliveryOutcome.DISCARDED)
Messages = list[tuple[bytes, bytes]]


class Order_(msgspec.Struct):
    id: int


# Inputs ---------------------------------------------------------------------------------------------------------------


def pack(messages: Messages) -> bytes:
    return b"".join(_HEAD.pack(len(raw), len(body)) + raw + body for raw, body in messages)


def unpack(data: bytes) -> Messages:
    """As many messages as there are; what is cut short ends where the input does."""
    messages, at = [], 0
    while at + _HEAD.size <= len(data) and len(messages) < 40:
        properties, body = _HEAD.unpack_from(data, at)
        start, middle = at + _HEAD.size, at + _HEAD.size + properties
        messages.append((data[start:middle][:MOST_BYTES], data[middle : middle + body]))
        at = middle + body
    return [(raw if len(raw) >= 2 else b"\x00\x00", body) for raw, body in messages]


# The worker -----------------------------------------------------------------------------------------------------------


def application(url: str, folder: Path, good: dict[str, set[int]], *, delays: bool) -> App:
    """A queue for each way to fail, all of which get everything."""
    app = App("hostile", broker=url, data=folder)
    everything = app.exchange(EXCHANGE, "fanout").on()

    def consumer(name: str, retry: Retry, **options: Any) -> None:
        @app.consumer(f"h.{name}", bind=everything, retry=retry, **options)
        async def fail(body: bytes, message: Message) -> None:
            if (number := _good(body)) is not None:
                good.setdefault(f"h.{name}", set()).add(number)
                return
            _look_at(message)
            raise ValueError(f"{message.type}: {body[:50]!r}")

    short = Retry(attempts=ATTEMPTS, delay="5ms")
    consumer("republish", short)
    consumer("reject", Retry(attempts=ATTEMPTS, delay="5ms", via="reject"))
    consumer("quorum", short, type="quorum")
    consumer("header", short, headers=OURS)
    if delays:  # where there is no exchange that delays, the shortest is a second
        consumer("delayed", Retry(attempts=ATTEMPTS, delay="5ms", via="delayed"))

    @app.consumer("h.typed", bind=everything, retry=short)
    async def typed(order: Order_) -> None:
        good.setdefault("h.typed", set()).add(order.id)

    @app.consumer("h.inbox", bind=everything, retry=short, inbox=True)
    async def once(body: bytes) -> None:
        if (number := _good(body)) is not None:
            good.setdefault("h.inbox", set()).add(number)

    @app.batch_consumer("h.batch", bind=everything, retry=short, size=10, max_wait="10ms")
    async def many(batch: Batch[Order_]) -> None:
        good.setdefault("h.batch", set()).update(item.body.id for item in batch)

    return app


def _good(body: bytes) -> int | None:
    found = re.fullmatch(rb'\{"id": (9[0-9]{9})\}', body)
    return int(found[1]) if found else None


def _look_at(message: Message) -> None:
    """At everything that a handler may look at."""
    _ = message.attempt, message.history, message.exchange, message.routing_key, message.redelivered
    _ = message.headers, message.message_id, message.correlation_id, message.content_type, message.timestamp
    repr(message)


class _Complaints(logging.Handler):
    """What the library itself calls a bug, or a message that stays where it is."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


# The target -----------------------------------------------------------------------------------------------------------


class DeliveryTarget(Target):
    """On the embedded broker."""

    seconds = 60.0
    grows = False

    def __init__(self, name: str, url: str | None = None) -> None:
        """`url`: of a broker that is there already, with a virtual host of the target's own."""
        super().__init__(name, ("deliveries",))
        self._given = url
        self._stack = ExitStack()

    # Its world ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._stack = stack = ExitStack()
        self._folder = Path(tempfile.mkdtemp(prefix="redrive-fuzz-"))
        stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self._url = self._given or self._broker(stack)
        self._complaints = _Complaints()
        log = logging.getLogger("redrive")
        log.addHandler(self._complaints)
        stack.callback(log.removeHandler, self._complaints)
        self._runner = stack.enter_context(asyncio.Runner())
        self._numbers = iter(range(9_000_000_000, 10_000_000_000))
        self._runner.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._runner.run(self._close())
        except Exception:  # after a finding its world may be in pieces
            logging.getLogger(__name__).debug("the world of a finding could not be closed", exc_info=True)
        finally:
            self._stack.close()

    def _broker(self, stack: ExitStack) -> str:
        return stack.enter_context(ThreadedBroker()).url

    @property
    def _delays(self) -> bool:
        return True

    def _may_be_looked_into(self, queue: str) -> bool:  # noqa: ARG002 - here, all of them
        return True

    async def _open(self) -> None:
        self._open_stack = stack = AsyncExitStack()
        self._handled: dict[str, set[int]] = {}
        self._app = application(self._url, self._folder / "app", self._handled, delays=self._delays)
        _, self._watcher = await stack.enter_async_context(working(self._app, within=2))
        self._connection = await stack.enter_async_context(Connection(self._url, name="looks"))
        self._queues = [spec.queue.name for spec in self._app.consumers]
        context = admin_context(self._url, self._folder, topology=self._app.topology, editing=True)
        self._client = await stack.enter_async_context(asking(context))
        names = self._app.header_names
        self._service = a_service(self._url, self._folder, topology=self._app.topology, header_names=names)

    async def _close(self) -> None:
        for queue in self._queues:
            await self._connection.purge_queue(f"{queue}.dlq")
        await self._open_stack.aclose()
        await self._app.database.close()

    # One input ------------------------------------------------------------------------------------------------------

    def run(self, data: bytes) -> set[str]:
        messages = unpack(data)
        chance = Random(zlib.crc32(data))  # what is looked at, and how
        chosen = chance.choice([queue for queue in self._queues if self._may_be_looked_into(queue)])
        accepted = self._runner.run(self._work(messages))
        letters = self._runner.run(self._read_all(accepted))
        words = {f"{letter.queue} {letter.reason} {letter.unreadable} {letter.dropped > 0}" for letter in letters}
        here = [letter for letter in letters if letter.queue == f"{chosen}.dlq"]
        if here:
            self._command_line(f"{chosen}.dlq", chance.choice(here).id, chance)
            self._runner.run(self._web(f"{chosen}.dlq", chance.choice(here).id, chance))
        self._runner.run(self._redrive(f"{chosen}.dlq", len(here)))
        self._runner.run(self._clear())
        if self._complaints.found:
            raise Broken("\n".join(self._complaints.found))
        return words | {f"accepted {len(accepted) * 4 // max(1, len(messages))}/4"}

    async def _work(self, messages: Messages) -> Messages:
        """Have them handled. Gives those that the broker took."""
        self._watcher.counts.clear()
        self._watcher.events.clear()
        accepted: Messages = []
        async with asyncio.timeout(PATIENCE):
            for raw, body in messages:
                if await self._publish(raw, body):
                    accepted.append((raw, body))
            await self._good_one()
            await self._until_settled(len(accepted) + 1)
        laps = sum(count for outcome, count in self._watcher.counts.items() if outcome is DeliveryOutcome.RETRIED)
        if laps > len(accepted) * len(self._queues) * (ATTEMPTS - 1):
            raise Broken(f"{laps} retries of {len(accepted)} messages in {len(self._queues)} queues")
        for outcome in (DeliveryOutcome.RELEASED, DeliveryOutcome.SNOOZED):
            if self._watcher.counts[outcome]:
                raise Broken(f"{outcome}: {[event for event in self._watcher.events if event.outcome is outcome][:3]}")
        return accepted

    async def _publish(self, raw: bytes, body: bytes) -> bool:
        """Over a connection of its own: over some properties brokers end it."""
        try:
            async with asyncio.timeout(PATIENCE), Connection(self._url, name="publishes") as connection:
                publishing = asyncio.create_task(connection.publish(EXCHANGE, "", body, raw))
                ending = asyncio.create_task(_lost(connection))
                done, _ = await asyncio.wait({publishing, ending}, return_when=asyncio.FIRST_COMPLETED)
                publishing.cancel()
                ending.cancel()
                if publishing in done:
                    publishing.result()
                return publishing in done
        except RedriveError:
            return False

    async def _good_one(self) -> None:
        number = next(self._numbers)
        properties = Properties(content_type="application/json", message_id=f"good-{number}")
        await self._connection.publish(EXCHANGE, "", b'{"id": %d}' % number, properties)
        async with asyncio.timeout(PATIENCE):
            while not all(number in self._handled.get(queue, ()) for queue in self._queues):  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def _until_settled(self, count: int) -> None:
        """Until every message of every queue is done or parked."""
        wanted = count * len(self._queues)
        try:
            async with asyncio.timeout(PATIENCE / 2):
                while await self._settled() != wanted:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        except TimeoutError:
            depths = {queue: await self._depth(queue) for queue in self._queues}
            dead = {queue: await self._depth(f"{queue}.dlq") for queue in self._queues}
            told = f"{await self._settled()} of {wanted} are settled; {depths} wait, {dead} dead"
            raise Broken(f"{told}, {dict(self._watcher.counts)}, {self._complaints.found}") from None

    async def _settled(self) -> int:
        dead = [await self._depth(f"{queue}.dlq") for queue in self._queues]
        return sum(self._watcher.counts[outcome] for outcome in _FINAL) + sum(dead)

    async def _depth(self, queue: str) -> int:
        return (await self._connection.queue_info(queue)).messages

    # Dead letters ---------------------------------------------------------------------------------------------------

    async def _read_all(self, accepted: Messages) -> list[DeadLetter]:
        bodies = {body for _, body in accepted}
        letters = []
        for queue in self._queues:
            async with Connection(self._url, name="reads") as connection:  # at its end everything is back
                position = 0
                while (delivery := await connection.get(f"{queue}.dlq")) is not None:
                    position += 1
                    letters.append(self._read(delivery, queue, position, bodies))
        return letters

    def _read(self, delivery: Delivery, queue: str, position: int, bodies: set[bytes]) -> DeadLetter:
        names = self._app.header_names.get(queue, HeaderNames())
        raw, body, dlq = delivery.raw_properties, delivery.body, f"{queue}.dlq"
        letter = read_dead_letter(raw, body, queue=dlq, position=position, names=names)
        summary = read_summary(raw, body, dlq, position, names)
        if (summary.id, summary.reason, summary.source) != (letter.id, letter.reason, letter.source):
            raise Broken(f"{summary} is told otherwise in full: {letter}")
        if body not in bodies:
            raise Broken(f"a body came back as {body!r:.200}")
        parked = {event.reason for event in self._watcher.events if event.outcome is DeliveryOutcome.PARKED}
        if letter.parked and (letter.source != queue or letter.reason not in map(str, ParkReason)):
            raise Broken(f"parked for {parked}, and its story says {letter!r:.500}")
        self._tell(letter, delivery)
        return letter

    def _tell(self, letter: DeadLetter, delivery: Delivery) -> None:
        for event in explain(letter):
            check_printed(event.text)
        for redaction in (None, REDACTION):
            check_printed(show(delivery.body, letter.content_type, letter.headers, redaction=redaction).text)
        line = encode_dead_letter(delivery, letter)
        again = decode_dead_letter(line, 1)
        if (again.raw_properties, again.body) != (delivery.raw_properties, delivery.body):
            raise Broken(f"exported as {line!r:.500}, which is another message")
        check_printed(line.decode())
        encode_dead_letter(delivery, letter, redaction=REDACTION)

    def _command_line(self, dlq: str, id: str, chance: Random) -> None:
        place = ["--broker", self._url, "--database", f"sqlite:///{self._folder}/redrive.db"]
        commands = (
            ["ls", dlq],
            ["peek", dlq, "-q", "-error:nothing"],
            ["groups", dlq],
            ["groups", dlq, "--by", "source"],
            ["show", dlq, id, "--headers"],
            ["show", dlq, id, "--json"],
            ["peek", dlq, "--json"],
            ["plan", dlq],
            ["plan", dlq, "--to", "original"],
            ["edit", dlq, id, "--set-header", "fixed=1", "--dry-run"],
        )
        for words in chance.sample(commands, 3):
            result = CliRunner().invoke(main, ["dlq", *words, *place])
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                raise Broken(f"redrive dlq {' '.join(words)}: {result.output}") from result.exception
            if result.exit_code not in (0, NOT_FOUND):
                raise Broken(f"redrive dlq {' '.join(words)} ended with {result.exit_code}: {result.output}")
            check_printed(result.output)
            if "--json" in words:
                msgspec.json.decode(result.stdout)

    async def _web(self, dlq: str, id: str, chance: Random) -> None:
        message = f"{quote(dlq, safe='')}/messages/{quote(id, safe='')}"
        pages = (
            f"/admin/dlq/queues/{dlq}/messages?fresh=true",
            f"/admin/dlq/queues/{message}?fresh=true",
            f"/admin/dlq/queues/{message}?reveal=true&fresh=true",
            f"/admin/dlq/queues/{dlq}/groups?by=source&fresh=true",
            f"/admin/dlq/queues/{dlq}/export",
            f"/queues/{dlq}?fresh=true",
            f"/queues/{dlq}/messages?fresh=true",
            f"/queues/{message}?fresh=true",
            f"/queues/{message}?fresh=true&reveal=true",
            f"/queues/{message}/edit",
            f"/queues/{dlq}/re-drive",
            "/",
            "/operations",
            "/audit",
        )
        self._client.headers.update(bearing())  # a token lives for five minutes, and a run for longer
        await self._client.get(f"/admin/dlq/queues/{dlq}/messages?fresh=true")  # what was seen before is forgotten
        for path in chance.sample(pages, 5):
            check_page(path, await self._client.get(path, follow_redirects=True))
        planned = await self._client.post(f"/admin/dlq/queues/{dlq}/re-drive/plan", json={"to": "original"})
        check_page("plan", planned)
        change = {"set_headers": {"n": "1"}, "dry_run": True}
        edited = await self._client.post(f"/admin/dlq/queues/{message}/edit-and-re-drive", json=change)
        check_page("edit", edited, (200, 422))

    async def _redrive(self, dlq: str, count: int) -> None:
        """All of them, of which one is changed, back to work; and parked again."""
        if not count:
            return
        self._watcher.counts.clear()
        self._watcher.events.clear()
        service: Service = self._service
        for by in GroupBy:
            await service.groups(dlq, by)
        await service.peek(dlq, "error:ValueError -redriven:>5 x")
        one = await service.plan(OperationRequest(OperationKind.REDRIVE, dlq, Selection(limit=1)))
        edit = ByHand(Edit(None, {"fixed": "1"}, ()))
        edited = await service.begin_edit(one, edit, self._folder / "archive")
        await service.run(edited, Change(edit, force=True))
        plan = await service.plan(OperationRequest(OperationKind.REDRIVE, dlq, Selection()))
        operation = await service.run(await service.begin(plan.order, planned=plan.eligible))
        if operation.state is not OperationState.SUCCEEDED and not operation.counts.failed:
            raise Broken(f"the re-drive ended as {operation.state}: {operation.note}")
        await self._all_back(dlq, count, operation.counts.as_dict())

    async def _all_back(self, dlq: str, count: int, told: dict[str, int]) -> None:
        done = lambda: sum(self._watcher.counts[outcome] for outcome in _FINAL)  # noqa: E731
        try:
            async with asyncio.timeout(PATIENCE):
                while await self._depth(dlq) + done() != count:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        except TimeoutError:
            have = await self._depth(dlq)
            raise Broken(f"{count} were re-driven ({told}), {have} are dead again and {done()} done") from None

    async def _clear(self) -> None:
        for queue in self._queues:
            await self._connection.purge_queue(f"{queue}.dlq")

    # Others -----------------------------------------------------------------------------------------------------------

    def mutate(self, mutator: Mutator, data: bytes, others: Sequence[bytes]) -> bytes:
        chance = mutator.chance
        messages = []
        for _ in range(chance.choice((1, 10, 30))):
            if chance.random() < 0.75:
                raw, body = hostile.message(chance)
            else:
                raw, body = chance.choice(unpack(chance.choice((data, *others))) or [(b"\x00\x00", b"")])
                raw = mutator.payload(raw, [raw])
            messages.append((hostile.cut(raw, chance) if chance.random() < 0.03 else raw, body))
        return pack(messages)

    def made(self) -> dict[str, bytes]:
        if self.name != "deliveries":
            return {}
        chance = Random(10)
        return {f"some-{number}": pack([_small(chance) for _ in range(8)]) for number in range(4)}


def _small(chance: Random) -> tuple[bytes, bytes]:
    """Small enough to be kept in a corpus."""
    return next((raw, body) for raw, body in _endless(chance) if len(raw) + len(body) < 3_000)


def _endless(chance: Random) -> Iterator[tuple[bytes, bytes]]:
    while True:
        yield hostile.message(chance)


async def _lost(connection: Connection) -> None:
    """Return when the broker has ended the connection; it is made anew by itself, and over the same message again."""
    while not connection.reconnects:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


class RabbitMQTarget(DeliveryTarget):
    """On RabbitMQ, a node of its own."""

    def _broker(self, stack: ExitStack) -> str:
        return stack.enter_context(RabbitMQ(self._folder / "rabbitmq", name="fuzzed", root=rabbitmq_root())).url

    @property
    def _delays(self) -> bool:
        return False

    def _may_be_looked_into(self, queue: str) -> bool:
        """Without the management API quorum queues may not: a look could cost a delivery."""
        return queue != "h.quorum"


# What is shown --------------------------------------------------------------------------------------------------------


def check_printed(text: str) -> None:
    for char in set(text):
        if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in "\n\t":
            at = text.index(char)
            raise Broken(f"{char!r} is printed as it is: {text[max(0, at - 80) : at + 80]!r}")


def check_page(path: str, response: httpx.Response, expected: tuple[int, ...] = (200,)) -> None:
    if response.status_code not in expected:
        raise Broken(f"{path} is answered with {response.status_code}: {response.text[:500]}")
    kind = response.headers.get("content-type", "")
    if kind.startswith("text/html"):
        if "<zz" in response.text:
            at = response.text.index("<zz")
            raise Broken(f"{path} holds markup out of a message: {response.text[max(0, at - 100) : at + 100]}")
        check_printed(response.text)
    elif kind.startswith(("application/json", "application/problem+json")):
        response.json()
