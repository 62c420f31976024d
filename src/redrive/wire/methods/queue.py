"""Class 50: queue."""

from __future__ import annotations

from dataclasses import field

from redrive.wire.argument_types import Arguments, Bit, Long, Short, ShortStr
from redrive.wire.method import Method, Sender, method


@method(50, 10, sender=Sender.CLIENT, replies="queue.declare-ok")
class QueueDeclare(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    no_wait: Bit = False
    arguments: Arguments = field(default_factory=dict)


@method(50, 11, sender=Sender.SERVER)
class QueueDeclareOk(Method):
    queue: ShortStr = ""
    message_count: Long = 0
    consumer_count: Long = 0


@method(50, 20, sender=Sender.CLIENT, replies="queue.bind-ok")
class QueueBind(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: Arguments = field(default_factory=dict)


@method(50, 21, sender=Sender.SERVER)
class QueueBindOk(Method):
    pass


@method(50, 30, sender=Sender.CLIENT, replies="queue.purge-ok")
class QueuePurge(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    no_wait: Bit = False


@method(50, 31, sender=Sender.SERVER)
class QueuePurgeOk(Method):
    message_count: Long = 0


@method(50, 40, sender=Sender.CLIENT, replies="queue.delete-ok")
class QueueDelete(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    if_unused: Bit = False
    if_empty: Bit = False
    no_wait: Bit = False


@method(50, 41, sender=Sender.SERVER)
class QueueDeleteOk(Method):
    message_count: Long = 0


@method(50, 50, sender=Sender.CLIENT, replies="queue.unbind-ok")
class QueueUnbind(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    arguments: Arguments = field(default_factory=dict)


@method(50, 51, sender=Sender.SERVER)
class QueueUnbindOk(Method):
    pass
