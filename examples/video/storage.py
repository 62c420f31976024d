"""Where the videos are: a folder, perhaps one that is mounted. A file appears whole or not at all."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NAME = re.compile(r"[0-9a-f-]{36}")


class StorageAway(OSError):
    """The folder is not there: a mount that is missing, for now."""


class Storage:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self) -> None:
        """The first time. What is missing later is away, and not to be made anew."""
        if self._folder.is_dir():
            return
        for what in ("originals", "renditions", "thumbnails"):
            (self._folder / what).mkdir(parents=True, exist_ok=True)

    def find(self, video: str, what: str) -> Path:
        """A file that should be there."""
        place = self._place(video, what)
        if not place.parent.is_dir():
            raise StorageAway(f"the storage has no {what}: is it mounted?")
        if not place.is_file():
            raise FileNotFoundError(f"there is no {video} among the {what}")
        return place

    @contextmanager
    def making(self, video: str, what: str) -> Iterator[Path]:
        """A place to write to, which becomes the file when all is written."""
        place = self._place(video, what)
        if not place.parent.is_dir():
            raise StorageAway(f"the storage has no {what}: is it mounted?")
        handle, name = tempfile.mkstemp(dir=place.parent)
        os.close(handle)
        try:
            yield Path(name)
            Path(name).replace(place)
        finally:
            Path(name).unlink(missing_ok=True)

    def _place(self, video: str, what: str) -> Path:
        if not _NAME.fullmatch(video):  # it comes out of messages: it must not lead elsewhere
            raise ValueError(f"{video!r} is not the id of a video")
        return self._folder / what / video
