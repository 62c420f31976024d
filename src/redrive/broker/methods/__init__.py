"""What the broker does for each method that a client sends on a channel: one file per AMQP class.

A handler performs the method and returns its reply, or None if there is none; the channel sends the reply unless the
client asked for none (`no_wait`). Where a change must be on disk before the reply is sent, the handler returns
`channel.after_commit(reply)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from redrive.broker.errors import not_implemented, precondition
from redrive.broker.methods import basic, exchange, queue, tx
from redrive.wire import methods as m
from redrive.wire.method import Method

if TYPE_CHECKING:
    from redrive.broker.channel import Channel


def _flow(_: Channel, method: m.ChannelFlow) -> Method:
    if not method.active:
        raise not_implemented("active=false")
    return m.ChannelFlowOk(active=True)


def _confirm_select(channel: Channel, _: m.ConfirmSelect) -> Method:
    if channel.transaction is not None:
        raise precondition("cannot switch from tx to confirm mode")
    channel.confirming = True
    return m.ConfirmSelectOk()


def _ignore(_: Channel, method: Method) -> None:
    """An answer that nothing waits for."""


HANDLERS: dict[type[Method], Callable[[Channel, Any], Method | None]] = {
    m.BasicAck: basic.ack,
    m.BasicCancel: basic.cancel,
    m.BasicCancelOk: _ignore,
    m.BasicConsume: basic.consume,
    m.BasicGet: basic.get,
    m.BasicNack: basic.nack,
    m.BasicQos: basic.qos,
    m.BasicRecover: basic.recover,
    m.BasicRecoverAsync: basic.recover,
    m.BasicReject: basic.reject,
    m.ChannelFlow: _flow,
    m.ChannelFlowOk: _ignore,
    m.ConfirmSelect: _confirm_select,
    m.ExchangeBind: exchange.bind,
    m.ExchangeDeclare: exchange.declare,
    m.ExchangeDelete: exchange.delete,
    m.ExchangeUnbind: exchange.unbind,
    m.QueueBind: queue.bind,
    m.QueueDeclare: queue.declare,
    m.QueueDelete: queue.delete,
    m.QueuePurge: queue.purge,
    m.QueueUnbind: queue.unbind,
    m.TxCommit: tx.commit,
    m.TxRollback: tx.rollback,
    m.TxSelect: tx.select,
}
