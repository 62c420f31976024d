"""Where the events of the outbox go, and who handles them.

    transport    they go to                                 they are handled by               an API's listener
    RABBIT       the application's broker                   `redrive worker`                  is off
    LOCAL        the embedded broker of the data folder     the application's own process     is on

Either way they pass a broker that has confirmed them before a row is marked, so that retries, parking, the inbox and
the story are the same. An event goes one of the two ways and never both: nothing is handled twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import assert_never

from redrive.errors import ConfigurationError
from redrive.text import did_you_mean


class Transport(StrEnum):
    RABBIT = "RABBIT"
    LOCAL = "LOCAL"

    @classmethod
    def of(cls, name: str) -> Transport:
        """By its name, in capitals or not."""
        known = [str(one) for one in cls]
        if name.upper() in known:
            return cls(name.upper())
        hint = did_you_mean(name.upper(), known, f": want {' or '.join(known)}")
        raise ConfigurationError(f"outbox.transport {name!r}{hint}")


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What a transport makes of an application."""

    broker: str | None  # None: the embedded one
    management: str | None
    listens: bool  # does an API's own process handle the events?
    no_relay: str | None = None  # why a relay without consumers has no business here


def arrange(transport: Transport, *, broker: str | None, management: str | None) -> Arrangement:
    match transport:
        case Transport.RABBIT:
            return Arrangement(broker, management, listens=False)
        case Transport.LOCAL:
            # A relay would take rows that all processes can reach to a folder in which nobody may ever look.
            why = (
                "the outbox's transport is LOCAL: whoever handles the events takes them from the table himself "
                "(`async with app.listening()`, or `redrive worker --relay`), and a relay alone would only hide them "
                "in this machine's data folder. With REDRIVE_OUTBOX_TRANSPORT=RABBIT they are published"
            )
            return Arrangement(None, None, listens=True, no_relay=why)
        case _:
            assert_never(transport)


def stranded(held: Mapping[str, int], own: Collection[str], dead: Collection[str], folder: Path) -> str | None:
    """What to tell an application on RabbitMQ whose embedded broker, which nobody serves, still holds messages.

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
        "transport RABBIT nobody looks there: with LOCAL (REDRIVE_OUTBOX_TRANSPORT), on this machine, "
        f"{' and '.join(what)}"
    )
