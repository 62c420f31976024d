"""Class 50: queue. An empty name means the queue that was declared last on the channel."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from redrive.broker.direct_reply_to import REPLY_TO
from redrive.broker.errors import not_found
from redrive.broker.methods.exchange import without_line_ends
from redrive.wire import methods as m
from redrive.wire.method import Method

if TYPE_CHECKING:
    from redrive.broker.channel import Channel


def declare(channel: Channel, method: m.QueueDeclare) -> Method:
    vhost = channel.vhost
    if method.queue.startswith(REPLY_TO):  # every declaration of such a name is a passive one
        if method.queue != REPLY_TO and method.queue not in vhost.queues:
            raise not_found("queue", method.queue, vhost.name)
        return m.QueueDeclareOk(queue=method.queue, consumer_count=1)
    queue = vhost.declare_queue(replace(method, queue=without_line_ends(method.queue)), channel.session)
    channel.last_queue = queue.name
    reply = m.QueueDeclareOk(queue=queue.name, message_count=len(queue), consumer_count=queue.consumers)
    return channel.after_commit(reply)


def bind(channel: Channel, method: m.QueueBind) -> Method:
    source = channel.vhost.bindable(without_line_ends(method.exchange))
    queue = channel.vhost.queue(without_line_ends(channel.queue_name(method.queue)), channel.session)
    key = method.routing_key or (queue.name if not method.queue else "")
    channel.vhost.bind(source, queue, key, method.arguments)
    return channel.after_commit(m.QueueBindOk())


def unbind(channel: Channel, method: m.QueueUnbind) -> Method:
    name = without_line_ends(channel.queue_name(method.queue))
    queue = channel.vhost.queue(name, channel.session) if name in channel.vhost.queues else None
    channel.vhost.unbind(without_line_ends(method.exchange), queue, method.routing_key, method.arguments)
    return channel.after_commit(m.QueueUnbindOk())


def purge(channel: Channel, method: m.QueuePurge) -> Method:
    return m.QueuePurgeOk(message_count=channel.queue(method.queue).purge())


def delete(channel: Channel, method: m.QueueDelete) -> None:
    """Reply before the consumers of this channel are cancelled: some clients wait for that order."""
    name = without_line_ends(channel.queue_name(method.queue))
    queue = channel.vhost.deletable_queue(name, channel.session, if_unused=method.if_unused, if_empty=method.if_empty)
    channel.session.hold()
    channel.reply(method, m.QueueDeleteOk(message_count=0 if queue is None else len(queue)))
    if queue is not None:
        channel.vhost.remove_queue(queue)
