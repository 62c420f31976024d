"""`redrive outbox`: publish what was committed, and look after what cannot be published. `redrive db`: its tables."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime

import click
from prometheus_client import CollectorRegistry

from redrive import environment
from redrive.app import App
from redrive.cli.exit_codes import NOT_FOUND, USAGE, stop_on_signals
from redrive.cli.health_pages import health_options, serve_health
from redrive.cli.loading import load_app
from redrive.cli.options import json_option, limit_option, log_options, yes_option
from redrive.cli.output import as_json, note
from redrive.database.application_tables import RowState
from redrive.database.engine import Database
from redrive.database.schema import Schema
from redrive.errors import ConfigurationError
from redrive.integrations.logs import configure_logging
from redrive.integrations.monitoring import outbox_samples
from redrive.integrations.prometheus import PrometheusObserver, Samples, exposition
from redrive.outbox.relay import Relay
from redrive.outbox.repository import OutboxRepository
from redrive.recovery.durations import duration, format_duration

_STATES = {state.name.lower(): state for state in RowState}


@click.group()
def outbox() -> None:
    """Messages that were committed with the application's own data. APP is module:app.

    \b
    redrive outbox status shop:app     how many rows wait, how many are parked
    redrive outbox relay shop:app      publish them
    """


@outbox.command()
@click.argument("app")
@health_options
@log_options
def relay(app: str, health_port: int | None, health_host: str, log_format: str, log_level: str) -> None:
    """Publish the rows of the outbox until told to stop. Several may run at once on PostgreSQL.

    \b
    redrive outbox relay shop:app --health-port 8081

    Refused with the transport LOCAL (REDRIVE_OUTBOX_TRANSPORT): then the rows are handled by the application's own
    process, within `async with app.local_worker()`, and are published nowhere.
    """
    configure_logging(log_format, log_level, logger="")
    done = asyncio.run(_Relaying(load_app(app)).run(health_host, health_port))
    click.echo(f"published {done.published}, parked {done.parked}")


class _Relaying:
    """A relay at work, watched: its metrics, its health."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._relay: Relay | None = None
        self._samples: Samples = {}
        self._registry = CollectorRegistry()
        PrometheusObserver(self._registry, sources={"rows of the outbox": lambda: self._samples})

    async def run(self, host: str, port: int | None) -> Relay:
        stop = stop_on_signals("finishing the batch; once more to quit at once")
        async with serve_health(host, port, self._metrics, self._problems):
            return await self._app.relay(stop, ready=self._ready)

    def _ready(self, relay: Relay) -> None:
        self._relay = relay
        click.echo(f"{self._app.name} publishes {self._app.outbox.table.name} of {self._app.database}")

    def _problems(self) -> list[str]:
        if self._relay is None:
            return ["not started yet"]
        return [] if self._relay.last_error is None else ["the database or the broker is away"]

    async def _metrics(self) -> bytes:
        self._samples = await outbox_samples(self._app)
        return exposition(self._registry)


@outbox.command()
@click.argument("app")
@json_option
def status(app: str, json: bool) -> None:
    """How many rows wait, since when, and how many are parked.

    \b
    redrive outbox status shop:app
    """
    found = _claims(app).status()
    age = datetime.now(UTC) - found["oldest"] if found["oldest"] is not None else None
    if json:
        as_json(found | {"oldest_seconds": age.total_seconds() if age is not None else None})
        return
    since = f", the oldest for {format_duration(age)}" if age is not None else ""
    click.echo(f"{found['pending']} pending{since}; {found['parked']} parked")


@outbox.command("ls")
@click.argument("app")
@click.option(
    "--state", type=click.Choice(list(_STATES)), default="parked", show_default=True, help="Rows in this state."
)
@limit_option
@json_option
def list_(app: str, state: str, limit: int, json: bool) -> None:
    """Show rows, without their bodies.

    \b
    redrive outbox ls shop:app --state parked
    """
    rows = _claims(app).list_rows(_STATES[state], limit)
    if json:
        as_json(rows)
        return
    for row in rows:
        place = f"{row['exchange'] or '(default)'} {row['routing_key']}"
        why = f"  {row['attempts']} attempts: {row['last_error']}" if row["last_error"] else ""
        written = f"{row['created_at']:%Y-%m-%d %H:%M:%S}" if row["created_at"] is not None else "time unknown"
        click.echo(f"{row['id']:>8}  {written:19}  {place}{why}")
    if not rows:
        note(f"redrive: no {state} rows")


