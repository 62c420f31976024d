"""Class 60: basic. Consuming, getting and settling; publishing is in `channel`, since every message comes that way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redrive.broker import direct_reply_to
from redrive.broker.consumer import ChannelConsumer, outgoing_properties
from redrive.broker.errors import AmqpError, access_refused, not_implemented, precondition
from redrive.broker.queue import Queue
from redrive.broker.queue_arguments import not_an_integer
from redrive.broker.settlement import SettlementKind, dispatch, settle, take
from redrive.broker.status_queue import STATUS_QUEUE, status_message
from redrive.errors import ReplyCode
from redrive.wire import methods as m
from redrive.wire.method import Method
from redrive.wire.properties import Properties

if TYPE_CHECKING:
    from redrive.broker.channel import Channel


def qos(channel: Channel, method: m.BasicQos) -> Method:
    if method.prefetch_size:
        raise not_implemented(f"prefetch_size!=0 ({method.prefetch_size})")
    if method.global_ and channel.vhost.dialect.allows_global_qos:
        channel.prefetch = method.prefetch_count
        dispatch(channel, [consumer.queue for consumer in channel.consumers.values()])
    else:
        channel.consumer_prefetch = method.prefetch_count
    return m.BasicQosOk()


# Consuming ----------------------------------------------------------------------------------------


def consume(channel: Channel, method: m.BasicConsume) -> None:
    number = channel.consumer_numbers
    tag = method.consumer_tag or f"amq.ctag-{channel.session.id}-{channel.number}-{next(number)}"
    if method.queue == direct_reply_to.REPLY_TO:
        _consume_replies(channel, method, tag)
        return
    queue = channel.queue(method.queue)
    where = f"queue '{queue.name}' in vhost '{channel.vhost.name}'"
    if channel.prefetch and queue.settings.quorum:
        raise not_implemented(f"{where} does not support global qos")
    _check_tag(channel, tag)
    exclusive = method.exclusive and not queue.settings.quorum  # such a queue ignores it
    alone = exclusive and (queue.consumers or queue.settings.single_active_consumer)
    if queue.exclusive_consumer or alone:
        raise access_refused(f"{where} in exclusive use")
    priority = method.arguments.get("x-priority", 0)
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise precondition(f"invalid arg 'x-priority' for {where}: {not_an_integer(priority)}")
    prefetch = channel.consumer_prefetch
    consumer = ChannelConsumer(channel, queue, tag, no_ack=method.no_ack, prefetch=prefetch, priority=priority)
    _begin(channel, consumer, method, exclusive=exclusive)


def _consume_replies(channel: Channel, method: m.BasicConsume, tag: str) -> None:
    _check_tag(channel, tag)
    if not method.no_ack:
        raise precondition("reply consumer cannot acknowledge")
    if channel.reply_consumer is not None:
        raise precondition("reply consumer already set")
    queue = channel.vhost.add_reply_queue(direct_reply_to.new_reply_name())
    channel.reply_consumer = ChannelConsumer(channel, queue, tag, no_ack=True, prefetch=0, priority=0)
    _begin(channel, channel.reply_consumer, method, exclusive=method.exclusive)


def _check_tag(channel: Channel, tag: str) -> None:
    if tag in channel.consumers:
        raise AmqpError(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")


def _begin(channel: Channel, consumer: ChannelConsumer, method: m.BasicConsume, *, exclusive: bool) -> None:
    channel.consumers[consumer.tag] = consumer
    consumer.queue.add(consumer, exclusive=exclusive)
    channel.reply(method, m.BasicConsumeOk(consumer_tag=consumer.tag))
    consumer.active = True
    consumer.queue.dispatch()


def cancel(channel: Channel, method: m.BasicCancel) -> Method:
    consumer = channel.consumers.pop(method.consumer_tag, None)
    if consumer is not None:
        consumer.active = False
        channel.detach(consumer)
        consumer.queue.remove(consumer)
        if not consumer.queue.deleted:
            consumer.queue.dispatch()
        if consumer is channel.reply_consumer:
            channel.reply_consumer = None
    return m.BasicCancelOk(consumer_tag=method.consumer_tag)


# Getting ------------------------------------------------------------------------------------------


def get(channel: Channel, method: m.BasicGet) -> Method | None:
    if method.queue == STATUS_QUEUE:
        _get_status(channel, method)
        return None
    queue = channel.queue(method.queue)
    _check_gettable(queue)
    entry = queue.get(no_ack=method.no_ack)
    if entry is None:
        return m.BasicGetEmpty()
    tag = channel.next_tag()
    if not method.no_ack:
        channel.unacked[tag] = (queue, entry, None)
    got = m.BasicGetOk(
        delivery_tag=tag,
        redelivered=entry.redelivered,
        exchange=entry.message.exchange,
        routing_key=entry.message.routing_key,
        message_count=len(queue),
    )
    channel.session.send(channel.number, got, outgoing_properties(queue, entry, got=True), entry.message.body)
    return None


def _check_gettable(queue: Queue) -> None:
    if queue.settings.quorum and queue.settings.single_active_consumer:
        raise AmqpError(
            ReplyCode.RESOURCE_LOCKED,
            f"cannot obtain access to locked queue '{queue.name}' in vhost '{queue.vhost.name}'. basic.get operations "
            f"are not supported by {queue.vhost.dialect.quorum_in_words} queues with single active consumer",
        )


def _get_status(channel: Channel, method: m.BasicGet) -> None:
    if not method.no_ack:
        raise precondition(f"queue '{STATUS_QUEUE}' must be read with no_ack")
    got = m.BasicGetOk(delivery_tag=channel.next_tag(), routing_key=STATUS_QUEUE)
    properties = Properties(content_type="application/json").encode()
    channel.session.send(channel.number, got, properties, status_message(channel.vhost))


# Settling -----------------------------------------------------------------------------------------


def ack(channel: Channel, method: m.BasicAck) -> None:
    _settle(channel, SettlementKind.ACKED, method.delivery_tag, method.multiple)


def nack(channel: Channel, method: m.BasicNack) -> None:
    counts = channel.vhost.dialect.nack_counts
    _settle(channel, SettlementKind.of(method.requeue, counts), method.delivery_tag, method.multiple)


def reject(channel: Channel, method: m.BasicReject) -> None:
    _settle(channel, SettlementKind.of(method.requeue, True), method.delivery_tag, False)


def _settle(channel: Channel, settlement: SettlementKind, tag: int, multiple: bool) -> None:
    taken = take(channel, tag, multiple)
    if channel.transaction is not None:
        channel.transaction.settle(settlement, taken)
    else:
        settle(channel, settlement, taken)


def recover(channel: Channel, method: m.BasicRecover | m.BasicRecoverAsync) -> Method | None:
    if not method.requeue:
        raise not_implemented("requeue=false")
    taken, channel.unacked = channel.unacked, {}
    settle(channel, SettlementKind.of(True, channel.vhost.dialect.nack_counts), taken)
    return m.BasicRecoverOk() if isinstance(method, m.BasicRecover) else None
