"""Which queue a task came from, and where its retries and its end are.

A delivery does not say from which queue it came, only by which exchange and key: the topology says the rest. Where two
queues get the same messages, the one in which it failed before is told by the message; before its first failure it is
the first of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from redrive.errors import ConfigurationError
from redrive.recovery.failure_headers import Origin
from redrive.recovery.history import HeaderNames, read_name
from redrive.recovery.retry import NO_RETRY, Retry, RetryRoute, Rung
from redrive.recovery.verdict import CrashGuard, RecoveryPolicy
from redrive.topology import Definitions, Queue, QueueType, Server, Topology, expand
from redrive.topology.expansion import QueueLayout
from redrive.topology.routing import targets

Parking = Literal["publish", "reject"]

_ATTRIBUTE = "redrive"  # of a Celery application that is equipped


class CeleryQueue:
    """One queue with its parts."""

    def __init__(self, names: QueueLayout, parking: Parking = "publish", crash_limit: int | None = None) -> None:
        """`crash_limit`: None for no crash guard."""
        self.names = names
        self.name = names.queue.name
        self.parking = parking
        guard = CrashGuard.NONE if crash_limit is None else CrashGuard.COUNT
        self.recovery = RecoveryPolicy(names.queue.retry or NO_RETRY, guard, crash_limit or 1)

    @property
    def policy(self) -> Retry | None:
        return self.names.queue.retry

    @property
    def counts_deliveries(self) -> bool:
        return self.names.type is QueueType.QUORUM

    @property
    def dlq_destination(self) -> tuple[str, str] | None:
        """Exchange and key; None if nothing is kept."""
        return (self.names.dlq_exchange, self.names.dlq_key) if self.names.has_dlq else None

    def retry_destination(self, rung: Rung) -> tuple[str, str]:
        return self.names.retry_exchange, self.names.rung(rung).key

    def origin(self, app: Any, delivery_info: Mapping[str, Any] | None, host: object) -> Origin:
        """Return where a message of this queue came from, and who writes its failure record."""
        came = delivery_info or {}
        return Origin(
            exchange=str(came.get("exchange") or ""),
            routing_key=str(came.get("routing_key") or ""),
            queue=self.name,
            app=str(app.main or "celery"),
            host=str(host or ""),
        )

    def __repr__(self) -> str:
        return f"<Place {self.name} retry={self.policy} dlq={self.dlq_destination}>"


@dataclass(frozen=True, eq=False)
class CelerySettings:
    """What an application was equipped with."""

    topology: Topology
    places: Mapping[str, CeleryQueue]
    default: CeleryQueue
    definitions: Definitions

    @classmethod
    def of(cls, topology: Topology, queue: str | None, parking: Parking, crash_limit: int | None) -> CelerySettings:
        if parking not in ("publish", "reject"):
            raise ConfigurationError(f"equip: park {parking!r}: want 'publish' or 'reject'")
        if crash_limit is not None and crash_limit < 1:
            raise ConfigurationError(f"equip: crash_limit {crash_limit}: want at least 1, or None for no guard")
        for one in topology.queues:
            _check(one)
        server = Server()  # of what depends on the version nothing is needed here
        places = {
            one.name: CeleryQueue(QueueLayout(topology, one, server), parking, crash_limit) for one in topology.queues
        }
        default = _default(places, queue)
        return cls(topology, places, default, expand(topology, server))

    def place_of(self, exchange: str | None, routing_key: str | None, headers: Mapping[str, Any]) -> CeleryQueue | None:
        """The queue of a delivery; None if it is not one of the topology's."""
        reached = self._queues_reached_by(exchange or "", routing_key or "")
        if len(reached) > 1:
            told = read_name(headers.get(HeaderNames.QUEUE))
            return next((place for place in reached if place.name == told), reached[0])
        return reached[0] if reached else None

    @lru_cache(256)  # noqa: B019 - it lives as long as the application
    def _queues_reached_by(self, exchange: str, routing_key: str) -> tuple[CeleryQueue, ...]:
        names = targets(self.definitions, exchange, routing_key)
        return tuple(place for place in self.places.values() if place.name in names)


def _check(queue: Queue) -> None:
    if queue.existing:
        raise ConfigurationError(
            f"equip: queue {queue.name}: existing=True: Celery rejects what cannot be published, and the queue, taken "
            "as it is, may drop what is rejected: leave existing=True out, and `redrive topology migrate` gives the "
            "queue its dead-letter exchange"
        )
    if queue.retry is not None and queue.retry.rungs and queue.retry.via is not RetryRoute.REPUBLISH:
        raise ConfigurationError(
            f"equip: queue {queue.name} retries via {queue.retry.via!r}: a retry of Celery's is published, with other "
            f"arguments if the task wants; use via='republish'"
        )


def _default(places: Mapping[str, CeleryQueue], queue: str | None) -> CeleryQueue:
    if queue is not None and queue in places:
        return places[queue]
    if queue is None and len(places) == 1:
        return next(iter(places.values()))
    known = ", ".join(places) or "none"
    if queue is None:
        raise ConfigurationError(f"equip: which queue do tasks go to by default? Say queue=; there are {known}")
    raise ConfigurationError(f"equip: the topology has no queue {queue}; there are {known}")


def equipment_of(app: Any) -> CelerySettings | None:
    found = getattr(app, _ATTRIBUTE, None)
    return found if isinstance(found, CelerySettings) else None


def find_place(app: Any, delivery_info: Mapping[str, Any] | None, headers: Mapping[str, Any]) -> CeleryQueue | None:
    """Return the queue of a delivery; None if the application is not equipped, or the queue is not in its topology."""
    equipment, came = equipment_of(app), delivery_info or {}
    return equipment.place_of(came.get("exchange"), came.get("routing_key"), headers) if equipment is not None else None


def give_equipment(app: Any, equipment: CelerySettings) -> None:
    setattr(app, _ATTRIBUTE, equipment)
