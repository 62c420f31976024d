"""`redrive admin keys`: who may come in to the admin API and the console."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

import click

from redrive.admin.access.keys import Keys
from redrive.admin.access.roles import ALL_QUEUES, Role
from redrive.cli.options import CommandTarget, database_options, json_option, operator_name
from redrive.cli.output import ago, as_json, note, table
from redrive.recovery.durations import duration
from redrive.text import one_line
from redrive.worker.clock import SystemClock


@click.group()
def admin() -> None:
    """The admin API and its console: who may come in.

    \b
    redrive admin keys create ci --role operator
    redrive admin keys ls
    redrive admin keys revoke ci
    """


@admin.group()
def keys() -> None:
    """API keys, for scripts, and for people to sign in with.

    \b
    redrive admin keys create ann --role admin --expires 90d
    redrive admin keys create shop --role operator --queues 'orders.*' --queues 'mail.*'
    redrive admin keys ls
    redrive admin keys revoke ann
    """


@keys.command()
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice([str(role) for role in Role]),
    required=True,
    help="viewer looks; operator also re-drives; admin also edits, discards and reveals.",
)
@click.option(
    "--queues", multiple=True, metavar="PATTERN", help="Only these queues; may be said several times. [default: *]"
)
@click.option("--expires", metavar="TIME", help="After this, like 90d. [default: never]")
@database_options
@json_option
def create(
    target: CommandTarget, name: str, role: str, queues: tuple[str, ...], expires: str | None, json: bool
) -> None:
    """Make a key. It goes to stdout, alone and once: only its digest is kept.

    \b
    redrive admin keys create ci --role operator
    redrive admin keys create ann --role admin --expires 90d
    redrive admin keys create shop --role viewer --queues 'orders.*' --queues mail.dlq
    """
    lasts = duration(expires, "--expires") if expires is not None else None
    made = _keys(target)
    key, text = made.create(name, Role(role), queues or ALL_QUEUES, lasts, by=operator_name())
    if json:
        as_json(asdict(key) | {"key": text})
    else:
        click.echo(text)
    until = f", until {key.expires_at:%Y-%m-%d %H:%M} UTC" if key.expires_at is not None else ""
    note(f"redrive: key {key.id}: {key.name} is {key.role} of {', '.join(key.queues)}{until}")
    note(f"redrive: it is for servers that use {made.database.location}")
    note("redrive: keep it now, it is not shown again")


@keys.command("ls")
@database_options
@json_option
def list_(target: CommandTarget, json: bool) -> None:
    """All keys there ever were, the newest first; of none its secret.

    \b
    redrive admin keys ls
    redrive admin keys ls --json
    """
    kept = _keys(target)
    now, found = SystemClock().now(), kept.list_keys()
    if json:
        as_json([asdict(key) | {"state": str(key.state(now))} for key in found])
        return
    if not found:
        note(
            f"redrive: no keys in {kept.database.location}: make one with `redrive admin keys create NAME --role admin`"
        )
        return
    rows = [
        (
            key.id,
            one_line(key.name),
            str(key.role),
            one_line(" ".join(key.queues), 60),
            str(key.state(now)),
            _day(key.expires_at),
            ago(key.used_at, now),
            ago(key.created_at, now),
            one_line(key.created_by),
        )
        for key in found
    ]
    table(("ID", "NAME", "ROLE", "QUEUES", "STATE", "EXPIRES", "USED", "MADE", "BY"), rows)


@keys.command()
@click.argument("key", metavar="ID|NAME")
@database_options
@json_option
def revoke(target: CommandTarget, key: str, json: bool) -> None:
    """End a key at once, and every session that was opened with it.

    \b
    redrive admin keys revoke ci
    redrive admin keys revoke 4fK2bX81mQzA
    """
    revoked = _keys(target).revoke(key, by=operator_name())
    if json:
        as_json(asdict(revoked))
    else:
        note(f"redrive: key {revoked.id} ({one_line(revoked.name)}) is revoked, and its sessions are over")


def _keys(target: CommandTarget) -> Keys:
    return Keys(target.open_database(), SystemClock())


def _day(moment: datetime | None) -> str:
    return "-" if moment is None else f"{moment:%Y-%m-%d}"
