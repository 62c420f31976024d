"""What was declared over a connection, to be declared again when the broker may have forgotten it.

The records are the methods themselves. They are replayed in an order that works whatever the order was in
which they were made: exchanges, queues, then bindings. A queue that the broker named gets another name each
time; bindings and consumers that know it by the old one are led to the new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from redrive.wire.methods.exchange import ExchangeBind, ExchangeDeclare, ExchangeUnbind
from redrive.wire.methods.queue import QueueBind, QueueDeclare, QueueUnbind
from redrive.wire.values import encode_table

Declaration: TypeAlias = "ExchangeDeclare | QueueDeclare | ExchangeBind | QueueBind"
_BindingKey: TypeAlias = "tuple[str, str, str, str, bytes]"


class Declarations:
    def __init__(self) -> None:
        self._exchanges: dict[str, ExchangeDeclare] = {}
        self._queues: dict[str, QueueDeclare] = {}  # by the name it has now; a server-named one declares ""
        self._bindings: dict[_BindingKey, ExchangeBind | QueueBind] = {}
        self._renamed: dict[str, str] = {}

    def __iter__(self) -> Iterator[Declaration]:
        yield from self._exchanges.values()
        yield from self._queues.values()
        yield from self._bindings.values()

    def queue_declarations(self, queue: str) -> list[Declaration]:
        """What it takes to make one queue again: itself, its exchanges, and the bindings between them."""
        bindings = [bind for bind in self._bindings.values() if isinstance(bind, QueueBind) and bind.queue == queue]
        exchanges = {bind.exchange for bind in bindings}
        found: list[Declaration] = [declare for name, declare in self._exchanges.items() if name in exchanges]
        found += [declare for name, declare in self._queues.items() if name == queue]
        return [*found, *bindings] if queue in self._queues else []

    def is_server_named(self, queue: str) -> bool:
        return queue in self._queues and not self._queues[queue].queue

    # Recording ----------------------------------------------------------------------------------------

    def exchange(self, declare: ExchangeDeclare) -> None:
        self._exchanges[declare.exchange] = declare

    def queue(self, declare: QueueDeclare, name: str) -> None:
        """`name` is what the broker answered: its own choice if `declare` left it open."""
        self._queues[name] = declare

    def bind(self, bind: ExchangeBind | QueueBind) -> None:
        self._bindings[_key(bind)] = bind

    def unbind(self, unbind: ExchangeUnbind | QueueUnbind) -> None:
        self._bindings.pop(_key(unbind), None)

    def forget_queue(self, name: str) -> None:
        self._queues.pop(name, None)
        self._drop_bindings(("queue", name))

    def forget_exchange(self, name: str) -> None:
        self._exchanges.pop(name, None)
        self._drop_bindings(("exchange", name))
        self._bindings = {key: bind for key, bind in self._bindings.items() if key[2] != name}

    def _drop_bindings(self, destination: tuple[str, str]) -> None:
        self._bindings = {key: bind for key, bind in self._bindings.items() if key[:2] != destination}

    # Names that the broker chose ----------------------------------------------------------------------

    def name_of(self, declare: QueueDeclare) -> str:
        """The name a recorded queue has now."""
        return next((name for name, recorded in self._queues.items() if recorded is declare), declare.queue)

    def rename(self, old: str, new: str) -> None:
        """A server-named queue was declared again and has a new name."""
        if old == new:
            return
        self._queues = {new if name == old else name: declare for name, declare in self._queues.items()}
        bindings = (self._redirect(bind, old, new) for bind in self._bindings.values())
        self._bindings = {_key(bind): bind for bind in bindings}
        self._renamed = {known: new if now == old else now for known, now in self._renamed.items()} | {old: new}

    def current_binding(self, bind: QueueBind) -> QueueBind:
        """A binding as recorded before its queue was renamed, as it is now."""
        return replace(bind, queue=self.current_name(bind.queue))

    def current_name(self, queue: str) -> str:
        return self._renamed.get(queue, queue)

    @staticmethod
    def _redirect(bind: ExchangeBind | QueueBind, old: str, new: str) -> ExchangeBind | QueueBind:
        return replace(bind, queue=new) if isinstance(bind, QueueBind) and bind.queue == old else bind


def _key(bind: ExchangeBind | QueueBind | ExchangeUnbind | QueueUnbind) -> _BindingKey:
    arguments = encode_table(dict(sorted(bind.arguments.items())))  # their order means nothing to the broker
    if isinstance(bind, QueueBind | QueueUnbind):
        return ("queue", bind.queue, bind.exchange, bind.routing_key, arguments)
    return ("exchange", bind.destination, bind.source, bind.routing_key, arguments)
