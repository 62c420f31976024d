"""Have a function run at a terminal of its own, as a person would see it, and write what it says to stdout.

Signals are passed on, and the exit status is the function's.
"""

import fcntl
import os
import pty
import signal
import struct
import sys
import termios
from collections.abc import Callable
from types import FrameType

_ROWS, _COLUMNS = 50, 200


def at_terminal(run: Callable[[], None]) -> None:
    """Gives control to the function in a child, and ends as that does."""
    pid, terminal = pty.fork()
    if pid == 0:
        run()
        return
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))

    def pass_on(number: int, _: FrameType | None) -> None:
        os.kill(pid, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    while said := _read(terminal):
        os.write(1, said)
    _, status = os.waitpid(pid, 0)
    sys.exit(os.waitstatus_to_exitcode(status) % 256)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says EIO when the last process at a terminal has ended
        return b""
