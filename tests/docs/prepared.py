"""The `redrive` command, ready to be one: most of the time of a short command goes into imports; this has done them.

Asked by lines of JSON on stdin, it forks for each command. The child is a process of its own, with the folder, the
environment and the outputs it is told, and does what `redrive` does; the answer is its exit status. One that takes
longer than `LIMIT` seconds is ended.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import signal
import sys
import traceback
from typing import Any, NoReturn

LIMIT = 60
_WITHOUT = ("redrive.testing", "redrive.demo", "redrive.integrations", "redrive.__main__", "redrive.admin.web")


def main() -> None:
    _import_everything()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(json.loads(line))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def _import_everything() -> None:
    import redrive

    for found in pkgutil.walk_packages(redrive.__path__, "redrive."):
        if not found.name.startswith(_WITHOUT):
            importlib.import_module(found.name)
    for more in ("alembic.command", "sqlalchemy.dialects.postgresql.psycopg", "psycopg", "aiosqlite"):
        importlib.import_module(more)


def _become(order: dict[str, Any]) -> NoReturn:
    """The command, and nothing else: what was here before does not go on."""
    from redrive.cli import main as redrive

    status = 1
    try:
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.alarm(LIMIT)
        sys.argv = ["redrive", *order["words"]]
        redrive(order["words"], prog_name="redrive")
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
