"""What the broker refuses, in RabbitMQ's codes and words: clients match on them.

Whether a refusal ends the channel or the whole connection is a property of its code (AMQP 0-9-1, section 1.2).
"""

from __future__ import annotations

from redrive.errors import ReplyCode

_HARD = frozenset(
    {
        ReplyCode.CONNECTION_FORCED,
        ReplyCode.INVALID_PATH,
        ReplyCode.FRAME_ERROR,
        ReplyCode.SYNTAX_ERROR,
        ReplyCode.COMMAND_INVALID,
        ReplyCode.CHANNEL_ERROR,
        ReplyCode.UNEXPECTED_FRAME,
        ReplyCode.RESOURCE_ERROR,
        ReplyCode.NOT_ALLOWED,
        ReplyCode.NOT_IMPLEMENTED,
        ReplyCode.INTERNAL_ERROR,
    }
)


class AmqpError(Exception):
    """An operation that the broker does not perform. Not an error of the broker: an answer."""

    def __init__(self, code: ReplyCode, text: str) -> None:
        super().__init__(f"{code.name} - {text}")
        self.code = code

    @property
    def ends_connection(self) -> bool:
        return self.code in _HARD


def not_found(what: str, name: str, vhost: str) -> AmqpError:
    return AmqpError(ReplyCode.NOT_FOUND, f"no {what} '{name}' in vhost '{vhost}'")


def precondition(text: str) -> AmqpError:
    return AmqpError(ReplyCode.PRECONDITION_FAILED, text)


def access_refused(text: str) -> AmqpError:
    return AmqpError(ReplyCode.ACCESS_REFUSED, text)


def command_invalid(text: str) -> AmqpError:
    return AmqpError(ReplyCode.COMMAND_INVALID, text)


def not_implemented(text: str) -> AmqpError:
    return AmqpError(ReplyCode.NOT_IMPLEMENTED, text)
