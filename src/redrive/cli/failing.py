"""How a command ends when Redrive raised something on purpose: what happened, and where it is explained."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from redrive.errors import RedriveError, name_of

ERRORS_PAGE = "docs/reference/errors.md"


def fail(error: RedriveError, code: int) -> NoReturn:
    """Say it on stderr, and end. The last line is dim: it is for whoever does not know what to do."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    click.echo(f"redrive: {error}{notes}", err=True)
    click.secho(pointer(type(error)), err=True, dim=True)
    sys.exit(code)


def pointer(kind: type[RedriveError]) -> str:
    """The command that explains an error, and the page. There is no website: the package knows, and the manual."""
    name = name_of(kind)
    return f"  redrive explain {name}   {ERRORS_PAGE}#{name}"
