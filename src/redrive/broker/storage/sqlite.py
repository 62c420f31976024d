"""The journal on disk: group commit by one background thread.

            append                      cut                     COMMIT, fsync
    broker ────────▶ batch (gathering) ─────▶ batch (on its way) ─────────────▶ disk
                                                     │
                     callbacks, in the loop ◀────────┘

The loop's thread only ever appends to the batch that is gathering. That batch is *cut*, and handed to the thread
that writes, when there is a reason to commit and no other batch is on its way; so the slower the disk, the larger
the batches, and a message pays its share of an fsync. A batch is cut by a callback of its own in the loop, never
inside a call of the broker: what the broker appends in one go is in one transaction.

A batch of acknowledgements alone is no hurry. It lingers a moment, and saves its fsync when a better reason to
commit comes along.

When a commit fails the journal is of no use any more: it cannot know what is on disk (after a failed fsync not
even the kernel does). It tells `on_failure` once, calls nobody back, and ignores what is appended from then on;
the file holds everything up to some commit, and the next start finds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from redrive.broker.storage.datafile import Batch, DataFile, explain
from redrive.broker.storage.directory import DirectoryLock, make_directory
from redrive.broker.storage.journal import Definition, Recovered, StoredMessage
from redrive.broker.storage.memory import call_each
from redrive.errors import Closed, DirectoryInUse, StorageError, StorageFailed

log = logging.getLogger("redrive.broker")

FILE_NAME = "broker.sqlite3"
LINGER = timedelta(milliseconds=50)


class SQLiteJournal:
    """Opens the data directory when made, in the loop's thread, and says there what is wrong with it."""

    def __init__(
        self,
        directory: Path,
        *,
        on_failure: Callable[[StorageError], None] | None = None,
        linger: timedelta = LINGER,
    ) -> None:
        self._path = directory / FILE_NAME
        self._on_failure = on_failure
        self._linger = linger.total_seconds()
        self._loop = asyncio.get_running_loop()
        self._batch = Batch()  # gathering
        self._writing: Batch | None = None  # on its way
        self._urgent = False  # is there a reason to commit?
        self._scheduled = False  # will the batch be cut without anybody doing more: for a reason, or by the alarm?
        self._alarm: asyncio.TimerHandle | None = None  # rings when a batch has lingered long enough
        self._recovering = False
        self._highest: dict[int, int] = {}  # queue -> the highest position delivered, on disk or on its way there
        self._ended: asyncio.Future[None] | None = None  # from the beginning of `close` on
        self.failure: StorageError | None = None
        self._lock = _lock_directory(directory)
        try:
            self._file = DataFile(self._path)
        except BaseException:
            self._lock.release()
            raise
        self._inbox: SimpleQueue[Batch | None] = SimpleQueue()
        self._thread = Thread(target=self._write_batches, name="redrive-journal", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        return len(self._batch) + (len(self._writing) if self._writing is not None else 0)

    def recover(self) -> Recovered:
        note_delivery = self._file.delivered_positions()
        self._highest = note_delivery.copy()
        return Recovered(self._file.definitions(), self._messages(), note_delivery, self._file.highest_id() + 1)

    def _messages(self) -> Iterator[StoredMessage]:
        """One connection reads and writes, so nothing is cut while it reads."""
        self._recovering = True
        try:
            yield from self._file.messages()
        finally:
            self._recovering = False
            if self._urgent:
                self._loop.call_soon(self._cut)

    # Appending, hot: the flags are looked at here so that most calls end here ------------------------------

    def store(self, message: StoredMessage) -> None:
        self._batch.stored[message.id] = message
        if not self._urgent:
            self._commit_soon()

    def forget(self, id: int) -> None:
        batch = self._batch
        if batch.stored.pop(id, None) is None:
            batch.forgotten.append(id)
            if not self._scheduled:
                self._commit_later()

    def note_delivery(self, queue: int, position: int) -> None:
        highest = self._highest.get(queue)
        if highest is None or position > highest:
            self._highest[queue] = self._batch.delivered[queue] = position
            if not self._scheduled:
                self._commit_later()

    def after_commit(self, callback: Callable[[], None]) -> None:
        self._batch.callbacks.append(callback)
        if not self._urgent:
            self._commit_soon()

    # Appending, rare ---------------------------------------------------------------------------------------

    def forget_queue(self, queue: int) -> None:
        self._batch.forget_queue(queue)
        self._commit_soon()

    def note_return(self, id: int, delivery_count: int) -> None:
        self._batch.note_return(id, delivery_count)
        self._commit_later()

    def define(self, definition: Definition) -> None:
        self._batch.definitions[definition.id] = definition
        self._commit_soon()

    def undefine(self, id: int) -> None:
        self._batch.definitions[id] = None
        self._batch.delivered.pop(id, None)
        self._highest.pop(id, None)
        self._commit_soon()

    # Cutting -----------------------------------------------------------------------------------------------

    def _commit_soon(self) -> None:
        """There is a reason to commit: when a batch is on its way already, as soon as it has arrived."""
        if self._check_usable() and not self._urgent:
            self._urgent = self._scheduled = True
            if self._writing is None:
                self._loop.call_soon(self._cut)

    def _commit_later(self) -> None:
        """There is something to commit, and no hurry."""
        if self._check_usable() and not self._scheduled:
            self._scheduled = True
            self._alarm = self._loop.call_later(self._linger, self._commit_soon)

    def _check_usable(self) -> bool:
        """Flags stay down when the journal is closed or has failed, so that every call comes by here."""
        if self._ended is None and self.failure is None:
            return True
        self._batch = Batch()
        if self._ended is not None:
            raise Closed("the journal was closed: nothing can be stored any more")
        return False

    def _cut(self) -> None:
        """Called by the loop and nobody else, so that no change of the broker's is half appended."""
        if self._urgent and self._writing is None and not self._recovering:
            call_each(self._send_batch())

    def _send_batch(self) -> list[Callable[[], None]]:
        """Send the batch on its way and begin another. Returns whom to tell at once, as nothing is to be written."""
        batch = self._new_batch()
        if not batch:
            return batch.callbacks
        self._writing = batch
        self._inbox.put(batch)
        return []

    def _new_batch(self) -> Batch:
        batch, self._batch = self._batch, Batch()
        self._urgent = self._scheduled = False
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        return batch

    def _on_written(self, batch: Batch, failure: StorageError | None) -> None:
        """A batch has arrived. The next one leaves before the callbacks take their time."""
        self._writing = None
        if failure is not None:
            self._fail(failure)
            return
        callbacks = batch.callbacks
        if self._urgent:
            callbacks += self._send_batch()
        call_each(callbacks)

    def _fail(self, failure: StorageError) -> None:
        if self.failure is None:
            self.failure = failure
            self._new_batch()
            log.critical("%s", failure)
            if self._on_failure is not None:
                self._on_failure(failure)

    async def close(self) -> None:
        if self._ended is None:
            self._ended = self._loop.create_future()
            self._inbox.put(self._new_batch())
            self._inbox.put(None)
        await asyncio.shield(self._ended)
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    # The thread that writes --------------------------------------------------------------------------------

    def _write_batches(self) -> None:
        failure: StorageError | None = None
        while (batch := self._inbox.get()) is not None:
            failure = failure or self._write(batch)  # nothing may follow what is missing
            self._call_in_loop(self._on_written, batch, failure)
            del batch  # the next one may be long in coming, and this one is large
        self._file.close()
        self._lock.release()
        self._call_in_loop(self._end)

    def _write(self, batch: Batch) -> StorageError | None:
        try:
            if batch:
                self._file.write(batch)
        except StorageError as error:
            return error
        except Exception as error:
            log.exception("a batch could not be written: %r", batch)
            return StorageFailed(self._path, f"a batch could not be written ({error!r})")
        return None

    def _call_in_loop(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            log.warning("%r was not closed before its loop", self)

    def _end(self) -> None:
        assert self._ended is not None
        self._ended.set_result(None)

    def __repr__(self) -> str:
        if self.failure is not None:
            state = "FAILED"
        elif self._ended is not None:
            state = "CLOSED" if self._ended.done() else "CLOSING"
        else:
            state = "WRITING" if self._writing is not None else "IDLE"
        return f"<SQLiteJournal {self._path} {state} pending={self.pending}>"


def _lock_directory(directory: Path) -> DirectoryLock:
    try:
        make_directory(directory)
        return DirectoryLock(directory)
    except OSError as error:
        raise explain(error, directory) from error


def count_unserved(directory: Path, vhost: str = "/") -> dict[str, int]:
    """Return the number of messages by queue in a data directory, without starting a broker, which would send them on.

    Empty if there is no broker's file, or if another process serves it: that one can be asked over AMQP.
    """
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
