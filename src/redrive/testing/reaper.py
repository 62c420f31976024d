"""The last witness: cleans up what a test run left behind, however the run ended.

This file is a program, run by `processes.py` as a child of its own. It reads lines from a pipe whose only writer is
the test run: `+123` (process 123 started), `-123` (it was waited for) and `/path` (a folder of the run's own). When the
run ends, be it by `exit`, by a crash or by `kill -9`, the kernel closes the pipe and the reader sees the end of the
file. Then every process still on the list is killed together with its process group, and the folders are deleted.

The kernel's own answer, PR_SET_PDEATHSIG, is tied to the *thread* that started the process, so a broker restarted from
`asyncio.to_thread` would die with the thread pool. A pipe knows only processes, and works beyond Linux.
"""

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterable


def left_behind(lines: Iterable[str]) -> tuple[set[int], set[str]]:
    """The processes announced and not taken back, and the folders, once the writer is gone."""
    processes: set[int] = set()
    folders: set[str] = set()
    for line in lines:
        match line[0]:
            case "+":
                processes.add(int(line[1:]))
            case "-":
                processes.discard(int(line[1:]))
            case "/":
                folders.add(line.rstrip("\n"))
    return processes, folders


def kill(pid: int) -> None:
    """Kill a process and its group (each server leads its own)."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)


if __name__ == "__main__":
    processes, folders = left_behind(sys.stdin)
    for process in processes:
        kill(process)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
