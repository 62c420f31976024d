"""`redrive ops`: the operations on dead letters, wherever they run. `redrive audit`: who did what."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

import click

from redrive.admin.service import Service
from redrive.cli.dlq.redrive import finish, operation_row, run_with_progress
from redrive.cli.loading import run
from redrive.cli.options import CommandTarget, json_option, limit_option, target_options
from redrive.cli.output import Progress, ago, as_json, counted, label, note, number, table
from redrive.operations.operation import ControlRequest, ItemOutcome, Operation, OperationState
from redrive.text import one_line


@click.group()
def ops() -> None:
    """Operations on dead letters: see them, watch them, steer them.

    \b
    redrive ops ls                   what ran, what runs
    redrive ops show op_01j8         how it ended, and what became of each message
    redrive ops watch op_01j8        follow it
    redrive ops rate op_01j8 50      slower, or faster
    redrive ops pause op_01j8        and resume, and cancel
    """


@ops.command("ls", short_help="What runs, and what ran: the newest first.")
@click.option("--queue", help="Only of this queue.")
@click.option("--running", is_flag=True, help="Only those that are not over.")
@limit_option
@target_options
@json_option
def list_(target: CommandTarget, queue: str | None, running: bool, limit: int, json: bool) -> None:
    """The newest first.

    \b
    redrive ops ls
    redrive ops ls --queue orders.dlq --running
    """
    states = [state for state in OperationState if not state.is_over] if running else None
    service = target.service()
    found = run(service.operations, queue, states, limit)
    if json:
        as_json([operation_row(each) for each in found])
        return
    rows = [
        (
            each.id,
            _state(service, each),
            each.order.kind,
            one_line(each.order.queue),
            number(each.counts.moved),
            number(each.counts.failed),
            number(each.counts.returned),
            ago(each.created_at),
            one_line(each.order.by),
            one_line(each.order.reason),
        )
        for each in found
    ]
    if rows:
        columns = ("ID", "STATE", "KIND", "QUEUE", "MOVED", "FAILED", "RETURNED", "BEGAN", "BY", "REASON")
        table(columns, rows, right=("MOVED", "FAILED", "RETURNED"))
    else:
        note("redrive: no operations")


def _state(service: Service, operation: Operation) -> str:
    return f"{operation.state} (interrupted)" if service.is_interrupted(operation) else operation.state


@ops.command(short_help="One operation: how it goes, and what became of its messages.")
@click.argument("id")
@click.option(
    "--items", type=click.Choice([str(outcome) for outcome in ItemOutcome]), help="Messages with this outcome."
)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="So many messages.")
@target_options
@json_option
def show(target: CommandTarget, id: str, items: str | None, limit: int, json: bool) -> None:
    """One operation: how far it is or how it ended, and what became of its messages.

    \b
    redrive ops show op_01j8
    redrive ops show op_01j8 --items failed
    """
    service = target.service()
    operation = run(service.operation, id)
    outcome = ItemOutcome(items) if items is not None else None
    found = [item for _, item in run(service.items, operation.id, outcome, limit)]
    if json:
        as_json(operation_row(operation) | {"items": [item._asdict() for item in found]})
        return
    order, counts = operation.order, operation.counts
    click.echo(f"{operation.id}  {order.kind} of {one_line(order.queue)} to {order.to}")
    click.echo(f"state     {_state(service, operation)}{f': {one_line(operation.note)}' if operation.note else ''}")
    click.echo(
        "counts    " + ", ".join(f"{label(name)} {number(count)}" for name, count in counts.as_dict().items() if count)
    )
    reason = f", {one_line(order.reason)}" if order.reason else ""
    click.echo(f"by        {one_line(order.by)}, {ago(operation.created_at)}{reason}")
    if service.is_interrupted(operation):
        click.echo(f"          its process is gone; nothing is lost. To go on: redrive ops resume {operation.id}")
    if found:
        click.echo()
        rows = [(one_line(item.id), item.outcome, one_line(item.to), one_line(item.why)) for item in found]
        table(("ID", "OUTCOME", "TO", "WHY"), rows)


@ops.command()
@click.argument("id")
@target_options
def watch(target: CommandTarget, id: str) -> None:
    """Follow an operation until it is over. Ctrl-C stops watching, not the operation.

    \b
    redrive ops watch op_01j8
    """
    finish(run(_watch, target.service(), id), False)


async def _watch(service: Service, id: str) -> Operation:
    progress = Progress()
    loop = asyncio.get_running_loop()
    try:
        while True:
            operation = await service.operation(id)
            progress.show(operation, loop.time())
            if operation.state.is_over:
                return operation
            if service.is_interrupted(operation):
                note(f"\nredrive: its process is gone. To go on: redrive ops resume {operation.id}")
                return operation
            await asyncio.sleep(0.5)
    finally:
        progress.end()


@ops.command()
@click.argument("id")
@target_options
def cancel(target: CommandTarget, id: str) -> None:
    """Stop it. What was moved stays moved, the rest stays in the queue.

    \b
    redrive ops cancel op_01j8
    """
    _wish(target, id, ControlRequest(OperationState.CANCELLING), "will stop; what was moved stays moved")


@ops.command()
@click.argument("id")
@target_options
def pause(target: CommandTarget, id: str) -> None:
    """Let it wait. It keeps the queue to itself, and gives its messages back meanwhile.

    \b
    redrive ops pause op_01j8
    """
    _wish(target, id, ControlRequest(OperationState.PAUSED), "will pause")


@ops.command()
@click.argument("id")
@click.argument("rate", type=float)
@target_options
def rate(target: CommandTarget, id: str, rate: float) -> None:
    """At most RATE messages a second from now on.

    \b
    redrive ops rate op_01j8 50
    """
    _wish(target, id, ControlRequest(rate=rate), f"will go on with {rate:g} messages a second")


def _wish(target: CommandTarget, id: str, wish: ControlRequest, told: str) -> None:
    operation = run(target.service().request_control, id, wish)
    click.echo(f"{operation.id} {told}")


@ops.command(short_help="Go on with one that is paused, or whose process is gone.")
@click.argument("id")
@target_options
@json_option
def resume(target: CommandTarget, id: str, json: bool) -> None:
    """Go on with one that is paused, or whose process is gone: then it runs here.

    \b
    redrive ops resume op_01j8
    """
    service = target.service()
    operation = run(service.operation, id)
    if service.is_interrupted(operation):
        over = run(run_with_progress, lambda changed: service.resume(id, changed=changed))
        finish(over, json)
        return
    _wish(target, id, ControlRequest(OperationState.RUNNING), "will go on")


@click.command()
@click.option("--queue", help="Only of this queue.")
@click.option("--by", help="Only what this person did.")
@click.option("--action", help="Only this: re-drive, discard, reveal and so on.")
@limit_option
@target_options
@json_option
def audit(target: CommandTarget, queue: str | None, by: str | None, action: str | None, limit: int, json: bool) -> None:
    """Who did what to dead letters, the newest first.

    \b
    redrive audit
    redrive audit --queue orders.dlq --action re-drive
    """
    entries = target.service().audit.list_entries(queue, by, action, limit)
    if json:
        as_json([asdict(entry) | {"number": number_} for number_, entry in entries])
        return
    rows = [
        (
            f"{entry.at:%Y-%m-%d %H:%M:%S}",
            one_line(entry.by),
            entry.action if entry.allowed else f"{entry.action} (refused)",
            one_line(entry.queue),
            entry.operation,
            ", ".join(f"{label(name)} {count}" for name, count in entry.counts.items() if count),
            one_line(" ".join(filter(None, (entry.filter, entry.reason, entry.detail)))),
        )
        for _, entry in entries
    ]
    if rows:
        table(("AT (UTC)", "BY", "ACTION", "QUEUE", "OPERATION", "COUNTS", "WHAT"), rows)
    note(counted(len(rows), "entry").replace("entrys", "entries"))
