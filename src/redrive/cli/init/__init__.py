"""`redrive init`: begin a service with something that works, and its tests."""

from __future__ import annotations

from pathlib import Path

import click

from redrive import __version__
from redrive.cli.init.names import ServiceName
from redrive.cli.init.plan import make_plan, write
from redrive.errors import ConfigurationError


@click.command()
@click.argument("name")
@click.option("--here", is_flag=True, help="Into this folder, instead of a new one of that name.")
def init(name: str, here: bool) -> None:
    """Begin a new service called NAME: consumers, settings, tests that pass, Dockerfile, compose.yaml.

    \b
    redrive init shop
    redrive init order-desk --here

    Files that are there are never written over.
    """
    service = ServiceName(name)
    folder = Path.cwd() if here else Path.cwd() / service.project
    plan = make_plan(service, __version__)
    try:
        write(plan, folder)
    except OSError as error:
        raise ConfigurationError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    for file in plan:
        click.echo(file.path if here else Path(service.project) / file.path)
    enter = "" if here else f"cd {service.project} && "
    click.echo(
        f"""redrive: {service.project} is there. Next:

  {enter}pip install --editable '.[dev]'
  pytest
  redrive worker --relay {service.package}.app:app""",
        err=True,
    )
