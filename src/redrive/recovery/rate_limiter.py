"""At most so many messages a second, with short bursts: a token bucket that counts no tokens.

The bucket holds `burst` tokens and gains `per_second` of them each second; a message takes one. Instead of adding
fractions of tokens again and again, it remembers one moment: when the bucket will be full. A message moves that moment
one interval further into the future; it may pass as long as the moment is less than a whole bucket away. Nothing is
added up over time, so nothing drifts.

Who is told to wait has taken nothing, and passes when asking again after that time, unless somebody else was quicker.
So a wait can be given up at no price and a new rate holds at once. To be fair among several, let one ask at a time.
"""

from __future__ import annotations

from math import ceil, inf

from redrive.errors import ConfigurationError

# Without a word about bursts: what was missed by waking up late may be caught up with, this many seconds' worth.
_CATCH_UP = 0.1


class RateLimit:
    """`now` is the time of a clock that never goes back, in seconds: `loop.time()`."""

    __slots__ = ("_full_at", "_interval", "_room", "burst", "per_second")

    def __init__(self, per_second: float, burst: int | None = None) -> None:
        self._full_at = -inf
        self._set(per_second, burst)

    def take(self, now: float) -> float:
        """0.0: a message may pass, and was counted. Else the seconds after which to ask again; nothing was counted."""
        full_at = self._full_at
        if full_at <= now:
            self._full_at = now + self._interval
            return 0.0
        wait = full_at - self._room - now
        if wait > 0.0:
            return wait
        self._full_at = full_at + self._interval
        return 0.0

    def tokens(self, now: float) -> float:
        """How much is in the bucket: whole tokens are messages that may pass at once."""
        return self.burst - max(0.0, self._full_at - now) / self._interval

    def change(self, now: float, per_second: float, burst: int | None = None) -> None:
        """Another rate from now on. What is in the bucket stays, as far as it fits; a bigger one is not fuller."""
        tokens = self.tokens(now)
        self._set(per_second, burst)
        self._full_at = now + (self.burst - min(tokens, self.burst)) * self._interval

    def _set(self, per_second: float, burst: int | None) -> None:
        rate = _validate_rate(per_second)
        self.burst = max(1, ceil(rate * _CATCH_UP)) if burst is None else _validate_burst(burst)
        self.per_second = rate
        self._interval = 1 / self.per_second
        self._room = (self.burst - 1) * self._interval  # how far from full the bucket may be and still hold a token

    def __repr__(self) -> str:
        return f"<RateLimit {self.per_second:g}/s burst={self.burst}>"


def _validate_rate(value: float) -> float:
    # Below one message in thirty years the interval is no longer a number to reckon with.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-9 <= value <= 1e9:
        raise ConfigurationError(f"rate.per_second {value!r}: want a number above 0, of messages in a second")
    return float(value)


def _validate_burst(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"rate.burst {value!r}: want a number from 1")
    return value
