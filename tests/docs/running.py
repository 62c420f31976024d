"""Execute a page: write its files, run its Python and its commands, in its order, and compare what they say.

| language               | what becomes of it                                                                       |
|------------------------|------------------------------------------------------------------------------------------|
| `python`               | a file (first line `# shop.py`) is written, and imported unless a command of the page    |
|                        | names it; other blocks are executed in one namespace, in order, with `await` anywhere    |
| `text`, after `python` | what that block printed                                                                  |
| `console`              | `$ command` is run by bash in the page's folder, and says what is shown (`shown.py`)     |
| `toml`, `yaml`         | parsed; loaded, if it is a topology                                                      |
| `json`                 | parsed                                                                                   |
| `sql`                  | executed: on the page's PostgreSQL, or on the SQLite in `.redrive` if it needs none      |
| `mermaid`, `text`      | a picture: nothing                                                                       |

Each page has a folder of its own, in which `examples` is that of the repository, an environment without `REDRIVE_*`,
and no more time than it needs: what only looks is asked again until it says what is shown, at most for `WITHIN`.

**Programs that go on** (a worker, a server) are started at a terminal, unless the page says `<!-- page: piped -->`, are
waited for until they have said what is shown, and are ended by SIGTERM at the page's end, without a traceback. One that
is started again is ended first; `kill %1`, in a hidden block, ends the page's first. They listen where nobody else
does, and later commands are told where that is.

**Servers.** Where a page says that it needs them (`<!-- page: rabbitmq postgres -->`), addresses at `localhost` and
`example.com` are those of private ones.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa
import yaml

from docs.commands import Command, adapted, split, usual_port
from docs.markdown import Block, Page
from docs.nursery import Child, nursery, words_of
from docs.shown import Stand, matches, plain, says
from redrive.testing.ports import free_port, is_open
from redrive.testing.processes import ServerFailed, ServerProcess
from redrive.topology.serialization import parse_toml, parse_yaml

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
WITHIN = 30.0

_AMQP = re.compile(r"amqps?://(?:[^\s\"'`@/]*@)?(?:localhost|[\w.]*example\.com)(?::\d+)?(?:/\w*)?")
_MANAGEMENT = re.compile(r"https?://(?:[^\s\"'`@/]*@)(?:localhost|[\w.]*example\.com):1567[12]/?")
_POSTGRES = re.compile(r"postgresql(?:\+\w+)?://(?:[^\s\"'`@/]*@)?(?:localhost|[\w.]*example\.com)(?::\d+)?/\w*")


# What a project has that uses pytest-asyncio; without a word about it there is a warning.
_PYTEST = (
    "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\naddopts = -p no:cacheprovider\n"
)


class Untrue(AssertionError):
    """The page says what is not so."""


@dataclass(frozen=True)
class Servers:
    """Where the page's private servers are, if it needs them."""

    broker: str | None = None
    management: str | None = None
    database: str | None = None

    def stand_in(self, text: str) -> str:
        """The text with these in place of the addresses that are shown."""
        places = [(_AMQP, self.broker), (_MANAGEMENT, self.management), (_POSTGRES, self.database)]
        for address, real in places:
            if real is not None:
                text = address.sub(lambda _, real=real: real, text)  # type: ignore[misc]
        return text


def environment() -> dict[str, str]:
    """Nothing of ours but what a person who has installed the package would have."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("REDRIVE_", "PYTEST_", "COV_"))}
    return ours | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "NO_COLOR": "1",
        "COLUMNS": "200",
        "REDRIVE_USER": "ada",
    }


@dataclass
class Lasting:
    """A program that goes on, and what it says."""

    command: Command
    process: ServerProcess | Child
    log: Path

    @property
    def said(self) -> str:
        return plain(self.log.read_text(errors="replace"))

    def wait_for(self, ready: Callable[[], bool]) -> None:
        self.process.wait_until(ready, timeout=WITHIN)

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.process.stop(how)
        status = self.process.join()
        if status % 256 not in (0, 256 - how, 128 + how):
            raise Untrue(f"`{self.command.text}` ended with {status}:\n{self.said}")
        if self.command.words[0] != "celery" and "Traceback (most" in self.said.replace('"Traceback', ""):
            raise Untrue(f"`{self.command.text}` said:\n{self.said}")


class Interpreter:
    """Our end of `interpreter.py`."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        theirs, ours = os.pipe()
        answers, said = os.pipe()
        words = ["python", str(HERE / "interpreter.py")]
        self._child = nursery().start(words, folder, environment, (theirs, said, said))
        os.close(theirs)
        os.close(said)
        self._questions, self._answers = os.fdopen(ours, "w"), os.fdopen(answers)

    def ask(self, question: Mapping[str, str]) -> dict[str, Any]:
        self._questions.write(json.dumps(question) + "\n")
        self._questions.flush()
        line = self._answers.readline()
        if not line:
            raise Untrue("the code ended its process")
        return dict(json.loads(line))

    def close(self) -> None:
        self._questions.close()
        self._child.ended_within(WITHIN)
        self._child.stop()
        self._answers.close()


