"""A virtual host: exchanges, queues and bindings, and the way of a message through them.

Routes are remembered by the encoded exchange and key, and forgotten together whenever anything is declared, bound or
deleted. Where a headers exchange or a delay lies on the way there is nothing to remember.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

from redrive.broker.clock import Clock
from redrive.broker.deadletter import die, is_cycle
from redrive.broker.delayed_exchange import DelayedMessages
from redrive.broker.dialect import Dialect
from redrive.broker.errors import AmqpError, access_refused, command_invalid, not_found, precondition
from redrive.broker.exchanges import MATCHERS, InvalidBinding, Matcher
from redrive.broker.exchanges.header_values import Term, identity
from redrive.broker.memory_alarm import MemoryAlarm
from redrive.broker.message import Entry, Facts, Message, read_facts
from redrive.broker.queue import Publisher, Queue
from redrive.broker.queue_arguments import check_equivalent, check_exchange_name, inequivalent, read_settings
from redrive.broker.quorum import QuorumQueue
from redrive.broker.storage.journal import Definition, Journal, StoredMessage
from redrive.errors import ReplyCode
from redrive.protocol.content import Publication, route_exchange, route_key
from redrive.wire.methods.exchange import ExchangeDeclare
from redrive.wire.methods.queue import QueueDeclare
from redrive.wire.properties import decode_properties
from redrive.wire.values import Table, encode_short_string, encode_table, read_table

Destination: TypeAlias = "Queue | Exchange"
BindingKey: TypeAlias = tuple[str, str, str, str, Term]  # source, kind and name of the destination, key, arguments

_ROUTES_REMEMBERED = 10_000
_FACTS_REMEMBERED, _FACTS_LENGTH = 1024, 128
_PREDECLARED = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
    "amq.rabbitmq.trace": "topic",
}
DELAYED = "x-delayed-message"


@dataclass(slots=True, eq=False)
class Exchange:
    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Table
    id: int
    matcher: Matcher[Destination]
    delays: DelayedMessages | None = None
    sources: set[Exchange] = field(default_factory=set)  # exchanges that are bound to this one

    @property
    def survives(self) -> bool:
        """Is it there again after a restart?"""
        return self.durable

    @property
    def alternate(self) -> str | None:
        name = self.arguments.get("alternate-exchange")
        return name if isinstance(name, str) else None

    def __repr__(self) -> str:
        return f"<Exchange {self.name!r} {self.type} bindings={len(self.matcher)}>"


class VirtualHost:
    def __init__(
        self,
        name: str,
        *,
        clock: Clock,
        journal: Journal,
        dialect: Dialect,
        memory: MemoryAlarm,
        next_id: Callable[[], int],
    ) -> None:
        self.name = name
        self.memory = memory
        self.clock = clock
        self.journal = journal
        self.dialect = dialect
        self.next_id = next_id
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self._bindings: dict[BindingKey, int] = {}  # durable ones, by what they bind
        self._routes: dict[bytes, tuple[Queue, ...]] = {}
        self._known_facts: dict[bytes, Facts] = {}
        for exchange, kind in _PREDECLARED.items():
            internal = exchange == "amq.rabbitmq.trace"
            self._add_exchange(Exchange(exchange, kind, True, False, internal, {}, 0, MATCHERS[kind](self.dialect)))

    def now(self) -> float:
        return self.clock.now()

    # Exchanges ----------------------------------------------------------------------------------------

    def exchange(self, name: str) -> Exchange:
        """An exchange that has a name."""
        found = self.exchanges.get(name)
        if found is None:
            raise not_found("exchange", name, self.name)
        return found

    def declare_exchange(self, declare: ExchangeDeclare) -> None:
        if not declare.exchange:
            raise access_refused("operation not permitted on the default exchange")
        existing = self.exchanges.get(declare.exchange)
        if declare.passive:
            if existing is None:
                raise not_found("exchange", declare.exchange, self.name)
            return
        kind = self._kind(declare)
        if existing is None:
            self._create_exchange(declare, kind)
        else:
            self._check_exchange(existing, declare)

    def _create_exchange(self, declare: ExchangeDeclare, kind: str) -> None:
        name = declare.exchange
        if name.startswith("amq."):
            raise access_refused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        check_exchange_name("alternate-exchange", "exchange", name, self.name, declare.arguments)
        exchange = Exchange(
            name=name,
            type=declare.type,
            durable=declare.durable,
            auto_delete=declare.auto_delete,
            internal=declare.internal,
            arguments=declare.arguments,
            id=self.next_id(),
            matcher=MATCHERS[kind](self.dialect),
        )
        self._add_exchange(exchange)
        if exchange.durable:
            self.journal.define(_exchange_definition(self.name, exchange))

    def _kind(self, declare: ExchangeDeclare) -> str:
        """Which matcher an exchange has: its type, or for a delayed one the type it has after the delay."""
        kind = declare.type
        if kind == DELAYED:
            inner = declare.arguments.get("x-delayed-type")
            if inner not in MATCHERS:
                raise precondition("Invalid argument, 'x-delayed-type' must be an existing exchange type")
            return str(inner)
        if kind not in MATCHERS:
            text = f"unknown exchange type '{kind}'"
            raise precondition(text) if self.dialect.unknown_type_ends_channel else command_invalid(text)
        return kind

    def _add_exchange(self, exchange: Exchange) -> None:
        if exchange.type == DELAYED:
            exchange.delays = DelayedMessages(self, exchange.id, durable=exchange.durable)
        self.exchanges[exchange.name] = exchange
        self._routes.clear()

    def _check_exchange(self, existing: Exchange, declare: ExchangeDeclare) -> None:
        for name in ("type", "durable", "auto_delete", "internal"):
            received, current = getattr(declare, name), getattr(existing, name)
            if received != current:
                raise inequivalent(name, "exchange", existing.name, self.name, received, current)
        for name in ("alternate-exchange", "x-delayed-type"):
            received, current = declare.arguments.get(name), existing.arguments.get(name)
            if received != current:
                raise inequivalent(name, "exchange", existing.name, self.name, received, current)

    def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        if not name:
            raise access_refused("operation not permitted on the default exchange")
        if name.startswith("amq."):
            raise access_refused(f"deletion of system exchange '{name}' in vhost '{self.name}' not allowed")
        exchange = self.exchanges.get(name)
        if exchange is None:
            return
        if if_unused and len(exchange.matcher):
            raise precondition(f"exchange '{name}' in vhost '{self.name}' in use")
        self._remove_exchange(exchange)

    def _remove_exchange(self, exchange: Exchange) -> None:
        del self.exchanges[exchange.name]
        if exchange.durable:
            self.journal.undefine(exchange.id)
        if exchange.delays is not None:
            exchange.delays.clear()
        self._forget_bindings(lambda key: exchange.name in (key[0], key[2] if key[1] == "exchange" else None))
        for destination, _, _ in list(exchange.matcher.bindings()):
            if isinstance(destination, Exchange):
                destination.sources.discard(exchange)
        for source in list(exchange.sources):
            if source.matcher.drop(exchange):
                self._auto_delete(source)
        self._routes.clear()

    def _auto_delete(self, exchange: Exchange) -> None:
        """It has lost a binding. It may be gone itself by now, and another one have its name."""
        if exchange.auto_delete and not len(exchange.matcher) and self.exchanges.get(exchange.name) is exchange:
            self._remove_exchange(exchange)

    # Queues -------------------------------------------------------------------------------------------

    def forget_owner(self, session: object) -> None:
        """A connection ended, and with it the queues that were exclusively its own."""
        for queue in [queue for queue in self.queues.values() if queue.owner is session]:
            self.remove_queue(queue)

    def queue(self, name: str, session: object) -> Queue:
        found = self.queues.get(name)
        if found is None:
            raise not_found("queue", name, self.name)
        self._check_owner(found, session)
        return found

    def _check_owner(self, queue: Queue, session: object) -> None:
        if queue.owner is not None and queue.owner is not session:
            raise self._locked(queue)

    def _locked(self, queue: Queue) -> AmqpError:
        return AmqpError(
            ReplyCode.RESOURCE_LOCKED,
            f"cannot obtain exclusive access to locked queue '{queue.name}' in vhost '{self.name}'. It could be "
            "originally declared on another connection or the exclusive property value does not match that of the "
            "original declaration.",
        )

    def declare_queue(self, declare: QueueDeclare, session: object) -> Queue:
        existing = self.queues.get(declare.queue) if declare.queue else None
        if existing is not None:
            self._check_owner(existing, session)
            if not declare.passive:
                if declare.exclusive != (existing.owner is not None):
                    raise self._locked(existing)
                self._check_queue(existing, declare)
            existing.touch()
            return existing
        if declare.passive:
            raise not_found("queue", declare.queue, self.name)
        if declare.queue.startswith("amq."):
            raise access_refused(f"queue name '{declare.queue}' contains reserved prefix 'amq.*'")
        return self._create_queue(declare, session)

    def _create_queue(self, declare: QueueDeclare, session: object) -> Queue:
        name = declare.queue or "amq.gen-" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        settings = read_settings(name, self.name, declare.arguments, self.dialect)
        if settings.quorum:
            self._check_quorum(name, declare)
        queue = (QuorumQueue if settings.quorum else Queue)(
            self,
            name,
            id=self.next_id(),
            durable=declare.durable,
            owner=session if declare.exclusive else None,
            auto_delete=declare.auto_delete,
            arguments=declare.arguments,
            settings=settings,
        )
        self.queues[name] = queue
        self._routes.clear()
        if queue.survives:
            self.journal.define(_queue_definition(self.name, queue))
        return queue

    def add_reply_queue(self, name: str) -> Queue:
        """One for direct replies: it goes with its consumer."""
        return self._create_queue(QueueDeclare(queue=name, auto_delete=True), None)

    def _check_quorum(self, name: str, declare: QueueDeclare) -> None:
        """A quorum queue is durable and belongs to everybody."""
        wrong = {
            "auto-delete": declare.auto_delete,
            "exclusive-owner": declare.exclusive,
            "non-durable": not declare.durable,
        }
        for property in (property for property, is_so in wrong.items() if is_so):
            raise precondition(f"invalid property '{property}' for queue '{name}' in vhost '{self.name}'")

    def _check_queue(self, existing: Queue, declare: QueueDeclare) -> None:
        """An exclusive queue does not survive a restart, so whether it is durable makes no difference."""
        for name in ("durable",) * (existing.owner is None) + ("auto_delete",):
            received, current = getattr(declare, name), getattr(existing, name)
            if received != current:
                raise inequivalent(name, "queue", existing.name, self.name, received, current)
        check_equivalent(existing.name, self.name, declare.arguments, existing.arguments, self.dialect)

    def deletable_queue(self, name: str, session: object, *, if_unused: bool, if_empty: bool) -> Queue | None:
        """The queue of this name, if it exists and the conditions hold. Refuses to delete it otherwise."""
        queue = self.queues.get(name)
        if queue is None:
            return None
        self._check_owner(queue, session)
        if queue.settings.quorum and (if_unused or if_empty):
            option = "if-unused" if if_unused else "if-empty"
            text = (
                f"cannot delete queue '{name}' in vhost '{self.name}'. queue.delete operations with {option} flag set"
            )
            raise AmqpError(ReplyCode.NOT_IMPLEMENTED, f"{text} are not supported by quorum queues")
        if if_empty and len(queue):
            raise precondition(f"queue '{name}' in vhost '{self.name}' not empty")
        if if_unused and queue.consumers:
            raise precondition(f"queue '{name}' in vhost '{self.name}' in use")
        return queue

    def remove_queue(self, queue: Queue) -> None:
        del self.queues[queue.name]
        self._routes.clear()
        if queue.survives:
            self.journal.forget_queue(queue.id)
            self.journal.undefine(queue.id)
        self._forget_bindings(lambda key: key[1:3] == ("queue", queue.name))
        for exchange in list(self.exchanges.values()):
            if exchange.matcher.drop(queue):
                self._auto_delete(exchange)
        queue.delete()

    # Bindings -----------------------------------------------------------------------------------------

    def bind(self, exchange: Exchange, destination: Destination, key: str, arguments: Table) -> None:
        try:
            if not exchange.matcher.bind(destination, key, arguments):
                return
        except InvalidBinding as error:
            raise precondition(str(error)) from None
        if isinstance(destination, Exchange):
            destination.sources.add(exchange)
        self._routes.clear()
        if exchange.durable and destination.survives:
            binding = _binding_key(exchange.name, destination, key, arguments)
            self._bindings[binding] = self.next_id()
            self.journal.define(_binding_definition(self._bindings[binding], self.name, binding, arguments))

    def unbind(self, source: str, destination: Destination | None, key: str, arguments: Table) -> None:
        """Undo a binding. What is not bound, or not even there, is unbound already."""
        if not source:
            raise access_refused("operation not permitted on the default exchange")
        exchange = self.exchanges.get(source)
        if exchange is None or destination is None or not exchange.matcher.unbind(destination, key, arguments):
            return
        self._routes.clear()
        number = self._bindings.pop(_binding_key(source, destination, key, arguments), None)
        if number is not None:
            self.journal.undefine(number)
        if isinstance(destination, Exchange) and not exchange.matcher.leads_to(destination):
            destination.sources.discard(exchange)
        self._auto_delete(exchange)

    def bindable(self, source: str) -> Exchange:
        if not source:
            raise access_refused("operation not permitted on the default exchange")
        return self.exchange(source)

    def _forget_bindings(self, gone: Callable[[BindingKey], bool]) -> None:
        for key in [key for key in self._bindings if gone(key)]:
            self.journal.undefine(self._bindings.pop(key))

    # Routing ------------------------------------------------------------------------------------------

    def targets(self, route: bytes, raw_properties: bytes) -> tuple[Queue, ...]:
        """The queues a message goes to. Refuses an exchange that is missing or internal."""
        remembered = self._routes.get(route)
        if remembered is not None:
            return remembered
        name, key = route_exchange(route), route_key(route)
        if name and self.exchange(name).internal:
            raise access_refused(f"cannot publish to internal exchange '{name}' in vhost '{self.name}'")
        return self._find(name, key, route, raw_properties)

    def _find(self, name: str, key: str, route: bytes, raw_properties: bytes) -> tuple[Queue, ...]:
        walk = _RouteSearch(self, raw_properties)
        walk.visit(name, (key,))
        found = tuple(walk.queues)
        if walk.remember:
            if len(self._routes) >= _ROUTES_REMEMBERED:
                self._routes.clear()
            self._routes[route] = found
        return found

    def targets_for_keys(self, name: str, keys: tuple[str, ...], raw_properties: bytes) -> tuple[Queue, ...]:
        """The queues for a message with several routing keys (CC, BCC), each once."""
        walk = _RouteSearch(self, raw_properties)
        walk.visit(name, keys)
        return tuple(walk.queues)

    def publish(self, publication: Publication, user: str, by: Publisher) -> tuple[bool, bool]:
        """Route a message. Says whether any queue was found for it, and whether all of them took it."""
        message, targets = self.route_publication(publication, user)
        return self.deliver(message, targets, by)

    def route_publication(self, publication: Publication, user: str) -> tuple[Message, tuple[Queue, ...]]:
        """What was published as a message, and the queues that are to get it. Refuses what makes no sense."""
        targets = self.targets(publication.route, publication.raw_properties)
        facts = self.facts(publication.raw_properties)
        if facts.user_id is not None and facts.user_id != user:
            raise precondition(f"user_id property set to '{facts.user_id}' but authenticated user was '{user}'")
        message = Message(publication.route, facts.raw, publication.body, facts, facts.deaths)
        if facts.cc or facts.bcc:
            targets = self.targets_for_keys(message.exchange, message.routing_keys, publication.raw_properties)
        return message, targets

    def deliver(self, message: Message, targets: tuple[Queue, ...], by: Publisher) -> tuple[bool, bool]:
        if message.facts.delay and (delays := self._delays(message.exchange)) is not None:
            delays.hold(message, message.facts.delay)
            return True, True
        accepted = True
        for queue in targets:
            if not queue.publish(message, by):
                accepted = False
        return bool(targets), accepted

    def _delays(self, exchange: str) -> DelayedMessages | None:
        found = self.exchanges.get(exchange)
        return None if found is None else found.delays

    def existing_queues(self, targets: tuple[Queue, ...]) -> tuple[Queue, ...]:
        """The queues that have these names now."""
        return tuple(self.queues[queue.name] for queue in targets if queue.name in self.queues)

    def route(self, message: Message) -> None:
        """Send a message on its way again, from its exchange."""
        for queue in self.targets_for_keys(message.exchange, message.routing_keys, message.raw_properties):
            queue.publish(message)

    def facts(self, raw_properties: bytes) -> Facts:
        """What the properties of a message mean to the broker. Most messages have the same few."""
        facts = self._known_facts.get(raw_properties)
        if facts is None:
            facts = read_facts(raw_properties, self.dialect)
            if len(raw_properties) <= _FACTS_LENGTH:
                if len(self._known_facts) >= _FACTS_REMEMBERED:
                    self._known_facts.clear()
                self._known_facts[raw_properties] = facts
        return facts

    # Dead letters -------------------------------------------------------------------------------------

    def dead_letter(self, queue: Queue, message: Message, reason: str, failures: int = 0) -> None:
        """Send a message to the dead-letter exchange of its queue; without one, or without takers, it is gone."""
        name = queue.settings.dead_letter_exchange
        if name is None or (name and name not in self.exchanges):
            return
        facts, dead_letter_key = message.facts, queue.settings.dead_letter_key
        raw_properties, deaths = die(
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
        facts = facts.dead() if dead_letter_key is None else facts.dead_by_key()
        route = encode_short_string(name) + encode_short_string(key)
        dead = Message(route, raw_properties, message.body, facts, deaths, failures)
        targets = self.targets_for_keys(name, dead.routing_keys, raw_properties)
        for target in targets:
            if not is_cycle(deaths, reason, target.name):
                target.publish(dead)

    # The journal --------------------------------------------------------------------------------------

    def store(self, holder: int, entry: Entry) -> None:
        """Have the journal keep an entry of a queue, or of an exchange that delays."""
        entry.stored = True
        self.journal.store(stored_message(holder, entry))

    def holders(self) -> Iterator[tuple[int, Callable[[Entry], None]]]:
        """Whoever messages in the journal can belong to, and how they are given back to it."""
        for queue in self.queues.values():
            yield queue.id, queue.restore
        for exchange in self.exchanges.values():
            if exchange.delays is not None:
                yield exchange.id, exchange.delays.restore

    def restore(self, definition: Definition) -> None:
        """Make again what the journal kept."""
        value = read_definition(definition.value)
        match definition.kind:
            case "exchange":
                self._restore_exchange(definition, value)
            case "queue":
                self._restore_queue(definition, value)
            case "binding":
                self._restore_binding(definition, value)

    def _restore_exchange(self, definition: Definition, value: dict[str, Any]) -> None:
        arguments = value["arguments"]
        kind = arguments["x-delayed-type"] if value["type"] == DELAYED else value["type"]
        exchange = Exchange(
            name=definition.name,
            type=value["type"],
            durable=True,
            auto_delete=value["auto_delete"],
            internal=value["internal"],
            arguments=arguments,
            id=definition.id,
            matcher=MATCHERS[kind](self.dialect),
        )
        self._add_exchange(exchange)

    def _restore_queue(self, definition: Definition, value: dict[str, Any]) -> None:
        arguments = value["arguments"]
        settings = read_settings(definition.name, self.name, arguments, self.dialect)
        self.queues[definition.name] = (QuorumQueue if settings.quorum else Queue)(
            self,
            definition.name,
            id=definition.id,
            durable=True,
            owner=None,
            auto_delete=value["auto_delete"],
            arguments=arguments,
            settings=settings,
        )

    def _restore_binding(self, definition: Definition, value: dict[str, Any]) -> None:
        known: Mapping[str, Destination] = self.queues if value["kind"] == "queue" else self.exchanges
        source, destination = self.exchanges.get(value["source"]), known.get(value["destination"])
        if source is None or destination is None:
            return
        if not source.matcher.bind(destination, value["key"], value["arguments"]):
            # It is bound already: brokers of before kept a binding twice if it was unbound in between with its
            # arguments in another order. One of them must do, or nobody could unbind the other.
            self.journal.undefine(definition.id)
            return
        if isinstance(destination, Exchange):
            destination.sources.add(source)
        self._bindings[_binding_key(source.name, destination, value["key"], value["arguments"])] = definition.id

    def __repr__(self) -> str:
        return f"<VirtualHost {self.name!r} exchanges={len(self.exchanges)} queues={len(self.queues)}>"


class _RouteSearch:
    """One message's way from an exchange to queues, through exchanges that are bound to exchanges."""

    def __init__(self, vhost: VirtualHost, raw_properties: bytes) -> None:
        self.queues: dict[Queue, None] = {}
        self.remember = True
        self._vhost = vhost
        self._raw_properties = raw_properties
        self._headers: Table | None = None

    @property
    def headers(self) -> Table:
        if self._headers is None:
            self._headers = decode_properties(self._raw_properties).headers or {}
        return self._headers

    def visit(self, name: str, keys: tuple[str, ...]) -> None:
        """Collect the queues that these keys lead to. Each exchange on the way matches all of them."""
        if not name:
            known = self._vhost.queues
            self.queues.update((known[key], None) for key in keys if key in known)
            return
        waiting, seen = [name], {name}
        while waiting:
            exchange = self._vhost.exchanges.get(waiting.pop(0))
            if exchange is None:
                continue
            for after in self._step(exchange, keys):
                if after not in seen:
                    seen.add(after)
                    waiting.append(after)

    def _step(self, exchange: Exchange, keys: tuple[str, ...]) -> Iterator[str]:
        """Collect the queues bound here, and say which exchanges come next."""
        needs_headers = exchange.matcher.needs_headers
        self.remember = self.remember and not needs_headers and exchange.delays is None
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