@outbox.command()
@click.argument("app")
@click.argument("ids", nargs=-1, type=int)
@click.option("--all", "every", is_flag=True, help="Every parked row.")
@json_option
def retry(app: str, ids: tuple[int, ...], every: bool, json: bool) -> None:
    """Let parked rows be published again, from their first attempt.

    \b
    redrive outbox retry shop:app 17 18
    redrive outbox retry shop:app --all
    """
    if every == bool(ids):
        raise click.UsageError("name the rows, or say --all")
    _print_changed(_claims(app).retry(None if every else ids), "will be tried again", json)


@outbox.command()
@click.argument("app")
@click.argument("ids", nargs=-1, type=int, required=True)
@yes_option
@json_option
def discard(app: str, ids: tuple[int, ...], yes: bool, json: bool) -> None:
    """Delete parked rows for good: their messages are never published.

    \b
    redrive outbox discard shop:app 17 --yes
    """
    if not yes and not click.confirm(f"Delete {len(ids)} rows for good?", err=True):
        sys.exit(USAGE)
    _print_changed(_claims(app).discard(ids), "discarded", json)


def _print_changed(count: int, what: str, json: bool) -> None:
    if json:
        as_json({"rows": count})
    else:
        click.echo(f"{count} {what}")
    if not count:
        note("redrive: no such parked rows")
        sys.exit(NOT_FOUND)


@outbox.command(short_help="Delete published rows that are old enough.")
@click.argument("app")
@click.option("--older-than", help="Older than this, whatever the application keeps.")
@json_option
def prune(app: str, older_than: str | None, json: bool) -> None:
    """Delete published rows, and forget processed messages, that were kept for as long as the application says.

    \b
    redrive outbox prune shop:app
    redrive outbox prune shop:app --older-than 7d
    """
    age = duration(older_than, "--older-than") if older_than is not None else None
    found = load_app(app)
    keep = duration(found.outbox.policy.keep or "0s")
    published = OutboxRepository(found.database, found.outbox.table).prune(age if age is not None else keep)
    processed = found.inbox.prune(age) if age is not None else found.prune_inbox()
    if json:
        as_json({"published": published, "processed": processed})
        return
    click.echo(f"{published} published rows deleted")
    click.echo(f"{processed} processed messages forgotten")


def _claims(app: str) -> OutboxRepository:
    found = load_app(app)
    return OutboxRepository(found.database, found.outbox.table)


# The tables ---------------------------------------------------------------------------------------


@click.group()
def db() -> None:
    """The tables of the outbox and the inbox, of operations and the audit. APP is module:app.

    \b
    redrive db upgrade shop:app     make them, or bring them up to date
    redrive db sql shop:app         or see the SQL, for whoever runs migrations
    """


@db.command()
@click.argument("app", required=False)
def upgrade(app: str | None) -> None:
    """Make the tables, or bring them to this version of Redrive.

    \b
    redrive db upgrade shop:app
    redrive db upgrade              those that REDRIVE_DATABASE names, for operators

    Without APP, those that operators' commands need, in the database that REDRIVE_DATABASE names, or in .redrive: for
    those who have dead letters and no application of Redrive's, with Celery for one.
    """
    if app is not None:
        found = load_app(app)
        database, schema = found.database, found.schema
    else:
        url = environment.database()
        database, schema = Database(url) if url is not None else Database.embedded(environment.data()), Schema()
    done = schema.upgrade(database)
    click.echo(f"{database}: {'upgraded' if done else 'up to date'}")


@db.command()
@click.argument("app")
@click.option(
    "--dialect",
    type=click.Choice(["postgresql", "sqlite"]),
    help="For which database. [default: that of the application]",
)
def sql(app: str, dialect: str | None) -> None:
    """Print the SQL that makes the tables.

    \b
    redrive db sql shop:app > redrive.sql
    """
    found = load_app(app)
    if not found.schema.outbox.table.isidentifier():
        raise ConfigurationError(f"{found.schema.outbox.table!r} is no name for a table")
    click.echo(found.schema.sql(dialect or found.database.kind))
