"""Load the application or topology that a command names, and the broker it is for; and explain errors."""

from __future__ import annotations

import asyncio
import functools
import importlib
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click
from sqlalchemy.exc import SQLAlchemyError

from redrive import environment
from redrive.app import App
from redrive.cli.exit_codes import UNREACHABLE, exit_code, fail
from redrive.database.connection_errors import explanation, is_outage, problem
from redrive.errors import ConfigurationError, RedriveError
from redrive.topology import Topology
from redrive.topology.definitions_json import DefinitionsFile
from redrive.topology.serialization import parse_toml, parse_yaml

if TYPE_CHECKING:
    from redrive.admin.target import BrokerTarget

P = ParamSpec("P")
T = TypeVar("T")

_PARSERS = {".toml": parse_toml, ".yaml": parse_yaml, ".yml": parse_yaml}


def load(source: str) -> App | Topology:
    """Return what `module:app` names, or the topology in a file: .toml, .yaml, or RabbitMQ's definitions as .json."""
    path = Path(source)
    if path.suffix in (*_PARSERS, ".json"):
        return _read(path)
    if ":" not in source:
        raise ConfigurationError(
            f"{source!r}: want module:app, or a file that ends with .toml, .yaml or .json (RabbitMQ's definitions)"
        )
    found = import_object(source)
    if not isinstance(found, App | Topology):
        raise ConfigurationError(f"{source} is a {type(found).__name__}: want an App or a Topology")
    return found


def load_topology(source: str) -> Topology:
    found = load(source)
    return found.topology if isinstance(found, App) else found


def load_target(source: str | None, broker: str | None, management: str | None) -> BrokerTarget:
    """Return the broker that the command line names, or else the application or the environment; with what the source
    says about it.
    """
    from redrive.admin.target import BrokerTarget  # commands without a target start faster without it

    found = load(source) if source is not None else Topology()
    if isinstance(found, App):
        target = BrokerTarget.of(found)
    else:
        target = BrokerTarget(environment.broker(), environment.management(), topology=found)
    return replace(target, broker=broker or target.broker, management=management or target.management)


def load_app(source: str) -> App:
    """Return the application that `module:app` names; a file is refused."""
    if ":" not in source:
        raise ConfigurationError(f"{source!r}: want module:app")
    found = import_object(source)
    if not isinstance(found, App):
        raise ConfigurationError(f"{source} is a {type(found).__name__}: want an App")
    return found


def _read(path: Path) -> Topology:
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"cannot read {path}: it is not UTF-8") from None
    try:
        if path.suffix == ".json":
            return _only_vhost(DefinitionsFile.parse(text))
        return _PARSERS[path.suffix](text)
    except ConfigurationError as error:
        error.add_note(f"in {path}")
        raise


def _only_vhost(file: DefinitionsFile) -> Topology:
    if len(file.vhosts) > 1:
        raise ConfigurationError(f"it holds the virtual hosts {', '.join(file.vhosts)}: import one of them first")
    return Topology(others=file.definitions(file.vhosts[0]))


def import_object(source: str) -> object:
    """Return what `module:name` names. The current folder is on the path, as it is for `python -m`."""
    module_name, _, attribute = source.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"there is no module {module_name} here: run this where it can be imported"
            ) from None
        raise
    found: object = module
    for part in (attribute or "app").split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"module {module_name} has no {attribute}")
        found = getattr(found, part)
    return found


# Options ------------------------------------------------------------------------------------------

management_option = click.option(
    "--management",
    metavar="URL",
    help=f"RabbitMQ's management API, which tells what plain AMQP cannot. [env: {environment.MANAGEMENT}]",
)


def broker_options(command: Callable[P, T]) -> Callable[P, T]:
    """`--broker` and `--management`, for every command that inspects a broker."""
    broker = click.option(
        "--broker", metavar="URL", help=f"The broker, instead of the one APP names. [env: {environment.BROKER}]"
    )
    return broker(management_option(command))


# Failing ------------------------------------------------------------------------------------------


def run(work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
    return asyncio.run(work(*args, **kwargs))


def explains_errors(command: Callable[P, T]) -> Callable[P, T]:
    """End a program with a sentence and an exit code if this function raises an error of Redrive or of the database.

    For the main function of an application's own program. The `redrive` command does so for all its subcommands.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except (RedriveError, SQLAlchemyError) as error:
            exit_if_expected(error)
            raise

    return wrapped


def explain_uncaught_errors() -> None:
    """Have this process end with a sentence and an exit code, not a traceback, when an error of Redrive is not caught.

    For settings that are read while a module is imported, by uvicorn for example. Other errors are printed as before.
    """
    before = sys.excepthook

    def explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        exit_if_expected(error)
        before(kind, error, trace)

    sys.excepthook = explain


def exit_if_expected(error: BaseException) -> None:
    """Print an error of Redrive or of the database as a sentence, and exit with its code. Return for other errors."""
    if isinstance(error, SQLAlchemyError) and is_outage(error):
        error = explanation(error)
    if isinstance(error, RedriveError):
        fail(error, exit_code(type(error)))
    if isinstance(error, SQLAlchemyError):
        click.echo(f"redrive: {problem(error)}", err=True)
        sys.exit(UNREACHABLE)
