"""A bank: a transfer takes money from one account at once, and its event gives it to another.

    python -m crashes.programs.bank 1000              the API: makes the transfers 1 to 1000 that are not made yet
    redrive outbox relay crashes.programs.bank:app    publishes their events
    redrive worker crashes.programs.bank:app          credits what they say, one by one or in batches

The debit, the transfer and its event are one transaction; the credit and the inbox's entry are another. `applied` has
no key: whoever applies an event twice is seen there. Duplicates that the inbox recognised are written to
BANK_DUPLICATES.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from redrive import App, Batch, Message, Retry
from redrive.worker.events import DeliveryOutcome, DeliverySettled, Observer

ACCOUNTS = 40
OPENING = 1_000_000_00  # cents on each account
CLERKS = 6  # transfers that the API makes at a time

METADATA = sa.MetaData()
accounts = sa.Table(
    "accounts",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("cents", sa.BigInteger, nullable=False),
)
transfers = sa.Table(
    "transfers",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("source", sa.Integer, nullable=False),
    sa.Column("target", sa.Integer, nullable=False),
    sa.Column("cents", sa.BigInteger, nullable=False),
)
applied = sa.Table(
    "applied", METADATA, sa.Column("event", sa.String(40), nullable=False), sa.Column("transfer", sa.Integer)
)


class Transfer(msgspec.Struct):
    id: int
    source: int
    target: int
    cents: int


def transfer_of(number: int) -> Transfer:
    """The transfer of that number, always the same: whoever asks again asks for the same."""
    chance = random.Random(number)
    source, target = chance.sample(range(ACCOUNTS), 2)
    return Transfer(number, source, target, chance.randint(1, 100_00))


class Duplicates(Observer):
    """Writes down each message that came again and was skipped."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def settled(self, event: DeliverySettled) -> None:
        if event.outcome is DeliveryOutcome.DUPLICATE:
            os.write(self._file, f"{event.message_id}\n".encode())


app = App("bank", observers=[Duplicates(os.environ.get("BANK_DUPLICATES", os.devnull))])
events = app.exchange("transfers", "topic")

# A database that is down fails every attempt; and each kill makes messages come again: neither is their fault.
PATIENT = Retry(attempts=1000, delay="500ms")


@app.consumer("credits", bind=events.on("transfer.even"), retry=PATIENT, crash_limit=1000, concurrency=4, inbox=True)
async def credit(transfer: Transfer, message: Message, session: AsyncSession) -> None:
    await session.execute(_credit(transfer.target, transfer.cents))
    await session.execute(sa.insert(applied).values(event=message.message_id, transfer=transfer.id))


@app.batch_consumer(
    "credits.batch",
    bind=events.on("transfer.odd"),
    retry=PATIENT,
    crash_limit=1000,
    size=20,
    max_wait="100ms",
    inbox=True,
)
async def credit_many(batch: Batch[Transfer], session: AsyncSession) -> None:
    credits: Counter[int] = Counter()
    for transfer in batch.bodies:
        credits[transfer.target] += transfer.cents
    for account in sorted(credits):  # in one order for everybody: no two batches wait for each other
        await session.execute(_credit(account, credits[account]))
    done = [{"event": item.message.message_id, "transfer": item.body.id} for item in batch]
    await session.execute(sa.insert(applied), done)


def _credit(account: int, cents: int) -> sa.Update:
    return sa.update(accounts).where(accounts.c.id == account).values(cents=accounts.c.cents + cents)


# The API ------------------------------------------------------------------------------------------------


async def make(transfer: Transfer) -> None:
    """One request: the debit, the transfer and its event, or nothing. Made before: nothing more."""
    async with app.database.async_sessions()() as session, session.begin():
        if await _is_made(session, transfer.id):
            return
        await session.execute(sa.insert(transfers).values(**msgspec.structs.asdict(transfer)))
        await session.execute(_credit(transfer.source, -transfer.cents))
        key = "transfer.even" if transfer.id % 2 == 0 else "transfer.odd"
        await app.publish(events, key, transfer, session=session)


async def _is_made(session: AsyncSession, number: int) -> bool:
    return await session.scalar(sa.select(transfers.c.id).where(transfers.c.id == number)) is not None


async def insist(transfer: Transfer) -> None:
    """What a client does that got no answer: ask again."""
    while True:
        try:
            await make(transfer)
        except (SQLAlchemyError, OSError) as error:
            print(f"transfer {transfer.id} is to be made again: {type(error).__name__}", flush=True)
            await asyncio.sleep(0.2)
        else:
            return


async def serve(count: int) -> None:
    async with app.database.async_engine.connect() as connection:
        made = set(await connection.scalars(sa.select(transfers.c.id)))
    requests = (transfer_of(number) for number in range(1, count + 1) if number not in made)
    await asyncio.gather(*(_clerk(requests) for _ in range(CLERKS)))
    await app.database.close()


async def _clerk(requests: Iterator[Transfer]) -> None:
    for transfer in requests:
        await insist(transfer)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
