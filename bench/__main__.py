"""`python -m bench`: the command line."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click
from rich.console import Console

from bench import plot, report
from bench.catalogue import Catalogue, find_all, find_scenarios
from bench.choosing import chosen
from bench.results import Results
from bench.run import Plan, run

RESULTS = Path(__file__).parent / "results"


@click.command(context_settings={"max_content_width": 110})
@click.option("--quick", is_flag=True, help="One short round: does everything work, and roughly how fast?")
@click.option("--rounds", type=click.IntRange(1), help="How often everything is measured; medians count.  [default: 5]")
@click.option("--seconds", type=click.FloatRange(0.1), help="About how long one measurement takes.  [default: 2.5]")
@click.option("--only", metavar="NAMES", help="Measure these systems or rows only, comma-separated: redrive,aio-pika")
@click.option("--scenario", "scenarios", multiple=True, metavar="NAME", help="Ask this question only. Repeatable.")
@click.option("--name", help="Name of the files written to bench/results.  [default: date and time]")
@click.option("--window", default=1000, show_default=True, help="Unconfirmed messages of a pipelining publisher.")
@click.option("--publishers", default=200, show_default=True, help="Publishing tasks, where tasks await confirms.")
@click.option("--prefetch", default=1000, show_default=True, help="Unacknowledged messages of a consumer.")
@click.option("--handlers", default=10, show_default=True, help="Concurrent handlers, where a library lets one say.")
@click.option("--list", "listing", is_flag=True, help="Show scenarios, rows and who cannot take part, and why.")
@click.option(
    "--markdown",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Print the tables of an earlier run as Markdown, and measure nothing.",
)
def main(
    quick: bool,
    rounds: int | None,
    seconds: float | None,
    only: str | None,
    scenarios: tuple[str, ...],
    name: str | None,
    listing: bool,
    markdown: Path | None,
    **settings: int,
) -> None:
    """Measure Redrive beside its peers, on a private RabbitMQ node started for this run.

    Prints messages/s, client CPU per message and ratios, then the goals and whether they were reached; writes all
    samples and a plot to bench/results. Nothing is asserted: the exit code says only whether it ran.
    """
    if markdown is not None:
        click.echo(report.markdown(Results.load(markdown), find_scenarios().values()), nl=False)
        return
    catalogue = find_all()
    _restrict(catalogue, scenarios)
    if listing:
        _list(catalogue)
        return
    plan = Plan(
        name=name or ("quick" if quick else dt.datetime.now().astimezone().strftime("%Y-%m-%d-%H%M")),
        rounds=rounds or (1 if quick else 5),
        seconds=seconds or (0.8 if quick else 2.5),
        settings=settings,
    )
    results = run(plan, catalogue, chosen(catalogue, only), lambda said: click.echo(said, err=True))
    _publish(results, catalogue)


def _restrict(catalogue: Catalogue, scenarios: tuple[str, ...]) -> None:
    for name in scenarios:
        if name not in catalogue.scenarios:
            raise click.BadParameter(f"{name!r}: there are {', '.join(catalogue.scenarios)}", param_hint="--scenario")
    if scenarios:
        catalogue.scenarios = {name: catalogue.scenarios[name] for name in scenarios}


def _list(catalogue: Catalogue) -> None:
    for scenario in catalogue.scenarios.values():
        click.echo(f"{scenario.name}: {scenario.title} ({', '.join(case.name for case in scenario.cases)})")
        for _, contender in catalogue.contenders(scenario.name):
            click.echo(f"  {contender.name}{'  (one message at a time)' if contender.one_at_a_time else ''}")
    versions = {what: version for system in catalogue.systems.values() for what, version in system.versions().items()}
    click.echo("with " + ", ".join(f"{what} {version}" for what, version in versions.items()))
    for who, why in catalogue.skipped.items():
        click.echo(f"without {who}: {why}")


def _publish(results: Results, catalogue: Catalogue) -> None:
    console = Console()
    report.show(results, catalogue.scenarios.values(), console if console.is_terminal else Console(width=120))
    file = RESULTS / f"{results.name}.json"
    results.save(file)
    plot.draw(results, catalogue.scenarios.values(), file.with_suffix(".svg"))
    click.echo(f"written: {_relative(file)} and {_relative(file.with_suffix('.svg'))}")


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    main()
