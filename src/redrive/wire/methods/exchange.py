"""Class 40: exchange. Bindings between exchanges are RabbitMQ's addition."""

from __future__ import annotations

from dataclasses import field

from redrive.wire.argument_types import Arguments, Bit, Short, ShortStr
from redrive.wire.method import Method, Sender, method


@method(40, 10, sender=Sender.CLIENT, replies="exchange.declare-ok")
class ExchangeDeclare(Method):
    ticket: Short = 0
    exchange: ShortStr = ""
    type: ShortStr = "direct"
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    no_wait: Bit = False
    arguments: Arguments = field(default_factory=dict)


@method(40, 11, sender=Sender.SERVER)
class ExchangeDeclareOk(Method):
    pass


@method(40, 20, sender=Sender.CLIENT, replies="exchange.delete-ok")
class ExchangeDelete(Method):
    ticket: Short = 0
    exchange: ShortStr = ""
    if_unused: Bit = False
    no_wait: Bit = False


@method(40, 21, sender=Sender.SERVER)
class ExchangeDeleteOk(Method):
    pass


@method(40, 30, sender=Sender.CLIENT, replies="exchange.bind-ok")
class ExchangeBind(Method):
    ticket: Short = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: Arguments = field(default_factory=dict)


@method(40, 31, sender=Sender.SERVER)
class ExchangeBindOk(Method):
    pass


@method(40, 40, sender=Sender.CLIENT, replies="exchange.unbind-ok")
class ExchangeUnbind(Method):
    ticket: Short = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: Arguments = field(default_factory=dict)


@method(40, 51, sender=Sender.SERVER)  # 51, not 41: RabbitMQ's numbering
class ExchangeUnbindOk(Method):
    pass
