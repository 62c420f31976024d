"""`python -m examples.video`: a broker if there is none, a Celery worker, and three videos, one of which is none."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import AsyncExitStack, suppress

import click

from examples.video import clips
from redrive import SharedBroker, environment

FILMS = {"short": clips.film(0.5), "long": clips.film(2), "broken": b"This was a film once." * 50}


@click.command()
@click.option("--once", is_flag=True, help="End when all videos are through.")
def main(once: bool) -> None:
    asyncio.run(show(once))


async def show(once: bool) -> None:
    async with AsyncExitStack() as stack:
        if environment.broker() is None:
            hosted = await stack.enter_async_context(SharedBroker(environment.data()))
            os.environ[environment.BROKER] = hosted.url  # for the application, which is imported below, and the worker
            click.echo(f"broker:    the embedded one, in {environment.data()}")
        from examples.video.worker.celery_app import prepare  # not before it is known where the broker is

        prepare()
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "celery", "-A", "examples.video.worker.celery_app", "worker"),
            *("--loglevel", "INFO", "--concurrency", "2"),
        )
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        submitting = asyncio.create_task(asyncio.to_thread(submit_films, stop))
        submitting.add_done_callback(lambda _: stop.set() if once else None)
        await _first(stop, worker)
        stop.set()
        await submitting
        with suppress(ProcessLookupError):
            worker.terminate()  # warm: what is being done is finished
        await worker.wait()


async def _first(stop: asyncio.Event, worker: asyncio.subprocess.Process) -> None:
    """Until somebody wants it to end, or the worker has ended by itself."""
    waiting = [asyncio.create_task(stop.wait()), asyncio.create_task(worker.wait())]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for one in waiting:
        one.cancel()


def submit_films(stop: asyncio.Event) -> None:
    """Blocks, as Celery does: in a thread."""
    from examples.video.producer import outcome, submit, task_ids  # not before it is known where the broker is

    results = {name: submit(content) for name, content in FILMS.items()}
    for name, result in results.items():
        click.echo(f"submitted: {name}, {task_ids(result)}")
    while results and not stop.is_set():
        for name in list(results):
            if (told := outcome(results[name])) is not None:
                click.echo(f"{name}: {told}")
                del results[name]
        time.sleep(0.1)
    if not results:
        click.echo("look:      redrive dlq groups video_dlq --app examples/video/topology.toml")


if __name__ == "__main__":
    main()
