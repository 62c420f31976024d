"""Silence, as deadlines (section 4.2.7).

A peer that hears nothing for two intervals is entitled to give up. So something is sent at the latest half
an interval after the last byte, and the peer is given up when two intervals passed without a byte from it:
any traffic counts, not only heartbeat frames. An interval of zero switches both off.
"""

from __future__ import annotations

from enum import Enum, auto


class HeartbeatAction(Enum):
    FINE = auto()
    SEND = auto()  # it is our turn to say something
    LOST = auto()  # the peer has been silent for too long


class Heartbeat:
    def __init__(self, interval: float, now: float) -> None:
        self.interval = interval
        self.last_sent = now
        self.last_received = now

    def deadline(self) -> float | None:
        """When to ask for the pulse next, or None for never."""
        if not self.interval:
            return None
        return min(self.last_sent + self.interval / 2, self.last_received + self.interval * 2)

    def pulse(self, now: float) -> HeartbeatAction:
        if not self.interval:
            return HeartbeatAction.FINE
        if now - self.last_received >= self.interval * 2:
            return HeartbeatAction.LOST
        if now - self.last_sent >= self.interval / 2:
            return HeartbeatAction.SEND
        return HeartbeatAction.FINE

    def __repr__(self) -> str:
        return f"<Heartbeat every {self.interval} s sent={self.last_sent:.3f} received={self.last_received:.3f}>"
