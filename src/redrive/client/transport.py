"""One socket and its conversation, from the first byte to the last. A link dies once; `Connection` makes the next.

What is sent within one turn of the event loop leaves in one write. Whoever has something to say puts it into
the conversation and calls `write_soon`; whoever wants to say it as late as possible (merged acks) registers
with `before_flush`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import cast

from redrive.client.channel import Channel
from redrive.client.url import BrokerURL, Host
from redrive.errors import (
    AuthenticationFailed,
    BrokerError,
    ConfigurationError,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    RedriveError,
    RemoteProtocolError,
    ReplyCode,
)
from redrive.protocol.connection import AmqpConnection, Violation
from redrive.protocol.handshake import ClientHandshake
from redrive.protocol.heartbeat import Heartbeat, HeartbeatAction
from redrive.protocol.lifecycle import ConnectionState
from redrive.protocol.messages import Delivery, Incoming
from redrive.wire import methods as m
from redrive.wire.method import Method, Sender
from redrive.wire.values import Table

log = logging.getLogger("redrive.client")

# Enough to keep the kernel busy, little enough that a stalled broker is noticed by publishers at once.
WRITE_HIGH_WATER = 1024 * 1024


async def open_transport(
    url: BrokerURL, host: Host, client_properties: Table, on_change: Callable[[], None]
) -> Transport:
    """Connect to one host and finish the handshake, within the URL's connection timeout.

    A name may stand for several addresses, of which one leads nowhere, or to a node that is full or about to end: each
    has its share of the time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + url.connection_timeout.total_seconds()
    try:
        async with asyncio.timeout_at(deadline):
            addresses = await _addresses(host)
        for left in range(len(addresses), 0, -1):
            share = (deadline - loop.time()) / left
            try:
                async with asyncio.timeout(share):
                    return await _open_link(
                        url, host, addresses[-left], Transport(url, host, client_properties, on_change)
                    )
            except (OSError, RedriveError) as error:  # and a timeout is an OSError
                if left == 1 or isinstance(error, AuthenticationFailed | ConfigurationError):
                    raise
                log.info("%s: no answer from %s, trying another address: %s", host, addresses[-left], error)
    except TimeoutError:
        raise ConnectionFailed(f"{host}: no answer within {url.connection_timeout.total_seconds():g} s") from None
    except (OSError, UnicodeError) as error:  # the latter for a name that DNS could not hold
        raise ConnectionFailed(f"{host}: {_system_message(error)}") from error
    raise ConnectionFailed(f"{host}: the name stands for no address")


async def _addresses(host: Host) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host.name, host.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def _open_link(url: BrokerURL, host: Host, address: str, link: Transport) -> Transport:
    context = url.tls.context() if url.tls is not None else None
    server_name = (url.tls.server_name or host.name) if url.tls is not None else None
    try:
        await asyncio.get_running_loop().create_connection(
            lambda: link, address, host.port, ssl=context, server_hostname=server_name
        )
        await link.opened
    except BaseException:
        link.abort(ConnectionLost("given up during the handshake"))
        raise
    return link


def _system_message(error: OSError | UnicodeError) -> str:
    """What the operating system calls it, without asyncio's repetition of the address."""
    if isinstance(error, ssl.SSLError | socket.gaierror | UnicodeError) or not error.errno:
        return str(error)
    return os.strerror(error.errno)


