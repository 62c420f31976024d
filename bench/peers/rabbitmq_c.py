"""The limit: a small C program on rabbitmq-c. It neither encodes nor decodes JSON, so it does less than the others.

It is compiled when first needed. Where there is no compiler or no librabbitmq-dev, the run goes on without it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from functools import cached_property
from pathlib import Path

from bench.contract import Elapsed, NotDone, Stopwatch, System
from bench.messages import MessageJob, encode

SOURCE = Path(__file__).with_suffix(".c")
BUILD = Path(__file__).parent.parent / "build"  # ignored by git


class RabbitmqC(System):
    @cached_property
    def program(self) -> Path:
        """The compiled program; it is named after its source, so that an old one is never run."""
        program = BUILD / f"rabbitmq_c-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}"
        if not program.exists():
            BUILD.mkdir(exist_ok=True)
            unfinished = program.with_suffix(f".{os.getpid()}")
            command = ["gcc", "-O2", "-Wall", "-Wextra", "-o", str(unfinished), SOURCE.name, "-lrabbitmq"]
            subprocess.run(command, check=True, capture_output=True, text=True, cwd=SOURCE.parent)
            unfinished.replace(program)
        return program

    def obstacle(self) -> str | None:
        if shutil.which("gcc") is None:
            return "gcc is not installed"
        try:
            self.program  # noqa: B018 - compiles
        except subprocess.CalledProcessError as error:
            return f"librabbitmq-dev is not installed, or gcc failed: {error.stderr.strip().splitlines()[0]}"
        return None

    def versions(self) -> dict[str, str]:
        done = subprocess.run([self.program, "version"], check=True, capture_output=True, text=True)
        return {"rabbitmq-c": done.stdout.strip()}


system = RabbitmqC("C")


@system.contends("publish")
def publish(job: MessageJob, watch: Stopwatch) -> None:
    _run("publish", job, job.window, watch)


@system.contends("consume")
def consume(job: MessageJob, watch: Stopwatch) -> None:
    _run("consume", job, job.prefetch, watch)


def _run(what: str, job: MessageJob, in_flight: int, watch: Stopwatch) -> None:
    command = [str(system.program), what, job.url, job.queue, str(job.count), str(in_flight)]
    done = subprocess.run(command, input=encode(job.document()), capture_output=True, check=False)
    if done.returncode:
        raise NotDone(done.stderr.decode().strip())
    seconds, cpu_seconds = map(float, done.stdout.split())
    watch.record(Elapsed(seconds, cpu_seconds))
