"""Ports for throwaway servers.

The usual trick, binding port 0 and closing it again, hands out a port from the range the kernel also uses for
*outgoing* connections. That is wrong for a server that is stopped and started again on the same port: while it is
down, any client on the machine may be given its port as a source port, and a client that keeps trying to reconnect
may even be connected to itself. So the ports come from below that range, chosen at random and tried by binding them.

Several test processes choose at once, and a server binds its port long after it was chosen for it. So a port is also
claimed, for as long as the process lives that chose it: by a lock on one byte of a file that they all know.
"""

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path

LOOPBACK = "127.0.0.1"

_LOWEST = 10_000
_USUAL_EPHEMERAL = 32_768
_TRIES = 1_000
_chance = random.SystemRandom()
_handed_out: set[int] = set()


def free_port() -> int:
    """A loopback port that nobody listens on, and that no process that lives was given before, this one included."""
    candidates = _candidates()
    for port in _chance.sample(candidates, k=min(len(candidates), _TRIES)):
        if port not in _handed_out and _claim(port) and _can_bind(port):
            _handed_out.add(port)
            return port
    raise OSError(f"no free loopback port among {_TRIES} tried")


def is_open(port: int) -> bool:
    """Does somebody accept connections on this loopback port?"""
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


def _candidates() -> range:
    try:
        ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        ephemeral = _USUAL_EPHEMERAL
    # A machine whose outgoing ports start very low leaves no room below them: then any port must do.
    return range(_LOWEST, ephemeral if ephemeral >= 2 * _LOWEST else _USUAL_EPHEMERAL)


def _claim(port: int) -> bool:
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@cache
def _claims() -> int:
    """The file, open until this process ends: the kernel gives its claims back then, however it ended."""
    path = Path(tempfile.gettempdir()) / f"redrive-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        # As the servers do: a port that only lingers in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
