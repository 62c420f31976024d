"""Programs, ready to be started: most of the time of a short one goes into imports, and this has done them.

It is asked by packets of JSON on a socket, with the three files that the new program is to have. It forks, and the
child becomes the program: a process of its own, with the folder, the environment and the files it is told, that does
what `redrive`, `python` or `interpreter.py` do, and ends as those do. Whoever asked may wait for it, or look whether it
has ended. When nobody is left to ask, what still runs is killed.

| order                                                               | answer     |
|---------------------------------------------------------------------|------------|
| `start`, with `words`, `folder`, `environment`, `terminal`, 3 files | its pid    |
| `wait`, `poll`, with `pid`                                          | its status |
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import runpy
import shlex
import signal
import socket
import sys
from typing import Any

_LARGEST = 1 << 18
_WITHOUT = ("redrive.testing", "redrive.demo", "redrive.integrations.celery", "redrive.__main__")


def main() -> None:
    sys.path.pop(0)  # the folder of this file, which programs do not know
    _import_everything()
    asked = socket.socket(fileno=int(sys.argv[1]))
    living: set[int] = set()
    while True:
        packet, files, _, _ = socket.recv_fds(asked, _LARGEST, 3)
        if not packet:
            break
        order = json.loads(packet)
        if order["do"] == "start":
            pid = os.fork()
            if pid == 0:
                asked.close()
                _become(order, files)
                return
            for file in files:
                os.close(file)
            living.add(pid)
            answer: Any = pid
        else:
            ended, status = os.waitpid(order["pid"], os.WNOHANG if order["do"] == "poll" else 0)
            answer = os.waitstatus_to_exitcode(status) if ended else None
            living -= {ended}
        asked.send(json.dumps(answer).encode())
    for pid in living:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _import_everything() -> None:
    import redrive

    for found in pkgutil.walk_packages(redrive.__path__, "redrive."):
        if not found.name.startswith(_WITHOUT):
            importlib.import_module(found.name)
    for more in (
        "alembic.command",
        "psycopg",
        "sqlalchemy.dialects.postgresql.psycopg",
        "aiosqlite",
        "uvicorn",
        "httpx",
    ):
        importlib.import_module(more)


def _become(order: dict[str, Any], files: list[int]) -> None:
    """The program, and nothing else of what was here before."""
    os.setsid()
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    words = order["words"]
    if order["terminal"]:
        from terminal import at_terminal

        at_terminal(lambda: _run(words))
    else:
        _run(words)


def _run(words: list[str]) -> None:
    match words:
        case ["redrive", *arguments]:
            sys.argv = words
            from redrive.cli import main as redrive

            redrive(arguments, prog_name="redrive")
        case ["python", "-m", module, *arguments]:
            sys.argv = [module, *arguments]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["python", "-c", code, *arguments]:
            sys.argv = ["-c", *arguments]
            sys.path.insert(0, "")
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        case ["python", file, *arguments]:
            sys.argv = [file, *arguments]
            sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
            runpy.run_path(file, run_name="__main__")
        case _:
            raise LookupError(f"nobody is prepared for {shlex.join(words)}")


if __name__ == "__main__":
    sys.modules.setdefault("terminal", importlib.import_module("terminal"))
    main()
