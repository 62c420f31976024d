"""Every way to start an example that its README documents, from an empty folder and an empty database.

The parts of a way are started at the same moment, as processes: none of them may rely on another having been there
before. A way that a README documents and that has no test here fails `test_every_documented_way_has_a_test`.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import httpx
import pytest
import sqlalchemy as sa
from PIL import Image

from e2e.examples.stacks import ROOT, Stack
from examples.video import clips
from redrive.database.engine import Database
from redrive.testing.ports import free_port
from topology_systems import SYSTEMS

WITHIN = 90.0
APART = {"SAGNUS_NFE_OUTBOX_TRANSPORT": "RABBIT", "SAGNUS_NFE_WORKER_ENABLED": "true"}


# What the READMEs document ------------------------------------------------------------------------

_COMMAND = re.compile(
    r"(?:python -m examples|uvicorn|redrive (?:worker|outbox relay|db|serve|broker)|celery|docker)\b.*"
)
_NO_WAYS = {
    "python -m examples.errorfilter send": "publishes one message: `errorfilter_works` does so",
    "python -m examples.errorfilter decisions": "prints a table and ends",
    "docker": "needs a container engine",
}


def documented(example: str) -> set[str]:
    """Return the commands of a README that start something."""
    text = re.sub(r"<!--.*?-->", "", (ROOT / "examples" / example / "README.md").read_text(), flags=re.DOTALL)
    fenced = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    spans = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    parts = [part for line in fenced for part in re.split(r"#(?: or:)?", line)]
    candidates = [re.sub(r"^([A-Z_]+=\S+ )+", "", " ".join(part.split())) for part in (*parts, *spans)]
    return {found for found in candidates if _COMMAND.fullmatch(found) and not found.startswith(tuple(_NO_WAYS))}


# How they are started -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """Commands that together do an example's work."""

    example: str
    commands: tuple[str, ...]  # as the README has them
    settings: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        first = self.commands[0].removeprefix("python -m examples.")
        return "-".join(filter(None, (self.example, *first.split()[:3], *self.settings.values())))


NFE = "examples.nfe.app:app"
WAYS = (
    Way("raffle", ("python -m examples.raffle",)),
    Way("raffle", ("uvicorn --factory examples.raffle.api:make_api", "redrive worker examples.raffle.app:app")),
    Way(
        "raffle",
        (
            "redrive worker examples.raffle.app:app -q raffle_queue",
            "redrive worker examples.raffle.app:app -q raffle_dlq",
            "uvicorn --factory examples.raffle.api:make_api",
        ),
    ),
    Way("uploads", ("python -m examples.uploads",)),
    Way("uploads", ("uvicorn examples.uploads.api:api", "redrive worker examples.uploads.app:app")),
    Way("errorfilter", ("python -m examples.errorfilter",)),
    Way("errorfilter", ("python -m examples.errorfilter gateway", "redrive worker examples.errorfilter.app:app")),
    Way("video", ("python -m examples.video",)),
    Way(
        "video",
        (
            "redrive broker",
            "celery -A examples.video.worker.celery_app worker",
            "python -m examples.video.producer film.mp4",
        ),
    ),
    Way("nfe", ("python -m examples.nfe",)),
    Way("nfe", ("python -m examples.nfe",), {"SAGNUS_NFE_OUTBOX_TRANSPORT": "RABBIT"}),
    Way(
        "nfe",
        (
            "python -m examples.nfe.migrations",
            *(f"python -m examples.nfe --only {part}" for part in ("api", "relay", "worker")),
        ),
        APART,
    ),
    Way("nfe", ("uvicorn examples.nfe.api:api", f"redrive outbox relay {NFE}", f"redrive worker {NFE}"), APART),
)


@pytest.mark.parametrize("example", SYSTEMS)
def test_every_documented_way_has_a_test(example: str) -> None:
    assert documented(example) == {command for way in WAYS if way.example == example for command in way.commands}


_LISTENS = re.compile(
    r"uvicorn .*|python -m examples\.(nfe|raffle|uploads)( --only api)?|.* gateway|redrive (broker|serve .*)"
)


def arguments(command: str, port: int) -> list[str]:
    """Return what follows `python -m`; a server listens on a port of the test's own."""
    words = command.removeprefix("python -m ").split()
    return [*words, "--port", str(port)] if _LISTENS.fullmatch(command) else words


