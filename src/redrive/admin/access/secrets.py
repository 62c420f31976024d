"""Secrets that are made here: random, long, of letters and digits, and kept as their digests.

SHA-256 suffices for them: slow hashes are for passwords, which people choose and others guess.
"""

from __future__ import annotations

import hashlib
import secrets
import string

ALPHABET = string.digits + string.ascii_letters
LENGTH = 43  # of 62 characters: 256 bits


def new_secret(length: int = LENGTH) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


def is_secret(text: str, length: int = LENGTH) -> bool:
    """Does it look like one? What does not, nobody needs to look for."""
    return len(text) == length and text.isascii() and text.isalnum()


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
