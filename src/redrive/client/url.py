"""Where the broker is and how to speak to it, from an `amqp://` or `amqps://` URL.

    amqps://user:p%40ss@rabbit-1,rabbit-2:5673/orders?heartbeat=10&cacertfile=/etc/ssl/ca.pem

The query parameters are those of RabbitMQ's URI specification; several hosts share one URL, separated by
commas. A password is never part of a `repr` or of an error: where it may have slipped into another part of the
URL (a bare slash in it, a forgotten host), that part is not quoted either.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from redrive.errors import InvalidURL
from redrive.protocol.handshake import Credentials, ExternalAuth, PlainAuth, Tuning
from redrive.text import did_you_mean

DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671}
DEFAULT_HEARTBEAT = 20  # RabbitMQ advises 5 to 20 seconds: a dead peer is noticed within twice this
SMALLEST_FRAME_MAX = 8192  # AMQP allows 4096; RabbitMQ 4.3 ends the connection without a word
DEFAULT_TIMEOUT = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True)
class TLS:
    """How the broker proves itself, and how the client does. Verified unless told otherwise."""

    cacertfile: str | None = None  # the authorities that may sign the broker's certificate (PEM); without, the system's
    certfile: str | None = None  # the client's certificate (PEM)
    keyfile: str | None = None  # its key
    verify: bool = True  # is the broker's certificate checked?
    server_name: str | None = None  # the name that the certificate must have, if not the host's

    def context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.cacertfile)
            if not self.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.certfile is not None:
                context.load_cert_chain(self.certfile, self.keyfile)
        except (OSError, ssl.SSLError) as error:
            raise InvalidURL(f"TLS files of the broker URL cannot be used: {error}") from error
        return context


@dataclass(frozen=True, slots=True)
class BrokerURL:
    """Where a broker is and how to connect to it: hosts, credentials, virtual host, TLS."""

    hosts: tuple[Host, ...]
    credentials: Credentials
    virtual_host: str = "/"
    tls: TLS | None = None
    tuning: Tuning = field(default_factory=lambda: Tuning(heartbeat=DEFAULT_HEARTBEAT))
    connection_timeout: timedelta = DEFAULT_TIMEOUT

    @classmethod
    def parse(cls, url: str) -> BrokerURL:
        """Read `amqp://user:password@host:port/vhost?option=value`, or `amqps://` for TLS."""
        return _parse(url)

    def __str__(self) -> str:
        """The URL as it may be logged: without the password."""
        scheme = "amqp" if self.tls is None else "amqps"
        user = f"{self.credentials.username}@" if isinstance(self.credentials, PlainAuth) else ""
        vhost = "" if self.virtual_host == "/" else self.virtual_host
        return f"{scheme}://{user}{','.join(map(str, self.hosts))}/{vhost}"


# Not `urlsplit`: it refuses a list of hosts with an IPv6 address among them, and a bracket within a password.
_SCHEME = re.compile("amqps?://", re.IGNORECASE)
_SHAPE = re.compile(r"(amqps?)://(?:([^/?#]*)@)?([^/?#@]*)(?:/([^?#@]*))?(?:\?([^#@]*))?", re.IGNORECASE)
_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]*))(?::([0-9]*))?")


def _parse(url: str) -> BrokerURL:
    if not _SCHEME.match(url):
        raise InvalidURL("a broker URL must begin with amqp:// or amqps://")
    if (shape := _SHAPE.fullmatch(url)) is None:
        text = "an @ or # where a broker URL has none"
        raise InvalidURL(f"{text}: within a name or password write / as %2F, ? as %3F, # as %23 and @ as %40")
    scheme, userinfo, netloc, path, query = shape.groups(default="")
    secure = scheme.lower() == "amqps"
    hosts = _hosts(netloc, DEFAULT_PORTS[scheme.lower()])
    options = _Options(query, secure=secure)
    return BrokerURL(
        hosts=hosts,
        credentials=_credentials(userinfo, options),
        virtual_host=_virtual_host(path),
        tls=options.tls() if secure else None,
        tuning=options.tuning(),
        connection_timeout=timedelta(milliseconds=options.number("connection_timeout", 1, 3_600_000)),
    )


def _hosts(netloc: str, default_port: int) -> tuple[Host, ...]:
    """An empty host is localhost, as in RabbitMQ's specification, but only if it is the only one."""
    hosts = [_host(text, default_port) for text in netloc.split(",")]
    if len(hosts) > 1 and any(not host.name for host in hosts):
        raise InvalidURL("a comma too many between the hosts of a broker URL")
    return tuple(Host(host.name or "localhost", host.port) for host in hosts)


