"""What may stand in a line of a log.

A line says what others wrote: error texts, routing keys, message ids. So it is escaped, because a line break forges the
next line, an escape sequence takes over the terminal of whoever reads it, and a direction mark shows another text than
is there. It is masked, because error texts quote URLs with passwords in them. And it is bounded.
"""

from __future__ import annotations

import re

MOST = 2_000  # characters of one value
MOST_STACK = 16_000

# Controls, direction marks, separators of lines and paragraphs, and halves of characters, which cannot be encoded.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

_IN_URL = re.compile(r"""(://[^\s/:@"']*:)[^\s/"']*@""")  # amqp://user:SECRET@host
_NAMED = re.compile(
    r"""
    ( (?: password | passwd | pwd | secret | token | api[_-]?key | authorization )
      ["']? \s? [=:] \s? ["']? (?: (?: bearer | basic ) \s )? ) [^\s"',;&]+     # access_token=SECRET
    """,
    re.VERBOSE | re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer\s)[\w.~+/=-]{8,}", re.IGNORECASE)  # Bearer SECRET
_NAMES = ("passw", "pwd", "secret", "token", "api", "authorization")


def escaped(text: str) -> str:
    """One line, in which nothing acts: what would is written as Python writes it, `\\n` or `\\x1b`."""
    return text if text.isascii() and text.isprintable() else UNSAFE.sub(_visible, text)


def masked(text: str) -> str:
    """The text without the passwords and tokens that are easily recognised."""
    if "://" in text:
        text = _IN_URL.sub(r"\1***@", text)
    lower = text.lower()
    for name in _NAMES:
        if name in lower:
            text = _NAMED.sub(r"\1***", text)
            break
    return _BEARER.sub(r"\1***", text) if "bearer" in lower else text


def bounded(text: str, most: int = MOST) -> str:
    """At most that many characters. What is too long is cut in the middle: both ends of an error text matter."""
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def told(text: str, most: int = MOST) -> str:
    """Masked and bounded: masked first, or a cut could hide from the mask what a secret is."""
    return bounded(masked(text), most)


def _visible(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
