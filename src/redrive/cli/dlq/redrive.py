"""Plan, and send messages back to work."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import Any, TypeVar, cast

import click

from redrive.admin.service import Change, Service
from redrive.cli.exit_codes import GUARDED, NOT_FOUND, PARTIAL, USAGE, stop_on_signals
from redrive.cli.loading import run
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
from redrive.cli.output import Progress, as_json, counted, note, number
from redrive.deadletters.redaction import redact
from redrive.errors import ConfigurationError
from redrive.operations.control import Changed, OperationControl
from redrive.operations.operation import (
    CanarySchedule,
    Destination,
    DestinationKind,
    Operation,
    OperationKind,
    OperationRequest,
    OperationState,
    Selection,
)
from redrive.operations.peek_allowance import Risk
from redrive.operations.plan import RedrivePlan
from redrive.recovery.durations import duration
from redrive.text import one_line

T = TypeVar("T")


selection_options = options(
    query_option,
    click.option("--id", "ids", multiple=True, metavar="ID", help="This message; may be said several times."),
    click.option("--group", default="", metavar="FINGERPRINT", help="This group; the beginning is enough."),
    click.option("--limit", type=click.IntRange(1), help="At most this many."),
    risk_options,
)
rate_option = click.option("--rate", type=float, metavar="N", help="At most N messages a second.")
reason_option = click.option("--reason", default="", help="For the audit: INC-42.")
redrive_options = options(
    click.option(
        "--to",
        metavar="WHERE",
        help="own: the queue each failed in. retry: its retry exchange. original: the exchange it was published "
        "to, and everybody bound there. exchange:NAME:KEY. Or the name of a queue.  [default: redrive_to of the "
        "queue, if --app says one; else own]",
    ),
    rate_option,
    click.option("--ramp", metavar="1,5,20,100", help="A canary: the sizes of its steps; then the rest."),
    click.option("--stop-if", "stop_if", type=float, default=10, show_default=True, metavar="PERCENT",
                 help="Stop the canary when more than this many of a hundred come back, or if it cannot be known."),
    click.option("--step-wait", metavar="TIME", help="How long a message may take to fail after it was "
                 "delivered.  [default: as long as its queue tries a message, or 30s]"),
    click.option("--reason", default="", help="For the audit and the messages' lineage: INC-42."),
    click.option("--most-redrives", type=int, default=3, show_default=True,
                 help="Skip messages that were re-driven so often already; 0: none."),
    click.option("--keep-counters", is_flag=True, help="Go on counting attempts instead of starting at zero."),
)  # fmt: skip
confirmation_options = options(
    click.option("--dry-run", is_flag=True, help="Plan, and stop there."), yes_option, no_input_option
)


def make_order(service: Service, queue: str, **said: Any) -> OperationRequest:
    ramp = None
    if said["ramp"]:
        wait = duration(said["step_wait"], "--step-wait").total_seconds() if said["step_wait"] else None
        ramp = CanarySchedule(_steps(said["ramp"]), said["stop_if"], wait)
    order = OperationRequest(
        OperationKind.REDRIVE,
        queue,
        make_selection(**said),
        Destination.parse(said["to"]) if said["to"] is not None else service.target.redrive_to(queue),
        said["rate"],
        ramp,
        reason=said["reason"],
        keep_counters=said["keep_counters"],
        most_redrives=said["most_redrives"] or None,
    )
    return with_risk(order, said["risk"])


def with_risk(order: OperationRequest, risk: Risk) -> OperationRequest:
    return replace(order, spend_deliveries=risk.spend, any_queue=risk.any_queue)


def make_selection(*, query: str, ids: tuple[str, ...], group: str, limit: int | None, **_: Any) -> Selection:
    return Selection(query, None, ids, group, limit)


def _steps(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(step) for step in text.split(","))
    except ValueError:
        raise ConfigurationError(f"--ramp {text!r}: want growing numbers, as 1,5,20,100") from None


@click.command()
@click.argument("queue")
@selection_options
@redrive_options
@target_options
@json_option
def plan(target: CommandTarget, queue: str, json: bool, **said: Any) -> None:
    """What a re-drive would do. Changes nothing.

    \b
    redrive dlq plan orders.dlq --group 3fa9
    redrive dlq plan orders.dlq -q 'error:Timeout' --to original
    """
    service = target.service()
    made = run(service.plan, make_order(service, queue, **said))
    if json:
        as_json(plan_row(made))
    else:
        print_plan(made)
    if not made.eligible:
        sys.exit(NOT_FOUND)


def plan_row(made: RedrivePlan) -> dict[str, Any]:
    ineligible = [{"reason": why, "count": count} for why, count in made.ineligible]
    return asdict(made) | {"ineligible": ineligible, "sample": made.sample}


def print_plan(made: RedrivePlan) -> None:
    more = "" if made.is_complete else f" among the first {number(made.scanned)} of {number(made.depth)}"
    skipped = [f"{number(count)} skipped ({why})" for why, count in made.ineligible]
    note(" · ".join([f"Plan   {number(made.matched)} match{more}", f"{number(made.eligible)} eligible", *skipped]))
    if made.order.kind is not OperationKind.DISCARD:
        for target in made.targets[:10]:
            consumers = f" ({counted(target.consumers, 'consumer')})" if target.consumers is not None else ""
            note(f"       {number(target.count)} → {one_line(str(target))}{consumers}")
        if made.also_receives == ():
            note("       nobody else receives these messages")
    for warning in made.warnings:
        note(f"       ! {one_line(warning)}")


@click.command(short_help="Send messages back to work, without losing any.")
@click.argument("queue")
@selection_options
@redrive_options
@confirmation_options
@target_options
@json_option
def redrive(
    target: CommandTarget, queue: str, dry_run: bool, yes: bool, no_input: bool, json: bool, **said: Any
) -> None:
    """Send messages back to work: published, confirmed, and only then taken out of the queue.

    \b
    redrive dlq redrive orders.dlq --limit 10
    redrive dlq redrive orders.dlq --group 3fa9 --ramp 1,5,20,100 --reason INC-42
    redrive dlq redrive orders.dlq -q 'error:Timeout since:2h' --rate 50 --yes

    Ctrl-C finishes what is under way, gives back the rest, and says what was done. It can be watched and steered from
    elsewhere: redrive ops.
    """
    service = target.service()
    made = print_plan_of(service, make_order(service, queue, **said), "nothing to re-drive")
    if dry_run:
        if json:
            as_json(plan_row(made))
        return
    where_to = one_line(str(made.targets[0])) if len(made.targets) == 1 else f"{len(made.targets)} destinations"
    confirm(f"Re-drive {counted(made.eligible, 'message')} to {where_to}?", yes, no_input)
    operation = run(service.begin, made.order, planned=made.eligible)
    finish(run(carry_out, service, operation), json)


@click.command(short_help="Move messages to another dead-letter queue, with their failure records.")
@click.argument("queue")
@click.option("--to", "to", required=True, metavar="QUEUE", help="The other dead-letter queue.")
@selection_options
@rate_option
@reason_option
@confirmation_options
@target_options
@json_option
def move(target: CommandTarget, queue: str, dry_run: bool, yes: bool, no_input: bool, json: bool, **said: Any) -> None:
    """Move messages to another dead-letter queue, with their failure records: reason, attempts, source, error.

    \b
    redrive dlq move orders.dlq --to orders.invalid -q error:ValueError
    redrive dlq move orders.dlq --to legal-hold.dlq --group 3fa9 --reason INC-42 --yes

    Each message is published, confirmed, and only then taken out of the queue. A re-drive to a dead-letter queue would
    remove the failure record.
    """
    service = target.service()
    order = OperationRequest(
        OperationKind.MOVE,
        queue,
        make_selection(**said),
        Destination(DestinationKind.QUEUE, said["to"]),
        said["rate"],
        reason=said["reason"],
    )
    made = print_plan_of(service, with_risk(order, said["risk"]), "nothing to move")
    if dry_run:
        if json:
            as_json(plan_row(made))
        return
    confirm(f"Move {counted(made.eligible, 'message')} to {one_line(order.to.name)}?", yes, no_input)
    operation = run(service.begin, made.order, planned=made.eligible)
    finish(run(carry_out, service, operation), json)


def print_plan_of(service: Service, order: OperationRequest, nothing: str) -> RedrivePlan:
    """Print the plan of an order and return it. Exit with the note `nothing` if no message is eligible."""
    made = run(service.plan, order)
    print_plan(made)
    if not made.eligible:
        note(f"redrive: {nothing}")
        sys.exit(NOT_FOUND)
    return made


def confirm(question: str, yes: bool, no_input: bool, option: str = "--yes") -> None:
    """Go on, or leave. `option` is the one that confirms without a question."""
    if yes:
        return
    if no_input or not sys.stdin.isatty():
        note(f"redrive: this needs a confirmation: say {option}")
        sys.exit(USAGE)
    if not click.confirm(question, err=True):
        note("redrive: nothing was done")
        sys.exit(USAGE)


async def carry_out(service: Service, operation: Operation, change: Change | None = None) -> Operation:
    return await run_with_progress(lambda changed: service.run(operation, change, changed=changed))


async def run_with_progress(runs: Callable[[Changed], Awaitable[Operation]]) -> Operation:
    """Run an operation with its progress shown, until it is over or Ctrl-C ends it."""
    progress = Progress()
    stop = stop_on_signals("finishing what is under way; once more to quit at once")
    running: list[OperationControl] = []

    async def cancel() -> None:
        await stop.wait()
        for steering in running:
            steering.cancel()

    def show(steering: OperationControl) -> None:
        running[:] = [steering]
        if stop.is_set():
            steering.cancel()
        if steering.has_begun:
            progress.show(steering.operation, loop.time())

    loop = asyncio.get_running_loop()
    cancelling = asyncio.create_task(cancel())
    try:
        return await runs(show)
    finally:
        cancelling.cancel()
        progress.end()


def finish(over: Operation, json: bool) -> None:
    """Say how it ended, and leave with the code for it."""
    counts = over.counts
    if json:
        as_json(operation_row(over))
    noted = {
        "skipped": counts.skipped,
        "failed": counts.failed,
        "came back": counts.returned,
        "possibly duplicated": counts.possibly_duplicated,
    }
    parts = [f"{number(counts.moved)} moved", *(f"{number(count)} {name}" for name, count in noted.items() if count)]
    note(f"{over.id} {over.state}: {', '.join(parts)}" + (f". {one_line(over.note)}" if over.note else ""))
    if over.state is OperationState.CANCELLED:
        verb = "move" if over.order.kind is OperationKind.MOVE else "redrive"
        note(f"to go on: redrive dlq {verb} {over.order.queue} (the same selection finds what is left)")
    if over.state is not OperationState.SUCCEEDED:
        sys.exit(GUARDED if over.state is OperationState.STOPPED_BY_GUARD else PARTIAL)


def operation_row(operation: Operation) -> dict[str, Any]:
    return cast("dict[str, Any]", redact(asdict(operation))) | {"counts": operation.counts.as_dict()}
