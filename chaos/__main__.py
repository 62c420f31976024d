"""`python -m chaos`: put the same work and the same faults on every system, and write down what came of it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from chaos.brokers import Broker, Embedded, Node, Nodes
from chaos.faults import FAULTS, Fault
from chaos.report import Run, append, read, summary, write
from chaos.roots import root_of
from chaos.scene import Scene
from chaos.systems import SYSTEMS, System
from tests.support.postgres import Postgres

RESULTS = Path(__file__).parent / "results.jsonl"
DOCUMENT = Path(__file__).parent.parent / "docs" / "reliability.md"
BROKERS = ("embedded", "3.10", "4.3", "cluster")


@click.command()
@click.option("--system", "systems", multiple=True, type=click.Choice(list(SYSTEMS)), help="Which; all without it.")
@click.option("--broker", "brokers", multiple=True, type=click.Choice(BROKERS), help="On what; all without it.")
@click.option("--fault", "faults", multiple=True, type=click.Choice(list(FAULTS)), help="Which; all without it.")
@click.option("--messages", default=8_000, show_default=True, help="In each run.")
@click.option("--rate", default=1_000.0, show_default=True, help="Messages a second that are published, at the most.")
@click.option("--seed", default=1, show_default=True, help="Of all chance.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS, help="Where runs are added.")
@click.option("--go-on", is_flag=True, help="Leave out what is in the results already.")
def main(
    systems: tuple[str, ...],
    brokers: tuple[str, ...],
    faults: tuple[str, ...],
    messages: int,
    rate: float,
    seed: int,
    results: Path,
    go_on: bool,
) -> None:
    """Put the same work and the same faults on every system, and write down what came of it."""
    known = {(run.fault, run.broker, run.system) for run in read(results)} if go_on else set()
    with tempfile.TemporaryDirectory(prefix="chaos-") as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)  # the database's user goes through it
        postgres = stack.enter_context(Postgres(folder / "postgres"))
        for which in brokers or BROKERS:
            with _broker(which, folder) as broker:
                for fault in [FAULTS[name] for name in faults or FAULTS]:
                    for system in [SYSTEMS[name] for name in systems or SYSTEMS]:
                        if not fault.possible_on(broker) or (fault.name, broker.name, system.name) in known:
                            continue
                        run = _run(system, broker, fault, folder, postgres, messages=messages, rate=rate, seed=seed)
                        append(results, run)
                        click.echo(run)
    click.echo(summary(read(results)))
    if results == RESULTS:
        write(DOCUMENT, read(results))


def _run(
    system: System,
    broker: Broker,
    fault: Fault,
    folder: Path,
    postgres: Postgres,
    *,
    messages: int,
    rate: float,
    seed: int,
) -> Run:
    place = folder / "runs" / f"{fault.name}-{broker.name}-{system.name}".replace(" ", "-")
    scene = Scene(system, broker, fault, place, postgres)
    outcome = asyncio.run(scene.run(messages=messages, rate=rate, seed=seed))
    account = outcome.account
    if not account.sound:
        click.echo(f"  lost {list(account.lost)[:20]} stuck {list(account.stuck)[:20]}", err=True)
    return Run.of(system.name, broker.name, fault.name, seed, outcome)


@contextmanager
def _broker(which: str, folder: Path) -> Iterator[Broker]:
    broker: Broker
    if which == "embedded":
        broker = Embedded(folder / "embedded")
    elif which == "cluster":
        broker = Nodes(folder / "cluster", "4.3", root_of("4.3"))
    else:
        broker = Node(folder / which, which, root_of(which))
    try:
        yield broker
    finally:
        broker.close()


if __name__ == "__main__":
    main()
