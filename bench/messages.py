"""The job of the scenarios that move messages: what to move, where, and how much of it at a time.

The message is a JSON object whose encoding is exactly as long as the case says. Contenders encode it for every
publish and decode it in every handler, because programs do; all with msgspec, so that no library is charged for a
slower codec than another's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from bench.contract import Case

CASES = (Case("256 B", 256), Case("4 KiB", 4096))

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


class MessageJob(msgspec.Struct, frozen=True):
    url: str
    queue: str
    size: int
    count: int
    window: int  # how many may be unconfirmed, where the library can pipeline from one place
    publishers: int  # how many tasks publish, where the library confirms to the task that published
    prefetch: int
    handlers: int  # how many handlers run at a time, where the library lets one say

    def document(self) -> dict[str, Any]:
        return document(self.size)


def document(size: int) -> dict[str, Any]:
    """An order, with as many lines as fit, and a note that fills the rest."""
    order: dict[str, Any] = {"id": 4711, "customer": "c-20871", "paid": True, "total": 129.95, "lines": [], "note": ""}
    line = {"sku": "AB-1029", "quantity": 2, "price": 17.25, "gift": False}
    while len(encode(order)) + len(encode(line)) + 1 <= size:
        order["lines"].append(line)
    order["note"] = "x" * (size - len(encode(order)))
    return order


def codec_remark(verb: str, work: Callable[[Any], object], argument: Callable[[int], object]) -> str:
    """What the JSON alone costs every contender in Python: part of its CPU per message, and no library's fault."""
    costs = (f"{_microseconds(work, argument(case.size)):.1f} µs for {case.name}" for case in CASES)
    return f"of the CPU per message, {verb} the JSON alone takes at least {', '.join(costs)}"


def _microseconds(work: Callable[[Any], object], argument: object, *, times: int = 200, tries: int = 20) -> float:
    """The least of several tries: whatever disturbs one only adds to it."""
    return min(_cpu_of(work, argument, times) for _ in range(tries)) / times * 1e6


def _cpu_of(work: Callable[[Any], object], argument: object, times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        work(argument)
    return time.process_time() - began
