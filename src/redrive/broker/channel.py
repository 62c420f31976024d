"""A channel as the broker sees it: what a client asks for, and what it is owed.

One method of AMQP is one method here. Whatever is refused is raised as an `AmqpError`; the session turns it into
channel.close or connection.close. Confirms and acks are told in bulk: when the journal has what a read brought,
one `basic.ack` with `multiple` answers for all of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum, auto
from itertools import count
from typing import TYPE_CHECKING, Any

from redrive.broker import direct_reply_to
from redrive.broker.errors import AmqpError, access_refused, not_found, not_implemented, precondition
from redrive.broker.message import Entry, Message
from redrive.broker.queue import Queue
from redrive.broker.queue_arguments import not_an_integer
from redrive.broker.status_queue import STATUS_QUEUE, status_message
from redrive.errors import ReplyCode
from redrive.protocol.content import Publication
from redrive.wire import methods as m
from redrive.wire.frames import ack_frame, deliver_frame, nack_frame
from redrive.wire.method import Method
from redrive.wire.patch import patch_properties, raw_long
from redrive.wire.properties import Properties
from redrive.wire.values import encode_short_string

if TYPE_CHECKING:
    from redrive.broker.session import Session


class ChannelConsumer:
    """A consumer on a channel, as a queue sees it."""

    __slots__ = (
        "_encoded_tag",
        "active",
        "channel",
        "no_ack",
        "number",
        "prefetch",
        "priority",
        "queue",
        "tag",
        "unacked",
    )

    def __init__(self, channel: Channel, queue: Queue, tag: str, *, no_ack: bool, prefetch: int, priority: int) -> None:
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.number = next(channel.consumer_numbers)
        self.no_ack = no_ack
        self.prefetch = 0 if no_ack else prefetch
        self.priority = priority
        self.unacked = 0
        self.active = False  # not before the client knows its tag
        self._encoded_tag = encode_short_string(tag)

    def has_room(self) -> bool:
        channel = self.channel
        if not (self.active and channel.flowing and channel.session.writable):
            return False
        if self.prefetch and self.unacked >= self.prefetch:
            return False
        return not (channel.prefetch and channel.outstanding >= channel.prefetch)

    def deliver(self, queue: Queue, entry: Entry) -> None:
        channel = self.channel
        tag = channel.next_tag()
        # From a quorum queue it is not settled before the channel has passed it on.
        if self.no_ack and not (channel.ended and queue.settings.quorum):
            queue.settle(entry)
        else:
            self.unacked += 1
            channel.unacked[tag] = (queue, entry, self)
        if channel.ended:
            return
        message = entry.message
        frame = deliver_frame(channel.number, self._encoded_tag, tag, entry.redelivered, message.route)
        channel.session.send_content(channel.number, frame, outgoing_properties(queue, entry), message.body)

    def cancelled_by_broker(self) -> None:
        self.channel.consumers.pop(self.tag, None)
        self.channel.detach(self)
        self.channel.session.notify_cancel(self.channel.number, self.tag)

    def __repr__(self) -> str:
        return f"<Consumer {self.tag} of {self.queue.name!r} unacked={self.unacked}/{self.prefetch}>"


def outgoing_properties(queue: Queue, entry: Entry, *, got: bool = False) -> bytes:
    """As published; a quorum queue adds how often it was delivered in vain. `got`: by basic.get, not by a consumer."""
    raw = entry.message.raw_properties
    if not queue.settings.quorum:
        return raw
    dialect = queue.vhost.dialect
    counts: dict[bytes, bytes] = {}
    if entry.delivery_count or (got and dialect.writes_zero_delivery_count):
        counts[b"x-delivery-count"] = raw_long(entry.delivery_count)
    if (acquired := entry.acquired or entry.delivery_count) and dialect.writes_acquired_count:
        counts[b"x-acquired-count"] = raw_long(acquired)
    return patch_properties(raw, set_headers=counts, sort_headers=True) if counts else raw


_LINE_ENDS = str.maketrans("", "", "\r\n")


def _without_line_ends(name: str) -> str:
    """A name as RabbitMQ reads it where something is declared, bound or deleted; elsewhere it does not strip."""
    return name.translate(_LINE_ENDS)


Unacked = tuple[Queue, Entry, ChannelConsumer | None]


class Settlement(Enum):
    """How a client settles a delivery."""

    ACKED = auto()
    REJECTED = auto()  # and counted as a failure, where deliveries are counted
    REJECTED_UNCOUNTED = auto()
    REQUEUED = auto()  # and counted
    REQUEUED_UNCOUNTED = auto()


def _groups_returned_together(taken: dict[int, Unacked]) -> Iterable[list[Unacked]]:
    """What is given up together, one after the other: each of those that were got, then each consumer's, by its tag.

    A queue hands out again what it has back before it hears of the next.
    """
    if len(taken) == 1:
        return [list(taken.values())]
    got: list[list[Unacked]] = []
    consumed: dict[str, list[Unacked]] = {}
    for tag in sorted(taken):
        delivery = taken[tag]
        if delivery[2] is None:
            got.append([delivery])
        else:
            consumed.setdefault(delivery[2].tag, []).append(delivery)
    return [*got, *(consumed[name] for name in sorted(consumed))]


def _return_order(tag: int, consumer: ChannelConsumer | None, *, by_name: bool) -> tuple[int, str, int]:
    """In which order a channel that ends gives back. Whoever got a message was a consumer, too, named by its tag."""
    if consumer is None:
        return 0 if by_name else sys.maxsize, str(tag), tag
    return 0 if by_name else consumer.number, consumer.tag, tag


class Channel:
    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.number = number
        self.vhost = session.vhost
        self.flowing = True
        self.ended = False  # and the client is told nothing more
        self.prefetch = 0  # for the whole channel
        self.consumers: dict[str, ChannelConsumer] = {}
        self._detached: list[ChannelConsumer] = []  # they were cancelled, and have not settled everything
        self.unacked: dict[int, Unacked] = {}
        self._consumer_prefetch = 0  # for consumers that come after
        self._tags = count(1)
        self.consumer_numbers = count(1)
        self._last_queue = ""
        self._replies: ChannelConsumer | None = None
        self._confirming = False
        self._published = 0
        self._accepted = 0  # the last one that was not refused: never answer twice
        self._told = 0  # confirmed up to here
        self._transaction: _Transaction | None = None
        self.admitted: dict[object, bool] | None = None
        self._methods: dict[type[Method], Callable[[Any], None]] = {
            m.BasicAck: self._ack,
            m.BasicCancel: self._cancel,
            m.BasicCancelOk: lambda _: None,
            m.BasicConsume: self._consume,
            m.BasicGet: self._get,
            m.BasicNack: self._nack,
            m.BasicQos: self._qos,
            m.BasicRecover: self._recover,
            m.BasicRecoverAsync: self._recover,
            m.BasicReject: self._reject,
            m.ChannelFlow: self._flow,
            m.ChannelFlowOk: lambda _: None,
            m.ConfirmSelect: self._confirm_select,
            m.ExchangeBind: self._exchange_bind,
            m.ExchangeDeclare: self._exchange_declare,
            m.ExchangeDelete: self._exchange_delete,
            m.ExchangeUnbind: self._exchange_unbind,
            m.QueueBind: self._queue_bind,
            m.QueueDeclare: self._queue_declare,
            m.QueueDelete: self._queue_delete,
            m.QueuePurge: self._queue_purge,
            m.QueueUnbind: self._queue_unbind,
            m.TxCommit: self._tx_commit,
            m.TxRollback: self._tx_rollback,
            m.TxSelect: self._tx_select,
        }
        self.next_tag = self._tags.__next__

    @property
    def outstanding(self) -> int:
        """Deliveries to consumers that are not settled. What was got counts towards no limit."""
        return sum(consumer.unacked for consumer in (*self.consumers.values(), *self._detached))

    def detach(self, consumer: ChannelConsumer) -> None:
        """It gets no more, and may still have something to settle."""
        self._detached = [gone for gone in (*self._detached, consumer) if gone.unacked]

    def handle(self, method: Method) -> None:
        self._methods[type(method)](method)

    def _reply(self, method: Method, *, unless: bool = False) -> None:
        if not unless:
            self.session.send(self.number, method)

    def _changed(self, method: Method, *, unless: bool = False) -> None:
        """Reply when what was changed is on disk."""
        self._reply(method, unless=unless)
        self.session.hold()

    # Exchanges and bindings ---------------------------------------------------------------------------

    def _exchange_declare(self, method: m.ExchangeDeclare) -> None:
        self.vhost.declare_exchange(replace(method, exchange=_without_line_ends(method.exchange)))
        self._changed(m.ExchangeDeclareOk(), unless=method.no_wait)

    def _exchange_delete(self, method: m.ExchangeDelete) -> None:
        self.vhost.delete_exchange(_without_line_ends(method.exchange), if_unused=method.if_unused)
        self._changed(m.ExchangeDeleteOk(), unless=method.no_wait)

    def _exchange_bind(self, method: m.ExchangeBind) -> None:
        source = self.vhost.bindable(_without_line_ends(method.source))
        destination = self.vhost.bindable(_without_line_ends(method.destination))
        self.vhost.bind(source, destination, method.routing_key, method.arguments)
        self._changed(m.ExchangeBindOk(), unless=method.no_wait)

    def _exchange_unbind(self, method: m.ExchangeUnbind) -> None:
        destination = self.vhost.exchanges.get(_without_line_ends(method.destination))
        self.vhost.unbind(_without_line_ends(method.source), destination, method.routing_key, method.arguments)
        self._changed(m.ExchangeUnbindOk(), unless=method.no_wait)

    # Queues -------------------------------------------------------------------------------------------

    def _named(self, name: str) -> str:
        """An empty name means the queue that was declared last on this channel."""
        if not name and not self._last_queue:
            raise AmqpError(ReplyCode.NOT_FOUND, "no previously declared queue")
        return name or self._last_queue

    def _queue(self, name: str) -> Queue:
        return self.vhost.queue(self._named(name), self.session)

    def _queue_declare(self, method: m.QueueDeclare) -> None:
        if method.queue.startswith(direct_reply_to.REPLY_TO):
            self._declare_replies(method)
            return
        method = replace(method, queue=_without_line_ends(method.queue))
        queue = self.vhost.declare_queue(method, self.session)
        self._last_queue = queue.name
        answer = m.QueueDeclareOk(queue=queue.name, message_count=len(queue), consumer_count=queue.consumers)
        self._changed(answer, unless=method.no_wait)

    def _declare_replies(self, method: m.QueueDeclare) -> None:
        """Whether somebody waits for an answer: every declaration of this name is a passive one."""
        if method.queue != direct_reply_to.REPLY_TO and method.queue not in self.vhost.queues:
            raise not_found("queue", method.queue, self.vhost.name)
        self._reply(m.QueueDeclareOk(queue=method.queue, consumer_count=1), unless=method.no_wait)

    def _queue_bind(self, method: m.QueueBind) -> None:
        source = self.vhost.bindable(_without_line_ends(method.exchange))
        queue = self.vhost.queue(_without_line_ends(self._named(method.queue)), self.session)
        key = method.routing_key or (queue.name if not method.queue else "")
        self.vhost.bind(source, queue, key, method.arguments)
        self._changed(m.QueueBindOk(), unless=method.no_wait)

    def _queue_unbind(self, method: m.QueueUnbind) -> None:
        name = _without_line_ends(self._named(method.queue))
        queue = self.vhost.queue(name, self.session) if name in self.vhost.queues else None
        self.vhost.unbind(_without_line_ends(method.exchange), queue, method.routing_key, method.arguments)
        self._changed(m.QueueUnbindOk())

    def _queue_purge(self, method: m.QueuePurge) -> None:
        self._reply(m.QueuePurgeOk(message_count=self._queue(method.queue).purge()), unless=method.no_wait)

    def _queue_delete(self, method: m.QueueDelete) -> None:
        """Reply before the consumers of this channel are cancelled: some clients wait for that order."""
        name = _without_line_ends(self._named(method.queue))
        queue = self.vhost.deletable_queue(name, self.session, if_unused=method.if_unused, if_empty=method.if_empty)
        self._reply(m.QueueDeleteOk(message_count=0 if queue is None else len(queue)), unless=method.no_wait)
        if queue is not None:
            self.vhost.remove_queue(queue)
        self.session.hold()

    # Publishing ---------------------------------------------------------------------------------------

    def publish(self, publication: Publication) -> None:
        if self._confirming:
            self._published += 1
        if publication.immediate:
            raise not_implemented("immediate=true")
        if direct_reply_to.ENCODED_REPLY_TO in publication.raw_properties:
            self._address(publication)
        if self._transaction is not None:
            routed_message = self.vhost.route_publication(publication, self.session.user)
            self._transaction.publications.append((publication, *routed_message))
            return
        routed, accepted = self.vhost.publish(publication, self.session.user, self)
        if not routed and publication.mandatory:
            self._return(publication)
        if not self._confirming:
            return
        if not accepted:
            self.session.send_frame(self.number, nack_frame(self.number, self._published, False, False))
            return
        self._accepted = self._published
        self.session.confirm_later(self)

    def _address(self, publication: Publication) -> None:
        if not direct_reply_to.asks_for_direct_reply(publication.raw_properties):
            return
        if self._replies is None:
            raise precondition("fast reply consumer does not exist")
        publication.raw_properties = direct_reply_to.with_reply_name(
            publication.raw_properties, self._replies.queue.name
        )

    def _return(self, publication: Publication) -> None:
        method = m.BasicReturn(
            reply_code=ReplyCode.NO_ROUTE,
            reply_text="NO_ROUTE",
            exchange=publication.exchange,
            routing_key=publication.routing_key,
        )
        raw_properties = self.vhost.facts(publication.raw_properties).raw  # without BCC
        self.session.send(self.number, method, raw_properties, publication.body)

    def committed(self) -> Callable[[], None]:
        """What to do when everything published so far is on disk: answer for it."""
        upto = self._accepted

        def confirm() -> None:
            if upto > self._told and self.session.has_channel(self):
                self._told = upto
                self.session.send_frame(self.number, ack_frame(self.number, upto, multiple=True))

        return confirm

    def _confirm_select(self, method: m.ConfirmSelect) -> None:
        if self._transaction is not None:
            raise precondition("cannot switch from tx to confirm mode")
        self._confirming = True
        self._reply(m.ConfirmSelectOk(), unless=method.no_wait)

    # Consuming ----------------------------------------------------------------------------------------

    def _qos(self, method: m.BasicQos) -> None:
        if method.prefetch_size:
            raise not_implemented(f"prefetch_size!=0 ({method.prefetch_size})")
        if method.global_ and self.vhost.dialect.allows_global_qos:
            self.prefetch = method.prefetch_count
            self._dispatch(consumer.queue for consumer in self.consumers.values())
        else:
            self._consumer_prefetch = method.prefetch_count
        self._reply(m.BasicQosOk())

    def _consume(self, method: m.BasicConsume) -> None:
        tag = method.consumer_tag or f"amq.ctag-{self.session.id}-{self.number}-{next(self.consumer_numbers)}"
        if method.queue == direct_reply_to.REPLY_TO:
            self._consume_replies(method, tag)
            return
        queue = self._queue(method.queue)
        if self.prefetch and queue.settings.quorum:
            text = f"queue '{queue.name}' in vhost '{self.vhost.name}' does not support global qos"
            raise not_implemented(text)
        self._check_tag(tag)
        exclusive = method.exclusive and not queue.settings.quorum  # such a queue does not look at it
        alone = exclusive and (queue.consumers or queue.settings.single_active_consumer)
        if queue.exclusive_consumer or alone:
            raise access_refused(f"queue '{queue.name}' in vhost '{self.vhost.name}' in exclusive use")
        priority = method.arguments.get("x-priority", 0)
        if not isinstance(priority, int) or isinstance(priority, bool):
            where = f"for queue '{queue.name}' in vhost '{self.vhost.name}'"
            raise precondition(f"invalid arg 'x-priority' {where}: {not_an_integer(priority)}")
        consumer = ChannelConsumer(
            self, queue, tag, no_ack=method.no_ack, prefetch=self._consumer_prefetch, priority=priority
        )
        self._begin(consumer, method, exclusive=exclusive)

    def _consume_replies(self, method: m.BasicConsume, tag: str) -> None:
        self._check_tag(tag)
        if not method.no_ack:
            raise precondition("reply consumer cannot acknowledge")
        if self._replies is not None:
            raise precondition("reply consumer already set")
        queue = self.vhost.add_reply_queue(direct_reply_to.new_reply_name())
        self._replies = ChannelConsumer(self, queue, tag, no_ack=True, prefetch=0, priority=0)
        self._begin(self._replies, method, exclusive=method.exclusive)

    def _check_tag(self, tag: str) -> None:
        if tag in self.consumers:
            raise AmqpError(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")

    def _begin(self, consumer: ChannelConsumer, method: m.BasicConsume, *, exclusive: bool) -> None:
        self.consumers[consumer.tag] = consumer
        consumer.queue.add(consumer, exclusive=exclusive)
        self._reply(m.BasicConsumeOk(consumer_tag=consumer.tag), unless=method.no_wait)
        consumer.active = True
        consumer.queue.dispatch()

    def _cancel(self, method: m.BasicCancel) -> None:
        consumer = self.consumers.pop(method.consumer_tag, None)
        if consumer is not None:
            consumer.active = False
            self.detach(consumer)
            consumer.queue.remove(consumer)
            if not consumer.queue.deleted:
                consumer.queue.dispatch()
            if consumer is self._replies:
                self._replies = None
        self._reply(m.BasicCancelOk(consumer_tag=method.consumer_tag), unless=method.no_wait)

    def _get(self, method: m.BasicGet) -> None:
        if method.queue == STATUS_QUEUE:
            self._get_status(method)
            return
        queue = self._queue(method.queue)
        if queue.settings.quorum and queue.settings.single_active_consumer:
            raise AmqpError(
                ReplyCode.RESOURCE_LOCKED,
                f"cannot obtain access to locked queue '{queue.name}' in vhost '{self.vhost.name}'. "
                f"basic.get operations are not supported by {self.vhost.dialect.quorum_in_words} queues with single "
                "active consumer",
            )
        entry = queue.get(no_ack=method.no_ack)
        if entry is None:
            self._reply(m.BasicGetEmpty())
            return
        tag = self.next_tag()
        if not method.no_ack:
            self.unacked[tag] = (queue, entry, None)
        got = m.BasicGetOk(
            delivery_tag=tag,
            redelivered=entry.redelivered,
            exchange=entry.message.exchange,
            routing_key=entry.message.routing_key,
            message_count=len(queue),
        )
        self.session.send(self.number, got, outgoing_properties(queue, entry, got=True), entry.message.body)

    def _get_status(self, method: m.BasicGet) -> None:
        if not method.no_ack:
            raise precondition(f"queue '{STATUS_QUEUE}' must be read with no_ack")
        got = m.BasicGetOk(delivery_tag=self.next_tag(), routing_key=STATUS_QUEUE)
        properties = Properties(content_type="application/json").encode()
        self.session.send(self.number, got, properties, status_message(self.vhost))

    def _flow(self, method: m.ChannelFlow) -> None:
        if not method.active:
            raise not_implemented("active=false")
        self._reply(m.ChannelFlowOk(active=True))

    # Settling -----------------------------------------------------------------------------------------

    def _ack(self, method: m.BasicAck) -> None:
        self._decide(Settlement.ACKED, self._take(method.delivery_tag, method.multiple))

    def _nack(self, method: m.BasicNack) -> None:
        settlement = self._returned if method.requeue else self._discarded
        self._decide(settlement, self._take(method.delivery_tag, method.multiple))

    @property
    def _returned(self) -> Settlement:
        """By basic.nack and basic.recover."""
        return Settlement.REQUEUED if self.vhost.dialect.nack_counts else Settlement.REQUEUED_UNCOUNTED

    @property
    def _discarded(self) -> Settlement:
        """By basic.nack."""
        return Settlement.REJECTED if self.vhost.dialect.nack_counts else Settlement.REJECTED_UNCOUNTED

    def _reject(self, method: m.BasicReject) -> None:
        settlement = Settlement.REQUEUED if method.requeue else Settlement.REJECTED
        self._decide(settlement, self._take(method.delivery_tag, multiple=False))

    def _decide(self, settlement: Settlement, taken: dict[int, Unacked]) -> None:
        if self._transaction is not None:
            self._transaction.settle(settlement, taken)
        else:
            self._settle(settlement, taken)

    def _recover(self, method: m.BasicRecover | m.BasicRecoverAsync) -> None:
        if not method.requeue:
            raise not_implemented("requeue=false")
        taken, self.unacked = self.unacked, {}
        self._settle(self._returned, taken)
        if isinstance(method, m.BasicRecover):
            self._reply(m.BasicRecoverOk())

    def _take(self, tag: int, multiple: bool) -> dict[int, Unacked]:
        """Take out what a settlement is about. Tag 0 with `multiple` means all."""
        if not multiple:
            found = self.unacked.pop(tag, None)
            if found is None:
                raise precondition(f"unknown delivery tag {tag}")
            return {tag: found}
        if tag == 0:
            taken, self.unacked = self.unacked, {}
            return taken
        if tag not in self.unacked:
            raise precondition(f"unknown delivery tag {tag}")
        tags = []
        for open_tag in self.unacked:
            if open_tag > tag:
                break
            tags.append(open_tag)
        return {open_tag: self.unacked.pop(open_tag) for open_tag in tags}

    def _settle(self, settlement: Settlement, taken: dict[int, Unacked]) -> None:
        if settlement is Settlement.ACKED:
            self._finish(taken.values())
        else:
            for together in _groups_returned_together(taken):
                self._give_up(together, settlement)
            self._dispatch(())

    def _finish(self, taken: Iterable[Unacked]) -> None:
        queues: dict[Queue, None] = {}
        for queue, entry, consumer in taken:
            if consumer is not None:
                consumer.unacked -= 1
            else:
                queue.getting -= 1
            queue.settle(entry)
            queues[queue] = None
        self._dispatch(queues)

    def _give_up(self, taken: Iterable[Unacked], settlement: Settlement, *, by_client: bool = True) -> None:
        returned: dict[Queue, list[Entry]] = {}
        rejected = settlement in (Settlement.REJECTED, Settlement.REJECTED_UNCOUNTED)
        for queue, entry, consumer in taken:
            if consumer is not None:
                consumer.unacked -= 1
            else:
                queue.getting -= 1
            if rejected:
                queue.reject(entry, counts=settlement is Settlement.REJECTED)
                returned.setdefault(queue, [])
            else:
                returned.setdefault(queue, []).append(entry)
        for queue, entries in returned.items():
            queue.put_back(entries, counts=settlement is Settlement.REQUEUED, by_client=by_client)

    def _dispatch(self, queues: Iterable[Queue]) -> None:
        if self.prefetch:  # room on the channel is room for all of its consumers
            self._take_turns()
        for queue in list(queues):
            if not queue.deleted:
                queue.dispatch()

    def _take_turns(self) -> None:
        """Have the queues fill the room on the channel. One that could goes to the end, so that none starves."""
        for queue in list(dict.fromkeys(consumer.queue for consumer in self.consumers.values())):
            ready = len(queue)
            queue.dispatch()
            if len(queue) < ready:
                for tag in [tag for tag, consumer in self.consumers.items() if consumer.queue is queue]:
                    self.consumers[tag] = self.consumers.pop(tag)

    # Transactions -------------------------------------------------------------------------------------

    def _tx_select(self, _: m.TxSelect) -> None:
        if self._confirming:
            raise precondition("cannot switch from confirm to tx mode")
        self._transaction = self._transaction or _Transaction()
        self._reply(m.TxSelectOk())

    def _tx_commit(self, _: m.TxCommit) -> None:
        transaction, self._transaction = self._current_transaction(), _Transaction()
        complete = self._publish_all(transaction)
        for settlement, taken in transaction.settlements:
            self._settle(settlement, taken)
        if not complete:  # a queue was full and refused; what others took is theirs
            raise precondition("partial tx completion")
        self.session.after_commit(lambda: self._reply(m.TxCommitOk()))

    def _publish_all(self, transaction: _Transaction) -> bool:
        """Says whether all queues took what was theirs."""
        complete, self.admitted = True, {}
        for publication, message, targets in transaction.publications:
            routed, accepted = self.vhost.deliver(message, self.vhost.existing_queues(targets), self)
            complete = complete and accepted
            if not routed and publication.mandatory:
                self._return(publication)
        self.admitted = None
        return complete

    def _tx_rollback(self, _: m.TxRollback) -> None:
        self.unacked = self._current_transaction().restored(self.unacked)
        self._transaction = _Transaction()
        self._reply(m.TxRollbackOk())

    def _current_transaction(self) -> _Transaction:
        if self._transaction is None:
            raise precondition("channel is not transactional")
        return self._transaction

    # The end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Consumers go, and what they had goes back.

        As in RabbitMQ, classic queues with consumers hear of it one after the other, the youngest first. One that has
        not heard yet still serves: what a younger one gives up and dead-letters to it is handed to a consumer that is
        about to go, and is redelivered then, or lost if nobody is to acknowledge it. All others hear of it at last, and
        a quorum queue loses nothing.
        """
        self.ended = True
        if self._transaction is not None:
            self.unacked, self._transaction = self._transaction.restored(self.unacked), None
        serving = {consumer.queue for consumer in self.consumers.values()}
        for queue in sorted(serving, key=lambda queue: queue.id, reverse=True):
            if not queue.settings.quorum:
                self._release_queues({queue})
        self._release_queues(serving | {queue for queue, _, _ in self.unacked.values()})

    def _release_queues(self, queues: set[Queue]) -> None:
        """These hear that the channel has ended. They have everything back before they hand out to others."""
        leaving = [consumer for consumer in self.consumers.values() if consumer.queue in queues]
        for consumer in leaving:
            del self.consumers[consumer.tag]
            consumer.queue.remove(consumer)
        by_name = self.vhost.dialect.returns_by_name
        taken = {tag: unacked for tag, unacked in self.unacked.items() if unacked[0] in queues}
        self.unacked = {tag: unacked for tag, unacked in self.unacked.items() if tag not in taken}
        in_order = sorted(taken, key=lambda tag: _return_order(tag, taken[tag][2], by_name=by_name))
        self._give_up([taken[tag] for tag in in_order], Settlement.REQUEUED, by_client=False)
        for queue in {consumer.queue: None for consumer in leaving}:
            if not queue.deleted:
                queue.dispatch()

    def __repr__(self) -> str:
        return f"<Channel {self.number} consumers={len(self.consumers)} unacked={len(self.unacked)}>"


class _Transaction:
    """What was published and settled since tx.select or the last commit.

    As in RabbitMQ, a message finds its way when it is published, and what is settled is no longer open: only the
    deed waits for the commit. Settlements of one kind that follow each other are one, in the order of delivery.
    """

    def __init__(self) -> None:
        self.publications: list[tuple[Publication, Message, tuple[Queue, ...]]] = []
        self.settlements: list[tuple[Settlement, dict[int, Unacked]]] = []

    def settle(self, settlement: Settlement, taken: dict[int, Unacked]) -> None:
        if self.settlements and self.settlements[-1][0] is settlement:
            self.settlements[-1][1].update(taken)
        else:
            self.settlements.append((settlement, taken))

    def restored(self, unacked: dict[int, Unacked]) -> dict[int, Unacked]:
        """What is open when nothing of this is done."""
        for _, taken in self.settlements:
            unacked = unacked | taken
        return {tag: unacked[tag] for tag in sorted(unacked)}
