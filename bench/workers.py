"""`python -m bench.workers`: whole workers beside each other, and batches beside what queue and database do alone.

The scenarios `handle` and `insert` of `bench/scenarios`, on one private RabbitMQ and one private PostgreSQL.
"""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from bench import report
from bench.catalogue import find_all
from bench.choosing import chosen
from bench.run import Plan, run

AT_LEAST_1 = click.IntRange(1)


@click.command(context_settings={"max_content_width": 110})
@click.option(
    "--messages",
    type=AT_LEAST_1,
    default=50_000,
    show_default=True,
    help="At most so many in one measurement; batches are never less than one whole.",
)
@click.option("--rounds", type=AT_LEAST_1, default=5, show_default=True, help="How often; medians count.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1),
    default=2.5,
    show_default=True,
    help="About how long one measurement takes: the slower get fewer messages.",
)
@click.option("--only", metavar="NAMES", help="Measure these systems or rows only, comma-separated: redrive,dramatiq")
@click.option(
    "--prefetch", type=AT_LEAST_1, default=200, show_default=True, help="Unacknowledged messages of a worker."
)
@click.option(
    "--handlers", type=AT_LEAST_1, default=100, show_default=True, help="Coroutines at a time, where one can say."
)
@click.option(
    "--threads",
    type=AT_LEAST_1,
    default=8,
    show_default=True,
    help="Threads for plain functions, where there are threads.",
)
@click.option(
    "--json",
    "file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all samples there: bench/results/workers.json",
)
def main(messages: int, rounds: int, seconds: float, only: str | None, file: Path | None, **settings: int) -> None:
    """Measure Redrive's workers beside FastStream, dramatiq, Celery and taskiq, and its batches beside a bare COPY.

    Prints messages/s, client CPU per message and ratios, then the goals and whether they were reached. Nothing is
    asserted: the exit code says only whether it ran. `python -m bench --markdown FILE` prints the tables again.
    """
    catalogue = find_all("workers")
    plan = Plan(name="workers", rounds=rounds, seconds=seconds, settings=settings, most=messages)
    results = run(plan, catalogue, chosen(catalogue, only), lambda said: click.echo(said, err=True))
    console = Console()
    report.show(results, catalogue.scenarios.values(), console if console.is_terminal else Console(width=120))
    if file is not None:
        results.save(file)
        click.echo(f"written: {file}")


if __name__ == "__main__":
    main()
