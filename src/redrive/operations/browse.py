"""Look at a dead-letter queue: take its messages in order, read them, give them all back.

A look keeps what it shows and forgets the rest, message by message, so a hundred thousand of them need no more memory
than the answer. It covers what was ready when it began. While it lasts, it holds the messages: another look, or
a consumer of the queue, does not see them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from redrive.deadletters.dead_letter import DeadLetter, Summary, read_dead_letter, read_summary
from redrive.deadletters.hidden_secrets import hide_body, hide_dead_letter, hide_summary
from redrive.deadletters.redaction import redact_text
from redrive.deadletters.search import Query
from redrive.errors import LetterAmbiguous
from redrive.operations.ports import BrowsePort
from redrive.protocol.messages import Delivery

MOST_GROUPS = 1000
MOST_MATCHES = 10  # ids that are listed when one was not enough
_PATIENCE = 2.0  # seconds without a message after which a queue that should have more is taken at its word
_TURN = 256 * 1024  # bytes of messages that are looked at before the event loop gets its turn
_OVERHEAD = 1024  # bytes that a message counts for beyond its body
OTHERS = "(others)"  # the key of the group of all groups beyond `MOST_GROUPS`


class GroupBy(StrEnum):
    FINGERPRINT = "fingerprint"
    ERROR = "error"
    SOURCE = "source"
    TYPE = "type"
    REASON = "reason"


@dataclass(frozen=True, slots=True)
class MessagePage:
    dead_letters: tuple[Summary, ...]
    scanned: int
    depth: int  # of the queue when the look began
    next: int | None  # the position at which the next page begins


@dataclass(slots=True)
class FailureGroup:
    """Dead letters that have something in common."""

    key: str
    count: int = 0
    error: str = ""
    error_message: str = ""  # of one of them
    sources: dict[str, int] = field(default_factory=dict)
    oldest: datetime | None = None
    newest: datetime | None = None
    redriven: int = 0  # how many were re-driven before
    sample: str = ""  # the id of one of them


@dataclass(frozen=True, slots=True)
class Grouping:
    groups: tuple[FailureGroup, ...]  # the largest first
    matched: int
    scanned: int
    depth: int


@dataclass(frozen=True, slots=True)
class MessageDetail:
    """One message in full."""

    dead_letter: DeadLetter
    exchange: str  # of the delivery: by which it came into the dead-letter queue
    routing_key: str
    raw_properties: bytes  # empty without secrets: what they hide cannot be told
    body: bytes
    revealed: bool = True  # with its secrets


def page_without_secrets(page: MessagePage) -> MessagePage:
    return replace(page, dead_letters=tuple(map(hide_summary, page.dead_letters)))


def grouping_without_secrets(found: Grouping) -> Grouping:
    hidden = [
        replace(
            one,
            key=redact_text(one.key),
            error=redact_text(one.error),
            error_message=redact_text(one.error_message),
        )
        for one in found.groups
    ]
    return replace(found, groups=tuple(hidden))


def detail_without_secrets(found: MessageDetail) -> MessageDetail:
    dead_letter = hide_dead_letter(found.dead_letter)
    body = hide_body(found.body, dead_letter.content_type, content_encoding=dead_letter.content_encoding)
    return replace(found, dead_letter=dead_letter, raw_properties=b"", body=body, revealed=False)


async def for_each(
    broker: BrowsePort, queue: str, see: Callable[[Delivery, Summary], bool], at_most: int | None = None
) -> tuple[int, int]:
    """Show every message to `see`, until it says that it has seen enough. Gives how many it saw, and the depth."""
    depth = await broker.depth(queue)
    seen = 0
    async with aclosing(stream(broker, queue, depth if at_most is None else min(at_most, depth))) as dead_letters:
        async for delivery, dead_letter in dead_letters:
            seen += 1
            if see(delivery, dead_letter):
                break
    return seen, depth


async def stream(broker: BrowsePort, queue: str, at_most: int) -> AsyncGenerator[tuple[Delivery, Summary], None]:
    """Every message with what it tells. Whoever may leave early closes it (`aclosing`): it gives back what it has."""
    if not at_most:
        return
    held = await broker.browse(queue, at_most)
    position = shown = 0
    try:
        while position < at_most and (came := await held.next(_PATIENCE)):
            for delivery in came:
                position += 1
                shown += _OVERHEAD + len(delivery.body)
                if shown > _TURN:
                    shown = 0
                    await asyncio.sleep(0)
                yield delivery, read_summary(delivery.raw_properties, delivery.body, queue, position)
    finally:
        await held.release()


async def peek(
    broker: BrowsePort, queue: str, *, query: Query | None = None, limit: int = 20, start: int = 1
) -> MessagePage:
    """So many messages that match, from a position on. Without a query no more are touched than are shown."""
    found: list[Summary] = []
    more: int | None = None

    def see(delivery: Delivery, dead_letter: Summary) -> bool:
        nonlocal more
        if dead_letter.position < start or not _matches(query, delivery, dead_letter):
            return False
        if len(found) == limit:
            more = dead_letter.position
            return True
        found.append(dead_letter)
        return False

    scanned, depth = await for_each(broker, queue, see, None if query is not None else start - 1 + limit)
    if query is None and start - 1 + limit < depth:
        more = start + limit
    return MessagePage(tuple(found), scanned, depth, more)


async def group(broker: BrowsePort, queue: str, by: GroupBy, query: Query | None = None) -> Grouping:
    groups: dict[str, FailureGroup] = {}
    matched = 0

    def see(delivery: Delivery, dead_letter: Summary) -> bool:
        nonlocal matched
        if _matches(query, delivery, dead_letter):
            matched += 1
            _add(groups, by, dead_letter)
        return False

    scanned, depth = await for_each(broker, queue, see)
    ordered = sorted(groups.values(), key=lambda one: (one.key == OTHERS, -one.count, one.key))
    return Grouping(tuple(ordered), matched, scanned, depth)


def _add(groups: dict[str, FailureGroup], by: GroupBy, dead_letter: Summary) -> None:
    key = str(getattr(dead_letter, by) or "")
    found = groups.get(key)
    if found is None:
        key = key if len(groups) < MOST_GROUPS else OTHERS
        found = groups.setdefault(
            key, FailureGroup(key, 0, dead_letter.error, dead_letter.error_message, sample=dead_letter.id)
        )
    found.count += 1
    found.redriven += dead_letter.redriven > 0
    source = dead_letter.source or ""
    if source in found.sources or len(found.sources) < 20:
        found.sources[source] = found.sources.get(source, 0) + 1
    at = dead_letter.dead_at
    if at is not None:
        found.oldest = at if found.oldest is None or at < found.oldest else found.oldest
        found.newest = at if found.newest is None or at > found.newest else found.newest


async def find(broker: BrowsePort, queue: str, id: str) -> MessageDetail | None:
    """Return the message with this id; else the only one with this message_id; else the only one whose id begins so.

    Raise `LetterAmbiguous` if several have it. Messages that are the same in everything have one id, and are one.
    """
    exact: MessageDetail | None = None
    named, similar = _Matches(queue), _Matches(queue)

    def see(delivery: Delivery, dead_letter: Summary) -> bool:
        nonlocal exact
        if dead_letter.id == id:
            exact = _detail(delivery, queue, dead_letter.position)
            return True
        if dead_letter.message_id == id:
            named.add(delivery, dead_letter)
        elif dead_letter.id.startswith(id):
            similar.add(delivery, dead_letter)
        return False

    await for_each(broker, queue, see)
    return exact or named.only(id) or similar.only(id)


class _Matches:
    """The messages that an id can stand for: the first in full, some of the others by their ids."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._first: MessageDetail | None = None
        self._ids: dict[str, None] = {}  # in the order of the queue
        self._more = 0

    def add(self, delivery: Delivery, dead_letter: Summary) -> None:
        if dead_letter.id in self._ids:
            return
        if self._first is None:
            self._first = _detail(delivery, self._queue, dead_letter.position)
        if len(self._ids) < MOST_MATCHES:
            self._ids[dead_letter.id] = None
        else:
            self._more += 1

    def only(self, id: str) -> MessageDetail | None:
        if len(self._ids) > 1:
            raise LetterAmbiguous(self._queue, id, tuple(self._ids), self._more)
        return self._first


def _detail(delivery: Delivery, queue: str, position: int) -> MessageDetail:
    return MessageDetail(
        read_dead_letter(delivery.raw_properties, delivery.body, queue=queue, position=position),
        delivery.exchange,
        delivery.routing_key,
        delivery.raw_properties,
        delivery.body,
    )


async def count_returned(broker: BrowsePort, queue: str, operation: str) -> int:
    """How many messages of an operation are back."""
    back = 0

    def see(_: Delivery, dead_letter: Summary) -> bool:
        nonlocal back
        back += dead_letter.last_operation == operation
        return False

    await for_each(broker, queue, see)
    return back


def _matches(query: Query | None, delivery: Delivery, dead_letter: Summary) -> bool:
    return query is None or query.matches(dead_letter, delivery.body, delivery.raw_properties)
