"""Direct reply-to: an answer goes straight to the channel that asked, without a queue.

    consume amq.rabbitmq.reply-to (no ack)          once per channel
    publish with reply_to amq.rabbitmq.reply-to     on that channel; arrives as amq.rabbitmq.reply-to.<secret>
    publish the answer to that name                 from anywhere, through the default exchange

Behind the name there is an ordinary queue that lives as long as its one consumer.
"""

from __future__ import annotations

import secrets

from redrive.wire.raw_properties import check_properties, read_text, with_property
from redrive.wire.values import encode_short_string

REPLY_TO = "amq.rabbitmq.reply-to"
ENCODED_REPLY_TO = encode_short_string(REPLY_TO)


def new_reply_name() -> str:
    """Return a secret name: only a client that knows it can answer."""
    return f"{REPLY_TO}.{secrets.token_urlsafe(24)}"


def asks_for_direct_reply(raw: bytes) -> bool:
    check_properties(raw)
    return read_text(raw, "reply_to") == REPLY_TO


def with_reply_name(raw: bytes, name: str) -> bytes:
    """Return the same properties, byte for byte, with the name to answer to."""
    return with_property(raw, "reply_to", encode_short_string(name))