class Transport(asyncio.Protocol):
    def __init__(self, url: BrokerURL, host: Host, client_properties: Table, on_change: Callable[[], None]) -> None:
        self.host = host
        self.conversation = AmqpConnection(Sender.CLIENT)
        self.handshake = ClientHandshake(url.credentials, url.virtual_host, url.tuning, client_properties)
        self.blocked: str | None = None  # the broker's reason not to take publishes
        self.writable = True  # False while the socket takes no more
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.opened.add_done_callback(lambda opened: opened.cancelled() or opened.exception())  # nobody may be waiting
        self.lost: asyncio.Future[RedriveError] = self._loop.create_future()
        self._on_change = on_change
        self._transport: asyncio.Transport | None = None
        self._heartbeat = Heartbeat(0, 0)
        self._timer: asyncio.TimerHandle | None = None
        self._channels: dict[int, Channel] = {}
        self._write_scheduled = False
        self._flush_hooks: list[Callable[[], None]] = []

    @property
    def alive(self) -> bool:
        return not self.lost.done()

    @property
    def server_properties(self) -> Table:
        return self.handshake.server_properties

    # asyncio.Protocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        if (sock := transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.conversation.send_protocol_header()
        self.write_now()

    def data_received(self, data: bytes) -> None:
        self._heartbeat.last_received = self._loop.time()
        channels = self._channels
        try:
            for event in self.conversation.receive(data):
                if type(event) is Delivery:
                    channels[event.channel].on_delivery(event)
                elif isinstance(event, Incoming):
                    self._on_event(event)
                else:
                    self._violation(cast(Violation, event))
        except RemoteProtocolError as error:
            self._end(error)
        if self.conversation.outgoing:
            self.write_soon()

    def pause_writing(self) -> None:
        self.writable = False
        self._on_change()

    def resume_writing(self) -> None:
        self.writable = True
        self._on_change()

    def connection_lost(self, exc: Exception | None) -> None:
        why = _system_message(exc) if isinstance(exc, OSError) else exc or "the broker closed the socket"
        self._end(ConnectionLost(f"{self.host}: {why}"))

    # Writing ------------------------------------------------------------------------------------------

    def write_soon(self) -> None:
        """Write at the end of this turn of the loop, together with everything else that is said until then."""
        if not self._write_scheduled:
            self._write_scheduled = True
            self._loop.call_soon(self._write_scheduled_data)

    def before_flush(self, before_flush: Callable[[], None]) -> None:
        """Have something called just before the next write, so that it can put its words in."""
        self._flush_hooks.append(before_flush)
        self.write_soon()

    def _write_scheduled_data(self) -> None:
        self._write_scheduled = False
        self.write_now()

    def write_now(self) -> None:
        hooks, self._flush_hooks = self._flush_hooks, []
        for before_flush in hooks:
            before_flush()
        if self.conversation.outgoing and self._transport is not None and self.alive:
            self._heartbeat.last_sent = self._loop.time()
            self._transport.write(self.conversation.data_to_send())

    # What the broker says -----------------------------------------------------------------------------

    def _on_event(self, event: Incoming) -> None:
        if not event.channel:
            self._connection_method(event.method)
        elif (channel := self._channels.get(event.channel)) is not None:
            channel.on_incoming(event)
        # else: the answer to the close of a channel that ended in another way meanwhile

    def _connection_method(self, method: Method) -> None:
        match method:
            case m.ConnectionStart() | m.ConnectionTune() | m.ConnectionSecure():
                self._answer(method)
            case m.ConnectionOpenOk():
                self._start_heartbeat()
                if not self.opened.done():
                    self.opened.set_result(None)
            case m.ConnectionBlocked():
                self.blocked = method.reason or "no reason given"
                log.warning("%s takes no messages now: %s", self.host, self.blocked)
                self._on_change()
            case m.ConnectionUnblocked():
                self.blocked = None
                log.info("%s takes messages again", self.host)
                self._on_change()
            case m.ConnectionClose():
                self._on_connection_close(method)
            case m.ConnectionCloseOk():
                self._end(ConnectionLost(f"{self.host}: closed by this side"))
            case _:  # update-secret-ok: nobody waits for it
                log.debug("%s from %s", method.name, self.host)

    def _answer(self, question: Method) -> None:
        if self.conversation.state is ConnectionState.CLOSED:
            return  # the same read brought the farewell, which is the next event
        try:
            for answer in self.handshake.answer(question):
                self.conversation.send(0, answer)
        except RemoteProtocolError as error:
            self._end(error)

    def _on_connection_close(self, close: m.ConnectionClose) -> None:
        refused = close.reply_code in (ReplyCode.ACCESS_REFUSED, ReplyCode.NOT_ALLOWED)
        is_full = "limit" in close.reply_text  # of connections, which another node may have left, or this one later
        kind = AuthenticationFailed if refused and not is_full and not self.opened.done() else ConnectionClosed
        self._end(kind(close.reply_code, close.reply_text, (close.class_id, close.method_id)))

    def _violation(self, violation: Violation) -> None:
        if violation.channel:
            self._channels[violation.channel].fail(violation.error)
        else:
            self._end(violation.error)

    # Heartbeats ---------------------------------------------------------------------------------------

    def _start_heartbeat(self) -> None:
        self._heartbeat = Heartbeat(self.conversation.tuning.heartbeat, self._loop.time())
        self._schedule_heartbeat()

    def _schedule_heartbeat(self) -> None:
        if (deadline := self._heartbeat.deadline()) is not None:
            self._timer = self._loop.call_at(deadline, self._beat)

    def _beat(self) -> None:
        match self._heartbeat.pulse(self._loop.time()):
            case HeartbeatAction.LOST:
                silence = self._heartbeat.interval * 2
                self._end(ConnectionLost(f"{self.host}: silent for {silence:g} s, heartbeats missed"))
                return
            case HeartbeatAction.SEND:
                self.conversation.send_heartbeat()
                self.write_now()
            case HeartbeatAction.FINE:
                pass
        self._schedule_heartbeat()

    # Channels -----------------------------------------------------------------------------------------

    async def channel(self) -> Channel:
        """Open a channel of this link."""
        if not self.alive:
            raise self.lost.result()
        channel = Channel(self, self.conversation.free_channel())
        self._channels[channel.number] = channel
        try:
            await channel.open()
        except asyncio.CancelledError:
            channel.abandon()
            raise
        return channel

    def forget(self, channel: Channel) -> None:
        """A channel is over; its number may have a new owner already."""
        if self._channels.get(channel.number) is channel:
            del self._channels[channel.number]

    # The end ------------------------------------------------------------------------------------------

    async def close(self, within: float = 5.0) -> None:
        """Say farewell and wait for the answer, so that everything sent before has been read by the broker."""
        if self.alive and self.conversation.state is ConnectionState.OPEN:
            self.write_now()
            self.conversation.send(0, m.ConnectionClose(reply_text="goodbye"))
            self.write_now()
            await asyncio.wait([self.lost], timeout=within)
        self._end(ConnectionLost(f"{self.host}: closed by this side"))

    def abort(self, reason: RedriveError) -> None:
        self._end(reason)

    def _end(self, reason: RedriveError) -> None:
        if self.lost.done():
            return
        self.lost.set_result(reason)
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._shutdown(self._transport, reason)
        if not self.opened.done():
            self.opened.set_exception(reason)
        for channel in list(self._channels.values()):
            channel.fail(reason)
        self._on_change()

    def _shutdown(self, transport: asyncio.Transport, reason: RedriveError) -> None:
        if isinstance(reason, BrokerError | RemoteProtocolError) or self.conversation.state is ConnectionState.CLOSED:
            transport.write(self.conversation.data_to_send())  # close-ok, or what AMQP prescribes for a violation
            transport.close()
        else:
            transport.abort()

    def __repr__(self) -> str:
        life = "alive" if self.alive else f"ended: {self.lost.result()}"
        blocked = f" blocked={self.blocked!r}" if self.blocked is not None else ""
        return f"<Link {self.host} {life} channels={len(self._channels)}{blocked}>"