def _host(text: str, default_port: int) -> Host:
    """`name`, `name:port`, `[::1]` or `[::1]:port`."""
    match = _HOST.fullmatch(text)
    port = _within(match[3], 1, 65535) if match and match[3] else default_port
    if match is None or port is None:
        raise InvalidURL(
            "a host of a broker URL cannot be read: want a name, or an IPv6 address in [brackets], and after a colon "
            "a port from 1 to 65535"
        )
    return Host(unquote(match[1] or match[2]), port)


def _within(digits: str, low: int, high: int) -> int | None:
    """The number, if it is one and within the bounds."""
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 20:
        return None
    return int(digits) if low <= int(digits) <= high else None


def _credentials(userinfo: str, options: _Options) -> Credentials:
    if options.choice("auth_mechanism", ("plain", "external")) == "external":
        return ExternalAuth()
    username, _, password = userinfo.partition(":")
    return PlainAuth(unquote(username), unquote(password)) if userinfo else PlainAuth("guest", "guest")


def _virtual_host(name: str) -> str:
    """Nothing means the default virtual host; a slash within a name must be written %2F."""
    if "/" in name:
        raise InvalidURL(f"virtual host {name!r} in a broker URL: write a slash within the name as %2F")
    return unquote(name) or "/"


class Parameter(NamedTuple):
    default: str | None
    meaning: str
    for_tls: bool = False


PARAMETERS: Mapping[str, Parameter] = {
    "auth_mechanism": Parameter("plain", "`plain`: name and password. `external`: the client's certificate"),
    "channel_max": Parameter("2047", "how many channels at most, 1 to 65535"),
    "connection_timeout": Parameter("10000", "milliseconds for connecting to one host, to an hour"),
    "frame_max": Parameter("131072", f"bytes of a frame at most; {SMALLEST_FRAME_MAX} or more"),
    "heartbeat": Parameter(str(DEFAULT_HEARTBEAT), "seconds; a dead peer is noticed within twice this. 0: never"),
    "cacertfile": Parameter(None, "the authorities that may sign the broker's certificate (PEM)", for_tls=True),
    "certfile": Parameter(None, "the client's certificate (PEM)", for_tls=True),
    "keyfile": Parameter(None, "its key (PEM)", for_tls=True),
    "verify": Parameter("verify_peer", "`verify_none` does not check the broker's certificate", for_tls=True),
    "server_name_indication": Parameter(None, "the name in the certificate, if not the host's", for_tls=True),
}


class _Options:
    """The query parameters of a URL, each checked when it is asked for."""

    def __init__(self, query: str, *, secure: bool) -> None:
        self._given: dict[str, str] = {}
        for name, value in parse_qsl(query, keep_blank_values=True):
            self._check_name(name, secure)
            self._given[name] = value

    @staticmethod
    def _check_name(name: str, secure: bool) -> None:
        if name not in PARAMETERS:
            hint = did_you_mean(name, PARAMETERS, f", known are {', '.join(PARAMETERS)}")
            raise InvalidURL(f"unknown option {name!r} in a broker URL{hint}")
        if PARAMETERS[name].for_tls and not secure:
            raise InvalidURL(f"option {name!r} needs TLS: begin the broker URL with amqps://")

    def number(self, name: str, low: int, high: int) -> int:
        text = self._given.get(name, str(PARAMETERS[name].default))
        if (number := _within(text, low, high)) is None:
            raise InvalidURL(f"option {name}={text!r} in a broker URL: want a number from {low} to {high}")
        return number

    def choice(self, name: str, among: tuple[str, ...]) -> str:
        value = self._given.get(name, str(PARAMETERS[name].default)).lower()
        if value not in among:
            raise InvalidURL(f"option {name}={value!r} in a broker URL: want {' or '.join(among)}")
        return value

    def tuning(self) -> Tuning:
        return Tuning(
            channel_max=self.number("channel_max", 1, 65535),
            frame_max=self.number("frame_max", SMALLEST_FRAME_MAX, (1 << 31) - 1),
            heartbeat=self.number("heartbeat", 0, 65535),
        )

    def tls(self) -> TLS:
        return TLS(
            cacertfile=self._given.get("cacertfile"),
            certfile=self._given.get("certfile"),
            keyfile=self._given.get("keyfile"),
            verify=self.choice("verify", ("verify_peer", "verify_none")) == "verify_peer",
            server_name=self._given.get("server_name_indication"),
        )
