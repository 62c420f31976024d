"""Class 60: basic. Publishing, delivery and settlement; `nack` and the broker's own `cancel` are RabbitMQ's."""

from __future__ import annotations

from dataclasses import field
from struct import Struct

from redrive.wire.argument_types import Arguments, Bit, Explanation, ForeignStr, Long, LongLong, Short, ShortStr
from redrive.wire.method import HOT, Method, Sender, method


@method(60, 10, sender=Sender.CLIENT, replies="basic.qos-ok")
class BasicQos(Method):
    prefetch_size: Long = 0
    prefetch_count: Short = 0
    global_: Bit = False


@method(60, 11, sender=Sender.SERVER)
class BasicQosOk(Method):
    pass


@method(60, 20, sender=Sender.CLIENT, replies="basic.consume-ok")
class BasicConsume(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    consumer_tag: ShortStr = ""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    no_wait: Bit = False
    arguments: Arguments = field(default_factory=dict)


@method(60, 21, sender=Sender.SERVER)
class BasicConsumeOk(Method):
    consumer_tag: ShortStr = ""


@method(60, 30, sender=Sender.EITHER, replies="basic.cancel-ok")
class BasicCancel(Method):
    consumer_tag: ShortStr = ""
    no_wait: Bit = False


@method(60, 31, sender=Sender.EITHER)
class BasicCancelOk(Method):
    consumer_tag: ShortStr = ""


@method(60, 40, sender=Sender.CLIENT, content=True)
class BasicPublish(Method):
    ticket: Short = 0
    exchange: ForeignStr = ""
    routing_key: ForeignStr = ""
    mandatory: Bit = False
    immediate: Bit = False


@method(60, 50, sender=Sender.SERVER, content=True)
class BasicReturn(Method):
    reply_code: Short = 312
    reply_text: Explanation = ""
    exchange: ForeignStr = ""
    routing_key: ForeignStr = ""


@method(60, 60, sender=Sender.SERVER, content=True)
class BasicDeliver(Method):
    consumer_tag: ShortStr = ""
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ForeignStr = ""
    routing_key: ForeignStr = ""


@method(60, 70, sender=Sender.CLIENT, replies=("basic.get-ok", "basic.get-empty"))
class BasicGet(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    no_ack: Bit = False


@method(60, 71, sender=Sender.SERVER, content=True)
class BasicGetOk(Method):
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ForeignStr = ""
    routing_key: ForeignStr = ""
    message_count: Long = 0


@method(60, 72, sender=Sender.SERVER)
class BasicGetEmpty(Method):
    cluster_id: ShortStr = ""  # reserved-1


@method(60, 80, sender=Sender.EITHER)
class BasicAck(Method):
    delivery_tag: LongLong = 0
    multiple: Bit = False


@method(60, 90, sender=Sender.CLIENT)
class BasicReject(Method):
    delivery_tag: LongLong = 0
    requeue: Bit = True


@method(60, 100, sender=Sender.CLIENT)
class BasicRecoverAsync(Method):
    requeue: Bit = False


@method(60, 110, sender=Sender.CLIENT, replies="basic.recover-ok")
class BasicRecover(Method):
    requeue: Bit = False


@method(60, 111, sender=Sender.SERVER)
class BasicRecoverOk(Method):
    pass


@method(60, 120, sender=Sender.EITHER)
class BasicNack(Method):
    delivery_tag: LongLong = 0
    multiple: Bit = False
    requeue: Bit = True


# Confirms and acks come with every message, so these are read by hand -----------------------------------------

_SETTLEMENT = Struct(">4xQB")


def _read_ack(payload: bytes) -> BasicAck | None:
    if len(payload) != _SETTLEMENT.size:
        return None
    delivery_tag, bits = _SETTLEMENT.unpack(payload)
    return BasicAck(delivery_tag=delivery_tag, multiple=bits & 1 == 1)


HOT[b"\x00\x3c\x00\x50"] = _read_ack
