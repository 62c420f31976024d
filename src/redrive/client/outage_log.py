"""Log a lost broker in one line, and in another one when it is back.

An application has several connections to one broker, and all of them are lost when the broker is. The first loss is
logged as a warning; the next line says that all of them are open again, and how long that took. What happens to single
connections and consumers in between is logged for debugging.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from time import monotonic

from redrive.client.url import BrokerURL
from redrive.errors import RedriveError
from redrive.recovery.durations import format_duration

log = logging.getLogger("redrive.client")


class OutageLog:
    """Shared by the connections of an application: `<OutageLog lost=2>`. `quiet`: something else logs outages."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._lost: set[object] = set()
        self._began = 0.0

    def lost(self, connection: object, url: BrokerURL, reason: RedriveError) -> None:
        is_first = not self._lost
        if is_first:
            self._began = monotonic()
        self._lost.add(connection)
        log.log(self._level(logging.WARNING, is_first), "connection to %s lost: %s", url, reason)

    def restored(self, connection: object, url: BrokerURL) -> None:
        self._lost.discard(connection)
        lasted = format_duration(timedelta(seconds=monotonic() - self._began))
        log.log(self._level(logging.INFO, not self._lost), "connected to %s again after %s", url, lasted)

    def closed(self, connection: object) -> None:
        self._lost.discard(connection)

    def _level(self, level: int, is_news: bool) -> int:
        return level if is_news and not self._quiet else logging.DEBUG

    def __repr__(self) -> str:
        return f"<OutageLog lost={len(self._lost)}>"
