"""Look at dead letters: which queues, what is in them, why. Changes nothing."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import click
from msgspec import structs

from redrive.admin.service import QueueView
from redrive.cli.exit_codes import FOUND
from redrive.cli.loading import run
from redrive.cli.options import CommandTarget, json_option, limit_option, query_option, risk_options, target_options
from redrive.cli.output import ago, as_json, counted, note, number, out, table
from redrive.deadletters import search
from redrive.deadletters.body_preview import show as show_body
from redrive.deadletters.dead_letter import Summary
from redrive.deadletters.redaction import REDACTION
from redrive.deadletters.timeline import explain
from redrive.operations.browse import GroupBy, MessageDetail
from redrive.operations.peek_allowance import Risk
from redrive.recovery.durations import duration
from redrive.text import one_line


@click.command("ls")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@target_options
@json_option
def list_(target: CommandTarget, queues: tuple[str, ...], json: bool) -> None:
    """Dead-letter queues: how many messages, since when, from where.

    \b
    redrive dlq ls --app shop.app:app
    redrive dlq ls --broker amqp://... orders.dlq payments.dlq
    """
    found = run(target.service().queues, queues)
    if json:
        as_json([_queue_row(view) for view in found])
        return
    if not found:
        note("redrive: no dead-letter queues found. Name them, or say --app or --management, by which they are found")
        return
    rows = [
        (
            one_line(view.name),
            number(view.depth),
            ago(view.oldest),
            one_line(view.source) or "-",
            view.type,
            view.peek_safety,
            f"{view.operation.id} {view.operation.state}" if view.operation is not None else "",
        )
        for view in found
    ]
    columns = ("QUEUE", "MESSAGES", "OLDEST", "SOURCE", "TYPE", "LOOKING", "OPERATION")
    table(columns, rows, right=("MESSAGES",))
    for view in found:
        if view.peek_note and view.peek_safety != "safe":
            note(f"{view.name}: {view.peek_note}")


def _queue_row(view: QueueView) -> dict[str, Any]:
    return asdict(view) | {"operation": view.operation.id if view.operation is not None else None}


@click.command()
@click.argument("queue")
@query_option
@limit_option
@click.option(
    "--from", "start", type=click.IntRange(1), default=1, help="The position to begin at, as told by the page before."
)
@risk_options
@target_options
@json_option
def peek(target: CommandTarget, queue: str, query: str, limit: int, start: int, risk: Risk, json: bool) -> None:
    """The messages of a queue, oldest first. They stay where they are.

    \b
    redrive dlq peek orders.dlq
    redrive dlq peek orders.dlq -q 'error:Timeout since:2h -redriven:>0' --limit 50
    """
    page = run(target.service().peek, queue, query, limit=limit, start=start, risk=risk)
    if json:
        as_json({"letters": page.dead_letters, "scanned": page.scanned, "depth": page.depth, "next": page.next})
        return
    _letters(page.dead_letters)
    more = f"; go on with --from {page.next}" if page.next is not None else ""
    note(f"{counted(len(page.dead_letters), 'message')} of {number(page.depth)} in {one_line(queue)}{more}")


def _letters(dead_letters: tuple[Summary, ...]) -> None:
    rows = [
        (
            number(dead_letter.position),
            one_line(dead_letter.id),
            ago(dead_letter.dead_at),
            one_line(dead_letter.source) or "-",
            one_line(dead_letter.type) or "-",
            dead_letter.reason,
            str(dead_letter.attempts),
            str(dead_letter.redriven),
            one_line(": ".join(filter(None, (dead_letter.error, dead_letter.error_message)))),
        )
        for dead_letter in dead_letters
    ]
    columns = ("#", "ID", "DIED", "SOURCE", "TYPE", "REASON", "TRIES", "RE-DRIVEN", "ERROR")
    if rows:
        table(columns, rows, right=("#", "TRIES", "RE-DRIVEN"))


@click.command(short_help="What failed in the same way, the largest group first.")
@click.argument("queue")
@click.option(
    "--by",
    type=click.Choice([str(by) for by in GroupBy]),
    default=str(GroupBy.FINGERPRINT),
    show_default=True,
    help="What makes a group.",
)
@query_option
@risk_options
@target_options
@json_option
def groups(target: CommandTarget, queue: str, by: str, query: str, risk: Risk, json: bool) -> None:
    """What failed in the same way, over the whole queue, the largest group first.

    \b
    redrive dlq groups orders.dlq
    redrive dlq groups orders.dlq --by source -q since:1d
    """
    found = run(target.service().groups, queue, GroupBy(by), query, risk=risk)
    if json:
        as_json(found)
        return
    rows = [
        (
            one_line(group.key, 40) or "-",
            number(group.count),
            ago(group.oldest),
            ago(group.newest),
            one_line(", ".join(source or "?" for source in group.sources), 40),
            one_line(": ".join(filter(None, (group.error, group.error_message)))),
        )
        for group in found.groups
    ]
    if rows:
        table((by.upper(), "MESSAGES", "OLDEST", "NEWEST", "SOURCE", "ERROR"), rows, right=("MESSAGES",))
    note(f"{counted(len(found.groups), 'group')}, {number(found.matched)} of {counted(found.depth, 'message')}")


@click.command()
@click.argument("queue")
@click.argument("id")
@click.option("--reveal", is_flag=True, help="Show what looks like a secret, too. Goes into the audit.")
@click.option("--headers", is_flag=True, help="All headers.")
@risk_options
@target_options
@json_option
def show(target: CommandTarget, queue: str, id: str, reveal: bool, headers: bool, risk: Risk, json: bool) -> None:
    """One message in full: its story, its stack, its body. ID is its id, message_id, or the beginning of its id.

    \b
    redrive dlq show orders.dlq 3f5a
    """
    found = run(target.service().message, queue, id, reveal=reveal, risk=risk)
    dead_letter = found.dead_letter
    redaction = None if reveal else REDACTION
    body = show_body(
        found.body,
        dead_letter.content_type,
        dead_letter.headers,
        redaction=redaction,
        content_encoding=dead_letter.content_encoding,
    )
    if json:
        as_json(_message_row(found, body.text))
        return
    out().print(
        f"[bold]{one_line(dead_letter.id)}[/]  in {one_line(queue)}, position {dead_letter.position}", markup=True
    )
    facts = {
        "message_id": dead_letter.message_id,
        "correlation": dead_letter.correlation_id,
        "type": dead_letter.type,
        "source": dead_letter.source,
        "error": ": ".join(filter(None, (dead_letter.error, dead_letter.error_message))),
        "group": dead_letter.fingerprint,
        "re-driven": str(dead_letter.redriven) if dead_letter.redriven else None,
    }
    for name, value in facts.items():
        if value:
            click.echo(f"{name:<12} {one_line(value)}")
    click.echo()
    for event in explain(dead_letter):
        click.echo(f"  {event.text}")
    if dead_letter.stack:
        click.echo("\n" + "\n".join(one_line(line) for line in dead_letter.stack.splitlines()))
    if headers:
        click.echo("\nheaders")
        for name, header in dead_letter.headers.items():
            click.echo(f"  {one_line(name)}: {one_line(str(header), 500)}")
    content_type = one_line(dead_letter.content_type) or "no content type"
    click.echo(f"\nbody  {counted(dead_letter.size, 'byte')}, {content_type}, {body.kind}")
    click.echo(body.text)
    if body.note:
        note(f"redrive: {body.note}")


def _message_row(found: MessageDetail, text: str) -> dict[str, Any]:
    row = {name: value for name, value in structs.asdict(found.dead_letter).items() if name != "headers"}
    return row | {
        "timeline": [event.text for event in explain(found.dead_letter)],
        "body": text,
        "delivered_key": found.routing_key,
    }


@click.command()
def query() -> None:
    """How to say which messages are meant (-q, --query).

    \b
    redrive dlq query
    redrive dlq peek orders.dlq -q 'error:Timeout since:2h'
    """
    click.echo(search.__doc__)


@click.command(short_help="Exit with 9 if there are dead letters: for cron, for alerting.")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@click.option(
    "--max", "most", type=click.IntRange(0), default=0, show_default=True, help="So many dead letters are fine."
)
@click.option("--older-than", metavar="TIME", help="And so are those younger than this: 15m.")
@target_options
@json_option
def check(target: CommandTarget, queues: tuple[str, ...], most: int, older_than: str | None, json: bool) -> None:
    """Exit with 9 if there are dead letters: for cron and for alerting.

    \b
    redrive dlq check --app shop.app:app
    redrive dlq check orders.dlq --max 0 --older-than 15m
    """
    age = duration(older_than, "--older-than") if older_than is not None else None
    service = target.service()
    found = run(service.queues, queues, oldest=age is not None)
    now = service.clock.now()
    bad = [
        view for view in found if view.depth > most and (age is None or view.oldest is None or now - view.oldest > age)
    ]
    if json:
        as_json([_queue_row(view) for view in bad])
    for view in bad:
        since = f", the oldest died {ago(view.oldest, now)}" if view.oldest is not None else ""
        if not json:
            click.echo(f"{one_line(view.name)}: {counted(view.depth, 'dead letter')}{since}")
    if bad:
        sys.exit(FOUND)
    note(f"{counted(len(found), 'queue')} checked, no dead letters to worry about")
