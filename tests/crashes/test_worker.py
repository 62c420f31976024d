"""The crash matrix: a worker dies before each of its side effects, is started again, and finishes.

First nobody dies, and the side effects are counted. Then, for each of them, a worker dies just before it (the program
is `programs/dying_worker.py`), and another one takes over. Nothing is lost, attempts are counted right, and there are
duplicates only where `redrive.worker.settlement` states them:

    dies before   what has happened              what follows
    prepare       nothing                        prepared again
    handle        nothing                        handled again, and prepared before that
    publish       nothing                        the attempt is made again
    confirm       the copy may exist             either of its neighbours
    ack           the copy exists                two messages, each of which goes its way to the end
    ack           the work is done               done twice
    reject        nothing                        the attempt is made again
"""

from __future__ import annotations

import json
import multiprocessing
import secrets
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from crashes.programs.dying_worker import CRASH_LIMIT, NATIVE, SCENARIOS, SCENARIOS_OF_43, Scenario, live
from redrive.recovery.history import HeaderNames
from redrive.recovery.retry import RetryRoute
from redrive.testing import Endpoint
from redrive.testing.broker_process import EmbeddedBroker

MOST_LIVES = 20


@cache
def newborns() -> ForkServerContext:
    """Processes that are born with everything imported: there are hundreds of lives in a matrix."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["redrive", "redrive.app"])
    return context


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("broker")
    with EmbeddedBroker(directory, data=directory / "data") as broker:
        yield broker.url


@pytest.fixture(scope="module")
def real(rabbitmq: Endpoint) -> Iterator[str]:
    vhost = f"crashes-{secrets.token_hex(8)}"
    rabbitmq.add_vhost(vhost)
    yield rabbitmq.url_for(vhost)
    rabbitmq.delete_vhost(vhost)


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
    calls: Counter[tuple[int, int]]  # by message and attempt
    done: Counter[int]
    stories: dict[int, list[dict[str, Any]]]  # the headers of the parked, by message

    @property
    def parked(self) -> Counter[int]:
        return Counter({number: len(stories) for number, stories in self.stories.items()})

    @property
    def ends(self) -> Counter[int]:
        """How often each message came to an end."""
        return self.done + self.parked


def play(scenario: str, url: str, journal: Path, die_before: int = 0) -> Account:
    queue = f"{scenario}, {die_before}, {secrets.token_hex(4)}"
    lives = 0
    while True:
        lives += 1
        assert lives <= MOST_LIVES, "it does not come to an end"
        process = newborns().Process(target=live, args=(scenario, url, queue, journal, die_before), daemon=True)
        process.start()
        process.join()
        if process.exitcode != -signal.SIGKILL:
            assert process.exitcode == 0, "a life ended with an error: see its output"
            return read(journal, lives)


def read(journal: Path, lives: int) -> Account:
    account = Account(lives, [], Counter(), Counter(), {})
    for fact in map(json.loads, journal.read_text().splitlines()):
        match fact:
            case {"effect": name, "ids": ids}:
                account.effects.append(Effect(name, tuple(ids)))
            case {"called": number, "attempt": attempt}:
                account.calls[number, attempt] += 1
            case {"done": number}:
                account.done[number] += 1
            case {"parked": number, "headers": headers}:
                account.stories.setdefault(number, []).append(headers)
    return account


# What should have happened ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Extra:
    """What a death costs beyond the clean run."""

    calls: Counter[tuple[int, int]]
    ends: Counter[int]


def extras(clean: Account, die_before: int) -> list[Extra]:
    """What may be extra. There is a choice only where the process dies between a publish and its confirm."""
    if clean.effects[die_before - 1].name == "confirm":
        return [extra(clean, die_before - 1), extra(clean, die_before + 1)]
    return [extra(clean, die_before)]


def extra(clean: Account, die_before: int) -> Extra:
    found = Extra(Counter(), Counter())
    for number in clean.ends:
        past = [effect.name for effect in clean.effects[: die_before - 1] if number in effect.ids]
        to_come = [effect.name for effect in clean.effects[die_before - 1 :] if number in effect.ids]
        if not to_come:
            continue
        again = [attempts_handed_over(past) + 1]
        if to_come[0] == "ack":  # the work is done, or the copy exists: it will have two ends
            found.ends[number] += 1
            if past[-1] == "confirm":
                again = [attempt for called, attempt in clean.calls if called == number and attempt >= again[0]]
        found.calls.update((number, attempt) for attempt in again if (number, attempt) in clean.calls)
    return found


def attempts_handed_over(effects: list[str]) -> int:
    """A reject hands over by itself, a copy with the ack that follows its confirm."""
    pairs = zip(["", *effects], effects, strict=False)
    return sum(effect == "reject" or (before, effect) == ("confirm", "ack") for before, effect in pairs)


def check(scenario: Scenario, clean: Account, account: Account, die_before: int) -> None:
    possible = extras(clean, die_before)
    where = f"dead before side effect {die_before}, {clean.effects[die_before - 1]}"
    assert account.ends.keys() == clean.ends.keys(), f"{where}: lost"
    assert account.ends in [clean.ends + extra.ends for extra in possible], f"{where}: not as stated"
    if scenario.via is RetryRoute.QUORUM:  # the broker counts every delivery that was not acked: a death is an attempt
        assert account.calls <= clean.calls, f"{where}: handled too often"
    elif scenario.poisonous:
        assert account.calls.total() <= (CRASH_LIMIT + 2) * account.ends.total(), f"{where}: handled too often"
    elif scenario.batch:  # who is tried together with whom is chance after a restart
        assert account.calls.keys() == clean.calls.keys(), f"{where}: attempts are miscounted"
    else:
        assert account.calls in [clean.calls + extra.calls for extra in possible], f"{where}: attempts are miscounted"
    for stories in account.stories.values():
        for headers in stories:
            check_story(scenario, headers)


def check_story(scenario: Scenario, headers: dict[str, Any]) -> None:
    names = HeaderNames()
    if scenario.via is RetryRoute.QUORUM:
        assert headers["x-death"][0]["reason"] == "delivery_limit"
        return
    if scenario.options.get("park") == "reject":  # what this attempt ended in, only the broker knows
        assert headers["x-death"][0]["reason"] == "rejected"
        assert headers[names.attempts] == scenario.attempts - 1
        return
    assert headers[names.QUEUE]
    assert headers[names.PARKED_AT]
    if scenario.poisonous:
        assert headers[names.reason] == "crashed"
        assert headers[names.CRASHES] == CRASH_LIMIT
    elif not scenario.fails:
        assert (headers[names.reason], headers[names.attempts]) == ("malformed", 1)
    else:
        assert (headers[names.reason], headers[names.attempts]) == ("exhausted", scenario.attempts)
        assert [attempt["number"] for attempt in headers[names.HISTORY]] == [*range(1, scenario.attempts + 1)]
        assert (headers[names.ERROR], headers[names.MESSAGE]) == ("OSError", "busy")
        assert "handle" in headers[names.STACK]


# The matrix ---------------------------------------------------------------------------------------------


def walk_the_matrix(name: str, url: str, directory: Path, every: int = 1) -> None:
    scenario = (SCENARIOS | SCENARIOS_OF_43)[name]
    clean = play(name, url, directory / "clean")
    assert [effect.name for effect in clean.effects] == scenario.effects.split()
    assert set(clean.ends.values()) == {1}
    assert clean.ends.total() == len(scenario.bodies)
    for die_before in range(1, len(clean.effects) + 1, every):
        account = play_alike(name, url, directory / str(die_before), die_before, clean)
        check(scenario, clean, account, die_before)


def play_alike(name: str, url: str, directory: Path, die_before: int, clean: Account) -> Account:
    """It does, and dies before, what the undisturbed one did, in the same order: on a busy machine a confirm may come
    later than it did there, and then it dies before something else.
    """
    fatal = clean.effects[:die_before]
    for attempt in range(5):
        account = play(name, url, directory.with_name(f"{directory.name}-{attempt}"), die_before)
        assert account.ends.keys() == clean.ends.keys(), f"dead before side effect {die_before}: lost"
        if account.effects[:die_before] == fatal:
            break
    return account


def name_of(scenario: str) -> str:
    return scenario.replace(",", "").replace(" ", "-")


ON_CLASSIC_QUEUES = [name for name, scenario in SCENARIOS.items() if scenario.options.get("type") != "quorum"]
SAMPLE = ["retry by republish", "retry by reject", "park by publish"]


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(name, id=name_of(name), marks=[] if name in ON_CLASSIC_QUEUES else pytest.mark.slow)
        for name in SCENARIOS
    ],
)
def test_whoever_dies_before_a_side_effect_loses_nothing(scenario: str, embedded: str, tmp_path: Path) -> None:
    walk_the_matrix(scenario, embedded, tmp_path, every=7 if SCENARIOS[scenario].poisonous else 1)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if SCENARIOS[name].poisonous])
def test_no_death_of_a_worker_that_watches_a_message_loses_it(scenario: str, embedded: str, tmp_path: Path) -> None:
    """In full: each of these runs takes five lives, and half a second for each check."""
    walk_the_matrix(scenario, embedded, tmp_path)


@pytest.mark.parametrize("scenario", [pytest.param(name, id=name_of(name)) for name in SAMPLE])
def test_some_deaths_on_rabbitmq_lose_nothing_either(scenario: str, real: str, tmp_path: Path) -> None:
    walk_the_matrix(scenario, real, tmp_path, every=2)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [pytest.param(name, id=name_of(name)) for name in SCENARIOS])
def test_no_death_on_rabbitmq_loses_anything(scenario: str, real: str, tmp_path: Path) -> None:
    walk_the_matrix(scenario, real, tmp_path)


@pytest.mark.slow
def test_where_the_broker_retries_a_death_is_an_attempt(rabbitmq: Endpoint, real: str, tmp_path: Path) -> None:
    if rabbitmq.version < (4, 3):
        pytest.skip("the quorum route is of RabbitMQ 4.3")
    walk_the_matrix(NATIVE, real, tmp_path)
