"""The crash matrix of the outbox and the inbox: a process dies before each of its side effects, and another goes on.

First nobody dies, and the side effects are counted. Then, for each of them, a process dies just before it (the program
is `programs/dying_store.py`), and another one takes over. Every order is booked once, whatever happened; the broker
may have a message twice, where `redrive.outbox.relay` and `redrive.worker.transactions` say so:

    dies before          what has happened                     what follows
    write, add, commit   nothing                               the API is asked again
    claim, publish       the rows are committed                published by the next one
    confirm              the messages may be in the broker     published again: perhaps a duplicate
    mark, its commit     they are in the broker                published again: a duplicate
    note, handle, commit nothing                               handled by the next one
    ack                  it is handled and noted               it comes again: a duplicate

and every duplicate is recognised by the inbox. With the transport LOCAL the broker dies, too, being in the process that
does. It has on disk what it has confirmed, but not yet, perhaps, that the last messages were acked: these come again.
"""

from __future__ import annotations

import json
import multiprocessing
import secrets
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
import sqlalchemy as sa

from crashes.programs.dying_store import EFFECTS, METADATA, ORDERS, SCENARIOS, Scenario, live
from redrive.database.engine import Database
from redrive.database.schema import Schema
from redrive.outbox.outbox import Outbox
from redrive.outbox.repository import OutboxRepository
from redrive.testing.broker_process import EmbeddedBroker

MOST_LIVES = 3


@cache
def newborns() -> ForkServerContext:
    """Processes that are born with everything imported: there are hundreds of lives in a matrix."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["redrive", "redrive.app", "psycopg", "aiosqlite"])
    return context


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("broker")
    with EmbeddedBroker(directory, data=directory / "data") as broker:
        yield broker.url


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        store = Store(f"sqlite:///{tmp_path / 'store.db'}")
    else:
        store = Store(request.getfixturevalue("postgres_url"))
    yield store
    store.database.engine.dispose()


# The database -------------------------------------------------------------------------------------------


class Store:
    """The database of a test, which is emptied for every run."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.database = Database(url)
        self.outbox = Outbox()
        Schema().upgrade(self.database)
        METADATA.create_all(self.database.engine)

    def empty(self) -> None:
        with self.database.engine.begin() as connection:
            for table in ("orders", "effects", "redrive_outbox", "redrive_inbox"):
                connection.execute(sa.text(f"DELETE FROM {table}"))

    def orders(self) -> list[int]:
        with self.database.engine.connect() as connection:
            return sorted(connection.execute(sa.select(ORDERS.c.id)).scalars())

    def effects(self, step: str) -> list[int]:
        """Which orders were handled, in the order in which they were."""
        query = sa.select(EFFECTS.c.n).where(EFFECTS.c.step == step).order_by(EFFECTS.c.place)
        with self.database.engine.connect() as connection:
            return list(connection.execute(query).scalars())

    def in_outbox(self) -> tuple[int, int]:
        status = OutboxRepository(self.database, self.outbox.table).status()
        return status["pending"], status["parked"]


# What happened ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effect:
    name: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Account:
    """What the journal of one run tells, over all lives."""

    lives: int
    effects: list[Effect]
    duplicates: int
    parked: int


def play(scenario: str, broker: str | Path, store: Store, journal: Path, die_before: int = 0) -> Account:
    queue = f"{scenario}, {die_before}, {secrets.token_hex(4)}"
    store.empty()
    for lives in range(1, MOST_LIVES + 1):
        arguments = (scenario, broker, store.url, queue, journal, die_before)
        process = newborns().Process(target=live, args=arguments, daemon=True)
        process.start()
        process.join()
        if process.exitcode != -signal.SIGKILL:
            assert process.exitcode == 0, "a life ended with an error: see its output"
            return read(journal, lives)
    raise AssertionError("it does not come to an end")


def read(journal: Path, lives: int) -> Account:
    effects, duplicates, parked = [], 0, 0
    for fact in map(json.loads, journal.read_text().splitlines()):
        match fact:
            case {"effect": name, "ids": ids}:
                effects.append(Effect(name, tuple(ids)))
            case {"duplicate": _}:
                duplicates += 1
            case {"parked": count}:
                parked += count
    return Account(lives, effects, duplicates, parked)


