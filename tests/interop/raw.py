"""A client of bytes: it can be as slow, silent or rude as a test wants, which no client library can."""

import socket
from pathlib import Path
from typing import Self

from redrive.testing.ports import LOOPBACK
from redrive.wire.frames import PROTOCOL_HEADER, content_frames, method_frame
from redrive.wire.method import Method
from redrive.wire.methods.channel import ChannelOpen
from redrive.wire.methods.connection import ConnectionOpen, ConnectionStartOk, ConnectionTuneOk

FRAME_MAX = 131_072
START_OK = method_frame(0, ConnectionStartOk(mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US"))


def tune_ok(heartbeat: int = 0, frame_max: int = FRAME_MAX) -> bytes:
    return method_frame(0, ConnectionTuneOk(channel_max=2047, frame_max=frame_max, heartbeat=heartbeat))


OPEN = method_frame(0, ConnectionOpen(virtual_host="/"))
_TUNE_AND_OPEN = tune_ok() + OPEN


class RawClient:
    def __init__(self, at: int | Path, *, within: float = 20, receives: int | None = None) -> None:
        """`at` is a port or a Unix socket.

        `receives`: how many bytes the kernel takes for us while we do not read; it decides when not told.
        """
        self.socket = socket.socket(socket.AF_UNIX if isinstance(at, Path) else socket.AF_INET)
        if receives is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        self.socket.settimeout(within)
        self.socket.connect(str(at) if isinstance(at, Path) else (LOOPBACK, at))
        if not isinstance(at, Path):
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_in(self) -> Self:
        """As far as connection.tune, which is for the client to answer."""
        for said in (PROTOCOL_HEADER, START_OK):
            self.ask(said)
        return self

    def open(self, channels: int = 1) -> Self:
        """A connection with channels 1, 2, …"""
        self.log_in().ask(_TUNE_AND_OPEN)
        for number in range(1, channels + 1):
            self.ask(method_frame(number, ChannelOpen()))
        return self

    def ask(self, data: bytes) -> bytes:
        """Say something that is answered."""
        self.socket.sendall(data)
        answer = self.socket.recv(65536)
        assert answer, "the broker closed the connection"
        return answer

    def call(self, method: Method, channel: int = 1) -> bytes:
        return self.ask(method_frame(channel, method))

    def tell(self, method: Method, channel: int = 1, *, body: bytes = b"") -> None:
        """Say something that is not."""
        content = content_frames(channel, b"\x00\x00", body, FRAME_MAX) if method.has_content else []
        self.socket.sendall(b"".join((method_frame(channel, method), *content)))

    def until_closed(self) -> bytes:
        """Everything the broker says until it closes the connection."""
        said = bytearray()
        try:
            while data := self.socket.recv(65536):
                said += data
        except ConnectionResetError:
            pass
        return bytes(said)

    def close(self) -> None:
        """Without a word."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
