"""`redrive topology migrate`: give a queue other arguments without losing what is in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import click

from redrive.admin.target import BrokerTarget, ConnectedTarget
from redrive.cli.exit_codes import CONFLICT, INTERRUPTED, NOT_FOUND, PARTIAL, UNREACHABLE, USAGE, fail
from redrive.cli.loading import (
    broker_options,
    load_target,
    run,
)
from redrive.cli.options import json_option
from redrive.cli.output import as_json, note
from redrive.errors import (
    ConfigurationError,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    MigrationPaused,
    MigrationRefused,
    NotPublished,
    PublishUnknown,
)
from redrive.inspection.embedded import EmbeddedMonitor
from redrive.inspection.management import Management, ManagementMonitor
from redrive.migration.plan import MigrationPlan
from redrive.migration.ports import MigrationOptions, MigrationResult, QueueMonitor
from redrive.migration.run import migrate as carry_out
from redrive.migration.run import preview
from redrive.protocol.handshake import PlainAuth
from redrive.recovery.durations import duration
from redrive.text import did_you_mean, pluralise

_BROKEN_OFF = (ConnectionLost, ConnectionClosed, ConnectionFailed, PublishUnknown, NotPublished)


class _NotThere(Exception):
    """Nobody wants such a queue, or nobody has it."""


@click.command(short_help="Give a queue other arguments, without losing messages.")
@click.argument("app")
@click.argument("queue")
@broker_options
@click.option("--wait-for-consumers", is_flag=True, help="Wait until they have stopped, instead of refusing.")
@click.option("--timeout", metavar="DURATION", help="How long to wait for them ('10m').  [default: no limit]")
@click.option(
    "--allow-reorder",
    is_flag=True,
    help="Producers who leave no gap: let a few messages come after younger ones, instead of giving up.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
def migrate(
    app: str,
    queue: str,
    broker: str | None,
    management: str | None,
    wait_for_consumers: bool,
    timeout: str | None,
    allow_reorder: bool,
    dry_run: bool,
    yes: bool,
    json: bool,
) -> None:
    """Give QUEUE the arguments that APP wants, without losing or reordering its messages.

    \b
    redrive topology migrate uploads:app q.validator --dry-run     what it would do
    redrive topology migrate uploads:app q.validator --wait-for-consumers

    RabbitMQ cannot change the arguments of a queue, so it is deleted, when it is empty and unused, and declared again,
    while its messages and the new ones wait beside it. Consumers must be stopped, producers need not. Whatever
    interrupts it: run it again, and it goes on. See docs/migration.md.
    """
    target = load_target(app, broker, management)
    terms = MigrationOptions(
        wait_for_consumers=wait_for_consumers,
        timeout=duration(timeout, "--timeout") if timeout is not None else None,
        allow_reorder=allow_reorder,
    )
    try:
        plan = run(_prospect, target, queue)
        is_all = dry_run or (plan is not None and not plan.is_needed)
        _show_plan(queue, plan, json, is_all)
        if plan is not None and plan.problems:
            raise MigrationRefused(queue, plan.problems)
        if is_all:
            return
        _ask(queue, yes)
        result = run(_migrate, target, queue, terms)
    except _NotThere as error:
        _fail(str(error), NOT_FOUND)
    except MigrationRefused as error:
        fail(error, CONFLICT)
    except MigrationPaused as error:
        fail(error, UNREACHABLE if isinstance(error.__cause__, _BROKEN_OFF) else PARTIAL)
    except KeyboardInterrupt:
        _fail(f"interrupted; nothing is lost. To go on: redrive topology migrate {app} {queue}", INTERRUPTED)
    _show_result(result, json)


def _fail(reason: str, code: int) -> NoReturn:
    note(f"redrive: {reason}")
    sys.exit(code)


def _ask(queue: str, yes: bool) -> None:
    try:
        if yes or click.confirm(f"Migrate {queue}?", err=True):
            return
    except click.Abort:
        note("")
    _fail("not confirmed, so nothing was done: answer y, or say --yes", USAGE)


# On the broker ------------------------------------------------------------------------------------


async def _prospect(target: BrokerTarget, queue: str) -> MigrationPlan | None:
    async with target.connect_to_read(name="redrive topology migrate") as connected:
        watcher, wanted = _watcher(target, connected), connected.wanted
        if wanted.queue(queue) is None:
            hint = did_you_mean(queue, [one.name for one in wanted.queues], ": declare it in the topology")
            raise _NotThere(f"nobody wants a queue {queue}{hint}")
        try:
            return await preview(queue, wanted, connected.connection, watcher)
        except MigrationRefused:
            if connected.snapshot.definitions.queue(queue) is None:
                raise _NotThere(f"there is no queue {queue}: `redrive topology apply` makes it") from None
            raise


async def _migrate(target: BrokerTarget, queue: str, terms: MigrationOptions) -> MigrationResult:
    async with target.connect_to_read(name="redrive topology migrate") as connected:
        connection, watcher = connected.connection, _watcher(target, connected)
        credentials = connection.url.credentials
        user = credentials.username if isinstance(credentials, PlainAuth) else None
        return await carry_out(queue, connected.wanted, connection, watcher, terms, user=user, tell=note)


def _watcher(target: BrokerTarget, connected: ConnectedTarget) -> QueueMonitor:
    if target.management is not None:
        return ManagementMonitor(Management(target.management), connected.connection.url.virtual_host)
    if connected.snapshot.complete:
        return EmbeddedMonitor(connected.connection)
    raise ConfigurationError(
        "the bindings of a queue must be known to migrate it, and plain AMQP cannot list them: give --management"
    )


# Words --------------------------------------------------------------------------------------------


def _show_plan(queue: str, plan: MigrationPlan | None, json: bool, is_all: bool) -> None:
    """The plan is data if nothing follows, and a note before a result in JSON."""
    if json and is_all:
        as_json(_as_data(queue, plan))
    elif plan is None:
        note(f"a migration of {queue} was begun, and goes on from where it stopped")
    elif not plan.is_needed:
        note(f"queue {queue} is as wanted: there is nothing to do")
    else:
        for line, colour in _description_lines(plan):
            click.secho(line, fg=colour, err=json)


def _description_lines(plan: MigrationPlan) -> Iterator[tuple[str, str | None]]:
    yield f"queue {plan.names.queue}", None
    for difference in plan.differences:
        yield f"    {difference}", None
    found = (
        _count_text(plan.messages, "message"),
        _count_text(plan.consumers, "consumer"),
        _count_text(len(plan.record.bindings), "binding"),
    )
    yield ", ".join(found), None
    for number, (step, words) in enumerate(plan.steps, 1):
        yield f"  {number} {step:<8} {words}", None
    for definition in plan.record.needs:
        yield f"makes also: {definition}", None
    for warning in plan.warnings:
        yield f"mind: {warning}", "yellow"


def _count_text(count: int | None, what: str) -> str:
    return f"an unknown number of {what}s" if count is None else pluralise(count, what)


def _as_data(queue: str, plan: MigrationPlan | None) -> dict[str, Any]:
    if plan is None:
        return {"queue": queue, "resumes": True}
    return {
        "queue": queue,
        "resumes": False,
        "needed": plan.is_needed,
        "differences": [{"what": one.what, "have": one.have, "want": one.want} for one in plan.differences],
        "messages": plan.messages,
        "consumers": plan.consumers,
        "bindings": [str(binding) for binding in plan.record.bindings],
        "makes": [str(definition) for definition in plan.record.needs],
        "steps": [{"step": str(step), "what": words} for step, words in plan.steps],
        "problems": plan.problems,
        "warnings": plan.warnings,
    }


def _show_result(result: MigrationResult, json: bool) -> None:
    if json:
        as_json(result)
        return
    late = f"; {result.reordered} messages came after younger ones" if result.reordered else ""
    click.echo(f"queue {result.queue} is as wanted now{late}. Start its consumers")