# What should have happened ------------------------------------------------------------------------------


def possible_duplicates(clean: list[Effect], die_before: int) -> set[int]:
    """How many messages the broker may have twice. There is a choice only between a publish and its confirm."""
    name = clean[die_before - 1].name
    past = clean[: die_before - 1]
    if name == "ack":
        to_come = [effect.name for effect in clean[die_before - 1 :]]
        return {next((count for count, other in enumerate(to_come) if other != "ack"), len(to_come))}
    begun = max((place for place, effect in enumerate(past) if effect.name == "claim"), default=len(past))
    batch = past[begun:]
    if any(effect.name in ("note", "write") for effect in batch) or "commit" in [effect.name for effect in batch]:
        return {0}  # that batch is done with
    sent = [len(effect.ids) for effect in batch if effect.name == "publish"]
    return {sum(sent[:-1]), sum(sent)} if name == "confirm" else {sum(sent)}


def forgotten_acks(clean: list[Effect], die_before: int) -> range:
    """How many messages a broker may have again that died in the same moment."""
    return range(1 + sum(effect.name == "ack" for effect in clean[: die_before - 1]))


def check(
    scenario: Scenario, clean: Account, account: Account, store: Store, die_before: int, *, broker_dies: bool
) -> None:
    where = f"dead before side effect {die_before}, {clean.effects[die_before - 1]}"
    orders = list(range(1, scenario.orders + 1))
    assert account.lives == 2, f"{where}: it did not die once"
    assert store.orders() == orders, f"{where}: an order is lost"
    for step in scenario.steps():
        assert sorted(store.effects(step)) == orders, f"{where}: {step} was lost, or done twice"
    assert store.in_outbox() == (0, 0), f"{where}: something was not published"
    assert account.parked == 0, f"{where}: something was parked"
    again = forgotten_acks(clean.effects, die_before) if broker_dies else range(1)
    possible = {count + more for count in possible_duplicates(clean.effects, die_before) for more in again}
    assert account.duplicates in possible, f"{where}: not as stated"
    if scenario.ordered and not any(effect.name == "note" for effect in clean.effects[: die_before - 1]):
        assert store.effects("book") == orders, f"{where}: published out of order"


# The matrix ---------------------------------------------------------------------------------------------


def walk_the_matrix(name: str, broker: str | Path, store: Store, directory: Path, every: int = 1) -> None:
    scenario = SCENARIOS[name]
    clean = play(name, broker, store, directory / "clean")
    assert [effect.name for effect in clean.effects] == scenario.expected(store.database.kind)
    assert clean.duplicates == 0
    for die_before in range(1, len(clean.effects) + 1, every):
        account = play(name, broker, store, directory / str(die_before), die_before)
        check(scenario, clean, account, store, die_before, broker_dies=isinstance(broker, Path))


def every_scenario() -> list[object]:
    return [pytest.param(name, id=name.replace(" ", "-")) for name in SCENARIOS]


def test_whoever_dies_between_commit_and_ack_loses_nothing_and_does_nothing_twice(
    embedded: str, store: Store, tmp_path: Path
) -> None:
    walk_the_matrix("one hop", embedded, store, tmp_path)


def test_some_deaths_on_rabbitmq_do_no_harm_either(amqp_url: str, store: Store, tmp_path: Path) -> None:
    walk_the_matrix("one hop", amqp_url, store, tmp_path, every=5)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", every_scenario())
def test_no_death_on_the_embedded_broker_does_harm(scenario: str, embedded: str, store: Store, tmp_path: Path) -> None:
    walk_the_matrix(scenario, embedded, store, tmp_path)


def test_with_the_transport_local_the_broker_dies_too_and_nothing_is_lost_or_done_twice(
    store: Store, tmp_path: Path
) -> None:
    walk_the_matrix("one hop", tmp_path / "data", store, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", every_scenario())
def test_no_death_with_the_transport_local_does_harm(scenario: str, store: Store, tmp_path: Path) -> None:
    walk_the_matrix(scenario, tmp_path / "data", store, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", every_scenario())
def test_no_death_on_rabbitmq_does_harm(scenario: str, amqp_url: str, store: Store, tmp_path: Path) -> None:
    walk_the_matrix(scenario, amqp_url, store, tmp_path)
