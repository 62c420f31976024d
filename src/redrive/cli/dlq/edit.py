"""`redrive dlq edit` and `transform`: change messages and re-drive them. The originals are archived first."""

from __future__ import annotations

import functools
from collections.abc import Callable
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
    print_plan_of,
    redrive_options,
    selection_options,
)
from redrive.cli.loading import import_object, run
from redrive.cli.options import (
    CommandTarget,
    json_option,
    no_input_option,
    options,
    risk_options,
    target_options,
    yes_option,
)
from redrive.cli.output import counted, note
from redrive.deadletters.edits import Edit
from redrive.errors import ConfigurationError
from redrive.operations.operation import OperationRequest
from redrive.operations.transforms import ByHand, Transform, from_function, from_patch
from redrive.text import one_line


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
    new = body.read() if body is not None else _edit_in_editor(found.body) if editor else None
    change = Edit(new, dict(map(_header, set_header)), remove_header)
    if change.is_nothing:
        raise ConfigurationError("nothing would change: say --body, --editor, --set-header or --remove-header")
    said |= {"query": "", "ids": (found.dead_letter.id,), "group": "", "limit": 1}
    _transform(target, service, make_order(service, queue, **said), ByHand(change), manner)


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigurationError(f"--set-header {text!r}: want NAME=VALUE")
    return name, value


def _edit_in_editor(body: bytes) -> bytes | None:
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
    _transform(target, service, make_order(service, queue, **said), how, manner)


def _text(patch: str) -> str:
    if not patch.startswith("@"):
        return patch
    try:
        return Path(patch[1:]).read_text()
    except OSError as error:
        raise ConfigurationError(f"cannot read {patch[1:]}: {error.strerror}") from None


def _transform(
    target: CommandTarget, service: Service, order: OperationRequest, how: Transform, manner: RunOptions
) -> None:
    made = print_plan_of(service, order, "no message is meant by this")
    for preview in run(service.samples, made.order, how, force=manner.force):
        click.echo(f"{one_line(preview.id)}\n{preview.text}", err=not manner.dry_run)
    if manner.dry_run:
        return
    confirm(f"Change {counted(made.eligible, 'message')} and send them back to work?", manner.yes, manner.no_input)
    operation = run(service.begin_edit, made, how, target.archives)
    over = run(carry_out, service, operation, Change(how, manner.force))
    note(f"the originals are in {operation.order.archive}")
    finish(over, manner.json)
