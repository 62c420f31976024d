"""How many messages lie in a data folder that nobody serves. Asked without a broker, which would send them on."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from redrive.broker.storage.datafile import DataFile, explain
from redrive.broker.storage.directory import DirectoryLock
from redrive.broker.storage.errors import DirectoryInUse
from redrive.broker.storage.sqlite import FILE_NAME


def count_unserved(directory: Path, vhost: str = "/") -> dict[str, int]:
    """By queue. Nothing if there is no broker's file, or if somebody serves it: he can be asked over AMQP."""
    path = directory / FILE_NAME
    if not path.exists():
        return {}
    try:
        lock = DirectoryLock(directory)
    except DirectoryInUse:
        return {}
    except OSError as error:
        raise explain(error, directory) from error
    try:
        with closing(DataFile(path)) as file:
            counts = file.counts()
            queues = {one.id: one.name for one in file.definitions() if (one.kind, one.vhost) == ("queue", vhost)}
    finally:
        lock.release()
    return {name: counts[id] for id, name in queues.items() if id in counts}
