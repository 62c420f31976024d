"""Text that other people wrote, made safe to print, log and store; and the phrases that many messages share.

Error texts, routing keys, message ids and bodies are hostile: a line break forges the next log line, an escape sequence
takes over a terminal, a direction mark shows another text than is there, an error text quotes a URL with its password,
and none of them has a limit. The functions differ in what must survive:

    printable          for a screen: every character visible, or an escape; line breaks and tabs stay
    escape_line        the same in one line, line breaks as escapes: for log lines
    one_line           the same in one line, line breaks as spaces, and with a limit: for tables and headings
    printable_json     the same for a JSON document: the escapes are JSON's, so it means what it meant
    truncate           for headers: what can be stored and encoded, in at most N characters
    elide_middle       at most N characters, both ends kept
    elide_lines        at most N bytes, whole lines of both ends kept: for stack traces
    mask               without the passwords and tokens that are easily recognised
    loggable           masked, then elided
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from unicodedata import category

MOST_LOGGED = 2_000  # characters of one value

_BREAKS = {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}
_UNPRINTABLE = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}  # NULs, which PostgreSQL refuses, and escape sequences, which terminals obey
_UNCOMMON = re.compile(r"[^ -~]")

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


# Characters ---------------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """Return the text with every character visible, or as an escape. Line breaks and tabs stay."""
    return text if text.isprintable() else "".join(map(_visible, text))


def escape_line(text: str) -> str:
    """Return the text as one printable line: line breaks and tabs become `\\n`, `\\r` and `\\t`."""
    return text if text.isprintable() else printable(text.translate(_BREAKS))


def one_line(text: str | None, most: int | None = None) -> str:
    """Return the text as one printable line of at most `most` characters: line breaks become spaces."""
    shown = printable((text or "").replace("\n", " "))
    return shown if most is None or len(shown) <= most else shown[: most - 1] + "…"


def printable_json(document: str) -> str:
    """Return a JSON document in which unprintable characters, which only its strings can hold, are JSON escapes."""
    return document if document.isprintable() else _UNCOMMON.sub(_json_escape, document)


def _visible(char: str) -> str:
    if char.isprintable() or char in "\n\t" or category(char) == "Zs":
        return char
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _json_escape(found: re.Match[str]) -> str:
    char = found[0]
    if char.isprintable():
        return char
    pair = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{pair[at : at + 2].hex()}" for at in range(0, len(pair), 2))


# Length -------------------------------------------------------------------------------------------------


def truncate(text: str, most: int) -> str:
    """Return at most `most` characters, all of which can be stored and encoded. It is idempotent."""
    if type(text) is str and len(text) <= most and text.isprintable():
        return text
    short = str.__getitem__(text, slice(most + 1))  # of the plain type, whatever a subclass makes of slices
    short = short.translate(_UNPRINTABLE).encode("utf-8", "backslashreplace").decode()
    return short if len(short) <= most else short[: most - 1] + "…"


def elide_middle(text: str, most: int) -> str:
    """Return at most `most` characters. A longer text loses its middle: both ends of an error text matter."""
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def elide_lines(text: str, most: int) -> str:
    """Return at most `most` bytes of UTF-8: both ends, at whole lines if there are any, and how much is missing.

    Return nothing if there is no room for more than the line that reports it.
    """
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) <= most:
        return text
    room = most - len(_marker(len(raw))) - 1
    if room <= 0:
        return ""
    head, tail = _head(raw[: room // 3]), _tail(raw[-(room - room // 3) :])
    cut = len(raw) - len(head.encode()) - len(tail.encode())
    return head + ("" if head.endswith("\n") else "\n") + _marker(cut) + tail


def _marker(cut: int) -> str:
    return f"  ... {cut} bytes cut ...\n"


def _head(raw: bytes) -> str:
    return raw[: raw.rfind(b"\n") + 1 or None].decode("utf-8", "ignore")


def _tail(raw: bytes) -> str:
    return raw[raw.find(b"\n", 0, -1) + 1 :].decode("utf-8", "ignore")


# Secrets ------------------------------------------------------------------------------------------------


def mask(text: str) -> str:
    """Return the text without the passwords and tokens that are easily recognised."""
    if "://" in text:
        text = _IN_URL.sub(r"\1***@", text)
    lower = text.lower()
    if any(name in lower for name in _NAMES):
        text = _NAMED.sub(r"\1***", text)
    return _BEARER.sub(r"\1***", text) if "bearer" in lower else text


def loggable(text: str, most: int = MOST_LOGGED) -> str:
    """Return the text masked, then elided: the other order could cut a secret so that it is not recognised."""
    return elide_middle(mask(text), most)


# Phrases ------------------------------------------------------------------------------------------------


def group_digits(number: int, separator: str = " ") -> str:
    """Return a number with its digits in groups of three: "12 000"."""
    return f"{number:,}".replace(",", separator)


def pluralise(count: int, noun: str, plural: str = "", *, shown: Callable[[int], str] = str) -> str:
    """Return "1 queue" or "3 queues"."""
    return f"{shown(count)} {noun if count == 1 else plural or noun + 's'}"


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that is most similar to this one, or None if none is similar."""
    return next(iter(get_close_matches(name, list(known), 1, cutoff)), None)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", *, shown: Callable[[str], str] = str) -> str:
    """Return ", did you mean X?" for the end of an error message; `otherwise` if no known name is similar."""
    close = closest(name, known)
    return f", did you mean {shown(close)}?" if close is not None else otherwise