@dataclass
class Reader:
    """Somebody who does what a page says."""

    name: str
    page: Page
    folder: Path
    servers: Servers = field(default_factory=Servers)

    def __post_init__(self) -> None:
        self.environment = environment()
        self.stand = Stand()
        self.lasting: list[Lasting] = []
        self.every: list[Lasting] = []
        self.status = 0
        self.printed = ""
        self._python: Interpreter | None = None

    def __enter__(self) -> Self:
        (self.folder / "examples").symlink_to(ROOT / "examples")
        (self.folder / "pytest.ini").write_text(_PYTEST)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._python is not None:
            self._python.close()
        failures = []
        for program in reversed(self.lasting):
            try:
                program.end()
            except Untrue as failure:
                failures.append(str(failure))
        if error is not None:
            for program in self.every:
                error.add_note(f"--- {program.command.text}\n{program.said[-3000:]}")
        elif failures:
            raise Untrue(f"{self.name}: " + "\n".join(failures))

    def follow(self) -> None:
        """The whole page, from its beginning to its end."""
        for block in self.page.blocks:
            try:
                self.do(block)
            except Exception as error:
                raise Untrue(f"{self.name}:{block.line}: {error}") from None

    def do(self, block: Block) -> None:
        if block.mark("not run") is not None or block.mark("session") is not None:
            return
        if (source := block.mark("quoted")) is not None:
            self._quoted(block, ROOT / source)
        elif block.mark("logged") is not None:
            self._logged(block)
        else:
            self._by_language(block)

    def _by_language(self, block: Block) -> None:
        match block.language:
            case "python":
                self._run_python(block)
            case "console":
                self._run_commands(block)
            case "toml" | "yaml" | "json" | "ini":
                self._read_data(block)
            case "sql":
                self._run_sql(block)
            case "text" if self.printed:
                self._compare(block.text, self.printed, "the program before it")
            case _:
                pass
        if block.language != "python":
            self.printed = ""

    # Python -------------------------------------------------------------------------------------------

    def _run_python(self, block: Block) -> None:
        text = self.stand.addresses(self.servers.stand_in(block.text))
        if block.file is None:
            self.printed = self._ask(do="execute", text=text, where=f"{self.name}:{block.line}")
            return
        path = self._write(block.file, text)
        compile(text, str(path), "exec", dont_inherit=True)
        if not self._is_named_after(block, path.stem):
            self._ask(do="load", module=".".join(Path(block.file).with_suffix("").parts))

    def _is_named_after(self, block: Block, stem: str) -> bool:
        """Whether a command that comes later executes this file."""
        later = [one for one in self.page.blocks if one.line > block.line and one.language == "console"]
        return any(re.search(rf"\b{stem}\b", command.text) for one in later for command in split(one.text))

    def _ask(self, **question: str) -> str:
        if self._python is None:
            self._python = Interpreter(self.folder, self.environment)
        answer = self._python.ask(question)
        if answer["failure"]:
            raise Untrue(f"the code fails:\n{answer['printed']}{answer['failure']}")
        return str(answer["printed"])

    # Commands -----------------------------------------------------------------------------------------

    def _run_commands(self, block: Block) -> None:
        commands = split(block.text, block.line)
        expected = int(block.mark("exits") or 0)
        for number, command in enumerate(commands, 1):
            following = commands[number].text if number < len(commands) else ""
            asked = following == "echo $?" or bool(expected and number == len(commands))
            try:
                self._run(command, status=None if following == "echo $?" else expected if asked else 0)
            except Untrue as error:
                raise Untrue(f"line {command.line}: {error}") from None

    def _run(self, command: Command, status: int | None) -> None:
        if command.not_run is not None:
            return
        port = free_port()
        text = self.stand.translate(self.servers.stand_in(adapted(command, port, ROOT)))
        if (usual := usual_port(command)) is not None:
            self.stand.put(f"127.0.0.1:{usual}", f"127.0.0.1:{port}")
        if command.exported is not None:
            name, value = command.exported
            value = self.stand.translate(self.servers.stand_in(value))
            done = self._bash(f"printf %s {value}")
            self.environment[name] = done.stdout
        elif ended := re.fullmatch(r"kill %(\d+)", command.text):
            self._end(self.every[int(ended[1]) - 1], signal.SIGTERM)
        elif command.ready is not None and not status:
            self._start(command, text, port)
        elif command.looks and command.shown:
            self._look(command, text, status)
        else:
            done = self._bash(text)
            self._check(command, done, status)

    def _bash(self, text: str) -> subprocess.CompletedProcess[str]:
        if (words := words_of(text)) is not None:
            return nursery().run(words, self.folder, self.environment, within=WITHIN * 2)
        return subprocess.run(
            ["bash", "-c", f"(exit {self.status}); {text}"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=WITHIN * 2,
            check=False,
        )

    def _check(self, command: Command, done: subprocess.CompletedProcess[str], status: int | None) -> None:
        self.status = done.returncode
        if status is not None and done.returncode != status:
            raise Untrue(f"`{command.text}` ended with {done.returncode}:\n{done.stdout}")
        if command.shown and not self._is_dry(command):
            self._compare(command.shown, done.stdout, f"`{command.text}`")

    @staticmethod
    def _is_dry(command: Command) -> bool:
        return command.words[:1] == ("make",)

    def _look(self, command: Command, text: str, status: int | None) -> None:
        """Until it says what is shown: what is handled, handed over or written is so a little later."""
        until = time.monotonic() + WITHIN
        while True:
            done = self._bash(text)
            as_shown = matches(command.shown, done.stdout, self.stand)
            if (as_shown and status in (None, done.returncode)) or time.monotonic() > until:
                return self._check(command, done, status)

    def _end(self, program: Lasting, how: signal.Signals = signal.SIGINT) -> None:
        self.lasting.remove(program)
        program.end(how)

    def _start(self, command: Command, text: str, port: int) -> None:
        for program in [one for one in self.lasting if one.command.text == command.text]:
            self._end(program)
        log = self.folder / f"program-{len(self.every)}.log"
        program = Lasting(command, self._process(text, log), log)
        self.every.append(program)
        self.lasting.append(program)
        self._wait_until_ready(program, port)
        if command.afterwards is not None:
            self._end(program)
            if not says(command.afterwards, program.said, self.stand):
                raise _different(command.afterwards, program.said, f"`{command.text}`, interrupted,")

    def _process(self, text: str, log: Path) -> ServerProcess | Child:
        """At a terminal, if it is one of those that are prepared."""
        words = words_of(text)
        if words is None:
            return ServerProcess(["bash", "-c", f"exec {_env(text)}"], environment=self.environment, log=log)
        with open(os.devnull) as nothing, log.open("ab") as said:
            files = (nothing.fileno(), said.fileno(), said.fileno())
            terminal = "piped" not in self.page.needs
            return nursery().start(words, self.folder, self.environment, files, terminal=terminal)

    def _wait_until_ready(self, program: Lasting, port: int) -> None:
        command = program.command
        if command.shown:
            try:
                program.wait_for(lambda: says(command.shown, program.said, self.stand))
            except ServerFailed as error:
                raise _different(command.shown, program.said, f"`{command.text}` ({error})") from None
        if usual_port(command) is not None:
            program.wait_for(lambda: is_open(port))
        elif not command.shown:
            program.wait_for(lambda: re.search(command.ready or "^", program.said) is not None)

    def _logged(self, block: Block) -> None:
        """Each of these lines is said by one of the programs, sooner or later."""
        until = time.monotonic() + WITHIN
        for line in block.text.rstrip("\n").split("\n"):
            while not any(says(line, one.said, self.stand) for one in self.every):
                if time.monotonic() > until:
                    raise Untrue(f"nobody says: {line}")
                time.sleep(0.05)

    # What is compared ---------------------------------------------------------------------------------

    def _compare(self, shown: str, said: str, who: str) -> None:
        if not matches(shown, said, self.stand):
            raise _different(shown, said, who)

    @staticmethod
    def _quoted(block: Block, source: Path) -> None:
        text = source.read_text()
        for part in re.split(r"(?m)^ *(?:\.\.\.|…)\n", block.text):
            if not any(textwrap.indent(part.strip("\n"), " " * depth) in text for depth in (0, 4, 8)):
                raise Untrue(f"this is not in {source.relative_to(ROOT)}:\n{part}")

    # Data ---------------------------------------------------------------------------------------------

    def _write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def _read_data(self, block: Block) -> None:
        text = self.servers.stand_in(block.text)
        if block.file is not None:
            self._write(block.file, text)
        match block.language:
            case "toml":
                if _is_topology(tomllib.loads(text)):
                    parse_toml(text)
            case "yaml":
                if any(_is_topology(one) for one in yaml.safe_load_all(text)):
                    parse_yaml(text)
            case "json":
                json.loads(text)

    def _run_sql(self, block: Block) -> None:
        embedded = self.servers.database is None or block.mark("sqlite") is not None
        url = f"sqlite:///{self.folder / '.redrive' / 'redrive.db'}" if embedded else str(self.servers.database)
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            raw: Any = connection.connection.driver_connection
            (raw.executescript if url.startswith("sqlite") else raw.execute)(block.text)


def _env(text: str) -> str:
    """A command with variables in front, as `exec` takes it."""
    return f"env {text}" if re.match(r"[A-Z_]+=", text) else text


def _is_topology(found: object) -> bool:
    return isinstance(found, Mapping) and bool({"queues", "exchanges"} & found.keys())


def _different(shown: str, said: str, who: str) -> Untrue:
    return Untrue(f"{who} is shown to say\n\n{shown}\nand says\n\n{plain(said)}")
