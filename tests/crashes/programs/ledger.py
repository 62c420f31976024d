"""An application that writes every message it has done into a file, before the message is acked.

What becomes of a message depends on its number alone: of a thousand, one is malformed, five can never be handled
(two of them fail for good at once, three fail again and again), and fifty fail once or twice before they succeed.

    redrive worker crashes.programs.ledger:app

LEDGER names the file, LEDGER_PAUSE says how many seconds the handler takes, LEDGER_TYPE of which type the queues are.
"""

from __future__ import annotations

import asyncio
import os
from enum import StrEnum

import msgspec

from redrive import App, Message, Retry

QUEUE = "orders"
ATTEMPTS = 3


class Fate(StrEnum):
    FINE = "fine"
    FAILS_ONCE = "fails once"
    FAILS_TWICE = "fails twice"
    PERMANENT = "permanent"
    EXHAUSTED = "exhausted"
    MALFORMED = "malformed"


ENDS_PARKED = {Fate.PERMANENT, Fate.EXHAUSTED, Fate.MALFORMED}
FAILURES = {Fate.FAILS_ONCE: 1, Fate.FAILS_TWICE: 2, Fate.PERMANENT: ATTEMPTS, Fate.EXHAUSTED: ATTEMPTS}


def fate_of(number: int) -> Fate:
    match number % 1000:
        case 0:
            return Fate.MALFORMED
        case 1 | 2:
            return Fate.PERMANENT
        case 3 | 4 | 5:
            return Fate.EXHAUSTED
        case rest if rest <= 30:
            return Fate.FAILS_ONCE
        case rest if rest <= 55:
            return Fate.FAILS_TWICE
        case _:
            return Fate.FINE


def body_of(number: int) -> bytes:
    whole = b'{"number":%d}' % number
    return whole[:-1] if fate_of(number) is Fate.MALFORMED else whole


class Order(msgspec.Struct):
    number: int


class NeverMind(Exception):
    """An error that the policy knows not to pass."""


class Ledger:
    """Lines of `number attempt outcome`, each of which is in the system's hands when `write` returns."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def write(self, number: int, attempt: int, outcome: str) -> None:
        os.write(self._file, f"{number} {attempt} {outcome}\n".encode())


ledger = Ledger(os.environ.get("LEDGER", os.devnull))
pause = float(os.environ.get("LEDGER_PAUSE", "0"))


async def handle(order: Order, message: Message) -> None:
    if pause:
        await asyncio.sleep(pause)
    fate = fate_of(order.number)
    if message.attempt <= FAILURES.get(fate, 0):
        ledger.write(order.number, message.attempt, "failed")
        raise NeverMind("it will not pass") if fate is Fate.PERMANENT else OSError("busy")
    ledger.write(order.number, message.attempt, "done")


def make_app(queue_type: str, broker: str | None = None) -> App:
    app = App("ledger", broker=broker, queue_type=queue_type)
    retry = Retry(attempts=ATTEMPTS, delay="200ms", never=NeverMind)
    app.consumer(QUEUE, retry=retry, concurrency=10)(handle)
    return app


app = make_app(os.environ.get("LEDGER_TYPE", "classic"))
