"""Out of a queue and into it: discard, edit, transform, export, import. Everything that leaves is on the disk first."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from redrive.admin.service import Change, Service
from redrive.cli.dlq.redrive import (
    carry_out,
    confirm,
    finish,
    make_order,
    make_selection,
    planned,
    reason_option,
    redrive_options,
    selection_options,
    with_risk,
)
from redrive.cli.loading import import_object, run
from redrive.cli.options import (
    CommandTarget,
    json_option,
    no_input_option,
    options,
    query_option,
    risk_options,
    target_options,
    yes_option,
)
from redrive.cli.output import as_json, counted, note, number
from redrive.deadletters.edits import Edit
from redrive.errors import ConfigurationError
from redrive.operations.archive import lines_of, read_archive
from redrive.operations.export_format import Exported, decode_letter
from redrive.operations.operation import OperationKind, OperationRequest
from redrive.operations.peek_allowance import Risk
from redrive.operations.transforms import ByHand, Transform, from_function, from_patch
from redrive.text import one_line

# Discard ----------------------------------------------------------------------------------------------


@click.command()
@click.argument("queue")
@selection_options
@reason_option
@click.option("--confirm", "name", metavar="QUEUE", help="The queue's name once more, instead of being asked for it.")
@click.option("--no-input", is_flag=True, help="Never ask; without --confirm nothing is done.")
@target_options
@json_option
def discard(
    target: CommandTarget, queue: str, reason: str, name: str | None, no_input: bool, json: bool, **said: Any
) -> None:
    """Take messages out for good. They are written to an archive first, from which `import` restores them.

    \b
    redrive dlq discard orders.dlq -q 'type:Heartbeat'
    redrive dlq discard orders.dlq --group 3fa9 --confirm orders.dlq --reason INC-42
    """
    service = target.service()
    order = with_risk(
        OperationRequest(OperationKind.DISCARD, queue, make_selection(**said), reason=reason), said["risk"]
    )
    made = planned(service, order, "no message is meant by this")
    if name is None:
        if no_input or not sys.stdin.isatty():
            confirm("", False, True, f"--confirm {shlex.quote(one_line(queue))}")
        name = click.prompt(
            f"Discard {counted(made.eligible, 'message')}? Type the queue's name",
            default="",
            show_default=False,
            err=True,
        )
    operation = run(service.begin_discard, made, target.archives, confirm=name)
    over = run(carry_out, service, operation)
    path = operation.order.archive
    note(f"archived in {path}; to restore: redrive dlq import {queue} {path}")
    finish(over, json)


# Change -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How messages are changed."""

    dry_run: bool
    force: bool
    yes: bool
    no_input: bool
    json: bool


def _with_manner(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def wrapped(dry_run: bool, force: bool, yes: bool, no_input: bool, json: bool, **others: Any) -> Any:
        return command(manner=RunOptions(dry_run, force, yes, no_input, json), **others)

    return wrapped


# The options of every command that changes messages, which gets them as `manner`.
manner_options = options(
    click.option("--dry-run", is_flag=True, help="Show the differences, and stop there."),
    click.option("--force", is_flag=True, help="Also a body that is called JSON and is none."),
    yes_option,
    no_input_option,
    json_option,
    _with_manner,
)


@click.command()
@click.argument("queue")
@click.argument("id")
@click.option("--body", type=click.File("rb"), help="The new body, from a file; - is stdin.")
@click.option("--set-header", multiple=True, metavar="NAME=VALUE", help="Give it this header.")
@click.option("--remove-header", multiple=True, metavar="NAME", help="Take this header out.")
@click.option("--editor", is_flag=True, help="Change the body in $EDITOR.")
@redrive_options
@risk_options
@manner_options
@target_options
def edit(
    target: CommandTarget,
    manner: RunOptions,
    queue: str,
    id: str,
    body: Any,
    set_header: tuple[str, ...],
    remove_header: tuple[str, ...],
    editor: bool,
    **said: Any,
) -> None:
    """Change one message and send it back to work. The original is archived first.

    \b
    redrive dlq edit orders.dlq 3f5a --editor
    redrive dlq edit orders.dlq 3f5a --body fixed.json --set-header tenant=acme
    """
    service = target.service()
    found = run(service.message, queue, id, reveal=editor, risk=said["risk"])
    new = body.read() if body is not None else _in_editor(found.body) if editor else None
    change = Edit(new, dict(map(_header, set_header)), remove_header)
    if change.is_nothing:
        raise ConfigurationError("nothing would change: say --body, --editor, --set-header or --remove-header")
    said |= {"query": "", "ids": (found.letter.id,), "group": "", "limit": 1}
    _changed(target, service, make_order(service, queue, **said), ByHand(change), manner)


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigurationError(f"--set-header {text!r}: want NAME=VALUE")
    return name, value


def _in_editor(body: bytes) -> bytes | None:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise ConfigurationError("the body is no text: write the new one to a file, and say --body FILE") from None
    changed = click.edit(text, extension=".json", require_save=True)
    return None if changed is None else changed.encode()


@click.command(short_help="Change many messages alike, and send them back to work.")
@click.argument("queue")
@click.option("--patch", metavar="JSON", help="A JSON Patch (RFC 6902), or @FILE with one.")
@click.option(
    "--function", metavar="MODULE:NAME", help="def fix(body, headers, letter): the new body, or None to skip."
)
@selection_options
@redrive_options
@manner_options
@target_options
def transform(
    target: CommandTarget, manner: RunOptions, queue: str, patch: str | None, function: str | None, **said: Any
) -> None:
    """Change many messages in the same way and send them back to work. The originals are archived first.

    \b
    redrive dlq transform orders.dlq --group 3fa9 --patch '[{"op": "replace", "path": "/currency", "value": "EUR"}]'
    redrive dlq transform orders.dlq --function fixes:add_tenant --dry-run
    """
    if (patch is None) == (function is None):
        raise click.UsageError("say --patch or --function")
    how = from_patch(_text(patch)) if patch is not None else from_function(import_object(str(function)), str(function))
    service = target.service()
    _changed(target, service, make_order(service, queue, **said), how, manner)


def _text(patch: str) -> str:
    if not patch.startswith("@"):
        return patch
    try:
        return Path(patch[1:]).read_text()
    except OSError as error:
        raise ConfigurationError(f"cannot read {patch[1:]}: {error.strerror}") from None


def _changed(
    target: CommandTarget, service: Service, order: OperationRequest, how: Transform, manner: RunOptions
) -> None:
    made = planned(service, order, "no message is meant by this")
    for preview in run(service.samples, made.order, how, force=manner.force):
        click.echo(f"{one_line(preview.id)}\n{preview.text}", err=not manner.dry_run)
    if manner.dry_run:
        return
    confirm(f"Change {counted(made.eligible, 'message')} and send them back to work?", manner.yes, manner.no_input)
    operation = run(service.begin_edit, made, how, target.archives)
    over = run(carry_out, service, operation, Change(how, manner.force))
    note(f"the originals are in {operation.order.archive}")
    finish(over, manner.json)


# Export and import ------------------------------------------------------------------------------------


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
        return ((number, decode_letter(line, number)) for number, line in lines_of(sys.stdin.buffer))
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
