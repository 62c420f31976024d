"""Messages that are left in the embedded broker of an application that uses RabbitMQ now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from redrive.broker.storage.sqlite import count_unserved
from redrive.errors import StorageError
from redrive.topology import Server, Topology, expand
from redrive.topology.dlq_detection import declared_dlqs


def stranded_warning(topology: Topology, folder: Path) -> str | None:
    """Return what to warn of if the embedded broker in this folder, which no process serves, still holds messages."""
    try:
        held = count_unserved(folder)
    except StorageError as error:
        return f"cannot find out whether messages are left in the embedded broker: {error}"
    if not held:
        return None
    server = Server(embedded=True, delayed_exchanges=True)
    own = {queue.name for queue in expand(topology, server).queues}
    return warning_about(held, own, set(declared_dlqs(topology, server)), folder)


def warning_about(held: Mapping[str, int], own: Collection[str], dead: Collection[str], folder: Path) -> str | None:
    """Return the warning for these messages, or None if none of them is in the application's queues.

    `own`: the application's queues; `dead`: those of them in which dead letters are.
    """
    mine = {queue: count for queue, count in sorted(held.items()) if count and queue in own}
    if not mine:
        return None
    queues = ", ".join(f"{queue} {count}" for queue, count in mine.items())
    what = ["`redrive worker` handles them"] if mine.keys() - set(dead) else []
    what += ["dead letters can be dealt with"] if mine.keys() & set(dead) else []
    return (
        f"{sum(mine.values())} messages are still in the embedded broker in {folder} ({queues}), and with the outbox's "
        "transport RABBIT they are not consumed: with LOCAL (REDRIVE_OUTBOX_TRANSPORT), on this machine, "
        f"{' and '.join(what)}"
    )
