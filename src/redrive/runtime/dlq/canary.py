"""How many to move next, and when enough has come back to stop.

    steps 1, 5, 20, 100, and then everything else

After each step the moved messages get time to fail again. What fails comes back to the dead-letter queue with the id of
the operation in its headers, and is counted there; what did not come back in that time has been settled, or is still
being tried. The share is reckoned over everything that was moved so far, so that a single failure in the first step of
one stops the operation, and a single one in the hundredth message does not.
"""

from __future__ import annotations

from collections.abc import Iterator

from redrive.runtime.dlq.operation import Ramp


def steps(ramp: Ramp | None, moved: int = 0) -> Iterator[tuple[int, int | None]]:
    """Number and size of each step; None: everything else. Whoever has `moved` some already goes on from there."""
    number = 0
    for number, size in enumerate(ramp.steps if ramp is not None else (), 1):
        if moved >= size:
            moved -= size
            continue
        yield number, size - moved
        moved = 0
    yield number + 1, None


def how_many(ramp: Ramp | None) -> int:
    return len(ramp.steps) + 1 if ramp is not None else 1


def too_many(ramp: Ramp, moved: int, returned: int) -> bool:
    return moved > 0 and returned * 100 > ramp.returned_pct * moved
