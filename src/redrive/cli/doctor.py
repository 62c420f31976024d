"""`redrive doctor`: what is wrong with a broker, and how to fix it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
from rich.text import Text

from redrive.admin.target import BrokerTarget
from redrive.cli.exit_codes import FOUND
from redrive.cli.loading import broker_options, load_target, run
from redrive.cli.output import as_json, note, out
from redrive.client import BrokerURL
from redrive.inspection import connect
from redrive.inspection.management import Management
from redrive.inspection.passive import with_exact_counts
from redrive.topology.doctor import Finding, Severity, examine
from redrive.topology.snapshot import Server

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold blue"}
_NOWHERE = "without APP it takes --management to see what there is (or --broker, if that is Redrive's own broker)"


@click.command()
@click.argument("app", required=False)
@broker_options
@click.option("--vhost", help="The virtual host, without APP.  [default: that of --broker, or /]")
@click.option("--json", "json", is_flag=True, help="A JSON list of findings, for scripts.")
@click.option(
    "--severity",
    type=click.Choice([str(severity) for severity in Severity]),
    default=str(Severity.WARNING),
    show_default=True,
    help="Exit with 9 if there is a finding at least as bad as this.",
)
def doctor(
    app: str | None, broker: str | None, management: str | None, vhost: str | None, json: bool, severity: str
) -> None:
    """Look for what loses messages, and say how to fix it. Changes nothing.

    \b
    redrive doctor --management http://guest:guest@localhost:15672     all of a virtual host
    redrive doctor uploads:app --severity error                        in a pipeline

    APP is module:app, or a file: .toml, .yaml, or RabbitMQ's definitions as .json. Without it, everything in the
    virtual host is examined, through the management API. Every finding has an id, and
    `redrive explain ID` says more.
    """
    if app is not None and vhost is not None:
        raise click.UsageError("--vhost goes without APP: the virtual host is in its broker's URL")
    server, findings = run(_examine, load_target(app, broker, management), app is not None, vhost)
    _show(server, findings, json)
    if any(finding.severity.reaches(Severity(severity)) for finding in findings):
        sys.exit(FOUND)


async def _examine(target: BrokerTarget, has_app: bool, vhost: str | None) -> tuple[Server, Sequence[Finding]]:
    if not has_app and target.management is not None:
        at = vhost or (BrokerURL.parse(target.broker).virtual_host if target.broker is not None else "/")
        seen = await Management(target.management).snapshot(at)
        if target.broker is not None and BrokerURL.parse(target.broker).virtual_host == at:
            async with connect(target.broker, name="redrive doctor") as connection:
                seen = await with_exact_counts(connection, seen, seen.queues)
        return seen.server, examine(seen, vhost=at)
    if not has_app and target.broker is None:
        raise click.UsageError(_NOWHERE)
    async with target.connect_to_read(name="redrive doctor") as connected:
        if not has_app and not connected.snapshot.complete:
            raise click.UsageError(_NOWHERE)
        return connected.snapshot.server, connected.findings()


def _show(server: Server, findings: Sequence[Finding], json: bool) -> None:
    if json:
        as_json(findings)
        return
    console = out()
    for severity in Severity:
        several = [finding for finding in findings if finding.severity is severity]
        if several:
            console.print(Text(_count_text(several, severity), _STYLES[severity]))
        for finding in several:
            console.print(_entry(finding))
    counts = [_count_text([one for one in findings if one.severity is severity], severity) for severity in Severity]
    note(f"{server}: {', '.join(counts) if findings else 'nothing found'}")


def _entry(finding: Finding) -> Text:
    return Text.assemble(
        "  ",
        (finding.subject or "the broker", "bold"),
        f": {finding.title} ",
        (f"[{finding.id}]", "dim"),
        f"\n    seen: {finding.evidence}",
        f"\n    fix:  {finding.fix}\n",
    )


def _count_text(findings: Sequence[Finding], severity: Severity) -> str:
    plural = "" if len(findings) == 1 or severity is Severity.INFO else "s"
    return f"{len(findings)} {severity}{plural}"
