"""Write docs/reference from the code: what can be set, typed, asked, measured, read in logs and headers, and go wrong.

    python tools/write_reference.py

Nothing is told twice: a setting's meaning is the comment behind it, an error's the docstring of its class, a metric's
the text that Prometheus gets. A fact that is missing here is missing there. tests/docs/test_reference.py fails when a
page is not what would be written today.
"""

from __future__ import annotations

import ast
import html
import importlib
import inspect
import io
import json
import re
import textwrap
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, is_typeddict

import click

from redrive import environment
from redrive.admin.api.health import GAUGES
from redrive.admin.api.problem_types import KINDS
from redrive.app import App
from redrive.cli import TOUR, main
from redrive.cli.exit_codes import EXITS
from redrive.cli.explain import (
    Explanation,
    error_explanation,
    finding_explanation,
    kinds_of_errors,
    problem_explanation,
)
from redrive.client.url import PARAMETERS
from redrive.database.application_tables import InboxNames, OutboxNames
from redrive.errors import RedriveError
from redrive.integrations.logs import FIELDS, fields_of
from redrive.integrations.prometheus import METRICS
from redrive.outbox.outbox import OutboxPolicy
from redrive.recovery.breaker import BreakerPolicy
from redrive.recovery.history import FOREIGN, HeaderNames
from redrive.recovery.retry import Exponential, Retry
from redrive.topology import Exchange, Naming, Queue
from redrive.topology.doctor import RULES
from redrive.worker.consumer_spec import BatchSpec, ConsumerSpec
from redrive.worker.events import BreakerChanged, BreakerState, ConnectionChanged, DeliveryOutcome, DeliverySettled
from redrive.worker.transactions import InboxPolicy

DOCS = Path(__file__).parents[1] / "docs"
FOLDER = DOCS / "reference"
WRITTEN = "Written from the code by `make reference`; do not edit."


def pages() -> dict[str, str]:
    """Every page, by its file's name."""
    made = {
        "settings.md": settings(),
        "api.md": api(),
        "cli.md": cli(),
        "rest.md": rest(json.loads((DOCS / "openapi.json").read_text())),
        "metrics.md": metrics(),
        "logs.md": logs(),
        "headers.md": headers(),
        "errors.md": errors(),
        "doctor-findings.md": findings(),
    }
    return {"README.md": index(made), **made}


def index(made: Mapping[str, str]) -> str:
    rows = [f"- [{text.partition('# ')[2].partition(chr(10))[0]}]({name})" for name, text in made.items()]
    return _page("Reference", "What there is, and what it is called. `redrive explain NAME` says the same.", *rows)


