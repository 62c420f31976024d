"""Run the operations of an admin server: they outlive the request that started them, and the server itself.

An executor takes the id of an operation. Everything else is in the operation's row: what was asked for, how far it is,
its heartbeat, and what operators want of it (pause, go on, cancel, rate). To start an operation, a process writes the
row first, as its owner; the executor's process claims the row and runs it.

    `local`         tasks in this process
    `subprocess`    a child process, so that a page does not wait for a re-drive of a million messages
    `recovery`      finds operations whose process is gone, and goes on with them or closes them

One kind of operation always runs in the process that was asked for it: an edit. Its transform is the content of a
message, or code, and neither belongs into the operations table. An edit from the console or the REST API changes one
message. A discard's archive is a file on this machine, and its name is in the row.

What can die between which two steps:

    before the row           nothing was done, and nothing is recorded
    before the claim         the row is the server's. If the child died, the server fails the operation and says so; if
                             the server died, the next server finds a row whose owner is gone
    after the claim          the row is the child's: its owner is gone, and recovery goes on with it, or closes it
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from redrive.operations.operation import Operation

Ended = Callable[[Operation], None]


class OperationExecutor(Protocol):
    @property
    def ids(self) -> frozenset[str]:
        """Return the ids of the operations that run, or are about to."""

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Leave every operation in good order for the next server."""

    async def start(self, id: str) -> Operation:
        """Return the operation as soon as it runs. Raises what keeps it from that."""
