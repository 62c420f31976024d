"""The tasks. Written as for any Celery application: nothing here knows of queues.

A storage that is away and a tool that took too long pass: tried again. A file that is no video stays one that is not:
it is not retried, and so it is kept in `video_dlq`. Both are expected (`throws`), so that they are a line in the log
and not a stack; that is in the message.
"""

from __future__ import annotations

from typing import Any

from celery import Task

from examples.video import settings, tool
from examples.video.clips import NotAVideo
from examples.video.storage import Storage
from examples.video.tool import ToolFailed
from examples.video.worker.celery_app import app

storage = Storage(settings.FOLDER)
PASSING = (OSError, ToolFailed)


@app.task(autoretry_for=PASSING, throws=(NotAVideo, *PASSING))  # type: ignore[untyped-decorator]  # Celery has no types
def transcode(video: str) -> dict[str, Any]:
    """Make a video smaller. Retried by Celery's own `autoretry_for`."""
    original = storage.find(video, "originals")
    with storage.making(video, "renditions") as rendition:
        by = tool.transcode(original, rendition)
        return {"video": video, "by": by, "before": original.stat().st_size, "after": rendition.stat().st_size}


@app.task(bind=True, throws=(NotAVideo, *PASSING))  # type: ignore[untyped-decorator]
def thumbnail(self: Task, done: dict[str, Any]) -> dict[str, Any]:
    """Take a picture of what was made. Retried by hand: `self.retry`."""
    video = done["video"]
    try:
        rendition = storage.find(video, "renditions")
        with storage.making(video, "thumbnails") as picture:
            tool.thumbnail(rendition, picture)
            return {**done, "thumbnail": picture.stat().st_size}
    except PASSING as error:
        raise self.retry(exc=error) from error
