"""One client's connection, as the broker sees it.

What is sent within one turn of the event loop leaves in one write, or in several when it is much. The broker does not
read from a client that does not read, nor does it handle what it has read from it, so that the output stays bounded;
deliveries wait in their queues meanwhile. Replies about durable changes leave when the journal has them (`hold`).

A client that the broker does not read from, for that reason or because of an alarm, seems to be silent. So before it is
disconnected for missed heartbeats, the broker reads from it for a moment (`_probe_client`): a heartbeat that waits in
the socket keeps the connection.

When a client has closed the connection, it closes the socket, too. The broker waits for that (`linger`), and reads and
ignores what the client still writes: some clients do not expect an error there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from select import POLLIN, poll
from typing import TYPE_CHECKING, cast

from redrive.broker.channel import Channel
from redrive.broker.errors import AmqpError
from redrive.broker.methods import connection
from redrive.broker.vhost import VirtualHost
from redrive.errors import LocalProtocolError, RemoteProtocolError, ReplyCode
from redrive.protocol import lifecycle
from redrive.protocol.connection import AmqpConnection, Event, Violation
from redrive.protocol.heartbeat import Heartbeat, HeartbeatAction
from redrive.protocol.lifecycle import ChannelState, ConnectionState
from redrive.protocol.messages import Incoming, Publication
from redrive.wire import methods as m
from redrive.wire.frames import HEARTBEAT_FRAME
from redrive.wire.method import Method, Sender

if TYPE_CHECKING:
    from redrive.broker.broker import Broker

log = logging.getLogger("redrive.broker")

LINGER_WITHIN = 30  # seconds for a client to close the socket after connection.close; its heartbeat if that is shorter
LINGER_AT_MOST = 16 * 1024 * 1024  # bytes that are read and ignored meanwhile
HANDSHAKE_WITHIN = 10.0  # seconds; then the connection is aborted
WRITE_HIGH_WATER = 256 * 1024
FRAMES = 128  # approximate size of the frames of a message, without its body
PROBE_AT_MOST = 1024 * 1024  # bytes that are read from a client while it is paused
DISK_LAGS_AT = 20_000  # changes that are not on disk yet: a session that adds more waits for them


class Session(asyncio.Protocol):
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.id = broker.next_session_id()
        self.user = ""
        self.writable = True
        self.channels: dict[int, Channel] = {}
        self.conversation = AmqpConnection(
            Sender.SERVER,
            largest_message=broker.dialect.max_message_size,
            offer=broker.tuning,
            smallest_frame_max=broker.dialect.smallest_frame_max,
        )
        self._loop = asyncio.get_running_loop()
        self._vhost: VirtualHost | None = None
        self._transport: asyncio.Transport | None = None
        self._heartbeat = Heartbeat(0, 0)
        self._timer: asyncio.TimerHandle | None = None
        self._write_scheduled = False
        self._waiting: list[Event] = []  # received, and not handled while the client does not read
        self._unsent = 0  # approximate bytes
        self._socket_full = False  # the socket takes no more
        self._held_too_much = False  # too much output waits for the journal
        self._probing = False  # is it read from only to see whether it is alive?
        self._probed_bytes = 0  # bytes, since it was last read from
        self._holds = 0
        self._unconfirmed: dict[Channel, None] = {}
        self._published = False  # has it ever? then an alarm pauses it
        self.notifies_blocked = False
        self._ignored: int | None = None  # bytes since the client closed the connection
        self._ended = False
        self.ended: asyncio.Future[None] = self._loop.create_future()

    @property
    def vhost(self) -> VirtualHost:
        assert self._vhost is not None, "before connection.open there are no channels"
        return self._vhost

    def has_unread_input(self) -> bool:
        """Return whether the client has sent something that the next turn of the event loop reads."""
        transport = self._transport
        if transport is None or transport.is_closing() or not transport.is_reading():
            return False
        inputs = poll()
        inputs.register(transport.get_extra_info("socket").fileno(), POLLIN)
        return bool(inputs.poll(0))

    # asyncio.Protocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self._timer = self._loop.call_later(HANDSHAKE_WITHIN, self._on_handshake_timeout)
        self.broker.sessions.add(self)

    def data_received(self, data: bytes) -> None:
        if self._ignored is not None:
            self._ignore(data)
            return
        self._heartbeat.last_received = self._loop.time()
        greeted = self.conversation.state is not ConnectionState.IDLE
        events = self.conversation.receive(data)
        if self._probing:
            self._probed_bytes += len(data)
            self._waiting += events
            self._probing = False
            self._pause_reading()
            return
        self._handle_all(events)
        if not greeted and self.conversation.state is ConnectionState.GREETED:
            connection.start(self)

    def _handle_all(self, events: list[Event]) -> None:
        for place, event in enumerate(events):
            if not self.writable:
                self._waiting += events[place:]
                break
            self._handle(event)
        for channel in self._unconfirmed:
            self.broker.journal.after_commit(channel.confirmation())
        self._unconfirmed.clear()
        if self.broker.journal.pending > DISK_LAGS_AT:
            self._pause_reading()
            self.broker.journal.after_commit(self._resume)
        elif self._published and self.broker.alarm:
            self._pause_reading()
        self.write_soon()

    def pause_writing(self) -> None:
        self._socket_full = True
        self._pause()

    def resume_writing(self) -> None:
        self._socket_full = False
        self._resume()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended and self.conversation.state is not ConnectionState.CLOSED:
            spoke = self.conversation.state is not ConnectionState.IDLE  # a port scan is not worth a warning
            log.log(
                logging.INFO if spoke else logging.DEBUG, "%r disconnected: %s", self, exc or "closed by the client"
            )
        self._end()

    # Flow ---------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        self.writable = False
        self._pause_reading()

    def _resume(self) -> None:
        """Continue reading and delivering, unless there is another reason to pause."""
        if self._socket_full or self._held_too_much or self._ended:
            return
        self.writable = True
        if not (self._published and self.broker.alarm):
            self._read_again()
        for channel in list(self.channels.values()):
            for consumer in list(channel.consumers.values()):
                consumer.queue.dispatch()

    def _read_again(self) -> None:
        self._probing, self._probed_bytes = False, 0
        self._resume_reading()
        waiting, self._waiting = self._waiting, []
        self._handle_all(waiting)

    def _probe_client(self) -> bool:
        """Read for a moment from a client that is paused. What it sends is handled later.

        Returns False if that was done already and nothing came.
        """
        assert self._transport is not None
        if self._probed_bytes < PROBE_AT_MOST:  # beyond that, TCP alone tells whether it is alive
            if self._transport.is_reading():
                return False
            self._probing = True
            self._resume_reading()
        self._heartbeat.last_received = self._loop.time() - self._heartbeat.interval  # another chance
        return True

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def alarm(self, reason: str | None) -> None:
        """Pause or resume a publisher when the memory alarm begins or ends, and notify the client."""
        if self.conversation.state is not ConnectionState.OPEN:
            return
        if self.notifies_blocked:
            self.send(0, m.ConnectionBlocked(reason=reason) if reason is not None else m.ConnectionUnblocked())
        if reason is None:
            self._resume()
        elif self._published:
            self._pause_reading()

    # Sending ------------------------------------------------------------------------------------------

    def send(self, channel: int, method: Method, raw_properties: bytes = b"\x00\x00", body: bytes = b"") -> None:
        try:
            self.conversation.send(channel, method, raw_properties, body)
        except LocalProtocolError:
            self._reraise_unless_closed(channel)
            return
        self._flush_if_large(FRAMES + len(body))

    def send_content(self, channel: int, frame: bytes, raw_properties: bytes, body: bytes) -> None:
        try:
            self.conversation.send_content(channel, frame, raw_properties, body)
        except LocalProtocolError:
            self._reraise_unless_closed(channel)
            return
        self._flush_if_large(FRAMES + len(body))

    def send_frame(self, channel: int, frame: bytes) -> None:
        try:
            self.conversation.send_frame(channel, frame)
        except LocalProtocolError:
            self._reraise_unless_closed(channel)
            return
        self._flush_if_large(len(frame))

    def _reraise_unless_closed(self, channel: int) -> None:
        """Ignore a reply to a channel or connection that was closed within the same read; else raise the error."""
        conversation = self.conversation
        listens = channel == 0 or conversation.channel_state(channel) is ChannelState.OPEN
        if listens and conversation.state is ConnectionState.OPEN:
            raise  # noqa: PLE0704 - called from an except clause: a bug of the broker

    def _flush_if_large(self, size: int) -> None:
        self._unsent += size
        if self._unsent < WRITE_HIGH_WATER:
            if not self._write_scheduled:
                self.write_soon()
        elif self._holds:
            self._held_too_much = True
            self._pause()
        else:
            self._write_now()

    def write_soon(self) -> None:
        if not self._write_scheduled:
            self._write_scheduled = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._write_scheduled = False
        self._write_now()

    def _write_now(self) -> None:
        if self._holds or not self.conversation.outgoing or self._transport is None or self._transport.is_closing():
            return
        self._heartbeat.last_sent = self._loop.time()
        self._unsent = 0
        self._transport.write(self.conversation.data_to_send())

    def hold(self) -> None:
        """Send nothing more before what was just changed is on disk."""
        self._holds += 1
        self.broker.journal.after_commit(self._release)

    def _release(self) -> None:
        self._holds -= 1
        if self._held_too_much and not self._holds:
            self._held_too_much = False
            self._write_now()
            self._resume()
        else:
            self.write_soon()

    def after_commit(self, action: Callable[[], None]) -> None:
        self.broker.journal.after_commit(lambda: None if self._ended else action())

    def confirm_later(self, channel: Channel) -> None:
        self._unconfirmed[channel] = None

    def has_channel(self, channel: Channel) -> bool:
        return self.channels.get(channel.number) is channel and self.conversation.state is ConnectionState.OPEN

    def notify_cancel(self, channel: int, consumer_tag: str) -> None:
        if self.conversation.channel_state(channel) is ChannelState.OPEN:
            self.send(channel, m.BasicCancel(consumer_tag=consumer_tag, no_wait=True))

    # Receiving ----------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        method_id, channel = (60, 40), event.channel
        try:
            if type(event) is Publication:
                self._publish(event)
            elif isinstance(event, Incoming):
                method_id = event.method.id
                self._on_event(event)
            else:
                self._violation(cast(Violation, event))
        except AmqpError as refusal:
            self._close_with_error(channel, refusal, method_id)
        except RemoteProtocolError as error:  # malformed properties or arguments, found when they are decoded
            self._close_with_error(channel, AmqpError(error.code, error.text), method_id)
        except Exception:
            log.exception("%r: a fault of the broker's own", self)
            self._close_with_error(0, AmqpError(ReplyCode.INTERNAL_ERROR, "the broker failed; see its log"), method_id)

    def _publish(self, publication: Publication) -> None:
        channel = self.channels.get(publication.channel)
        if channel is not None:
            self._published = True
            channel.publish(publication)

    def _on_event(self, event: Incoming) -> None:
        method = event.method
        if event.channel == 0:
            connection.handle(self, method)
        elif isinstance(method, m.ChannelOpen):
            self.channels[event.channel] = Channel(self, event.channel)
            self.send(event.channel, m.ChannelOpenOk())
        elif isinstance(method, m.ChannelClose | m.ChannelCloseOk):
            self._drop_channel(event.channel)
        elif (channel := self.channels.get(event.channel)) is not None:
            channel.handle(method)

    def _drop_channel(self, number: int) -> None:
        channel = self.channels.pop(number, None)
        if channel is not None:
            channel.close()

    # The handshake and heartbeats --------------------------------------------------------------------

    def open(self, vhost: VirtualHost) -> None:
        """Answer connection.open: the handshake is over."""
        self._vhost = vhost
        self.send(0, m.ConnectionOpenOk())
        self._set_timer(None)
        self._heartbeat = Heartbeat(self.conversation.tuning.heartbeat, self._loop.time())
        self._schedule_heartbeat()
        if self.broker.alarm is not None:
            self.alarm(self.broker.alarm)

    def _set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        """The session waits for one thing at a time: the handshake, a heartbeat, or the end of the socket."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def _on_handshake_timeout(self) -> None:
        log.info("%r did not finish the handshake within %s s", self, HANDSHAKE_WITHIN)
        self.abort()

    def _schedule_heartbeat(self) -> None:
        if (deadline := self._heartbeat.deadline()) is not None and not self._ended:
            self._timer = self._loop.call_at(deadline, self._on_heartbeat_timer)

    def _on_heartbeat_timer(self) -> None:
        now = self._loop.time()
        match self._heartbeat.pulse(now):
            case HeartbeatAction.LOST if not self._probe_client():
                log.warning("%r: missed heartbeats from the client", self)
                self.abort()
                return
            case HeartbeatAction.SEND:
                self._heartbeat.last_sent = now
                self._send_heartbeat()
            case HeartbeatAction.LOST | HeartbeatAction.FINE:
                pass
        self._schedule_heartbeat()

    def _send_heartbeat(self) -> None:
        """Send a heartbeat before the output that waits for the disk; not if the socket is full anyway."""
        if self._transport is not None and not self._transport.is_closing() and not self._socket_full:
            self._transport.write(HEARTBEAT_FRAME)

    # Refusing and ending ------------------------------------------------------------------------------

    def _close_with_error(self, number: int, refusal: AmqpError, method_id: tuple[int, int]) -> None:
        # It may quote what the client sent, which need not be text.
        text = str(refusal).encode(errors="surrogateescape").decode(errors="ignore")
        if number and not refusal.ends_connection:
            self._drop_channel(number)
            if self.conversation.channel_state(number) is ChannelState.OPEN:
                close = m.ChannelClose(
                    reply_code=refusal.code, reply_text=text, class_id=method_id[0], method_id=method_id[1]
                )
                self.send(number, close)
            return
        self.close(refusal.code, text, method_id)

    def stop_delivering(self) -> None:
        for channel in self.channels.values():
            channel.flowing = False

    def close(self, code: ReplyCode, text: str, method_id: tuple[int, int] = (0, 0)) -> None:
        """Send connection.close; unacknowledged messages are requeued at once."""
        self._drop_channels()
        if ">connection.close" in lifecycle.CONNECTION[self.conversation.state]:
            self.send(
                0, m.ConnectionClose(reply_code=code, reply_text=text, class_id=method_id[0], method_id=method_id[1])
            )
            self._set_timer(self._loop.call_later(HANDSHAKE_WITHIN, self.abort))
        else:
            self.finish()

    def _violation(self, violation: Violation) -> None:
        if violation.channel:
            self._drop_channel(violation.channel)
            return
        log.warning("%r broke the protocol: %s", self, violation.error)
        self._drop_channels()
        self.finish()

    def linger(self) -> None:
        """Release everything of a connection that the client has closed, and wait for the end of the socket."""
        self._release_all()
        self._ignored = 0
        self._published = False  # or an alarm would stop the reading, and the end of the socket would go unnoticed
        self._write_now()
        within = min(self.conversation.tuning.heartbeat or LINGER_WITHIN, LINGER_WITHIN)
        self._set_timer(self._loop.call_later(within, self.abort))

    def _ignore(self, data: bytes) -> None:
        assert self._ignored is not None
        self._ignored += len(data)
        if self._ignored > LINGER_AT_MOST:
            self.abort()

    def finish(self) -> None:
        """Write what is left and close the socket."""
        self._drop_channels()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self.conversation.data_to_send())
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _drop_channels(self) -> None:
        """Close all channels. An error in one of them does not keep the others open.

        What one requeues is not delivered to another that is closed as well: it would be lost there without acks, and
        count as a failed delivery with them.
        """
        flowing = {number: channel.flowing for number, channel in self.channels.items()}
        self.stop_delivering()
        for number in flowing:
            self.channels[number].flowing = flowing[number]  # its own queues still serve it while it is closed
            try:
                self._drop_channel(number)
            except Exception:
                log.exception("%r: channel %d did not end as it should", self, number)

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._waiting.clear()
        self._set_timer(None)
        try:
            self._release_all()
        finally:
            self.broker.sessions.discard(self)
            self.ended.set_result(None)

    def _release_all(self) -> None:
        """Requeue the messages of the connection and delete its exclusive queues."""
        self._drop_channels()
        if self._vhost is not None:
            self._vhost.delete_exclusive_queues(self)

    def __repr__(self) -> str:
        return (
            f"<Session {self.id} {self.user or 'nobody'} {self.conversation.state.name} channels={len(self.channels)}>"
        )
