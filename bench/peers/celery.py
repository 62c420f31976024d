"""Celery: a worker with one process in its pool, and one without a pool, acknowledging after the task as the others do.

What a worker that is alone does not need is off: results, events, gossip, mingle, heartbeat, remote control.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
from celery import Celery
from celery.platforms import EX_OK
from celery.signals import worker_process_init, worker_ready
from celery.worker import state

from bench.contract import Elapsed, Stopwatch, System, own_cpu_seconds
from bench.handling import HandleJob, Tally

system = System("Celery", packages=("celery", "kombu", "billiard"))

_LOOK = 0.1  # seconds between looks whether everything is done


@system.contends("handle", "solo")
def solo(job: HandleJob, watch: Stopwatch) -> None:
    tally = Tally(job, watch, lambda: None)
    _work(job, "solo", tally.handled, lambda: watch.elapsed is not None)


@system.contends("handle", "prefork 1")
def prefork(job: HandleJob, watch: Stopwatch) -> None:
    """The process in the pool handles and measures. The CPU is that of both."""
    with tempfile.TemporaryDirectory() as directory:
        in_pool = _InPool(job, Path(directory) / "elapsed")
        worker_process_init.connect(in_pool.start)
        _work(job, "prefork", in_pool.handled, in_pool.report.exists)
        watch.record(msgspec.json.decode(in_pool.report.read_bytes(), type=Elapsed))


class _InPool:
    """What the process in the pool has of the measurement."""

    def __init__(self, job: HandleJob, report: Path) -> None:
        self.report = report
        self._job = job

    def start(self, **_: object) -> None:
        parent = psutil.Process(os.getppid())

        def cpu_seconds() -> float:
            times = parent.cpu_times()
            return own_cpu_seconds() + float(times.user + times.system)

        self._watch = Stopwatch(cpu_seconds)
        self._tally = Tally(self._job, self._watch, self._tell)

    def handled(self) -> None:
        self._tally.handled()

    def _tell(self) -> None:
        draft = self.report.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(self._watch.elapsed))
        draft.rename(self.report)


def _work(job: HandleJob, pool: str, handled: Callable[[], None], is_done: Callable[[], bool]) -> None:
    """Publish everything, then work until it is done and acknowledged."""
    app = _app(job)

    @app.task(name="handle")
    def handle(document: dict[str, Any]) -> None:  # noqa: ARG001 - decoded by the worker
        if job.pause:
            time.sleep(job.pause)
        handled()

    def look() -> None:
        if is_done() and not state.reserved_requests:
            state.should_stop = EX_OK

    @worker_ready.connect(weak=False)
    def ready(sender: Any, **_: object) -> None:
        sender.timer.call_repeatedly(_LOOK, look)

    document = job.document()
    for _ in range(job.published):
        handle.apply_async((document,))
    job.let_the_broker_rest()
    app.Worker(
        pool=pool,
        concurrency=1,
        loglevel=logging.ERROR,
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    ).start()


def _app(job: HandleJob) -> Celery:
    app = Celery("bench", broker=job.url)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        task_acks_late=True,
        task_default_queue=job.queue,
        task_ignore_result=True,
        worker_disable_rate_limits=True,
        worker_enable_remote_control=False,
        worker_prefetch_multiplier=job.prefetch,
        worker_redirect_stdouts=False,  # the result is written there
    )
    return app
