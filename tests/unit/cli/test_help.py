"""`redrive --help` is a tour: everything is in it, nothing is cut off, and what it shows can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from redrive.cli import TOUR, main


def all_commands(command: click.Command = main, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from all_commands(below, *path, name)


def help_of(*path: str, columns: int = 80) -> str:
    said = CliRunner(env={"COLUMNS": str(columns)}).invoke(main, [*path, "--help"], prog_name="redrive")
    assert said.exit_code == 0, said.output
    return said.output


COMMANDS = [path for path in all_commands() if path]


def test_every_command_is_in_one_group_of_the_tour() -> None:
    toured = [name for group in TOUR.values() for name in group]
    assert len(toured) == len(set(toured))
    assert {path[0] for path in COMMANDS} - set(toured) == set()


def test_the_tour_names_every_command_that_there_is_and_no_other() -> None:
    rows = re.findall(r"^  (\w+) {2,}\S", help_of().partition("First steps")[0], re.MULTILINE)
    assert sorted(rows) == sorted({path[0] for path in COMMANDS})


@pytest.mark.parametrize("path", [(), *COMMANDS], ids=" ".join)
def test_no_summary_is_cut_off_at_80_columns(path: tuple[str, ...]) -> None:
    usage, *lines = help_of(*path).splitlines()
    assert usage.startswith("Usage: redrive")
    assert [line for line in lines if re.match(r"  [a-z].*\.\.\.$", line)] == []


def test_the_tour_fits_80_columns_with_a_line_for_each_command() -> None:
    assert [line for line in help_of().splitlines() if len(line) > 80] == []


def test_the_tour_ends_with_three_first_steps_that_can_be_typed() -> None:
    steps = re.findall(r"^  (redrive .*?)  ", help_of().partition("First steps")[2], re.MULTILINE)
    assert len(steps) == 3
    for step in steps:
        parse(step)


# Examples -----------------------------------------------------------------------------------------------


def examples(path: tuple[str, ...]) -> list[str]:
    """The lines of a command's help that begin as one would type it. What stands behind them, apart, is prose."""
    said = help_of(*path, columns=300).partition("\nOptions:")[0]
    return [re.split(r" {2,}", line.strip())[0] for line in said.splitlines() if line.startswith("  redrive ")]


def parse(line: str) -> None:
    """As the command would: what it does not know is a UsageError. A file need not be there."""
    words = shlex.split(re.split(" [>|] ", line)[0])[1:]
    command: click.Command | None = main
    context: click.Context | None = None
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context, info_name="redrive")
        name = words.pop(0)
        command = command.get_command(context, name)
        assert command is not None, f"there is no {name}: {line}"
    assert command is not None
    try:
        command.make_context("redrive", words, parent=context)
    except click.BadParameter as error:
        if error.param is None or not isinstance(error.param.type, click.Path | click.File):
            raise


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_shows_an_example_of_itself(path: tuple[str, ...]) -> None:
    assert any(f"{example} ".startswith(f"redrive {' '.join(path)} ") for example in examples(path))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_example_is_understood(path: tuple[str, ...]) -> None:
    for example in examples(path):
        parse(example)
