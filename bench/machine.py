"""What the figures were taken on: enough to judge them, nothing that names the machine."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path

import psutil


def describe() -> dict[str, str]:
    return {
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "processor": _processor(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "Python": platform.python_version(),
    }


def busy_seconds() -> float:
    """CPU time that all programs of the machine have used so far, all cores added up."""
    times = psutil.cpu_times()
    return float(times.user + times.system + getattr(times, "nice", 0) + getattr(times, "steal", 0))


def children_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
