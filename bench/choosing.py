"""`--only`: which of the contenders are measured."""

from __future__ import annotations

from collections.abc import Callable

import click

from bench.catalogue import Catalogue
from bench.contract import Contender


def chosen(catalogue: Catalogue, only: str | None) -> Callable[[Contender], bool]:
    """`--only` names systems or single rows. A name that fits nothing is a mistake, not an empty run."""
    if only is None:
        return lambda _: True
    wanted = {name.strip().lower() for name in only.split(",")}
    entered = [contender for scenario in catalogue.scenarios for _, contender in catalogue.contenders(scenario)]
    known = {name.lower() for contender in entered for name in (contender.system, contender.name)}
    if unknown := wanted - known:
        raise click.BadParameter(f"{', '.join(unknown)}: there are {', '.join(sorted(known))}", param_hint="--only")
    return lambda contender: bool(wanted & {contender.system.lower(), contender.name.lower()})
