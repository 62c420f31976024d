"""Run a command at a terminal of its own, as a person would, and write what it says to stdout.

    python terminal.py redrive worker shop:app

Signals are passed on, and the exit status is the command's.
"""

import fcntl
import os
import pty
import signal
import struct
import sys
import termios
from types import FrameType

_ROWS, _COLUMNS = 50, 200


def main() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(sys.argv[1], sys.argv[1:])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))

    def pass_on(number: int, _: FrameType | None) -> None:
        os.kill(pid, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    while said := _read(terminal):
        sys.stdout.buffer.write(said)
        sys.stdout.buffer.flush()
    _, status = os.waitpid(pid, 0)
    sys.exit(os.waitstatus_to_exitcode(status) % 256)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says EIO when the last process at a terminal has ended
        return b""


if __name__ == "__main__":
    main()
