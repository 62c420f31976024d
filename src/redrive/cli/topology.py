"""`redrive topology`: compare a broker with what is wanted of it, bring it there, and take topologies along."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from redrive.admin.target import BrokerTarget
from redrive.cli.exit_codes import CONFLICT, FOUND
from redrive.cli.loading import (
    broker_options,
    load_target,
    load_topology,
    run,
)
from redrive.cli.migrate import migrate
from redrive.cli.options import json_option
from redrive.cli.output import as_json, note
from redrive.errors import ConfigurationError, NotFound
from redrive.inspection.management import Management
from redrive.recovery.retry import Retry
from redrive.text import did_you_mean, escape_line
from redrive.topology import (
    BindingDefinition,
    Definitions,
    ExchangeDefinition,
    Naming,
    Queue,
    Server,
    Topology,
    expand,
)
from redrive.topology.add_retry import adoption, as_topology, equip, only
from redrive.topology.definitions_json import DefinitionsFile, hash_password
from redrive.topology.draw import FORMATS, draw
from redrive.topology.plan import Action, Plan, PlanStep, make_plan, own_dead_letters
from redrive.topology.serialization import to_python, to_toml, to_yaml
from redrive.topology.snapshot import BrokerSnapshot
from redrive.worker.topology_apply import provision

_MARKS = {
    Action.CREATE: "+",
    Action.UNCHANGED: "=",
    Action.EXISTING: "=",
    Action.MISSING: "!",
    Action.CONFLICT: "!",
    Action.UNSEEN: "?",
    Action.EXTRA: "·",
    Action.OTHER: "·",
}
_COLOURS = {Action.CREATE: "green", Action.CONFLICT: "red", Action.MISSING: "red", Action.UNSEEN: "yellow"}

vhost_option = click.option("--vhost", default="/", show_default=True, help="The virtual host.")
version_option = click.option(
    "--for", "version", default="4.3", show_default=True, help="The version of RabbitMQ that it is for."
)
output_option = click.option(
    "--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="A file, instead of stdout."
)


@click.group()
def topology() -> None:
    """Exchanges, queues, retry and dead-letter queues: as code, and as the broker has them.

    \b
    redrive topology plan uploads:app              what differs
    redrive topology apply uploads:app             make what is missing
    redrive topology draw uploads:app -o map.svg   see it
    redrive topology adopt orders                  declare a queue that exists

    APP is module:app, or a file: .toml, .yaml, or RabbitMQ's definitions as .json.
    """


topology.add_command(migrate)


# Comparing ----------------------------------------------------------------------------------------


@topology.command()
@click.argument("app")
@broker_options
@click.option("--all", "everything", is_flag=True, help="Show also what is unchanged, and what belongs to others.")
@json_option
def plan(app: str, broker: str | None, management: str | None, everything: bool, json: bool) -> None:
    """Show what `apply` would do. Changes nothing.

    \b
    redrive topology plan uploads:app
    redrive topology plan topology.toml --broker amqp://localhost/ --all
    """
    found, snapshot = run(_plan, load_target(app, broker, management))
    _show(found, snapshot, everything, json)


@topology.command(short_help="Exit with 9 if the broker differs: for deploy pipelines.")
@click.argument("app")
@broker_options
@click.option("--strict", is_flag=True, help="What nobody asked for is drift too.")
@json_option
def check(app: str, broker: str | None, management: str | None, strict: bool, json: bool) -> None:
    """Exit with 9 if the broker is not as APP wants it: for deploy pipelines. Changes nothing.

    \b
    redrive topology check uploads:app --strict
    """
    found, snapshot = run(_plan, load_target(app, broker, management))
    _show(found, snapshot, False, json, others=strict)
    if not found.is_empty or (strict and found.steps_by(Action.EXTRA, Action.OTHER)):
        sys.exit(FOUND)


async def _plan(target: BrokerTarget) -> tuple[Plan, BrokerSnapshot]:
    async with target.connect_to_read(name="redrive topology plan") as connected:
        return make_plan(connected.wanted, connected.snapshot), connected.snapshot


@topology.command()
@click.argument("app")
@broker_options
@json_option
def apply(app: str, broker: str | None, management: str | None, json: bool) -> None:
    """Make what is missing. Never deletes or purges; does nothing if anything conflicts.

    \b
    redrive topology apply uploads:app --broker amqps://deploy:secret@rabbit.example.com/
    """
    done, snapshot = run(_apply, load_target(app, broker, management))
    _show(done, snapshot, False, json, applied=not done.conflicts)
    if done.conflicts:
        note("redrive: nothing was applied, because of the conflicts")
        sys.exit(CONFLICT)


async def _apply(target: BrokerTarget) -> tuple[Plan, BrokerSnapshot]:
    async with target.connect_to_read(name="redrive topology apply") as connected:
        found = make_plan(connected.wanted, connected.snapshot)
        if not found.conflicts:
            await provision(found, connected.connection)
        return found, connected.snapshot


def _show(
    plan: Plan,
    snapshot: BrokerSnapshot,
    everything: bool,
    json: bool,
    *,
    others: bool = False,
    applied: bool = False,
) -> None:
    """`others`: with what belongs to other applications. `everything`: that, and what is unchanged."""
    steps = plan.shown(everything=everything or others)
    if json:
        as_json(_as_data(plan, steps, snapshot))
        return
    for step in steps:
        if everything or step.action is not Action.UNCHANGED:
            click.secho(_line(step), fg=_COLOURS.get(step.action))
    words = {
        Action.CREATE: "created" if applied else "to create",
        Action.UNSEEN: "bound" if applied else "unseen",
        Action.OTHER: "of others",
    }
    counts = ", ".join(f"{plan.count(action)} {words.get(action, action)}" for action in Action if plan.count(action))
    click.echo(f"{snapshot.server}: {counts or 'nothing wanted'}")
    if plan.steps_by(Action.UNSEEN) and not applied:
        note("redrive: plain AMQP cannot list bindings; --management can")
    if plan.steps_by(Action.MISSING):
        note("redrive: Redrive never creates a queue with existing=True: start the program that declares it")
    if plan.conflicts:
        note("redrive: RabbitMQ cannot change a queue in place; `redrive topology migrate` can")


def _line(step: PlanStep) -> str:
    line = f"{_MARKS[step.action]} {step.action:<9} {step.definition}"
    if step.action is Action.EXISTING:
        said = ", ".join(f"{name} {value!r}" for name, value in step.definition.arguments.items())
        line += "".join(
            f"\n              {escape_line(one)}" for one in (f"as it is: {said or 'no arguments'}", step.note)
        )
    return line + "".join(f"\n              {difference}" for difference in step.differences)


def _as_data(plan: Plan, steps: tuple[PlanStep, ...], snapshot: BrokerSnapshot) -> dict[str, Any]:
    return {
        "server": str(snapshot.server),
        "complete": snapshot.complete,
        "empty": plan.is_empty,
        "summary": {str(action): plan.count(action) for action in Action},
        "steps": [_step_data(step) for step in steps],
    }


def _step_data(step: PlanStep) -> dict[str, Any]:
    definition = step.definition
    data: dict[str, Any] = {"action": str(step.action)}
    if isinstance(definition, BindingDefinition):
        data |= {"kind": "binding", "source": definition.source, "destination": definition.destination}
        data |= {"destination_type": definition.destination_type, "routing_key": definition.routing_key}
    else:
        data |= {"kind": "exchange" if isinstance(definition, ExchangeDefinition) else "queue", "name": definition.name}
    differences = [{"what": one.what, "have": one.have, "want": one.want} for one in step.differences]
    return data | {"arguments": dict(definition.arguments), "differences": differences, "note": step.note}


# Adopting -----------------------------------------------------------------------------------------


@topology.command(short_help="Write the declaration of a queue that exists.")
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@broker_options
@click.option("--retry", metavar="DELAY", help="How long a failed message waits.  [default: 15s]")
@click.option("--attempts", type=int, help="How many attempts in all.  [default: 3]")
@click.option("--exact", is_flag=True, help="Declare it with its arguments and bindings, instead of as existing.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["python", "toml", "yaml"]),
    default="python",
    show_default=True,
    help="What to write.",
)
@output_option
def adopt(
    queues: tuple[str, ...],
    broker: str | None,
    management: str | None,
    retry: str | None,
    attempts: int | None,
    exact: bool,
    form: str,
    output: Path | None,
) -> None:
    """Write a declaration that takes each QUEUE as it is, and gives it a retry and a dead-letter queue.

    \b
    redrive topology adopt orders --broker amqp://localhost/ -o shop.py
    redrive topology adopt orders --retry 30s --attempts 5 --format toml

    The queue stays as it is: it is never declared or compared. With --exact the declaration has exactly the arguments
    of the queue instead, and its bindings (RabbitMQ lists these with --management), and no retry or dead-letter queue.
    Changes nothing.
    """
    if exact and (retry is not None or attempts is not None):
        raise click.UsageError("--exact declares the queue as it is: --retry and --attempts go without it")
    policy = Retry(attempts=attempts or 3, delay=retry or "15s")
    asked = Topology(queues=[Queue(name, existing=True, retry=policy) for name in queues])
    target = replace(load_target(None, broker, management), topology=asked)
    snapshot = run(_inspect, target)
    if missing := [name for name in queues if snapshot.definitions.queue(name) is None]:
        hint = did_you_mean(missing[0], [one.name for one in snapshot.definitions.queues], "")
        raise NotFound(404, f"there is no queue {', '.join(missing)}{hint}")
    if exact:
        declared = as_topology(only(snapshot.definitions, queues))
        if not snapshot.complete:
            note("redrive: plain AMQP cannot list bindings; --management can")
    else:
        declared = adoption(snapshot.definitions, queues, policy)
    _write(_described(queues, snapshot) + _declaration(declared, form, queues[0]), output)


def _declaration(topology: Topology, form: str, name: str) -> str:
    match form:
        case "toml":
            return to_toml(topology)
        case "yaml":
            return to_yaml(topology)
        case _:
            return to_python(topology, name)


async def _inspect(target: BrokerTarget) -> BrokerSnapshot:
    async with target.connect_to_read(name="redrive topology adopt") as connected:
        return connected.snapshot


def _described(queues: Iterable[str], snapshot: BrokerSnapshot) -> str:
    """Return a comment on each queue: its arguments, and what becomes of the messages that the broker removes."""
    lines = []
    for queue in filter(None, map(snapshot.definitions.queue, queues)):
        said = ", ".join(f"{name} {value!r}" for name, value in queue.arguments.items())
        lines.append(escape_line(f"# {queue.name} on {snapshot.server}: {said or 'no arguments'}"))
        lines.append(escape_line(f"# {own_dead_letters(queue, snapshot)}"))
    return "\n".join(lines) + "\n\n"


# Taking along -------------------------------------------------------------------------------------


@topology.command()
@click.argument("app")
@version_option
@click.option("--delayed-exchanges", is_flag=True, help="It has the delayed-message-exchange plugin.")
@vhost_option
@click.option(
    "--into",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A definitions.json to merge into; what else it holds stays.",
)
@click.option("--user", help="Put a user into it who may do everything in the virtual host.")
@click.option(
    "--password-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The user's password; it is written hashed.",
)
@output_option
def export(
    app: str,
    version: str,
    delayed_exchanges: bool,
    vhost: str,
    into: Path | None,
    user: str | None,
    password_file: Path | None,
    output: Path | None,
) -> None:
    """Write a definitions.json that RabbitMQ loads.

    \b
    redrive topology export uploads:app -o definitions.json
    """
    if (user is None) != (password_file is None):
        raise click.UsageError("--user and --password-file go together")
    definitions = expand(load_topology(app), Server.of(version, delayed_exchanges=delayed_exchanges))
    if into is not None:
        file = DefinitionsFile.parse(into.read_bytes())
        file = file.with_definitions(file.definitions(vhost) | definitions, vhost)
    else:
        file = DefinitionsFile.of(definitions, vhost)
    if user is not None and password_file is not None:
        file = file.with_user(user, hash_password(password_file.read_text().strip(), os.urandom(4)), vhost)
    _write(str(file), output)


@topology.command("import", short_help="Make a topology file of RabbitMQ's definitions.")
@click.argument("source", required=False)
@click.option("--vhost", help="The virtual host, if there are several.")
@click.option("--management", metavar="URL", help="Take it from a living RabbitMQ instead of a file.")
@click.option("--add-retry", metavar="DELAY", help="Give queues that lack it a retry queue with this wait ('15s').")
@click.option("--attempts", default=3, show_default=True, help="How many tries in all, with --add-retry.")
@click.option("--add-dlq", is_flag=True, help="Give queues that lack it a dead-letter queue.")
@click.option("--queue", "patterns", multiple=True, default=("*",), help="Only to queues that match, like 'orders.*'.")
@version_option
@click.option(
    "--format", "form", type=click.Choice(["toml", "json"]), default="toml", show_default=True, help="What to write."
)
@output_option
def import_(
    source: str | None,
    vhost: str | None,
    management: str | None,
    add_retry: str | None,
    attempts: int,
    add_dlq: bool,
    patterns: tuple[str, ...],
    version: str,
    form: str,
    output: Path | None,
) -> None:
    """Make a topology file of RabbitMQ's definitions, from a file or a living broker.

    \b
    redrive topology import definitions.json --add-retry 15s --add-dlq -o topology.toml
    redrive topology import --management http://guest:guest@localhost:15672

    With --format json everything in the definitions stays, also what Redrive does not understand.
    """
    file = _definitions_file(source, management)
    where = vhost or _only_vhost(file)
    definitions = file.definitions(where)
    if add_retry is not None or add_dlq:
        retry = Retry(attempts=attempts, delay=add_retry) if add_retry is not None else None
        definitions = equip(definitions, retry, Server.of(version), Naming(), patterns)
    _write(_formatted(definitions, file, where, form), output)


def _definitions_file(source: str | None, management: str | None) -> DefinitionsFile:
    if (source is None) == (management is None):
        raise click.UsageError("give a definitions.json, or --management")
    if management is not None:
        return DefinitionsFile(run(Management(management).definitions))
    try:
        return DefinitionsFile.parse(Path(str(source)).read_bytes())
    except OSError as error:
        raise ConfigurationError(f"cannot read {source}: {error.strerror}") from None


def _only_vhost(file: DefinitionsFile) -> str:
    if len(file.vhosts) > 1:
        raise ConfigurationError(f"there are the virtual hosts {', '.join(file.vhosts)}: choose one with --vhost")
    return file.vhosts[0]


def _formatted(definitions: Definitions, file: DefinitionsFile, vhost: str, form: str) -> str:
    if form == "json":
        return str(file.with_definitions(definitions, vhost))
    return to_toml(as_topology(definitions))


# Drawing ------------------------------------------------------------------------------------------


@topology.command("draw", short_help="Draw queues, retry loops and dead-letter queues.")
@click.argument("app", required=False)
@click.option("--management", metavar="URL", help="Draw a living RabbitMQ instead.")
@vhost_option
@version_option
@click.option(
    "--format",
    "form",
    type=click.Choice(list(FORMATS)),
    help="What to draw it as. [default: by the file's name, else mermaid]",
)
@output_option
def draw_(
    app: str | None, management: str | None, vhost: str, version: str, form: str | None, output: Path | None
) -> None:
    """Draw queues, retry loops with their delays, and dead-letter queues.

    \b
    redrive topology draw uploads:app -o topology.svg
    redrive topology draw uploads:app --format mermaid
    """
    if (app is None) == (management is None):
        raise click.UsageError("give APP, or --management")
    definitions = (
        run(Management(management).snapshot, vhost).definitions
        if management is not None
        else expand(load_topology(str(app)), Server.of(version))
    )
    _write(draw(definitions, form or _form_of(output)), output)


def _form_of(output: Path | None) -> str:
    suffixes = {".svg": "svg", ".dot": "dot", ".gv": "dot"}
    return suffixes.get(output.suffix, "mermaid") if output is not None else "mermaid"


def _write(text: str, output: Path | None) -> None:
    if output is None:
        click.echo(text, nl=not text.endswith("\n"))
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise ConfigurationError(f"cannot write {output}: {error.strerror}") from None
