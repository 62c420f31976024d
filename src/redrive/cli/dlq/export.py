"""`redrive dlq export` and `import`: messages as lines of JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click

from redrive.admin.service import Service
from redrive.cli.dlq.redrive import (
    confirm,
)
from redrive.cli.loading import run
from redrive.cli.options import (
    CommandTarget,
    json_option,
    no_input_option,
    query_option,
    risk_options,
    target_options,
    yes_option,
)
from redrive.cli.output import as_json, counted, note, number
from redrive.operations.archive import lines_of, read_archive
from redrive.operations.export_format import Exported, decode_dead_letter
from redrive.operations.peek_allowance import Risk
from redrive.text import one_line


@click.command()
@click.argument("queue")
@query_option
@click.option("-o", "--output", type=click.File("wb"), default="-", help="A file.  [default: stdout]")
@click.option("--reveal", is_flag=True, help="Byte for byte, with secrets, for an import. Goes into the audit.")
@risk_options
@target_options
def export(target: CommandTarget, queue: str, query: str, output: Any, reveal: bool, risk: Risk) -> None:
    """Write messages as lines of JSON, without secrets. They stay in the queue. Lines that were written with --reveal
    can be imported.

    \b
    redrive dlq export orders.dlq --reveal -o orders.ndjson
    redrive dlq export orders.dlq -q since:1d | jq .error
    """
    count = run(_exported, target.service(), queue, query, output, reveal, risk)
    how = "" if reveal else ", without secrets: only an export with --reveal can be imported"
    note(f"{counted(count, 'message')} exported{how}")


async def _exported(service: Service, queue: str, query: str, output: Any, reveal: bool, risk: Risk) -> int:
    count = 0
    lines = service.export(queue, query, reveal=reveal, risk=risk)
    async with aclosing(lines):
        async for line in lines:
            output.write(line)
            count += 1
    return count


@click.command("import")
@click.argument("queue")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option(
    "--from-line", type=click.IntRange(1), default=1, help="Begin here, as told when an import was cut short."
)
@yes_option
@no_input_option
@target_options
@json_option
def import_(
    target: CommandTarget, queue: str, file: Path, from_line: int, yes: bool, no_input: bool, json: bool
) -> None:
    """Put exported or archived messages into a queue.

    \b
    redrive dlq import orders.dlq .redrive/archive/orders.dlq-op_01j8.ndjson
    zcat orders.ndjson.gz | redrive dlq import orders.dlq - --yes

    The whole file is checked before the first message is published. What comes from stdin (-) cannot be, and nobody
    can be asked there: it needs --yes.
    """
    if str(file) == "-":
        confirm("", yes, no_input=True)
    else:
        wanted = sum(number >= from_line for number, _ in _lines(file))
        confirm(f"Import {counted(wanted, 'message')} into {one_line(queue)}?", yes, no_input)
    done = run(_imported, target.service(), queue, file, from_line)
    if json:
        as_json({"imported": done})
    note(f"{counted(done, 'message')} imported into {one_line(queue)}")


def _lines(file: Path) -> Iterator[tuple[int, Exported]]:
    if str(file) == "-":
        return ((number, decode_dead_letter(line, number)) for number, line in lines_of(sys.stdin.buffer))
    return read_archive(file)


async def _imported(service: Service, queue: str, file: Path, from_line: int) -> int:
    wanted = [0]

    def counted_lines() -> Iterator[tuple[int, Exported]]:
        for numbered in _lines(file):
            if numbered[0] >= from_line:
                wanted[0] += 1
                yield numbered

    upto = from_line - 1
    progress = service.restore(counted_lines(), queue, str(file))
    try:
        async with aclosing(progress):
            async for line in progress:
                upto = line
    except BaseException:
        note(f"redrive: everything up to line {number(upto)} is in {one_line(queue)}; to go on: --from-line {upto + 1}")
        raise
    return wanted[0]
