"""What stands in a `console` block, and what kind of command each is: pure decisions, for `running.py` to carry out.

A command begins with `$ ` and goes on in the next line after a `\\`; what follows, up to the next one, is what it says.
`^C` ends a program that would go on.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from docs.markdown import Unreadable

INTERRUPT = "^C"

# Programs that go on until they are told to end, and what they say when they are ready.
_LASTING = {
    ("redrive", "worker"): r" is working on ",
    ("redrive", "serve"): r"the console is at ",
    ("redrive", "broker"): r"listening on ",
    ("redrive", "outbox", "relay"): r" publishes ",
    ("uvicorn",): r"Uvicorn running on",
    ("celery",): r"celery@\S+ ready\.",
    ("faststream", "run"): r"app started successfully",
    ("python", "-m", "examples.errorfilter", "gateway"): r"the gateway is at ",
}

# Those that listen, and where they do if nobody says.
_SERVING = {
    ("redrive", "serve"): 8080,
    ("redrive", "broker"): 5672,
    ("redrive", "demo"): 0,
    ("uvicorn",): 8000,
    ("python", "-m", "examples.uploads"): 8000,
    ("python", "-m", "examples.nfe"): 8000,
    ("python", "-m", "examples.raffle"): 8000,
    ("python", "-m", "examples.errorfilter", "gateway"): 8901,
}

# What only looks can be asked again until it says what it will say soon.
_LOOKING = [
    r"redrive dlq (ls|groups|peek|show|plan|check)\b",
    r"redrive (outbox (status|ls)|ops (ls|show)|topology (plan|check)|doctor|audit)\b",
    r"curl (?!.*(--json|-d |-F |-X |--data))",
    r"sqlite3 \S+ (?i:select)",
    r"(cat|grep|ls|tail) ",
]

# Commands that are not executed as they are, wherever they stand, and why that is no loss.
NOT_RUN = {
    r"(sudo )?(pip|apt|apt-get) install|python -m venv|\. \S+/activate|source ": "it is installed already",
    r"cd |mkdir ": "each page has a folder",
    r"git clone": "it is cloned already",
}


@dataclass(frozen=True)
class Command:
    text: str
    shown: str = ""  # what it says
    afterwards: str | None = None  # what it says when it was interrupted; None: it is not
    line: int = 0

    @property
    def words(self) -> tuple[str, ...]:
        """Without the variables that are set for it."""
        try:
            words = shlex.split(self.text, comments=True)
        except ValueError:  # a shell's own syntax
            words = self.text.split()
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        return tuple(words)

    @property
    def ready(self) -> str | None:
        """What it says when it is ready, if it is one that goes on; "" if nobody knows but the page."""
        words = self.words
        if {"--help", "--version", "--once"} & {*words}:
            return None
        if words[:1] == ("celery",) and "worker" not in words:
            return None
        for beginning, says in _LASTING.items():
            if words[: len(beginning)] == beginning:
                return says
        if words[:2] == ("python", "-m") and re.fullmatch(r"examples\.\w+", words[2]):
            return "" if all(word.startswith("-") or word in ("api", "relay", "worker") for word in words[3:]) else None
        if words[:2] == ("redrive", "demo"):
            return "the console is at"
        return None

    @property
    def looks(self) -> bool:
        return any(re.match(pattern, " ".join(self.words)) for pattern in _LOOKING)

    @property
    def not_run(self) -> str | None:
        """Why it is not executed, if it is not."""
        return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, self.text)), None)

    @property
    def exported(self) -> tuple[str, str] | None:
        """A variable that it sets for all that follows, and the value as the shell is to read it."""
        found = re.fullmatch(r"(?:export )?([A-Z_]+)=(\$\(.*\)|'[^']*'|\S*)", self.text)
        return (found[1], found[2]) if found else None


def adapted(command: Command, port: int, root: Path) -> str:
    """As it is run here: several pages run at a time, so nobody has a port that others know; and nothing is built."""
    if command.words[:1] == ("make",):
        return re.sub(r"\bmake\b", f"make -n -C {root}", command.text, count=1)
    return f"{command.text.split(' #')[0]} --port {port}" if usual_port(command) is not None else command.text


def usual_port(command: Command) -> int | None:
    """Where it would listen, if it is one that listens and was not told where."""
    if command.ready is None or {"--port", "--unix"} & {*command.words} or {"relay", "worker"} & {*command.words[3:]}:
        return None
    return next((port for words, port in _SERVING.items() if command.words[: len(words)] == words), None)


def split(text: str, line: int = 0) -> list[Command]:
    """The commands of a block that begins in that line."""
    commands: list[Command] = []
    lines = text.rstrip("\n").split("\n")
    for number, said in enumerate(lines, line):
        goes_on = bool(commands) and commands[-1].text.endswith("\\") and not commands[-1].shown
        if said.startswith("$ "):
            commands.append(Command(said.removeprefix("$ ").rstrip(), line=number))
        elif not commands:
            raise Unreadable(f"line {number}: a console block begins with a command, `$ …`")
        elif goes_on:
            commands[-1] = replace(commands[-1], text=commands[-1].text.removesuffix("\\") + said.strip())
        else:
            commands[-1] = _with(commands[-1], said)
    return commands


def _with(command: Command, said: str) -> Command:
    if command.afterwards is not None:
        return replace(command, afterwards=f"{command.afterwards}{said}\n")
    if said.strip() == INTERRUPT:
        return replace(command, afterwards="")
    return replace(command, shown=f"{command.shown}{said}\n")
