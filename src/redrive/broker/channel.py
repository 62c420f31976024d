"""A channel as the broker sees it: its consumers, the deliveries that are not settled, and its publisher confirms.

Each method of AMQP is a function in `methods`. What the broker refuses is raised as an `AmqpError`; the session turns
it into channel.close or connection.close. Confirms are sent in bulk: when the journal has committed everything that one
read brought, one `basic.ack` with `multiple` answers for all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from redrive.broker import direct_reply_to
from redrive.broker.consumer import ChannelConsumer
from redrive.broker.errors import AmqpError, not_implemented, precondition
from redrive.broker.methods import HANDLERS
from redrive.broker.methods.tx import ChannelTransaction
from redrive.broker.queue import Queue
from redrive.broker.settlement import SettlementKind, Unacked, give_back, return_order
from redrive.errors import ReplyCode
from redrive.protocol.messages import Publication
from redrive.wire import methods as m
from redrive.wire.frames import ack_frame, nack_frame
from redrive.wire.method import Method

if TYPE_CHECKING:
    from redrive.broker.session import Session


class Channel:
    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.number = number
        self.vhost = session.vhost
        self.flowing = True
        self.ended = False  # and nothing more is sent to the client
        self.prefetch = 0  # for the whole channel
        self.consumer_prefetch = 0  # for consumers that come later
        self.consumers: dict[str, ChannelConsumer] = {}
        self.consumer_numbers = count(1)
        self.reply_consumer: ChannelConsumer | None = None  # of direct reply-to
        self.unacked: dict[int, Unacked] = {}
        self.next_tag = count(1).__next__
        self.last_queue = ""  # declared on this channel
        self.confirming = False
        self.transaction: ChannelTransaction | None = None
        self.admitted: dict[object, bool] | None = None  # by queue, while a transaction is committed
        self._detached: list[ChannelConsumer] = []  # they were cancelled, and have not settled everything
        self._published = 0
        self._accepted = 0  # the last one that was not refused: never confirm twice
        self._confirmed = 0  # up to here

    @property
    def outstanding(self) -> int:
        """The number of unsettled deliveries to consumers. basic.get counts towards no limit."""
        return sum(consumer.unacked for consumer in (*self.consumers.values(), *self._detached))

    def detach(self, consumer: ChannelConsumer) -> None:
        """Remember a cancelled consumer until it has settled everything."""
        self._detached = [gone for gone in (*self._detached, consumer) if gone.unacked]

    def handle(self, method: Method) -> None:
        reply = HANDLERS[type(method)](self, method)
        if reply is not None:
            self.reply(method, reply)

    def reply(self, method: Any, reply: Method) -> None:
        if not getattr(method, "no_wait", False):
            self.session.send(self.number, reply)

    def after_commit(self, reply: Method) -> Method:
        """Have the reply sent when what was changed is on disk."""
        self.session.hold()
        return reply

    def queue_name(self, name: str) -> str:
        if not name and not self.last_queue:
            raise AmqpError(ReplyCode.NOT_FOUND, "no previously declared queue")
        return name or self.last_queue

    def queue(self, name: str) -> Queue:
        return self.vhost.queue(self.queue_name(name), self.session)

    # Publishing ---------------------------------------------------------------------------------------

    def publish(self, publication: Publication) -> None:
        if self.confirming:
            self._published += 1
        if publication.immediate:
            raise not_implemented("immediate=true")
        if direct_reply_to.ENCODED_REPLY_TO in publication.raw_properties:
            self._address_reply(publication)
        if self.transaction is not None:
            routed_message = self.vhost.route_publication(publication, self.session.user)
            self.transaction.publications.append((publication, *routed_message))
            return
        routed, accepted = self.vhost.publish(publication, self.session.user, self)
        if not routed and publication.mandatory:
            self.return_message(publication)
        if not self.confirming:
            return
        if not accepted:
            self.session.send_frame(self.number, nack_frame(self.number, self._published, False, False))
            return
        self._accepted = self._published
        self.session.confirm_later(self)

    def _address_reply(self, publication: Publication) -> None:
        if not direct_reply_to.asks_for_direct_reply(publication.raw_properties):
            return
        if self.reply_consumer is None:
            raise precondition("fast reply consumer does not exist")
        name = self.reply_consumer.queue.name
        publication.raw_properties = direct_reply_to.with_reply_name(publication.raw_properties, name)

    def return_message(self, publication: Publication) -> None:
        method = m.BasicReturn(
            reply_code=ReplyCode.NO_ROUTE,
            reply_text="NO_ROUTE",
            exchange=publication.exchange,
            routing_key=publication.routing_key,
        )
        raw_properties = self.vhost.facts(publication.raw_properties).raw  # without BCC
        self.session.send(self.number, method, raw_properties, publication.body)

    def confirmation(self) -> Callable[[], None]:
        """Return what confirms everything published so far, to be called when it is on disk."""
        upto = self._accepted

        def confirm() -> None:
            if upto > self._confirmed and self.session.has_channel(self):
                self._confirmed = upto
                self.session.send_frame(self.number, ack_frame(self.number, upto, multiple=True))

        return confirm

    # The end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Remove the consumers and requeue their deliveries.

        As in RabbitMQ, classic queues with consumers learn of it one after the other, the youngest first. A queue that
        has not learned of it yet still serves the channel: what a younger queue dead-letters to it is delivered to a
        consumer that is about to go, and is redelivered then, or lost if that consumer does not acknowledge. All others
        learn of it at last, and a quorum queue loses nothing.
        """
        self.ended = True
        if self.transaction is not None:
            self.unacked, self.transaction = self.transaction.roll_back(self.unacked), None
        serving = {consumer.queue for consumer in self.consumers.values()}
        for queue in sorted(serving, key=lambda queue: queue.id, reverse=True):
            if not queue.settings.quorum:
                self._release_queues({queue})
        self._release_queues(serving | {queue for queue, _, _ in self.unacked.values()})

    def _release_queues(self, queues: set[Queue]) -> None:
        """End the consumers of these queues. A queue has everything back before it delivers to others."""
        leaving = [consumer for consumer in self.consumers.values() if consumer.queue in queues]
        for consumer in leaving:
            del self.consumers[consumer.tag]
            consumer.queue.remove(consumer)
        by_name = self.vhost.dialect.returns_by_name
        taken = {tag: unacked for tag, unacked in self.unacked.items() if unacked[0] in queues}
        self.unacked = {tag: unacked for tag, unacked in self.unacked.items() if tag not in taken}
        in_order = sorted(taken, key=lambda tag: return_order(tag, taken[tag][2], by_name=by_name))
        give_back([taken[tag] for tag in in_order], SettlementKind.REQUEUED, by_client=False)
        for queue in {consumer.queue: None for consumer in leaving}:
            if not queue.deleted:
                queue.dispatch()

    def __repr__(self) -> str:
        return f"<Channel {self.number} consumers={len(self.consumers)} unacked={len(self.unacked)}>"
