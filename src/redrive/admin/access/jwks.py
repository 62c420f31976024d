"""The public keys that tokens are checked with: a JWK Set (RFC 7517) in a file, or at a URL.

A file is read again when it has changed. A URL is asked again when the keys are ten minutes old, so that a key which
its owner has withdrawn does not live on here, and when a token names a key that is not known, as happens when the
owner has just begun to use a new one. Anybody can make up such a token, so that is done once a minute at most. Of many
who want that at the same moment one asks, and the others wait for the answer.

If it fails, or what comes is no JWK Set, the keys of before stay.
"""

from __future__ import annotations

import asyncio
import http.client
import ssl
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Generic, Protocol, TypeVar
from urllib.parse import SplitResult, urlsplit

from redrive.errors import ConfigurationError
from redrive.worker.clock import Clock

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

LARGEST = 512 * 1024  # bytes
OLD = 600.0  # seconds, after which a URL is asked again
PAUSE = 60.0  # seconds between two questions to a URL
FIRST_PAUSE = 5.0  # the same, as long as there are no keys at all
TIMEOUT = 5.0  # seconds for each step of an answer
PATIENCE = 15.0  # seconds for the whole of it


class KeysUnavailable(Exception):
    """There are no keys, and they are not to be had now."""


class KeySource(Protocol[T_co]):
    """`keys` are what the parser made of the set."""

    async def keys(self) -> T_co:
        """As they are known."""

    async def newer(self) -> T_co:
        """For who did not find a key among them: asked again, if it is time."""


Parser = Callable[[bytes], T]


def key_source(place: str, parse: Parser[T], clock: Clock) -> KeySource[T]:
    """`parse` raises ValueError if it is no JWK Set, or has no key that can be used."""
    return KeysAtURL(place, parse, clock) if is_url(place) else KeysInFile(Path(place), parse)


def is_url(place: str) -> bool:
    return "://" in place


def check_place(place: str) -> None:
    """https, or a file; http only where nobody can stand between."""
    if not place or not is_url(place):
        if not place:
            raise ConfigurationError("JWKS: want a file or an https:// URL")
        return
    try:
        parts = urlsplit(place)
        _ = parts.port
    except ValueError as error:
        raise ConfigurationError(f"JWKS: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError("JWKS: want a file or an https:// URL")
    if "@" in parts.netloc:
        raise ConfigurationError("JWKS: a URL with a password in it is not asked; public keys need none")
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise ConfigurationError(
            f"JWKS: http://{parts.hostname} can be answered by anybody on the way, with keys of their own: use https"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class KeysInFile(Generic[T]):
    def __init__(self, path: Path, parse: Parser[T]) -> None:
        self._path = path
        self._parse = parse
        self._mark: tuple[int, ...] = ()
        try:
            self._keys = self._read()
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"JWKS {path}: {error}") from None

    async def keys(self) -> T:
        return await asyncio.to_thread(self._current_keys)

    async def newer(self) -> T:
        return await self.keys()

    def _current_keys(self) -> T:
        try:
            if self._look() != self._mark:
                self._keys = self._read()
        except (OSError, ValueError):
            pass
        return self._keys

    def _read(self) -> T:
        self._mark = self._look()  # before reading: who writes meanwhile changes it once more
        with self._path.open("rb") as file:
            return self._parse(_require_small(file.read(LARGEST + 1)))

    def _look(self) -> tuple[int, ...]:
        found = self._path.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino

    def __repr__(self) -> str:
        return f"<KeysInFile {self._path}>"


class KeysAtURL(Generic[T]):
    def __init__(self, url: str, parse: Parser[T], clock: Clock) -> None:
        check_place(url)
        self._url = urlsplit(url)
        self._parse = parse
        self._clock = clock
        self._keys: T | None = None
        self._got_at = self._asked_at = float("-inf")
        self._asking = asyncio.Lock()
        self._problem = "nobody asked yet"

    async def keys(self) -> T:
        """While somebody asks, the old ones do."""
        is_old = self._clock.monotonic() - self._got_at >= OLD
        if self._keys is None or (is_old and not self._asking.locked()):
            await self._ask()
        return self._known_keys()

    async def newer(self) -> T:
        await self._ask()
        return self._known_keys()

    def _known_keys(self) -> T:
        if self._keys is None:
            raise KeysUnavailable(f"{self}: {self._problem}")
        return self._keys

    async def _ask(self) -> None:
        async with self._asking:
            now = self._clock.monotonic()
            if now - self._asked_at < (FIRST_PAUSE if self._keys is None else PAUSE):
                return
            self._asked_at = now
            try:
                async with asyncio.timeout(PATIENCE):
                    answer = await asyncio.to_thread(_get, self._url)
                self._keys, self._got_at, self._problem = self._parse(answer), now, ""
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._problem = str(error) or type(error).__name__

    def __str__(self) -> str:
        return f"{self._url.scheme}://{self._url.netloc}{self._url.path}"

    def __repr__(self) -> str:
        return f"<KeysAtURL {self} {self._problem or 'known'}>"


def _get(url: SplitResult) -> bytes:
    """Nobody is followed elsewhere: a redirect could lead to where check_place would not go."""
    connection = _connection(url)
    try:
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.request("GET", path, headers={"Accept": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"it answered {response.status}")
        return _require_small(response.read(LARGEST + 1))
    finally:
        connection.close()


def _connection(url: SplitResult) -> http.client.HTTPConnection:
    host = url.hostname or ""
    if url.scheme == "https":
        return http.client.HTTPSConnection(host, url.port, timeout=TIMEOUT, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, url.port, timeout=TIMEOUT)


def _require_small(data: bytes) -> bytes:
    if len(data) > LARGEST:
        raise ValueError(f"a JWK Set of more than {LARGEST} bytes")
    return data
