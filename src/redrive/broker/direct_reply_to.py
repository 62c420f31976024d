"""Direct reply-to: an answer that goes straight to the channel that asked, through no queue of anybody's making.

    consume amq.rabbitmq.reply-to (no ack)          once per channel
    publish with reply_to amq.rabbitmq.reply-to     on that channel; arrives as amq.rabbitmq.reply-to.<secret>
    publish the answer to that name                 from anywhere, through the default exchange

Behind the name there is an ordinary queue that lives as long as its one consumer.
"""

from __future__ import annotations

import secrets

from redrive.wire.patch import check_properties
from redrive.wire.values import encode_short_string

REPLY_TO = "amq.rabbitmq.reply-to"
ENCODED_REPLY_TO = encode_short_string(REPLY_TO)

# In the first octet of the property flags, what comes before reply_to.
_TEXTS, _TABLE, _OCTETS, _CORRELATION_ID, _REPLY_TO = (0x80, 0x40), 0x20, (0x10, 0x08), 0x04, 0x02


def new_reply_name() -> str:
    """Who does not know it cannot answer."""
    return f"{REPLY_TO}.{secrets.token_urlsafe(24)}"


def asks_for_direct_reply(raw: bytes) -> bool:
    """Do these properties ask for a direct reply?"""
    if ENCODED_REPLY_TO not in raw:
        return False
    check_properties(raw)
    return raw[0] & _REPLY_TO == _REPLY_TO and raw.startswith(ENCODED_REPLY_TO, _where(raw))


def with_reply_name(raw: bytes, name: str) -> bytes:
    """The same properties, byte for byte, with the name to answer to."""
    at = _where(raw)
    return raw[:at] + encode_short_string(name) + raw[at + len(ENCODED_REPLY_TO) :]


def _where(raw: bytes) -> int:
    flags, pos = raw[0], 2
    for text in _TEXTS:
        if flags & text:
            pos += 1 + raw[pos]
    if flags & _TABLE:
        pos += 4 + int.from_bytes(raw[pos : pos + 4], "big")
    pos += sum(flags & octet == octet for octet in _OCTETS)
    return pos + 1 + raw[pos] if flags & _CORRELATION_ID else pos
