"""The protocol, the broker's answers, the network, and publishing."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from redrive.errors.base import ConfigurationError, RedriveError


class ReplyCode(IntEnum):
    """AMQP 0-9-1 reply codes (section 1.2, constants)."""

    SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


class InvalidURL(ConfigurationError):
    """A broker URL that cannot be understood. The message never holds the password.

    Why: the scheme is not amqp or amqps, the port is no number, a query parameter is unknown, or a password has
    characters that must be percent-encoded (`@` is `%40`, `/` is `%2F`).

    Do: write it as `amqp://user:password@host:5672/vhost`; the virtual host `/` is an empty path or `%2F`. Known
    parameters are in the reference of settings.
    """


class ProtocolError(RedriveError):
    """Somebody broke the rules of AMQP 0-9-1.

    Whose: see the two kinds of it: LocalProtocolError is yours, RemoteProtocolError is the peer's.

    Do: read the message; if Redrive itself broke the rules, that is a defect to be reported.
    """


class LocalProtocolError(ProtocolError):
    """The call makes no sense in the present state. Nothing was sent.

    Whose: yours: of the code that calls.

    Do: look at the call that raised it. Nothing has reached the broker, so nothing has to be undone.
    """


class EncodingError(LocalProtocolError):
    """A value that AMQP 0-9-1 cannot carry.

    Why: a name longer than 255 bytes, a number that no AMQP type holds, a header value of a type that AMQP has no form
    for.

    Do: send something else: a shorter name, a string instead of an object, the data in the body instead of a header.
    """


class AlreadySettled(LocalProtocolError):
    """A delivery can be settled once: acked, nacked or rejected.

    Why: two parts of a program both settle it, or a handler that is settled for acks by itself.

    Do: settle it in one place. A consumer of an App is settled by what its handler returns or raises.
    """


class RemoteProtocolError(ProtocolError):
    """The peer sent what AMQP forbids. `code` is the reply code to close the connection with.

    Whose: the peer's.

    Why: something between here and the broker changes bytes, the port is not AMQP's (TLS on a port without, or the
    other way round), or the broker has a defect.

    Do: check the port and scheme (`amqp` 5672, `amqps` 5671) and proxies. The connection ends, and what was unsettled
    comes again.
    """

    def __init__(self, code: ReplyCode, text: str) -> None:
        super().__init__(f"{code.name} - {text}")
        self.code = code
        self.text = text


class BrokerError(RedriveError):
    """The broker refused, with an AMQP reply code and its own words.

    Whose: the broker's to say, most often yours to fix.

    Do: the code and the text are RabbitMQ's own: its log has the same line, with more around it.
    """

    def __init__(self, code: int, text: str, method: tuple[int, int] = (0, 0)) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text
        self.method = method  # class and method id of what the broker objects to, (0, 0) when unsaid


class ChannelClosed(BrokerError):
    """The broker closed a channel because of an operation on it. The connection lives on.

    Why: AMQP answers a mistake by closing the channel on which it was made. Others have channels of their own and
    notice nothing.

    Do: fix what the text says; the next call opens a new channel.
    """


class AccessRefused(ChannelClosed):
    """403: this user may not do that.

    Why: the user lacks configure, write or read permission for that name in this virtual host, or the name is reserved
    (`amq.`).

    Do: grant it (`rabbitmqctl set_permissions`), or connect as another user. An application that may not configure
    wants `declare=False`.
    """


class NotFound(ChannelClosed):
    """404: the queue or exchange does not exist in this virtual host.

    Why: it was never made, it was deleted, or this is another virtual host than one thinks.

    Do: `redrive topology plan APP` shows what is missing, `apply` makes it; `redrive ping` says where one is connected.
    """


class ResourceLocked(ChannelClosed):
    """405: another connection owns the queue exclusively, or consumes from it exclusively.

    Why: an exclusive queue of a connection that still lives, perhaps a dead one that the broker has not noticed yet; or
    a single consumer that insists on being the only one.

    Do: end the other connection, or wait until its heartbeat runs out. Do not use exclusive queues for work.
    """


class PreconditionFailed(ChannelClosed):
    """406: most often, something exists already with other arguments. RabbitMQ cannot change them in place.

    Why: a declaration with other arguments than those that exist, a message that is too large, an acknowledgement that
    came too late (`consumer_timeout`), or a delivery tag that is not known.

    Do: the text says which. For arguments: `redrive topology plan APP`, then `redrive topology migrate` for a queue.
    For `consumer_timeout`: `redrive doctor` says what to set.
    """


class ConnectionClosed(BrokerError):
    """The broker closed the whole connection.

    Why: an operator closed it, the broker shuts down (320), or it objects to something that concerns the whole
    connection.

    Do: workers connect again by themselves. If it happens again and again, the text and the broker's log say why.
    """


class AuthenticationFailed(ConnectionClosed):
    """The broker did not accept the credentials, or this user may not enter the virtual host.

    Whose: yours: of the URL or of the user's rights.

    Why: a wrong name or password, `guest` from another machine than the broker's own, a virtual host that does not
    exist or in which the user has no permission.

    Do: check the URL (REDRIVE_BROKER), and `rabbitmqctl list_permissions -p VHOST`. Characters like `@` in a password
    must be percent-encoded.
    """


_CHANNEL_ERRORS: dict[int, type[ChannelClosed]] = {
    ReplyCode.ACCESS_REFUSED: AccessRefused,
    ReplyCode.NOT_FOUND: NotFound,
    ReplyCode.RESOURCE_LOCKED: ResourceLocked,
    ReplyCode.PRECONDITION_FAILED: PreconditionFailed,
}


def channel_closed(code: int, text: str, method: tuple[int, int] = (0, 0)) -> ChannelClosed:
    """The exception for a `channel.close` from the broker, as precise as its reply code allows."""
    return _CHANNEL_ERRORS.get(code, ChannelClosed)(code, text, method)


class ConsumerCancelled(RedriveError):
    """The broker ended a consumer: its queue was deleted, moved to another node, or the consumer timed out.

    Whose: nobody's, or whoever deleted the queue.

    Do: workers consume again as soon as the queue is there. If an ack took longer than `consumer_timeout`, give the
    handler a `timeout=` below it.
    """


class ConnectionFailed(RedriveError):
    """No host could be reached. The message says what each of them answered.

    Whose: nobody's: the broker is down, or unreachable from here.

    Why: it is not started, the host name or port is wrong, a firewall is between, or TLS does not come about (the
    message says what each host answered).

    Do: `redrive ping --broker URL` tries it alone. Workers and the relay keep trying by themselves; commands end with
    code 7.
    """


class ConnectionLost(RedriveError):
    """The connection ended without a farewell: socket closed, reset, or silent for too long.

    Whose: nobody's.

    Why: the broker was killed, the network was cut, or nothing was heard for too long, not even a heartbeat.

    Do: nothing, most often: connections come back by themselves, and what was not settled comes again. A publish that
    was under way ends in `PublishUnknown`.
    """


class Closed(RedriveError):
    """The connection, publisher or consumer was closed by its owner before this call.

    Whose: yours: of the code that calls.

    Do: do not use it after `close()`, or outside of its `async with`; make another one.
    """


class PublishError(RedriveError):
    """A message that is not known to be safe with the broker.

    Whose: see its four kinds: each says where the message is, and whether publishing again can make a duplicate.

    Do: `except PublishError` catches all four. Do not go on as if the message were safe: publish it again, or put it
    into an outbox in the first place.
    """

    def __init__(self, exchange: str, routing_key: str, why: str) -> None:
        super().__init__(f"message to exchange {exchange!r} with key {routing_key!r}: {why}")
        self.exchange = exchange
        self.routing_key = routing_key
        self.why = why
        self.index: int | None = None  # position in the input of publish_many()


class Unroutable(PublishError):
    """No queue is bound to the exchange for this key: the broker stored the message nowhere.

    Whose: the topology's: no queue is bound for this key.

    Why: a binding is missing, the key is mistyped, or the consumer's queues were never made here.

    Do: `redrive topology plan APP` shows missing bindings. Publish again when there is one; it cannot be a duplicate.
    """


class PublishRefused(PublishError):
    """The broker said no: a full queue with reject-publish, a missing exchange, or an internal error.

    Whose: the broker's.

    Why: a queue is full and has `x-overflow: reject-publish`, the exchange does not exist, the message is larger than
    the broker takes, or the broker has trouble of its own.

    Do: fix the cause, then publish again. With a fan-out to several queues some may have it already: keep the same
    `message_id`.
    """


class PublishUnknown(PublishError):
    """The connection ended before the confirm. The message may be stored, or not.

    Whose: nobody's.

    Why: between sending and confirming there is always a moment in which only the broker knows.

    Do: publish it again with the same `message_id`. A duplicate is then possible and a loss is not; an inbox absorbs
    the duplicate.
    """


class NotPublished(PublishError):
    """The message never left this process: publishing it again cannot duplicate it.

    Whose: nobody's.

    Why: there was no connection, or the publisher was closed before the message could be written.

    Do: publish it again: it cannot become a duplicate.
    """


class PublishErrors(ExceptionGroup[PublishError], RedriveError):
    """Some messages of a pipeline failed, each with its own error and its `index` in the input.

    Whose: see each of them.

    Do: `except*` or `.exceptions`: each has its `index`, so that exactly those are published again. All others are
    confirmed.
    """

    def derive(self, excs: Sequence[PublishError]) -> PublishErrors:  # type: ignore[override]
        return PublishErrors(self.message, excs)