class Started:
    """The programs of a way, and how to reach them."""

    def __init__(self, stack: Stack, way: Way, programs: ExitStack) -> None:
        self.stack = stack
        self.way = way
        self.port = free_port()
        self.client = programs.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30))
        self.settings = {**way.settings, "SANDBOX_PORT": str(self.port), "C_FORCE_ROOT": "1"}
        if "redrive broker" in way.commands and stack.broker is None:
            self.settings["REDRIVE_BROKER"] = f"amqp://guest:guest@127.0.0.1:{self.port}/"
        self.programs = {
            command: programs.enter_context(
                stack.running(*arguments(command, self.port), log=f"part{place}.log", **self.settings)
            )
            for place, command in enumerate(way.commands)
            if command != "redrive broker" or stack.broker is None  # the other one is there
        }

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + WITHIN
        while not condition():
            assert time.monotonic() < deadline, self.output
            for program in self.programs.values():  # it ended well, or not at all
                assert program.process.running or program.process.join() == 0, self.output
            time.sleep(0.05)

    def answer(self, method: str, path: str, **options: object) -> httpx.Response:
        """Return the first answer of the API, which may not listen yet."""
        found: list[httpx.Response] = []

        def answers() -> bool:
            try:
                found.append(self.client.request(method, path, **options))  # type: ignore[arg-type]
            except httpx.ConnectError:
                return False
            return True

        self.until(answers)
        return found[0]

    def rows(self, query: str) -> list[sa.Row[tuple[object, ...]]]:
        with self.stack.looking() as connection:
            if not sa.inspect(connection).has_table(query.split()[3]):
                return []
            return list(connection.execute(sa.text(query)))

    @property
    def output(self) -> str:
        return "\n".join(f"--- {command}\n{program.output[-3000:]}" for command, program in self.programs.items())


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_it_works_from_an_empty_folder_and_an_empty_database(way: Way, stack: Stack) -> None:
    (stack.folder / "film.mp4").write_bytes(clips.film(0.2))
    with ExitStack() as programs:
        started = Started(stack, way, programs)
        WORK[way.example](started)


# What is to go through ----------------------------------------------------------------------------


def raffle_works(started: Started) -> None:
    answer = started.answer("POST", "/api/v1/users", json={"name": "Ana", "email": "ana@example.org"})
    assert answer.status_code == 200, answer.text
    started.until(lambda: started.rows("SELECT name FROM users") == [("Ana",)])


def uploads_works(started: Started) -> None:
    Image.new("RGB", (8, 8)).save(picture := io.BytesIO(), "png")
    answer = started.answer("POST", "/files", files={"file": ("ok.png", picture.getvalue())})
    assert answer.status_code == 202, answer.text
    path = f"/files/{answer.json()['id']}"

    def is_through() -> bool:
        found = started.client.get(path)
        assert found.status_code in (200, 404), found.text
        return found.status_code == 200 and None not in (found.json()["thumbnail"], found.json()["metadata"])

    started.until(is_through)


def errorfilter_works(started: Started) -> None:
    sent = started.stack.run("examples.errorfilter", "send", **started.settings)
    assert sent.returncode == 0, sent.stderr
    started.until(lambda: started.rows("SELECT charge FROM receipts") == [(sent.stdout.strip(),)])


def video_works(started: Started) -> None:
    # Kept by the worker's own processes; the name is that of the video when the file is whole.
    pictures = started.stack.data / "video" / "thumbnails"
    started.until(lambda: pictures.is_dir() and any(len(path.name) == 36 for path in pictures.iterdir()))
    url = started.stack.database or f"sqlite:///{started.stack.data / 'results.db'}"
    database = Database(url)

    def is_known() -> bool:
        with database.reading_connection() as connection:
            return "SUCCESS" in connection.exec_driver_sql("SELECT status FROM celery_taskmeta").scalars()

    started.until(is_known)
    database.engine.dispose()


def nfe_works(started: Started) -> None:
    nota = json.loads((ROOT / "examples" / "nfe" / "nota.json").read_text())
    answer = started.answer("POST", "/nfe", json=nota)
    assert answer.status_code == 201, answer.text
    path = f"/nfe/{answer.json()['chave']}/xml"
    started.until(lambda: started.client.get(path).status_code == 200)
    is_rabbit = started.way.settings.get("SAGNUS_NFE_OUTBOX_TRANSPORT") == "RABBIT"

    async def on_the_broker() -> bool:
        async with started.stack.connection() as connection:
            return await connection.exchange_exists("sagnus.nfe.events")

    if started.stack.broker is not None:  # as the document has it: the flag decides, and not the broker's URL
        assert asyncio.run(on_the_broker()) is is_rabbit


WORK: dict[str, Callable[[Started], None]] = {
    "raffle": raffle_works,
    "uploads": uploads_works,
    "errorfilter": errorfilter_works,
    "video": video_works,
    "nfe": nfe_works,
}


