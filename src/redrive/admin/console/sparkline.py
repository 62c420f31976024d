"""A line of depths: how a queue has fared. For those who cannot see it, the same in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from redrive.admin.console.formatting import number
from redrive.recovery.durations import format_roughly

WIDTH, HEIGHT = 120, 28
_MARGIN = 2


@dataclass(frozen=True, slots=True)
class Sparkline:
    line: str  # the points of a polyline
    end: tuple[float, float]
    change: int
    said: str


def trend_of(depths: Sequence[int], every: timedelta) -> Sparkline | None:
    """None: there is too little to draw."""
    if len(depths) < 2:
        return None
    low, high = min(depths), max(depths)
    span = (high - low) or 1
    across, down = WIDTH - 2 * _MARGIN, HEIGHT - 2 * _MARGIN
    points = [
        (
            round(_MARGIN + across * place / (len(depths) - 1), 1),
            round(_MARGIN + down * (1 - (depth - low) / span), 1) if high > low else HEIGHT / 2,
        )
        for place, depth in enumerate(depths)
    ]
    change = depths[-1] - depths[0]
    line = " ".join(f"{x:g},{y:g}" for x, y in points)
    return Sparkline(line, points[-1], change, _description(depths, change, every * (len(depths) - 1)))


def _description(depths: Sequence[int], change: int, span: timedelta) -> str:
    over = f"over the last {format_roughly(span)}"
    if min(depths) == max(depths):
        return f"{number(depths[-1])}, unchanged {over}"
    sign = "+" if change > 0 else "−" if change < 0 else "±"
    return (
        f"from {number(depths[0])} to {number(depths[-1])} ({sign}{number(abs(change))}) {over}; "
        f"at least {number(min(depths))}, at most {number(max(depths))}"
    )