# What is kept -------------------------------------------------------------------------------------------------


def stored_message(queue: int, entry: Entry) -> StoredMessage:
    message = entry.message
    return StoredMessage(
        id=entry.id,
        queue=queue,
        position=entry.position,
        expires_at=None if entry.expires_at is None else int(entry.expires_at * 1000),
        delivery_count=entry.delivery_count,
        route=message.route,
        properties=message.raw_properties,
        body=message.body,
        deaths=message.history(),
    )


def _exchange_definition(vhost: str, exchange: Exchange) -> Definition:
    value: Table = {
        "type": exchange.type,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": exchange.arguments,
    }
    return Definition(exchange.id, "exchange", vhost, exchange.name, encode_table(value))


def _queue_definition(vhost: str, queue: Queue) -> Definition:
    value: Table = {"auto_delete": queue.auto_delete, "arguments": queue.arguments}
    return Definition(queue.id, "queue", vhost, queue.name, encode_table(value))


def _binding_definition(number: int, vhost: str, binding: BindingKey, arguments: Table) -> Definition:
    source, kind, destination, key, _ = binding
    value: Table = {"source": source, "kind": kind, "destination": destination, "key": key, "arguments": arguments}
    return Definition(number, "binding", vhost, f"{source}->{destination}", encode_table(value))


def read_definition(value: bytes) -> dict[str, Any]:
    return dict(read_table(value, 0, len(value))[0])


def _binding_key(source: str, destination: Destination, key: str, arguments: Table) -> BindingKey:
    kind = "queue" if isinstance(destination, Queue) else "exchange"
    return (source, kind, destination.name, key, identity(arguments))
