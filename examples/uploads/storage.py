"""Where the files are: a folder. A file appears whole or not at all, and the same file twice is one."""

import os
import re
import tempfile
from pathlib import Path

_NAME = re.compile(r"[0-9a-f-]{36}")


class Storage:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, file: str, what: str, content: bytes) -> None:
        place = self._place(file, what)
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=place.parent)
        with os.fdopen(handle, "wb") as temporary:
            temporary.write(content)
            temporary.flush()
            os.fsync(temporary.fileno())
        Path(name).replace(place)

    def get(self, file: str, what: str) -> bytes:
        return self._place(file, what).read_bytes()

    def has(self, file: str, what: str) -> bool:
        return self._place(file, what).exists()

    def _place(self, file: str, what: str) -> Path:
        if not _NAME.fullmatch(file):  # it comes from messages and addresses: it must not lead elsewhere
            raise ValueError(f"{file!r} is not the id of a file")
        return self._folder / what / file
