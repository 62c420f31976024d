"""A consumer on a channel, as a queue sees it, and the properties that consumers receive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redrive.broker.message import Entry
from redrive.broker.queue import Queue
from redrive.wire.frames import deliver_frame
from redrive.wire.raw_properties import patch_properties, raw_long
from redrive.wire.values import encode_short_string

if TYPE_CHECKING:
    from redrive.broker.channel import Channel


class ChannelConsumer:
    __slots__ = (
        "_encoded_tag", "active", "channel", "no_ack", "number", "prefetch", "priority", "queue", "tag", "unacked",
    )  # fmt: skip

    def __init__(self, channel: Channel, queue: Queue, tag: str, *, no_ack: bool, prefetch: int, priority: int) -> None:
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.number = next(channel.consumer_numbers)
        self.no_ack = no_ack
        self.prefetch = 0 if no_ack else prefetch
        self.priority = priority
        self.unacked = 0
        self.active = False  # until the client knows its tag
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
        # A quorum queue settles a message only when its channel has passed it on.
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

    def cancel_by_broker(self) -> None:
        self.channel.consumers.pop(self.tag, None)
        self.channel.detach(self)
        self.channel.session.notify_cancel(self.channel.number, self.tag)

    def __repr__(self) -> str:
        return f"<Consumer {self.tag} of {self.queue.name!r} unacked={self.unacked}/{self.prefetch}>"


def outgoing_properties(queue: Queue, entry: Entry, *, got: bool = False) -> bytes:
    """Return the properties as published; a quorum queue adds its delivery counts. `got`: read by basic.get."""
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
