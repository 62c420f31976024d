"""Which queues a message goes to, and delivering it there: as published, after a delay, and as a dead letter.

Routes are cached by the encoded exchange and key, and the cache is cleared whenever anything is declared, bound or
deleted. Where a headers exchange or a delay lies on the way, the route is not cached.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from redrive.broker.deadletter import dead_letter_of, is_cycle
from redrive.broker.delayed_exchange import DelayedMessages
from redrive.broker.errors import access_refused, not_found, precondition
from redrive.broker.exchanges import Bindings
from redrive.broker.message import Facts, Message, read_facts
from redrive.broker.queue import Queue
from redrive.protocol.messages import Publication, route_exchange, route_key
from redrive.wire.methods.exchange import ExchangeDeclare
from redrive.wire.properties import decode_properties
from redrive.wire.values import Table, encode_short_string

if TYPE_CHECKING:
    from redrive.broker.broker import Broker
    from redrive.broker.channel import Channel

Destination: TypeAlias = "Queue | Exchange"

_ROUTES_CACHED = 10_000
_FACTS_CACHED, _FACTS_LENGTH = 1024, 128


class Exchange:
    def __init__(self, declare: ExchangeDeclare, id: int, matcher: Bindings[Destination]) -> None:
        self.name = declare.exchange
        self.type = declare.type
        self.durable = self.survives = declare.durable  # a restart
        self.auto_delete = declare.auto_delete
        self.internal = declare.internal
        self.arguments = declare.arguments
        self.id = id
        self.matcher = matcher
        self.delays: DelayedMessages | None = None
        self.sources: set[Exchange] = set()  # exchanges that are bound to this one

    @property
    def alternate(self) -> str | None:
        name = self.arguments.get("alternate-exchange")
        return name if isinstance(name, str) else None

    def __repr__(self) -> str:
        return f"<Exchange {self.name!r} {self.type} bindings={len(self.matcher)}>"


class Routing:
    """The exchanges and queues of a virtual host, and the way of a message through them."""

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        self.memory = broker.memory
        self.clock = broker.clock
        self.now = broker.clock.time
        self.journal = broker.journal
        self.dialect = broker.dialect
        self.next_id = broker.next_id
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self._routes: dict[bytes, tuple[Queue, ...]] = {}
        self._known_facts: dict[bytes, Facts] = {}

    def exchange(self, name: str) -> Exchange:
        """Return an exchange that has a name."""
        found = self.exchanges.get(name)
        if found is None:
            raise not_found("exchange", name, self.name)
        return found

    def targets(self, route: bytes, raw_properties: bytes) -> tuple[Queue, ...]:
        """Return the queues that a message goes to. Refuses an exchange that is missing or internal."""
        cached = self._routes.get(route)
        if cached is not None:
            return cached
        name, key = route_exchange(route), route_key(route)
        if name and self.exchange(name).internal:
            raise access_refused(f"cannot publish to internal exchange '{name}' in vhost '{self.name}'")
        search = _RouteSearch(self, name, (key,), raw_properties)
        found = tuple(search.queues)
        if search.cacheable:
            if len(self._routes) >= _ROUTES_CACHED:
                self._routes.clear()
            self._routes[route] = found
        return found

    def targets_for_keys(self, name: str, keys: tuple[str, ...], raw_properties: bytes) -> tuple[Queue, ...]:
        """Return the queues for a message with several routing keys (CC, BCC), each once."""
        return tuple(_RouteSearch(self, name, keys, raw_properties).queues)

    def existing_queues(self, targets: tuple[Queue, ...]) -> tuple[Queue, ...]:
        """Return the queues that have these names now."""
        return tuple(self.queues[queue.name] for queue in targets if queue.name in self.queues)

    # Publishing ---------------------------------------------------------------------------------------

    def publish(self, publication: Publication, user: str, by: Channel) -> tuple[bool, bool]:
        """Route a message. Returns whether it was routed to any queue, and whether all of them accepted it."""
        message, targets = self.route_publication(publication, user)
        return self.deliver(message, targets, by)

    def route_publication(self, publication: Publication, user: str) -> tuple[Message, tuple[Queue, ...]]:
        """Return the message that was published, and its queues. Refuses invalid properties."""
        targets = self.targets(publication.route, publication.raw_properties)
        facts = self.facts(publication.raw_properties)
        if facts.user_id is not None and facts.user_id != user:
            raise precondition(f"user_id property set to '{facts.user_id}' but authenticated user was '{user}'")
        message = Message(publication.route, facts.raw, publication.body, facts, facts.deaths)
        if facts.cc or facts.bcc:
            targets = self.targets_for_keys(message.exchange, message.routing_keys, publication.raw_properties)
        return message, targets

    def deliver(self, message: Message, targets: tuple[Queue, ...], by: Channel) -> tuple[bool, bool]:
        if message.facts.delay:
            exchange = self.exchanges.get(message.exchange)
            if exchange is not None and exchange.delays is not None:
                exchange.delays.hold(message, message.facts.delay)
                return True, True
        accepted = True
        for queue in targets:
            if not queue.publish(message, by):
                accepted = False
        return bool(targets), accepted

    def route(self, message: Message) -> None:
        """Route a message again, from its exchange: its delay is over."""
        for queue in self.targets_for_keys(message.exchange, message.routing_keys, message.raw_properties):
            queue.publish(message)

    def facts(self, raw_properties: bytes) -> Facts:
        """Return what the properties of a message mean to the broker. Most messages have the same few."""
        facts = self._known_facts.get(raw_properties)
        if facts is None:
            facts = read_facts(raw_properties, self.dialect)
            if len(raw_properties) <= _FACTS_LENGTH:
                if len(self._known_facts) >= _FACTS_CACHED:
                    self._known_facts.clear()
                self._known_facts[raw_properties] = facts
        return facts

    def dead_letter(self, queue: Queue, message: Message, reason: str, failures: int = 0) -> None:
        """Send a message to the dead-letter exchange of its queue; without one, or if it routes nowhere, drop it."""
        name = queue.settings.dead_letter_exchange
        if name is None or (name and name not in self.exchanges):
            return
        facts, dead_letter_key = message.facts, queue.settings.dead_letter_key
        raw_properties, deaths = dead_letter_of(
            message.raw_properties,
            message.deaths,
            queue=queue.name,
            reason=reason,
            exchange=message.exchange,
            routing_keys=(message.routing_key, *facts.cc),
            now=int(self.now()),
            dead_letter_key=dead_letter_key,
            dialect=self.dialect,
        )
        key = message.routing_key if dead_letter_key is None else dead_letter_key
        route = encode_short_string(name) + encode_short_string(key)
        facts = facts.dead(by_key=dead_letter_key is not None)
        dead = Message(route, raw_properties, message.body, facts, deaths, failures)
        for target in self.targets_for_keys(name, dead.routing_keys, raw_properties):
            if not is_cycle(deaths, reason, target.name):
                target.publish(dead)


class _RouteSearch:
    """The queues that some keys lead to from an exchange. Each exchange on the way matches all of the keys."""

    def __init__(self, routing: Routing, name: str, keys: tuple[str, ...], raw_properties: bytes) -> None:
        self.queues: dict[Queue, None] = {}
        self.cacheable = True
        self._raw_properties = raw_properties
        self._headers: Table | None = None
        if not name:
            known = routing.queues
            self.queues.update((known[key], None) for key in keys if key in known)
            return
        waiting, seen = [name], {name}
        while waiting:
            exchange = routing.exchanges.get(waiting.pop(0))
            if exchange is None:
                continue
            for after in self._step(exchange, keys):
                if after not in seen:
                    seen.add(after)
                    waiting.append(after)

    @property
    def headers(self) -> Table:
        if self._headers is None:
            self._headers = decode_properties(self._raw_properties).headers or {}
        return self._headers

    def _step(self, exchange: Exchange, keys: tuple[str, ...]) -> Iterator[str]:
        """Collect the queues bound here, and yield the exchanges that come next."""
        needs_headers = exchange.matcher.needs_headers
        self.cacheable = self.cacheable and not needs_headers and exchange.delays is None
        matched = False
        headers = self.headers if needs_headers else {}
        for destination in chain.from_iterable(exchange.matcher.match(key, headers) for key in keys):
            matched = True
            if isinstance(destination, Queue):
                self.queues[destination] = None
            else:
                yield destination.name
        if not matched and exchange.alternate is not None:
            yield exchange.alternate
