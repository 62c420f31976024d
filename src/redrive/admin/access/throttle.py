"""Who guesses waits: each address by its own failures, and all of them together by a ceiling.

Five failures are free, for people who paste the wrong thing. From then on each failure doubles the wait, up to five
minutes, and a quarter of an hour without one forgets them. Against guessing from many addresses there is a ceiling on
the failures of all. At the ceiling every failure waits until some of them are forgotten, seconds rather than minutes.

Only failures are throttled. The gate verifies first, so an attacker locks out neither the users of the same address nor
those of others. Keys have 256 random bits and are not found by guessing. The throttle spares the database, and keeps
the noise out of the audit.

Addresses are IPv4 ones, and networks of IPv6 (/64: what one customer gets, with 2^64 addresses to change between). What
is remembered is bounded: the address that was silent for the longest is forgotten first. Time is an argument, in
seconds of a clock that only grows.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

FREE = 5  # failures of an address
LONGEST = 300.0  # seconds
FORGET = 900.0  # seconds after the last failure
CEILING = 100  # failures of all
PER_SECOND = CEILING / 60  # so many of them are forgotten
MOST = 10_000  # addresses
_LONGEST_NAME = 64


@dataclass(slots=True)
class _Record:
    failures: int = 0
    failed_at: float = 0.0


class Throttle:
    def __init__(self) -> None:
        self._records: OrderedDict[str, _Record] = OrderedDict()
        self._level = 0.0  # failures of all that are not forgotten
        self._level_at = 0.0

    def wait(self, address: str, now: float) -> float:
        """Return the seconds until the next failure is answered as one; 0: now."""
        record = self._records.get(place_of(address), _Record())
        return max(_own_wait(record, now), self._common_wait(now))

    def record_failure(self, address: str, now: float) -> None:
        record = self._touch(address)
        record.failures = 1 if _is_forgotten(record, now) else record.failures + 1
        record.failed_at = now
        self._level, self._level_at = min(CEILING, self._level_now(now) + 1), now

    def _common_wait(self, now: float) -> float:
        return max(0.0, (self._level_now(now) - (CEILING - 1)) / PER_SECOND)

    def _level_now(self, now: float) -> float:
        return max(0.0, self._level - (now - self._level_at) * PER_SECOND)

    def _touch(self, address: str) -> _Record:
        place = place_of(address)
        record = self._records.setdefault(place, _Record())
        self._records.move_to_end(place)
        while len(self._records) > MOST:
            self._records.popitem(last=False)
        return record

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"<Throttle addresses={len(self)} failures={self._level:.0f}/{CEILING}>"


def place_of(address: str) -> str:
    """Whose failures are counted as one. What is no address (a Unix socket's name) stands for itself."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:_LONGEST_NAME]
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Address(int(found) >> 64 << 64))


def _own_wait(record: _Record, now: float) -> float:
    if record.failures < FREE or _is_forgotten(record, now):
        return 0.0
    pause = min(LONGEST, 2.0 ** min(record.failures - FREE, 30))
    return max(0.0, record.failed_at + pause - now)


def _is_forgotten(record: _Record, now: float) -> bool:
    return now - record.failed_at >= FORGET
