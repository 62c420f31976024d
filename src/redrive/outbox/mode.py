"""Where the events of the outbox go, and who handles them.

    transport    they go to                                 they are handled by               an API's listener
    RABBIT       the application's broker                   `redrive worker`                  is off
    LOCAL        the embedded broker of the data folder     the application's own process     is on

Either way they pass a broker that has confirmed them before a row is marked, so that retries, parking, the inbox and
the story are the same. An event goes one of the two ways and never both: nothing is handled twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from redrive.errors import ConfigurationError
from redrive.text import did_you_mean


class OutboxMode(StrEnum):
    RABBIT = "RABBIT"
    LOCAL = "LOCAL"

    @classmethod
    def of(cls, name: str) -> OutboxMode:
        """By its name, in capitals or not."""
        known = [str(one) for one in cls]
        if name.upper() in known:
            return cls(name.upper())
        hint = did_you_mean(name.upper(), known, f": want {' or '.join(known)}")
        raise ConfigurationError(f"outbox.transport {name!r}{hint}")


@dataclass(frozen=True, slots=True)
class ModeSettings:
    """What a transport makes of an application."""

    broker: str | None  # None: the embedded one
    management: str | None
    listens: bool  # does an API's own process handle the events?
    no_relay: str | None = None  # why a relay without consumers has no business here


def mode_settings(transport: OutboxMode, *, broker: str | None, management: str | None) -> ModeSettings:
    match transport:
        case OutboxMode.RABBIT:
            return ModeSettings(broker, management, listens=False)
        case OutboxMode.LOCAL:
            # A relay would take rows that all processes can reach to a folder in which nobody may ever look.
            why = (
                "the outbox's transport is LOCAL: whoever handles the events takes them from the table himself "
                "(`async with app.local_worker()`, or `redrive worker --relay`), and a relay alone would only hide "
                "them in this machine's data folder. With REDRIVE_OUTBOX_TRANSPORT=RABBIT they are published"
            )
            return ModeSettings(None, None, listens=True, no_relay=why)
        case _:
            assert_never(transport)
