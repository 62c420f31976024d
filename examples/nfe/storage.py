"""Where the XML is: a folder, on a volume that may be full or away. A file appears whole or not at all.

The folder is not made here: where a volume is not mounted, a folder of the same name would take its files, and they
would be hidden when it is.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from examples.nfe.chave import is_chave


class XmlStorage:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, chave: str, content: bytes) -> None:
        """When this returns it is on disk, under its name; the same once more changes nothing."""
        place = self._place(chave)
        handle, name = tempfile.mkstemp(dir=self.folder, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as temporary:
                temporary.write(content)
                temporary.flush()
                os.fsync(temporary.fileno())
            Path(name).replace(place)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        self._sync_folder()

    def get(self, chave: str) -> bytes:
        return self._place(chave).read_bytes()

    def _place(self, chave: str) -> Path:
        if not is_chave(chave):  # it comes from messages and addresses: it must not lead elsewhere
            raise ValueError(f"{chave!r} is not the key of an invoice")
        return self.folder / f"{chave}-nfe.xml"

    def _sync_folder(self) -> None:
        """The name is on disk when the folder is."""
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
