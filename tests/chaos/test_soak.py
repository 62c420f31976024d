"""When the soak calls something flat, and what it tells of it."""

from __future__ import annotations

import msgspec
import pytest
from chaos.soak import Held, Soaked


def soaked(memory: list[int], files: list[int]) -> Soaked:
    return Soaked(
        broker="4.3",
        system="redrive_inbox",
        seed=1,
        minutes=30.0,
        messages=450_000,
        faults={"cut": 3, "kill-broker": 2},
        lost=0,
        stuck=0,
        doubled=0,
        parked_wrongly=0,
        worst_recovery=6.0,
        memory={"a worker": Held.of(memory)},
        files={"a worker": Held.of(files)},
    )


def test_what_it_held_while_it_warmed_up_does_not_count() -> None:
    assert Held.of([1, 50, 60, 55, 56, 57, 58, 70, 58, 57]) == Held(50, 70, 57)


@pytest.mark.parametrize(
    ("memory", "files", "flat"),
    [
        ([0] + [60_000_000] * 9, [0] + [20] * 9, True),
        ([0] + [60_000_000] * 8 + [65_000_000], [0] + [20] * 8 + [24], True),
        ([0] + [60_000_000] * 8 + [70_000_000], [0] + [20] * 9, False),
        ([0] + [60_000_000] * 9, [0] + [20] * 8 + [26], False),
    ],
)
def test_a_little_more_is_flat_and_growth_is_not(memory: list[int], files: list[int], flat: bool) -> None:
    assert soaked(memory, files).flat is flat


def test_it_tells_what_happened_and_what_was_held() -> None:
    told = str(soaked([0] + [60_000_000] * 9, [0] + [20] * 9)).splitlines()

    assert told[0].startswith("30 minutes on 4.3, Redrive, inbox: 450,000 messages, 5 faults (cut 3, kill-broker 2).")
    assert told[-2:] == ["| a worker: memory | 60 MB | 60 MB | 60 MB |", "| a worker: open files | 20 | 20 | 20 |"]


def test_it_can_be_written_down() -> None:
    one = soaked([0] + [60_000_000] * 9, [0] + [20] * 9)

    assert msgspec.json.decode(msgspec.json.encode(one), type=Soaked) == one
