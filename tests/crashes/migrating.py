"""A migration as a process, which can kill itself: `python -m crashes.migrating '{"url": ..., "die_before": 17}'`.

It says what it does, a line each, and at the end how many side effects it took.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from crashes.mortal import Mortal
from redrive.client import Connection
from redrive.errors import ConnectionFailed, MigrationPaused, MigrationRefused
from redrive.inspection.embedded import EmbeddedMonitor
from redrive.inspection.management import Management, ManagementMonitor
from redrive.migration.ports import MigrationOptions, QueueMonitor
from redrive.migration.run import migrate
from redrive.topology.definitions import Definitions


@dataclass
class Order:
    url: str
    queue: str
    wanted: Definitions
    management: str | None = None
    die_before: int | None = None
    window: int = 4
    lag: float = 0.5
    settle: float = 0.2
    youth: float = 0.0


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def say(words: str) -> None:
    print(words, flush=True)


async def main(order: Order) -> int:
    seconds = timedelta(seconds=1)
    terms = MigrationOptions(
        wait_for_consumers=True,
        attempts=50,
        window=order.window,
        settle=order.settle * seconds,
        youth=order.youth * seconds,
    )
    async with Connection(order.url, name="migration") as connection:
        mortal = Mortal(connection, die_before=order.die_before, die=kill_myself)
        try:
            result = await migrate(
                order.queue, order.wanted, mortal, watcher(order, connection), terms, user="guest", tell=say
            )
        except (MigrationRefused, MigrationPaused) as error:
            say(f"stopped: {error}")
            return 1
        except ConnectionFailed as error:  # the broker is dead
            say(f"stopped: {error}. Run it again to go on")
            return 1
    say(f"done: {mortal.effects} side effects, {result}")
    return 0


def watcher(order: Order, connection: Connection) -> QueueMonitor:
    if order.management is None:
        return EmbeddedMonitor(connection)
    lag = timedelta(seconds=order.lag)
    return ManagementMonitor(Management(order.management), connection.url.virtual_host, lag=lag)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Order))))
