"""Is this message meant, may it be moved, and where to? Decided message by message, from what the message tells.

    Ignored     it is not selected, or it has come back from this very operation
    Skipped     it is selected, and must not or cannot be moved: the operation reports why
    Selected    it is moved, to this exchange and key

What arrived after an operation began is none of its business. As a rule it stands behind everything that was there, and
is never reached. A queue that requeues at its end mixes the two, and so does a priority queue; there the time of death
decides, as far as the clock of the process that wrote it can be trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NamedTuple, TypeAlias

from redrive.deadletters.dead_letter import Summary
from redrive.deadletters.redaction import REDACTION
from redrive.deadletters.redrive_headers import has_room_for_lineage
from redrive.deadletters.search import Query, parse
from redrive.operations.operation import Destination, DestinationKind, OperationKind, OperationRequest
from redrive.operations.origins import NO_SOURCE as NO_SOURCE
from redrive.operations.origins import displayed_name, origin_of
from redrive.topology.dlq_detection import Feeders

Route = tuple[str, str]  # exchange and key
Leads = Callable[[str, str, str], bool | None]  # does this exchange, with this key, lead to this queue? None: not known

NO_RETRY = "no retry exchange is known for the queue it failed in"
NO_ORIGIN = "the exchange of its first publish is not known: name a queue (--to QUEUE)"
NO_EXCHANGE = "the operator is restricted to some queues, and an exchange may lead to any: name a queue (--to QUEUE)"
NO_ROOM = "its headers leave no room for the mark by which it is known again when it comes back"


class Selected(NamedTuple):
    exchange: str = ""
    routing_key: str = ""
    origin: str = ""  # the queue it belongs to, where that decided


class Skipped(str):
    """Why a selected message is left where it is on purpose. This is not a failure."""

    __slots__ = ()


class Ignored(NamedTuple):
    """The message is not selected."""


IGNORED = Ignored()
Choice: TypeAlias = "Selected | Skipped | Ignored"


class MessageSelector:
    def __init__(
        self,
        order: OperationRequest,
        *,
        operation: str,
        began: datetime,
        mixed: bool = False,
        retries: Mapping[str, Route] | None = None,  # the way into the retry queue, by source queue
        feeders: Feeders | None = None,  # which queues dead-letter to which
        leads: Leads | None = None,  # where a publish leads to
        budget: int,  # bytes that properties may have
    ) -> None:
        selection = order.selection
        self._order = order
        self._operation = operation
        self._began = began if mixed else None
        hidden = REDACTION if selection.redacted else None
        self._query: Query | None = parse(selection.query, selection.now or began, hidden) if selection.query else None
        self._ids = frozenset(selection.ids)
        self._group = selection.group
        self._retries = retries or {}
        self._feeders = feeders or Feeders()
        self._leads = leads
        self._budget = budget

    def selects(self, dead_letter: Summary, body: bytes, raw_properties: bytes) -> bool:
        if self._group and not dead_letter.fingerprint.startswith(self._group):
            return False
        if self._ids and dead_letter.id not in self._ids and (dead_letter.message_id or "") not in self._ids:
            return False
        return self._query is None or self._query.matches(dead_letter, body, raw_properties)

    def is_newer(self, dead_letter: Summary) -> bool:
        """Not there when the operation began, or sent by it and back again."""
        if dead_letter.last_operation == self._operation:
            return True
        return self._began is not None and dead_letter.dead_at is not None and dead_letter.dead_at > self._began

    def choose(self, dead_letter: Summary, body: bytes, raw_properties: bytes) -> Choice:
        if self.is_newer(dead_letter) or not self.selects(dead_letter, body, raw_properties):
            return IGNORED
        if self._order.kind is OperationKind.DISCARD:
            return Selected()
        if self._order.kind is OperationKind.MOVE:
            return self._route(dead_letter)
        most = self._order.most_redrives
        if most is not None and dead_letter.redriven >= most:
            times = "once" if most == 1 else f"{most} times"
            return Skipped(f"re-driven {times} already")
        if not has_room_for_lineage(raw_properties, dead_letter, budget=self._budget):
            return Skipped(NO_ROOM)
        return self._route(dead_letter)

    def _route(self, dead_letter: Summary) -> Choice:
        to, origin = self._order.to, ""
        if to.way in (DestinationKind.OWN, DestinationKind.RETRY, DestinationKind.ORIGINAL):
            found = origin_of(dead_letter, self._feeders, restricted=self._order.is_restricted)
            if found.queue is None and not self._is_guess:
                return Skipped(found.why)
            origin, dead_letter = found.queue or "", dead_letter.with_source(found.queue)
        route = route_of(to, dead_letter, self._retries.get)
        if isinstance(route, str):
            return Skipped(route)
        if to.way is DestinationKind.ORIGINAL and origin and self.leads(*route, origin) is False:
            return Skipped(_misleading(*route, origin))
        if why := self._denial(origin or to.name):
            return Skipped(why)
        return Selected(*route, origin)

    @property
    def _is_guess(self) -> bool:
        """Return whether nothing is known by which an exchange that a message names could be checked."""
        return self._order.to.way is DestinationKind.ORIGINAL and not self._feeders.of(self._order.queue)

    def leads(self, exchange: str, key: str, queue: str) -> bool | None:
        """Return whether a publish leads to a queue; None: not known."""
        return self._leads(exchange, key, queue) if self._leads is not None else None

    def _denial(self, queue: str) -> str:
        """Why the operator may not send there; nothing if that is allowed."""
        if not self._order.is_restricted:
            return ""
        if self._order.to.way in (DestinationKind.ORIGINAL, DestinationKind.EXCHANGE):
            return NO_EXCHANGE
        return "" if self._order.may_send_to(queue) else f"the operator may not send to {displayed_name(queue)}"


def _misleading(exchange: str, key: str, queue: str) -> str:
    where = f"exchange {displayed_name(exchange)}" if exchange else "the default exchange"
    return (
        f"it names {where} with key {displayed_name(key)}, which does not lead to {displayed_name(queue)}, where it "
        "failed; name a queue or an exchange with --to to send it there"
    )


def route_of(to: Destination, dead_letter: Summary, retry: Callable[[str], Route | None]) -> Route | str:
    """Exchange and key for a message, or why there is none."""
    match to.way:
        case DestinationKind.OWN:
            return ("", dead_letter.source) if dead_letter.source else NO_SOURCE
        case DestinationKind.RETRY:
            return (retry(dead_letter.source) if dead_letter.source else None) or NO_RETRY
        case DestinationKind.ORIGINAL:
            return (
                (dead_letter.exchange, dead_letter.routing_key or "") if dead_letter.exchange is not None else NO_ORIGIN
            )
        case DestinationKind.QUEUE:
            return "", to.name
        case DestinationKind.EXCHANGE:
            return to.name, to.key
