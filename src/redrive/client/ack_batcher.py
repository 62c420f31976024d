"""Tells the broker about the deliveries of one channel, in few frames.

Acks wait for the end of the loop's turn and leave merged (`redrive.protocol.acks`). A handler that never
yields would hold them back for a whole buffer, so a quarter of the prefetch is told at once: the broker
sends the next messages while these are still being handled. Once the channel has ended, everything is too late:
the broker has taken its messages back.
"""

from __future__ import annotations

from redrive.client.channel import Channel
from redrive.protocol.acks import AckLedger
from redrive.protocol.messages import Delivery
from redrive.wire.frames import ack_frame, nack_frame, reject_frame


class AckBatcher:
    def __init__(self, channel: Channel, *, prefetch: int) -> None:
        self._channel = channel
        self._settlements = AckLedger()
        self._flush_at = max(1, min(prefetch // 4, 256))
        self._waiting = False
        self._unsettled = 0
        self._retiring = False

    @property
    def unsettled(self) -> int:
        return self._unsettled

    @property
    def is_open(self) -> bool:
        return self._channel.is_open

    def take(self, delivery: Delivery) -> None:
        """Answer for a delivery from here on."""
        self._unsettled += 1
        delivery.attach(self)

    def retire(self) -> None:
        """Nothing more is delivered here: close the channel when the last delivery is settled."""
        self._retiring = True
        self._close_if_done()

    def ack(self, delivery_tag: int) -> bool:
        if not self._channel.is_open:
            return False
        self._settlements.ack(delivery_tag)
        self._count_acked(1)
        return True

    def ack_all(self, delivery_tags: list[int]) -> bool:
        if not self._channel.is_open:
            return False
        self._settlements.ack_all(delivery_tags)
        self._count_acked(len(delivery_tags))
        return True

    def _count_acked(self, count: int) -> None:
        if self._settlements.pending >= self._flush_at:
            self._flush()
            self._channel.link.write_now()
        elif not self._waiting:
            self._waiting = True
            self._channel.link.before_flush(self._flush)
        self._unsettled -= count
        if self._retiring:
            self._close_if_done()

    def nack(self, delivery_tag: int, requeue: bool) -> bool:
        return self._refuse(delivery_tag, nack_frame(self._channel.number, delivery_tag, False, requeue))

    def reject(self, delivery_tag: int, requeue: bool) -> bool:
        return self._refuse(delivery_tag, reject_frame(self._channel.number, delivery_tag, requeue))

    def _refuse(self, delivery_tag: int, frame: bytes) -> bool:
        if not self._channel.is_open:
            return False
        self._settlements.settle(delivery_tag)
        self._channel.link.conversation.send_frame(self._channel.number, frame)
        self._channel.link.write_soon()
        self._unsettled -= 1
        if self._retiring:
            self._close_if_done()
        return True

    def _close_if_done(self) -> None:
        if self._unsettled == 0 and self._channel.closed is None:
            self._flush()
            self._channel.abandon()

    def _flush(self) -> None:
        self._waiting = False
        if not self._channel.is_open:
            return
        upto, singles = self._settlements.take()
        number, conversation = self._channel.number, self._channel.link.conversation
        if upto is not None:
            conversation.send_frame(number, ack_frame(number, upto, multiple=True))
        for tag in singles:
            conversation.send_frame(number, ack_frame(number, tag, multiple=False))

    def __repr__(self) -> str:
        return f"<ChannelSettler unsettled={self._unsettled} {self._settlements!r} on {self._channel!r}>"
