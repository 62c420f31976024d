"""What became of every order, number by number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from chaos.work import ATTEMPTS, Fate, fate_of


@dataclass
class Books:
    """What was written down, and what was found in the queues at the end."""

    confirmed: set[int] = field(default_factory=set)
    done: Counter[int] = field(default_factory=Counter)
    attempts: Counter[int] = field(default_factory=Counter)  # the highest that failed, by number
    parked: Counter[int] = field(default_factory=Counter)
    left: Counter[int] = field(default_factory=Counter)  # in a queue where it should not be any more

    def read_confirmed(self, lines: Iterable[bytes]) -> None:
        self.confirmed.update(map(int, lines))

    def read_effects(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            number, attempt, outcome = line.split()
            if outcome == b"done":
                self.done[int(number)] += 1
            else:
                self.attempts[int(number)] = max(self.attempts[int(number)], int(attempt))

    def open(self) -> set[int]:
        """Confirmed, to be done, and not done yet."""
        return {number for number in self.confirmed - self.done.keys() if fate_of(number) is not Fate.HOPELESS}

    def hopeless(self) -> set[int]:
        return {number for number in self.confirmed if fate_of(number) is Fate.HOPELESS}


@dataclass(frozen=True)
class Account:
    confirmed: int
    lost: Collection[int]
    stuck: Collection[int]
    doubled: int  # effects beyond the first of each order
    parked: int
    parked_wrongly: Collection[int]  # they could have been handled
    beyond_limit: Collection[int]  # tried more often than they may be

    @property
    def sound(self) -> bool:
        return not (self.lost or self.stuck or self.parked_wrongly or self.beyond_limit)


def settle(books: Books) -> Account:
    there = books.done.keys() | books.parked.keys()
    missing = books.confirmed - there
    return Account(
        confirmed=len(books.confirmed),
        lost=sorted(missing - books.left.keys()),
        stuck=sorted(missing & books.left.keys()),
        doubled=books.done.total() - len(books.done),
        parked=len(books.parked),
        parked_wrongly=sorted(n for n in books.parked.keys() - books.done.keys() if fate_of(n) is not Fate.HOPELESS),
        beyond_limit=sorted(number for number, attempt in books.attempts.items() if attempt > ATTEMPTS),
    )
