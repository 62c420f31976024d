"""A virtual host: exchanges, queues and bindings, declared and deleted by clients and restored from the journal."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from redrive.broker.delayed_exchange import DelayedMessages
from redrive.broker.errors import AmqpError, access_refused, command_invalid, not_found, precondition
from redrive.broker.exchanges import MATCHERS, InvalidBinding
from redrive.broker.exchanges.header_values import Term, identity
from redrive.broker.message import Entry
from redrive.broker.queue import Queue
from redrive.broker.queue_arguments import check_equivalent, check_exchange_name, check_same, read_settings
from redrive.broker.quorum import QuorumQueue
from redrive.broker.routing import Destination, Exchange, Routing
from redrive.broker.storage.journal import Definition, StoredMessage
from redrive.errors import ReplyCode
from redrive.wire.methods.exchange import ExchangeDeclare
from redrive.wire.methods.queue import QueueDeclare
from redrive.wire.values import Table, encode_table, read_table

if TYPE_CHECKING:
    from redrive.broker.broker import Broker

BindingKey: TypeAlias = tuple[str, str, str, str, Term]  # source, kind and name of the destination, key, arguments

_TRACE = "amq.rabbitmq.trace"
_PREDECLARED = {f"amq.{kind}": kind for kind in MATCHERS} | {"amq.match": "headers", _TRACE: "topic"}
DELAYED = "x-delayed-message"


class VirtualHost(Routing):
    def __init__(self, name: str, broker: Broker) -> None:
        super().__init__(name, broker)
        self._bindings: dict[BindingKey, int] = {}  # durable ones, by what they bind
        for exchange, kind in _PREDECLARED.items():
            declare = ExchangeDeclare(exchange=exchange, type=kind, durable=True, internal=exchange == _TRACE)
            self._add_exchange(declare, 0)

    # Exchanges ----------------------------------------------------------------------------------------

    def declare_exchange(self, declare: ExchangeDeclare) -> None:
        name = declare.exchange
        _refuse_default_exchange(name)
        if declare.passive:
            self.exchange(name)
            return
        self._kind(declare)
        existing = self.exchanges.get(name)
        if existing is not None:
            self._check_exchange(existing, declare)
            return
        if name.startswith("amq."):
            raise access_refused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        check_exchange_name("alternate-exchange", "exchange", name, self.name, declare.arguments)
        exchange = self._add_exchange(declare, self.next_id())
        if exchange.durable:
            value = {key: getattr(exchange, key) for key in ("type", "auto_delete", "internal", "arguments")}
            self._define(exchange.id, "exchange", name, value)

    def _kind(self, declare: ExchangeDeclare) -> str:
        """Return the type that routes: the exchange's own, or for a delayed one the type it has after the delay."""
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

    def _add_exchange(self, declare: ExchangeDeclare, id: int) -> Exchange:
        exchange = Exchange(declare, id, MATCHERS[self._kind(declare)](self.dialect))
        if exchange.type == DELAYED:
            exchange.delays = DelayedMessages(self, id, durable=exchange.durable)
        self.exchanges[exchange.name] = exchange
        self._routes.clear()
        return exchange

    def _check_exchange(self, existing: Exchange, declare: ExchangeDeclare) -> None:
        names = ("type", "durable", "auto_delete", "internal")
        compared = [(name, getattr(declare, name), getattr(existing, name)) for name in names]
        arguments = ("alternate-exchange", "x-delayed-type")
        compared += [(name, declare.arguments.get(name), existing.arguments.get(name)) for name in arguments]
        check_same(compared, "exchange", existing.name, self.name)

    def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        _refuse_default_exchange(name)
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
        """Delete an exchange that lost its last binding. It may be gone already, and another one have its name."""
        if exchange.auto_delete and not len(exchange.matcher) and self.exchanges.get(exchange.name) is exchange:
            self._remove_exchange(exchange)

    # Queues -------------------------------------------------------------------------------------------

    def delete_exclusive_queues(self, session: object) -> None:
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
            raise self._locked_error(queue)

    def _locked_error(self, queue: Queue) -> AmqpError:
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
                self._check_queue(existing, declare)
            existing.reset_idle_timer()
            return existing
        if declare.passive:
            raise not_found("queue", declare.queue, self.name)
        if declare.queue.startswith("amq."):
            raise access_refused(f"queue name '{declare.queue}' contains reserved prefix 'amq.*'")
        name = declare.queue or "amq.gen-" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        return self._create_queue(name, declare, session if declare.exclusive else None)

    def add_reply_queue(self, name: str) -> Queue:
        """Create a queue for direct replies, which is deleted with its consumer."""
        return self._create_queue(name, QueueDeclare(auto_delete=True), None)

    def _create_queue(self, name: str, declare: QueueDeclare, owner: object | None) -> Queue:
        queue = self._add_queue(name, declare, owner)
        self._routes.clear()
        if queue.survives:
            value: Table = {"auto_delete": queue.auto_delete, "arguments": queue.arguments}
            self._define(queue.id, "queue", name, value)
        return queue

    def _add_queue(self, name: str, declare: QueueDeclare, owner: object | None, id: int | None = None) -> Queue:
        settings = read_settings(name, self.name, declare.arguments, self.dialect)
        if settings.quorum:
            self._check_quorum(name, declare)
        id = self.next_id() if id is None else id
        queue = (QuorumQueue if settings.quorum else Queue)(self, name, declare, settings, id=id, owner=owner)
        self.queues[name] = queue
        return queue

    def _check_quorum(self, name: str, declare: QueueDeclare) -> None:
        """A quorum queue is durable and not exclusive."""
        wrong = {
            "auto-delete": declare.auto_delete,
            "exclusive-owner": declare.exclusive,
            "non-durable": not declare.durable,
        }
        for property in (property for property, is_so in wrong.items() if is_so):
            raise precondition(f"invalid property '{property}' for queue '{name}' in vhost '{self.name}'")

    def _check_queue(self, existing: Queue, declare: QueueDeclare) -> None:
        """An exclusive queue does not survive a restart, so whether it is durable makes no difference."""
        if declare.exclusive != (existing.owner is not None):
            raise self._locked_error(existing)
        names = ("durable",) * (existing.owner is None) + ("auto_delete",)
        compared = [(name, getattr(declare, name), getattr(existing, name)) for name in names]
        check_same(compared, "queue", existing.name, self.name)
        check_equivalent(existing.name, self.name, declare.arguments, existing.arguments, self.dialect)

    def deletable_queue(self, name: str, session: object, *, if_unused: bool, if_empty: bool) -> Queue | None:
        """Return the queue of this name, if it exists. Refuses if the conditions do not hold."""
        queue = self.queues.get(name)
        if queue is None:
            return None
        self._check_owner(queue, session)
        where = f"queue '{name}' in vhost '{self.name}'"
        if queue.settings.quorum and (if_unused or if_empty):
            option = "if-unused" if if_unused else "if-empty"
            text = f"cannot delete {where}. queue.delete operations with {option} flag set are not supported by"
            raise AmqpError(ReplyCode.NOT_IMPLEMENTED, f"{text} quorum queues")
        if if_empty and len(queue):
            raise precondition(f"{where} not empty")
        if if_unused and queue.consumers:
            raise precondition(f"{where} in use")
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
            self._bindings[binding] = number = self.next_id()
            value = dict(zip(("source", "kind", "destination", "key"), binding[:4], strict=True))
            name = f"{exchange.name}->{destination.name}"
            self._define(number, "binding", name, {**value, "arguments": arguments})

    def unbind(self, source: str, destination: Destination | None, key: str, arguments: Table) -> None:
        """Remove a binding. It is no error if there is no such binding, exchange or destination."""
        _refuse_default_exchange(source)
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
        _refuse_default_exchange(source)
        return self.exchange(source)

    def _forget_bindings(self, gone: Callable[[BindingKey], bool]) -> None:
        for key in [key for key in self._bindings if gone(key)]:
            self.journal.undefine(self._bindings.pop(key))

    # The journal --------------------------------------------------------------------------------------

    def _define(self, id: int, kind: str, name: str, value: Table) -> None:
        self.journal.define(Definition(id, kind, self.name, name, encode_table(value)))

    def store(self, holder: int, entry: Entry) -> None:
        """Have the journal keep an entry of a queue, or of an exchange that delays."""
        entry.stored = True
        message = entry.message
        stored = StoredMessage(
            id=entry.id,
            queue=holder,
            position=entry.position,
            expires_at=None if entry.expires_at is None else int(entry.expires_at * 1000),
            delivery_count=entry.delivery_count,
            route=message.route,
            properties=message.raw_properties,
            body=message.body,
            deaths=message.history(),
        )
        self.journal.store(stored)

    def holders(self) -> Iterator[tuple[int, Callable[[Entry], None]]]:
        """Yield the id of everything that can hold messages in the journal, and the function that restores one."""
        for queue in self.queues.values():
            yield queue.id, queue.restore
        for exchange in self.exchanges.values():
            if exchange.delays is not None:
                yield exchange.id, exchange.delays.restore

    def restore(self, definition: Definition) -> None:
        """Create again what the journal kept."""
        name, raw = definition.name, definition.value
        value: dict[str, Any] = read_table(raw, 0, len(raw))[0]
        match definition.kind:
            case "exchange":
                self._add_exchange(ExchangeDeclare(exchange=name, durable=True, **value), definition.id)
            case "queue":
                self._add_queue(name, QueueDeclare(durable=True, **value), None, definition.id)
            case "binding":
                self._restore_binding(definition.id, value)

    def _restore_binding(self, id: int, value: dict[str, Any]) -> None:
        known: Mapping[str, Destination] = self.queues if value["kind"] == "queue" else self.exchanges
        source, destination = self.exchanges.get(value["source"]), known.get(value["destination"])
        if source is None or destination is None:
            return
        if not source.matcher.bind(destination, value["key"], value["arguments"]):
            # It is bound already: earlier versions kept a binding twice if it was unbound in between with its
            # arguments in another order. One is enough, or nobody could unbind the other.
            self.journal.undefine(id)
            return
        if isinstance(destination, Exchange):
            destination.sources.add(source)
        self._bindings[_binding_key(source.name, destination, value["key"], value["arguments"])] = id

    def __repr__(self) -> str:
        return f"<VirtualHost {self.name!r} exchanges={len(self.exchanges)} queues={len(self.queues)}>"


def _refuse_default_exchange(name: str) -> None:
    if not name:
        raise access_refused("operation not permitted on the default exchange")


def _binding_key(source: str, destination: Destination, key: str, arguments: Table) -> BindingKey:
    kind = "queue" if isinstance(destination, Queue) else "exchange"
    return (source, kind, destination.name, key, identity(arguments))
