"""Class 90: tx.

As in RabbitMQ, a message is routed when it is published, and a delivery that is settled is no longer open: only the
effect waits for the commit. Consecutive settlements of one kind are one, in the order of delivery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redrive.broker.errors import precondition
from redrive.broker.message import Message
from redrive.broker.queue import Queue
from redrive.broker.settlement import SettlementKind, Unacked, settle
from redrive.protocol.messages import Publication
from redrive.wire import methods as m
from redrive.wire.method import Method

if TYPE_CHECKING:
    from redrive.broker.channel import Channel


class ChannelTransaction:
    """What was published and settled since tx.select or the last commit."""

    def __init__(self) -> None:
        self.publications: list[tuple[Publication, Message, tuple[Queue, ...]]] = []
        self.settlements: list[tuple[SettlementKind, dict[int, Unacked]]] = []

    def settle(self, settlement: SettlementKind, taken: dict[int, Unacked]) -> None:
        if self.settlements and self.settlements[-1][0] is settlement:
            self.settlements[-1][1].update(taken)
        else:
            self.settlements.append((settlement, taken))

    def roll_back(self, unacked: dict[int, Unacked]) -> dict[int, Unacked]:
        """Return the deliveries that are open when none of the settlements is performed."""
        for _, taken in self.settlements:
            unacked = unacked | taken
        return {tag: unacked[tag] for tag in sorted(unacked)}


def select(channel: Channel, _: m.TxSelect) -> Method:
    if channel.confirming:
        raise precondition("cannot switch from confirm to tx mode")
    channel.transaction = channel.transaction or ChannelTransaction()
    return m.TxSelectOk()


def commit(channel: Channel, _: m.TxCommit) -> None:
    transaction, channel.transaction = _current(channel), ChannelTransaction()
    complete = _publish_all(channel, transaction)
    for settlement, taken in transaction.settlements:
        settle(channel, settlement, taken)
    if not complete:  # a queue was full and refused; what others took is theirs
        raise precondition("partial tx completion")
    channel.session.after_commit(lambda: channel.session.send(channel.number, m.TxCommitOk()))


def _publish_all(channel: Channel, transaction: ChannelTransaction) -> bool:
    """Return whether all queues accepted their messages."""
    complete, channel.admitted = True, {}
    for publication, message, targets in transaction.publications:
        routed, accepted = channel.vhost.deliver(message, channel.vhost.existing_queues(targets), channel)
        complete = complete and accepted
        if not routed and publication.mandatory:
            channel.return_message(publication)
    channel.admitted = None
    return complete


def rollback(channel: Channel, _: m.TxRollback) -> Method:
    channel.unacked = _current(channel).roll_back(channel.unacked)
    channel.transaction = ChannelTransaction()
    return m.TxRollbackOk()


def _current(channel: Channel) -> ChannelTransaction:
    if channel.transaction is None:
        raise precondition("channel is not transactional")
    return channel.transaction
