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


def outcome(result: AsyncResult) -> str | None:
    """In words; None while nobody knows."""
    while result is not None:
        if result.state == "FAILURE":
            return f"kept in video_dlq: {type(result.result).__name__}: {result.result}"
        if result.state == "SUCCESS" and isinstance(result.result, dict) and "thumbnail" in result.result:
            return _told(result.result)
        result = result.parent
    return None


def _told(done: dict[str, Any]) -> str:
    sizes = f"{done['before']:,} bytes became {done['after']:,}, with a thumbnail of {done['thumbnail']:,}"
    return f"{sizes}, by {done['by']}"


def main() -> None:
    for name in sys.argv[1:]:
        print(f"{name}: submitted, task {submit(Path(name).read_bytes()).id}")


if __name__ == "__main__":
    main()