def _page(title: str, about: str, *parts: str) -> str:
    return f"# {title}\n\n{about}\n\n{WRITTEN}\n\n" + "\n".join(parts).rstrip() + "\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    """A pipe within code would end its cell, and renderers do not agree on how to escape it there."""
    if "|" in text:
        return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>"
    return f"`{text}`" if text else ""


# Public names ---------------------------------------------------------------------------------------------

# The modules that programs import from. Every other module is private: it may change without notice.
PUBLIC = {
    "redrive": "What applications need.",
    "redrive.testing": "For the tests of applications.",
    "redrive.admin": "The admin server as a part of another web application.",
    "redrive.integrations.fastapi": "Publish from FastAPI, and run a worker in its process.",
    "redrive.integrations.celery": "Retries, dead letters and confirmed publishing for Celery.",
    "redrive.integrations.logs": "Logs as text or JSON.",
    "redrive.integrations.prometheus": "Metrics.",
    "redrive.integrations.health_server": "`/healthz`, `/readyz` and `/metrics` in a program of your own.",
    "redrive.integrations.monitoring": "A health server for an application, with its checks and metrics.",
    "redrive.integrations.tracing": "Spans of OpenTelemetry.",
    "redrive.topology": "Topologies as values: expand and compare them.",
    "redrive.recovery": "The decisions of a worker, for programs that make them themselves.",
    "redrive.environment": "The environment variables that Redrive reads.",
}


def public_names(module: str) -> list[str]:
    """Return the public names of a module: those of `__all__`, or what is defined in it."""
    found = importlib.import_module(module)
    if (listed := getattr(found, "__all__", None)) is not None:
        return [name for name in listed if not name.startswith("__")]
    own = [name for name, value in vars(found).items() if getattr(value, "__module__", None) == module]
    return sorted(name for name in own if not name.startswith("_"))


def api() -> str:
    return _page(
        "Public names",
        "Every name that programs may import, its signature and what it is. Errors are imported from `redrive.errors` "
        "and have [a page](errors.md), the meaning of options is in [settings](settings.md). All other modules are "
        "private and may change without notice.",
        *(_section_of_names(module, about) for module, about in PUBLIC.items()),
    )


def _section_of_names(module: str, about: str) -> str:
    found = importlib.import_module(module)
    parts = [f"## {module}\n", f"{about}\n"]
    for name in public_names(module):
        value = getattr(found, name)
        parts.append(f"### {name}\n\n```text\nfrom {module} import {name}\n{signature_of(name, value)}\n```\n")
        parts.append(f"{sentence_of(value)}\n")
        if rows := [(f"`{each}`", _code(signature_of(each, one)), sentence_of(one)) for each, one in methods_of(value)]:
            parts.append(_table(("method", "signature", "what it does"), rows))
    return "\n".join(parts)


def methods_of(value: object) -> list[tuple[str, object]]:
    """Return the public methods and properties that a class of ours defines itself or inherits from one of ours."""
    if not isinstance(value, type) or issubclass(value, Enum | BaseException):
        return []
    found: dict[str, object] = {}
    for base in reversed(value.__mro__):
        if base.__module__.startswith("redrive"):
            found |= {name: one for name, one in vars(base).items() if not name.startswith("_")}
    kinds = FunctionType | property | cached_property | classmethod | staticmethod
    return sorted((name, one) for name, one in found.items() if isinstance(one, kinds))


def signature_of(name: str, value: object) -> str:
    match value:
        case property() | cached_property():
            return name
        case classmethod() | staticmethod():
            value = value.__func__
        case type() if issubclass(value, Enum):
            return f"{name}: {', '.join(str(one.value) for one in value)}"
    if not callable(value):
        return f"{name} = {value!r}" if isinstance(value, str | int) else name
    if get_origin(value) is Annotated:
        return f"{name}: {inspect.formatannotation(get_args(value)[0], 'redrive')}"
    if is_typeddict(value):
        return f"{name}: {', '.join(value.__annotations__)}"
    try:
        signature = inspect.signature(value)
    except ValueError:
        return name
    parameters = [_plain(one) for one in signature.parameters.values() if one.name not in ("self", "cls")]
    returned = _Annotation(signature.return_annotation)
    plain = signature.replace(parameters=parameters, return_annotation=returned)
    return f"{name}{plain}".replace("datetime.timedelta", "timedelta").removesuffix(" -> None")


class _Annotation:
    """An annotation as it is written in the source, without the quotes of a text."""

    def __new__(cls, written: Any) -> Any:
        return written if written is inspect.Signature.empty else super().__new__(cls)

    def __init__(self, written: Any) -> None:
        self._written = getattr(written, "__forward_arg__", written)

    def __repr__(self) -> str:
        return self._written if isinstance(self._written, str) else inspect.formatannotation(self._written)


class _Default:
    def __repr__(self) -> str:
        return "..."


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter without quotes, and without the address of a default that has no repr of its own."""
    shown = parameter.replace(annotation=_Annotation(parameter.annotation))
    if shown.default is not shown.empty and repr(shown.default).startswith("<"):
        shown = shown.replace(default=str(shown.default) if isinstance(shown.default, Enum) else _Default())
    return shown


