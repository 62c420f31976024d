"""Class 40: exchange."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from redrive.wire import methods as m
from redrive.wire.method import Method

if TYPE_CHECKING:
    from redrive.broker.channel import Channel

_LINE_ENDS = str.maketrans("", "", "\r\n")


def without_line_ends(name: str) -> str:
    """Return a name as RabbitMQ reads it in declare, bind and delete; elsewhere it does not strip line ends."""
    return name.translate(_LINE_ENDS)


def declare(channel: Channel, method: m.ExchangeDeclare) -> Method:
    channel.vhost.declare_exchange(replace(method, exchange=without_line_ends(method.exchange)))
    return channel.after_commit(m.ExchangeDeclareOk())


def delete(channel: Channel, method: m.ExchangeDelete) -> Method:
    channel.vhost.delete_exchange(without_line_ends(method.exchange), if_unused=method.if_unused)
    return channel.after_commit(m.ExchangeDeleteOk())


def bind(channel: Channel, method: m.ExchangeBind) -> Method:
    source = channel.vhost.bindable(without_line_ends(method.source))
    destination = channel.vhost.bindable(without_line_ends(method.destination))
    channel.vhost.bind(source, destination, method.routing_key, method.arguments)
    return channel.after_commit(m.ExchangeBindOk())


def unbind(channel: Channel, method: m.ExchangeUnbind) -> Method:
    destination = channel.vhost.exchanges.get(without_line_ends(method.destination))
    channel.vhost.unbind(without_line_ends(method.source), destination, method.routing_key, method.arguments)
    return channel.after_commit(m.ExchangeUnbindOk())
