"""`redrive explain`: what an error, a finding, a problem or an exit code means, and what to do."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import groupby

import click

from redrive.cli.explaining import Explanation, everything, explained
from redrive.cli.printing import as_json as print_json
from redrive.text import did_you_mean

_NAMES = 28  # columns for them
_WIDEST = 100  # columns: longer lines are hard to read


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="JSON for scripts.")
def explain(name: str | None, as_json: bool) -> None:
    """Say what an error or a finding means, and what to do.

    \b
    redrive explain topology-conflict     an error, by its name
    redrive explain peek-deletes          a finding of the doctor
    redrive explain 7                     an exit code
    redrive explain                       everything that has a name

    The same texts are pages of the manual (docs/reference).
    """
    if name is None:
        _show_list(list(everything()), as_json)
        return
    found = explained(name)
    if not found:
        names = (each.name for each in everything())
        hint = did_you_mean(name.lower(), names, ": `redrive explain` lists all")
        raise click.UsageError(f"nothing is called {name!r}{hint}")
    if as_json:
        print_json(found)
        return
    for explanation in found:
        click.echo(_shown(explanation))


def _shown(explanation: Explanation) -> str:
    lines = [click.style(explanation.title, bold=True) + click.style(f"   {explanation.kind}", dim=True), ""]
    lines += [_wrapped(explanation.meaning, "  "), ""]
    facts = [*explanation.facts, ("Page", explanation.page)]
    indent = max(len(label) for label, _ in facts) + 2
    for label, fact in facts:
        first, *others = _wrapped(fact, " " * (indent + 2)).splitlines()
        lines += [f"  {click.style(label.ljust(indent), dim=True)}{first.lstrip()}", *others]
    return "\n".join([*lines, ""])


def _show_list(all_of_them: Sequence[Explanation], as_json: bool) -> None:
    if as_json:
        print_json(all_of_them)
        return
    for kind, several in groupby(all_of_them, lambda one: one.kind):
        click.echo(click.style(_plural(kind), bold=True))
        for one in several:
            click.echo(_listed(one))
        click.echo()
    click.echo("redrive explain NAME says more.", err=True)


def _listed(one: Explanation) -> str:
    first, *others = _wrapped(one.meaning.partition(". ")[0].removesuffix("."), " " * _NAMES).splitlines()
    return "\n".join([f"  {one.name.ljust(_NAMES - 2)}{click.style(first.lstrip(), dim=True)}", *others])


def _wrapped(text: str, indent: str) -> str:
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    return click.wrap_text(text, width, indent, indent)


def _plural(kind: str) -> str:
    first, _, rest = kind.partition(" ")[2].partition(" of ")
    return f"{first.capitalize()}s" + (f" of {rest}" if rest else "")