def sentence_of(value: object) -> str:
    """Return the first sentence of a docstring of ours, or nothing."""
    match value:
        case cached_property():
            value = value.func
        case property():
            value = value.fget
        case classmethod() | staticmethod():
            value = value.__func__
        case type() if "__doc__" not in vars(value) or (value.__doc__ or "").startswith(f"{value.__name__}("):
            return ""
        case _ if get_origin(value) is Annotated:
            about = get_args(value)[1]
            return about if isinstance(about, str) else sentence_of(about.dependency)
        case str() | int():
            return ""
    paragraph = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.:])\s+(?=[A-Z`])", paragraph)[0]


# Settings -------------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    name: str
    type: str
    default: str
    meaning: str


def settings_of(cls: type) -> list[Setting]:
    """The fields of a dataclass, or what its `__init__` takes by name; each means what the comment at it says."""
    source = textwrap.dedent(inspect.getsource(cls))
    comments = _comments(source)
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    found = list(_fields(body)) or list(_parameters(body))
    return [Setting(name, kind, default, comments.get(line, "")) for name, kind, default, line in found]


def _fields(body: ast.ClassDef) -> Iterator[tuple[str, str, str, int]]:
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            kind = ast.unparse(node.annotation)
            if kind != "ClassVar":
                yield node.target.id, kind, _default(node.value), node.lineno


def _parameters(body: ast.ClassDef) -> Iterator[tuple[str, str, str, int]]:
    made = next(node for node in body.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    arguments = [argument for argument in made.args.args if argument.arg != "self"]
    defaults = [*[None] * len(arguments), *made.args.kw_defaults]
    for argument, default in zip([*arguments, *made.args.kwonlyargs], defaults, strict=True):
        assert argument.annotation is not None
        yield argument.arg, ast.unparse(argument.annotation), _default(default), argument.lineno


def _default(value: ast.expr | None) -> str:
    match value:
        case None:
            return "wanted"
        case ast.Call(func=ast.Name("field"), keywords=keywords):
            [factory] = [word.value for word in keywords if word.arg == "default_factory"]
            made = ast.unparse(factory)
            return {"dict": "`{}`", "list": "`[]`"}.get(made, f"`{made}()`")
        case _:
            return f"`{ast.unparse(value)}`".replace("'", '"')


def _comments(source: str) -> dict[int, str]:
    """By the line that each is said of: behind it, or on the lines before it."""
    behind, above = {}, {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = token.string.removeprefix("#").strip()
            (behind if token.line[: token.start[1]].strip() else above)[token.start[0]] = text
    for line in sorted(above):
        if not above[line].endswith(":") and line + 1 in above:  # the comment goes on in the next line
            above[line + 1] = f"{above[line]} {above[line + 1]}"
        elif not above[line].endswith(":"):
            behind.setdefault(line + 1, above[line])
    return behind


_SETTINGS: Sequence[tuple[str, str, type]] = (
    ("App", 'What an application says of itself: `App("uploads", broker="amqps://...")`.', App),
    (
        "Queue",
        "Options of a queue, and of the consumer that declares it: `@app.consumer(queue, ...)` takes these, those of "
        "Consumer, and nothing else.",
        Queue,
    ),
    ("Consumer", "Options of `@app.consumer`, and `App(defaults=...)` for all of them.", ConsumerSpec),
    ("Batch", "In addition, options of `@app.batch_consumer`.", BatchSpec),
    ("Retry", 'When a message that failed is tried again: `retry=Retry(attempts=3, delay="15s")`.', Retry),
    ("Exponential", 'Waits that grow: `Retry(exponential=Exponential("5s"))`.', Exponential),
    ("BreakerPolicy", "When to stop calling what fails: `breaker=BreakerPolicy(...)`.", BreakerPolicy),
    ("InboxPolicy", "Each message once: `inbox=True`, or `inbox=InboxPolicy(...)`.", InboxPolicy),
    ("OutboxPolicy", "`App(outbox_policy=...)`.", OutboxPolicy),
    ("OutboxNames", "`App(outbox=...)`.", OutboxNames),
    ("InboxNames", "`App(inbox_table=...)`.", InboxNames),
    ("Exchange", "`app.exchange(name, type, ...)`.", Exchange),
    ("Naming", "How what belongs to a queue is called; `{queue}` and `{delay}` are filled in.", Naming),
    ("HeaderNames", "For consumers that count in headers of other names: `headers=HeaderNames(...)`.", HeaderNames),
)
# What a consumer's options cannot say: it is said by the decorator itself.
_NOT_OPTIONS = {("Consumer", name) for name in ("queue", "function", "batch", "for_dead_letters", "dead_ends")}
_NOT_OPTIONS |= {("Queue", "dead_ends")}


def settings() -> str:
    parts = [_section_of_settings(*each) for each in _SETTINGS]
    return _page(
        "Settings",
        "Every setting is a value that is checked when it is made: a name that is unknown, or a value that makes no "
        "sense, is an error that says what would do. Durations are texts (`15s`, `2m`, `7d`) or `timedelta`.",
        _variables(),
        *parts,
        _broker_url(),
    )


def _section_of_settings(title: str, about: str, cls: type) -> str:
    variables = {known.setting: name for name, known in environment.VARIABLES.items()}
    rows = [
        (_code(one.name), _code(one.type), _with_variable(one, variables.get(f"{title}.{one.name}")), one.meaning)
        for one in settings_of(cls)
        if (title, one.name) not in _NOT_OPTIONS
    ]
    return f"## {title}\n\n{about}\n\n" + _table(["setting", "type", "default", "meaning"], rows)


def _with_variable(one: Setting, variable: str | None) -> str:
    if variable is None:
        return one.default
    default = environment.VARIABLES[variable].default
    return f"`{variable}`" + (f", or `{default}`" if default else "")


def _variables() -> str:
    rows = [
        (_code(name), _code(known.default or ""), known.meaning, _code(known.setting or ""))
        for name, known in environment.VARIABLES.items()
    ]
    return (
        "## Environment variables\n\nAll that are read. One that stands for a setting is used where the program does "
        "not say that setting.\n\n" + _table(["variable", "default", "meaning", "stands for"], rows)
    )


def _broker_url() -> str:
    rows = [
        (_code(name), _code(known.default or ""), known.meaning + (" (`amqps` alone)" if known.for_tls else ""))
        for name, known in PARAMETERS.items()
    ]
    return (
        "## Broker URL\n\n`amqps://user:p%40ss@rabbit-1,rabbit-2:5673/orders?heartbeat=10`: several hosts have commas "
        "between them, an empty path is the virtual host `/`, and what is special within a name or password is "
        "percent-encoded.\n\n" + _table(["parameter", "default", "meaning"], rows)
    )


# CLI ------------------------------------------------------------------------------------------------------


def cli() -> str:
    context = click.Context(main, info_name="redrive")
    parts = []
    for title, commands in TOUR.items():
        names = [name for name in commands if main.get_command(context, name) is not None]
        parts.append(f"## {title}\n")
        for name in names:
            command = main.get_command(context, name)
            assert command is not None
            parts += _command(command, click.Context(command, parent=context, info_name=name))
    rows = [(str(known.code), known.meaning, known.do) for known in EXITS]
    parts.append("## Exit codes\n\nThe same for all commands, so that scripts need not read.\n")
    parts.append(_table(["code", "meaning", "what to do"], rows))
    return _page(
        "Command line",
        "`redrive COMMAND --help` says the same. Data goes to stdout, notes to stderr; `--json` is for scripts.",
        *parts,
    )


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    path = context.command_path
    yield f"### {path}\n"
    yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
    yield _prose(command.help or "")
    rows = [_option(option, context) for option in command.get_params(context) if isinstance(option, click.Option)]
    rows = [row for row in rows if row[0] != "`-h`, `--help`"]
    if rows:
        yield _table(["option", "default", "meaning"], rows)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _command(below, click.Context(below, parent=context, info_name=name))


def _prose(text: str) -> str:
    """Click's help as Markdown: what must not be wrapped (\\b) is what one types."""
    parts = []
    for part in inspect.cleandoc(text).split("\n\n"):
        if part.startswith("\b"):
            parts.append(f"```text\n{part.removeprefix(chr(8)).strip(chr(10))}\n```")
        else:
            parts.append(" ".join(part.split()))
    return "\n\n".join(parts) + "\n"


def _option(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    names = ", ".join(_code(name) for name in (*option.opts, *option.secondary_opts))
    if not option.is_flag:
        names += f" {_code(option.make_metavar(context))}"
    default = option.get_default(context)
    shown = _code(str(default)) if isinstance(default, str | int | float) and default != "" else ""
    help_, *said = re.split(r"\s*\[default: ([^\]]+)\]", option.help or "", maxsplit=1)
    if said:  # what a default is made of is said in words
        shown, help_ = said[0], help_ + said[1]
    if option.is_flag:
        shown = ""
    return names, "wanted" if option.required else shown, help_


# REST -----------------------------------------------------------------------------------------------------

_METHODS = ("get", "post", "patch", "put", "delete")


def rest(document: Mapping[str, Any]) -> str:
    schemas = document["components"]["schemas"]
    parts = ["## Operations\n"]
    for path, ways in document["paths"].items():
        for method in _METHODS:
            if method in ways:
                parts += _operation(method, path, ways[method], schemas)
    parts.append("## Problems\n")
    parts.append(
        "What went wrong is told as `application/problem+json` (RFC 9457): `type` is `urn:redrive:problem:` and one of "
        "these names, `detail` is for people, and `error`, if it is there, names the [error](errors.md) behind it.\n"
    )
    for kind in KINDS.values():
        parts += _explained(problem_explanation(kind))
    return _page(
        "REST API",
        "The admin API of `redrive serve`, for programs ([admin.md](../admin.md) says who may come in). Roles build on "
        "each other: viewer, operator, admin. The same for machines: [openapi.json](../openapi.json).",
        *parts,
    )


def _operation(method: str, path: str, what: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {what['summary']}\n"
    yield f"`{method.upper()} {path}`, for the role **{what['x-role']}**.\n"
    rows = [
        (_code(one["name"]), one["in"], _type(one["schema"], schemas), one.get("description", ""))
        for one in what.get("parameters", ())
    ]
    body = what.get("requestBody", {}).get("content", {})
    for media, content in body.items():
        rows += _members(content.get("schema", {}), schemas) or [("", media, "", "the body")]
    if rows:
        yield _table(["name", "in", "type", "meaning"], rows)
    answers = [
        f"{status} ({_gives(answer, schemas)})"
        for status, answer in what["responses"].items()
        if status.startswith("2")
    ]
    refusals = [status for status in what["responses"] if not status.startswith("2")]
    yield f"Answers {', '.join(answers)}; or a [problem](#problems): {', '.join(refusals)}.\n"


def _members(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """The members of a JSON body."""
    for choice in (schema, *schema.get("anyOf", ())):
        name = choice.get("$ref", "").rpartition("/")[2]
        if name:
            members = schemas[name].get("properties", {})
            return [
                (_code(member), "body", _type(what, schemas), what.get("description", ""))
                for member, what in members.items()
            ]
    return []


def _type(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _type(schemas[name], schemas) if "enum" in schemas[name] else name
    if "anyOf" in schema:
        return " or ".join(_type(one, schemas) for one in schema["anyOf"] if one.get("type") != "null")
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}), schemas)}"
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    default = f", default {schema['default']}" if schema.get("default") not in (None, "") else ""
    return f"{schema.get('type', 'anything')}{default}"


def _gives(answer: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    for media, content in answer.get("content", {}).items():
        schema = content.get("schema", {})
        return _type(schema, schemas) if schema else media
    return answer["description"]


# Metrics and logs -----------------------------------------------------------------------------------------


_FROM_THE_START = (
    "Every series that the declarations of an application imply is there from the start, with the value 0: every "
    "outcome, retry and reason of each consumer, its batches and breakers, each declared exchange, each connection. "
    "So the first failure is an increase. Types of errors are known only when they occur: until then there is the "
    "error `other`. The outbox is in the metrics of processes that relay."
)
_OLDEST = (
    "`redrive_queue_oldest_seconds` is what the broker reports about the first message of a queue. No message is "
    "taken for it, because a message that is taken and returned counts as redelivered. The embedded broker reports "
    "it, and RabbitMQ does for classic queues, over its management API (`App(management=...)`). For quorum queues, "
    "and for messages that were published without a timestamp, there is no such series. The admin server's "
    "`redrive_dead_letters_oldest_seconds` comes from a peek, where a peek is harmless."
)


def metrics() -> str:
    worker = [(_code(one.name), _kind(one.kind), _labels(one.labels), one.meaning) for one in METRICS.values()]
    server = [(_code(f"redrive_{name}"), "gauge", _labels(one.labels), one.about) for name, one in GAUGES.items()]
    columns = ["name", "type", "labels", "meaning"]
    return _page(
        "Metrics",
        "For Prometheus. Each process tells of itself. No label has as many values as there are messages: what looks "
        "like no name, or is one too many, is `other`.",
        "## Of a worker and a relay\n\nAt `/metrics` of `--health-port`, and with `monitor(api, app)` of an API. "
        f"{_FROM_THE_START}\n\n{_OLDEST}\n",
        _table(columns, worker),
        "## Of the admin server\n\nAt `/metrics` of `redrive serve`, for whoever may look.\n",
        _table(columns, server),
    )


def _kind(kind: type) -> str:
    return kind.__name__.removesuffix("MetricFamily").lower()


def _labels(labels: Sequence[str]) -> str:
    return ", ".join(map(_code, labels))


_EVENTS = {
    "settled": (
        "A message was settled, and not simply done: retried, parked, discarded, snoozed, given back, or a duplicate.",
        DeliverySettled(
            queue="",
            outcome=DeliveryOutcome.RETRIED,
            reason="",
            attempt=1,
            max_attempts=3,
            delay=timedelta(),
            error="",
            message_id="",
            correlation_id="",
            message_type="",
            routing_key="",
            fingerprint="",
            seconds=0,
        ),
    ),
    "breaker": (
        "A breaker opened, probes, or closed.",
        BreakerChanged(name="", queue="", state=BreakerState.OPEN, failure_rate=0),
    ),
    "connection": (
        "A connection was opened, lost or made anew.",
        ConnectionChanged(name="", state="", reason=None, reconnects=0),
    ),
}


def logs() -> str:
    parts = []
    for event, (about, example) in _EVENTS.items():
        names = ["time", "level", *fields_of(example, "")]
        parts += [
            f"## {event}\n\n{about}\n",
            _table(["field", "meaning"], [(_code(one), FIELDS[one]) for one in names]),
        ]
    others = [(_code(one), FIELDS[one]) for one in ("time", "level", "logger", "message", "stack")]
    parts += ["## Anything else\n\nRecords of other loggers, in the same form.\n", _table(["field", "meaning"], others)]
    return _page(
        "Logs",
        "One line of JSON for each thing that did not simply go well, from workers, relays and the admin server: with "
        "`--log-format json`, or where stderr is no terminal. "
        "All fields of an event are always there, with null for what is unknown. No payload and no header is told.",
        *parts,
    )


def _fields_table(names: Iterable[str]) -> str:
    return _table(["field", "meaning"], [(_code(name), FIELDS[name]) for name in names])


# Headers --------------------------------------------------------------------------------------------------

_WRITERS = {
    "": ("While it is retried", "Written by a worker with every retry, and kept when the message is parked."),
    "Of parked messages alone:": ("When it is parked", "Written by a worker, beside those above."),
    "What cannot stay where it was:": (
        "What cannot stay where it was",
        "Properties that would do harm on a copy, kept for whoever reads it.",
    ),
    "Written when a parked message is sent back to work:": (
        "When it is sent back to work",
        "Written by a re-drive, and never removed: nothing counts in them.",
    ),
}


def headers() -> str:
    groups: dict[str, list[tuple[str, str]]] = {known: [] for known in _WRITERS}
    source = textwrap.dedent(inspect.getsource(HeaderNames))
    group = ""
    for line in source.splitlines():
        if re.fullmatch(r"    # .*:", line):
            group = line.strip().removeprefix("# ")
        if found := re.fullmatch(r'    \w+: (?:ClassVar|str) = "(x-[^"]+)"  # (.*)', line):
            groups[group].append((_code(found[1]), found[2]))
    parts = []
    for known, (title, about) in _WRITERS.items():
        parts += [f"## {title}\n\n{about}\n", _table(["header", "meaning"], groups[known])]
    foreign = [(_code(name), meaning) for name, meaning in FOREIGN.items()]
    parts += ["## Of others\n\nRead, and never trusted: what is no number counts as 0.\n"]
    parts.append(_table(["header", "meaning"], foreign))
    return _page(
        "Headers",
        "What Redrive writes into messages. The first two can have other names, for consumers that count in headers of "
        "their own ([HeaderNames](settings.md#headernames)). All of it fits into one frame: the oldest attempts are "
        "dropped first, and stacks are cut in the middle.",
        *parts,
    )


# Errors and findings --------------------------------------------------------------------------------------


def errors() -> str:
    kinds = kinds_of_errors()
    parts = ["## The tree\n\n```text", *_tree(RedriveError, kinds), "```\n", "## Each of them\n"]
    for kind in kinds:
        parts += _explained(error_explanation(kind))
    return _page(
        "Errors",
        "Everything that Redrive raises on purpose is a `RedriveError`, and says whose fault it is and what to do. "
        "`redrive explain topology-conflict` prints what is said here; a command that fails names it.",
        *parts,
    )


def _tree(
    kind: type[RedriveError], known: Sequence[type[RedriveError]], before: str = "", below: str = ""
) -> Iterator[str]:
    yield f"{before}{kind.__name__}"
    under = [one for one in known if kind in one.__bases__]
    for one in under:
        last = one is under[-1]
        yield from _tree(one, known, f"{below}{'└── ' if last else '├── '}", f"{below}{'    ' if last else '│   '}")


def findings() -> str:
    parts = []
    for rule in RULES:
        parts += _explained(finding_explanation(rule), level=2)
    return _page(
        "Findings of the doctor",
        "What [`redrive doctor`](../doctor.md) can find, the worst first. An **error** loses messages, or cannot work, "
        "as things are; a **warning** loses messages when something else goes wrong, or with the next version of "
        "RabbitMQ. `redrive explain ID` prints one of them.",
        *parts,
    )


def _explained(one: Explanation, level: int = 3) -> Iterator[str]:
    """Under its name: a heading's anchor is its text, here as in other people's renderers."""
    yield f"{'#' * level} {one.name}\n"
    yield f"`{one.title}`: {one.meaning}\n" if one.title != one.name else f"{one.meaning}\n"
    yield "\n".join(f"- **{label}:** {fact}" for label, fact in one.facts) + "\n"


def main_() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
    print(f"{FOLDER}: {len(pages())} pages")


if __name__ == "__main__":
    main_()