# What cannot start --------------------------------------------------------------------------------

NONSENSE = {
    "raffle": {"MAX_RETRIES": "many"},
    "uploads": {"NOTIFY_TIMEOUT": "soon"},
    "errorfilter": {"RETRY_DELAY": "long"},
    "video": {"VIDEO_RETRY_WAITS": "soon,later"},
    "nfe": {"SAGNUS_NFE_WORKER_MAXDELIVERIES": "1"},
}
_NO_BROKER = ("gateway", "redrive broker")
_NO_DATABASE = (*_NO_BROKER, "producer film.mp4")
_OPERATORS = {"raffle": ("redrive serve examples.raffle.app:app", "redrive db upgrade examples.raffle.app:app")}


def refusals(
    stack: Stack, example: str, said: Mapping[str, str], *, without: tuple[str, ...] = ("redrive broker",)
) -> list[tuple[str, int, str]]:
    """Run every command of an example but those that end so; return each with its exit code and what it printed."""
    ways = [way for way in WAYS if way.example == example]
    settings = {name: value for way in ways for name, value in way.settings.items()} | dict(said)
    commands = {command for way in ways for command in way.commands} | set(_OPERATORS.get(example, ()))
    with ExitStack() as programs:
        started = {
            command: programs.enter_context(
                stack.running(*arguments(command, free_port()), log=f"part{place}.log", **settings)
            )
            for place, command in enumerate(sorted(commands))
            if not command.endswith(without)
        }
        for program in started.values():
            program.wait_for_the_end(WITHIN)
    return [(command, program.process.join(), program.output) for command, program in started.items()]


def is_one_sentence(output: str, *words: str) -> bool:
    """Is the reason there once, with nothing that is for programmers?"""
    found = [line for line in output.splitlines() if all(word in line for word in words)]
    return len(found) == 1 and "Traceback" not in output and '  File "' not in output


@pytest.mark.parametrize("example", SYSTEMS)
def test_a_variable_that_makes_no_sense_is_one_sentence(example: str, embedded: Stack) -> None:
    ((name, value),) = NONSENSE[example].items()
    shown = "maxDeliveries=1" if example == "nfe" else name
    for command, code, output in refusals(embedded, example, {name: value}):
        assert (command, code, is_one_sentence(output, "redrive: ", shown)) == (command, 2, True), output


@pytest.mark.parametrize("example", ["errorfilter", "uploads", "video"])  # by Redrive, with uvicorn, with Celery
def test_a_broker_url_that_makes_no_sense_is_one_sentence(example: str, embedded: Stack) -> None:
    said = {"REDRIVE_BROKER": "http://example.org"}
    for command, code, output in refusals(embedded, example, said, without=_NO_BROKER):
        assert (command, code, is_one_sentence(output, "redrive: ", "amqp")) == (command, 2, True), output


def test_a_port_that_is_taken_is_one_sentence(embedded: Stack) -> None:
    port = free_port()
    with embedded.running("examples.errorfilter", "gateway", "--port", str(port)) as gateway:
        gateway.wait_for("the gateway is at")
        refused = embedded.run("examples.errorfilter", SANDBOX_PORT=str(port))

    assert (refused.returncode, is_one_sentence(refused.stderr, "cannot listen", "SANDBOX_PORT")) == (2, True), refused


@pytest.mark.parametrize("example", SYSTEMS)
def test_a_database_that_cannot_be_reached_is_one_sentence(example: str, embedded: Stack) -> None:
    url = f"postgresql+psycopg://ana:secret@127.0.0.1:{free_port()}/shop"
    for command, code, output in refusals(embedded, example, {"REDRIVE_DATABASE": url}, without=_NO_DATABASE):
        wanted = 3 if command.startswith("uvicorn") else 7  # uvicorn has codes of its own
        is_clear = is_one_sentence(output, "cannot be reached", "Connection refused", "REDRIVE_DATABASE")
        assert (command, code, is_clear, "secret" in output) == (command, wanted, True, False), output


@pytest.mark.parametrize("example", SYSTEMS)
def test_a_database_that_does_not_exist_is_one_sentence(example: str, production: Stack) -> None:
    assert production.database is not None
    url = sa.make_url(production.database).set(database="nowhere").render_as_string(hide_password=False)
    for command, code, output in refusals(production, example, {"REDRIVE_DATABASE": url}, without=_NO_DATABASE):
        wanted = 3 if command.startswith("uvicorn") else 2
        is_clear = is_one_sentence(output, 'database "nowhere" does not exist. Create it')
        assert (command, code, is_clear) == (command, wanted, True), output
