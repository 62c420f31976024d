"""`redrive dlq discard`: remove messages. They are archived first."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import click

from redrive.cli.dlq.redrive import (
    carry_out,
    confirm,
    finish,
    make_selection,
    print_plan_of,
    reason_option,
    selection_options,
    with_risk,
)
from redrive.cli.loading import run
from redrive.cli.options import (
    CommandTarget,
    json_option,
    target_options,
)
from redrive.cli.output import counted, note
from redrive.operations.operation import OperationKind, OperationRequest
from redrive.text import one_line


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
    made = print_plan_of(service, order, "no message is meant by this")
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
