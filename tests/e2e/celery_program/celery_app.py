"""The Celery application of test_celery.py, as its workers load it. The environment says where everything is.

The ladder is a video worker's, in milliseconds. Each task does one thing that tasks do; `seen` writes down what a task
was when it ran, so that a test can tell by which ways it came.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore, Reject

from redrive.integrations.celery import equip

FOLDER = Path(os.environ["CELERY_FOLDER"])
TOPOLOGY = os.environ["CELERY_TOPOLOGY"]

app = Celery("shop", broker=os.environ["CELERY_BROKER"], backend=f"db+sqlite:///{FOLDER}/results.db")
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_connection_timeout=5,
    result_extended=True,
    worker_hijack_root_logger=False,
)
equip(app, TOPOLOGY, park=os.environ.get("CELERY_PARK", "publish"), crash_limit=3)  # type: ignore[arg-type]


def seen(task: Task, **more: Any) -> None:
    """What it was, and by which queue it came: that of the newest death, if it waited."""
    request = task.request
    headers = request.headers or {}
    deaths = headers.get("x-death") or [{"queue": None}]
    line = {
        "task": task.name,
        "id": request.id,
        "retries": request.retries,
        "from": deaths[0]["queue"],
        "exchange": request.delivery_info["exchange"],
        "eta": request.eta,
        "pid": os.getpid(),
        "at": time.time(),
        "attempts": headers.get("x-redrive-attempts"),
        "priority": request.delivery_info.get("priority"),
        **more,
    }
    with (FOLDER / "seen").open("a") as file:
        file.write(json.dumps(line) + "\n")


@app.task(bind=True)
def add(self: Task, one: int, other: int) -> int:
    seen(self)
    return one + other


@app.task(bind=True)
def again(self: Task, times: int, **how: Any) -> int:
    """Is retried so often, then tells how often it was."""
    seen(self)
    try:
        if self.request.retries < times:
            raise ConnectionError("not yet")
    except ConnectionError as error:
        raise self.retry(exc=error, **how) from error
    return int(self.request.retries)


@app.task(bind=True, autoretry_for=(ConnectionError,), retry_backoff=True, max_retries=2)
def stubborn(self: Task) -> None:
    seen(self)
    raise ConnectionError("nobody is there")


@app.task(bind=True)
def broken(self: Task, what: str) -> None:
    seen(self)
    raise ValueError(f"{what} is broken")


@app.task(bind=True)
def mended(self: Task, what: str) -> str:
    """Fails for good until somebody has mended it."""
    seen(self)
    if not (FOLDER / what).exists():
        raise self.retry(exc=FileNotFoundError(what))
    return what


@app.task(bind=True)
def deadly(self: Task) -> None:
    seen(self)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True)
def held(self: Task, name: str) -> str:
    """Does not end before it may."""
    seen(self)
    while not (FOLDER / name).exists():
        time.sleep(0.02)
    return name


@app.task(bind=True, time_limit=1)
def endless(self: Task) -> None:
    seen(self)
    time.sleep(60)


@app.task(bind=True)
def refused(self: Task) -> None:
    seen(self)
    raise Reject("no hope", requeue=False)


@app.task(bind=True)
def ignored(self: Task) -> None:
    seen(self)
    raise Ignore


@app.task
def told_of_a_failure(request: Any, error: Any, _traceback: Any) -> None:
    (FOLDER / "errback").write_text(f"{request.id} {error}")


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)
