"""Submit videos and ask what became of them.

python -m examples.video.producer film.mp4 …
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Any

from celery import chain
from celery.result import AsyncResult

from examples.video.worker.tasks import storage, thumbnail, transcode


def submit(content: bytes) -> AsyncResult:
    """Keep a video and have it processed: made smaller, then a picture taken of it."""
    video = str(uuid.uuid4())
    storage.prepare()
    with storage.making(video, "originals") as place:
        place.write_bytes(content)
    return chain(transcode.s(video), thumbnail.s()).apply_async()


def task_ids(result: AsyncResult) -> str:
    """Return the ids of both tasks, in the order in which they are executed. A dead letter has the id of the task that
    failed, as its correlation id.
    """
    return f"transcode {result.parent.id}, then thumbnail {result.id}"


def outcome(result: AsyncResult) -> str | None:
    """Return the outcome of a video in words; None while its tasks are not finished."""
    for task in (result.parent, result):  # if the first fails, Celery gives the second the same failure
        if task.state == "FAILURE":
            return f"task {task.id} is kept in video_dlq: {type(task.result).__name__}: {task.result}"
    if result.state == "SUCCESS":
        return _told(result.result)
    return None


def _told(done: dict[str, Any]) -> str:
    sizes = f"{done['before']:,} bytes became {done['after']:,}, with a thumbnail of {done['thumbnail']:,}"
    return f"{sizes}, by {done['by']}"


def main() -> None:
    for name in sys.argv[1:]:
        print(f"{name}: submitted, {task_ids(submit(Path(name).read_bytes()))}")


if __name__ == "__main__":
    main()
