"""A topology written as TOML or YAML, and written back; also as Python.

    queue_type = "quorum"

    [naming]
    dlq_queue = "{queue}.dead"

    [[exchanges]]
    name = "domain.events"
    type = "topic"

    [[queues]]
    name = "q.validator"
    bind = { "domain.events" = ["files.uploaded.*"] }
    retry = { attempts = 3, delay = "15s" }

The keys are the fields of `Topology`, `Exchange`, `Queue`, `Retry` and `Naming`. Everything wrong with a file is told
at once.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from functools import partial
from math import isfinite
from typing import Any, TypeAlias, TypeVar

from redrive.checks import describe, fits, option_types
from redrive.errors import ConfigurationError, TopologyError
from redrive.recovery.retry import Exponential, Retry
from redrive.text import did_you_mean
from redrive.topology.definitions import BindingDefinition
from redrive.topology.model import Bind, Exchange, Queue, Topology
from redrive.topology.naming import Naming
from redrive.wire.values import brief_repr

# What no file can say: code, and what was taken from elsewhere as it is.
_UNSAYABLE = {"others", "held", "only", "never", "classify"}

_MOST_VALUES = 200_000
_MOST_DEPTH = 40  # arguments begin at the fourth, and AMQP knows 32
_MOST_WORDS = 300
_LINE = 100

_Table: TypeAlias = "Mapping[str, Any]"
T = TypeVar("T")


def parse_toml(text: str) -> Topology:
    try:
        raw = tomllib.loads(text)
    except ValueError as error:  # also for numbers of thousands of digits
        raise ConfigurationError(f"not TOML: {_brief(error)}") from None
    except RecursionError:
        raise ConfigurationError("not TOML that can be read: it is nested too deep") from None
    return read_topology(raw)


def parse_yaml(text: str) -> Topology:
    try:
        import yaml  # an extra: only who writes YAML needs it
    except ImportError:
        raise ConfigurationError("reading YAML needs PyYAML: pip install 'redrive[yaml]', or use TOML") from None
    try:
        raw = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError) as error:
        # What is no date, no number or no text, though it looks like one, PyYAML leaves to Python to say.
        raise ConfigurationError(f"not YAML: {_brief(error)}") from None
    except RecursionError:
        raise ConfigurationError("not YAML that can be read: it is nested too deep") from None
    return read_topology(raw if raw is not None else {})


def _brief(error: Exception) -> str:
    said = str(error)
    return said if len(said) <= _MOST_WORDS else f"{said[:_MOST_WORDS]}…"


# Reading ------------------------------------------------------------------------------------------


def read_topology(raw: object) -> Topology:
    if odd := next(_oddities(raw), None):
        raise TopologyError([odd])
    reader = _Reader()
    topology = reader.topology(raw)
    if reader.problems or topology is None:
        raise TopologyError(reader.problems)
    return topology


def _oddities(raw: object) -> Iterator[str]:
    """What no topology has in it. Everything counts as often as it is said: with the aliases of YAML a few lines can be
    more than any memory holds, or never end.
    """
    seen, level = 0, [("topology", raw)]
    for _ in range(_MOST_DEPTH):
        if not level:
            return
        below: list[tuple[str, object]] = []
        for where, value in level:
            seen += 1
            if seen > _MOST_VALUES:
                yield f"topology: more than {_MOST_VALUES} values, counting each as often as it is said"
            yield from _oddity(where, value)
            below += _inside(where, value)
        level = below
    yield f"topology: nested more than {_MOST_DEPTH} deep, at {level[0][0]}"


def _inside(where: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        yield from ((f"{where}.{name}" if where != "topology" else name, one) for name, one in value.items())
    elif isinstance(value, list):
        yield from ((f"{where}[{number}]", one) for number, one in enumerate(value))


def _oddity(where: str, value: object) -> Iterator[str]:
    where = where if len(where) <= _MOST_WORDS else f"{where[:_MOST_WORDS]}…"
    match value:
        case Mapping():
            for name in value:
                if not isinstance(name, str):
                    yield f"topology: {where}: {brief_repr(name)} is no name: put it in quotes"
                elif not _is_text(name):
                    yield f"topology: {where}: {brief_repr(name)} is no text: half of a character"
        case str():
            if not _is_text(value):
                yield f"topology: {where} {brief_repr(value)}: want a text, and this has half of a character in it"
        case bool() | list():
            pass
        case int():
            if not -(2**63) <= value < 2**63:
                yield f"topology: {where} {brief_repr(value)}: want a number of at most 64 bits"
        case float():
            if not isfinite(value):
                yield f"topology: {where} {value}: want a number"
        case None:
            yield f"topology: {where} is nothing: leave it out instead"
        case _:
            found = brief_repr(value)
            yield f"topology: {where} {found}: want a text (in quotes), a number, a truth, a list or a table"


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Reader:
    """Makes values of tables, and a problem of whatever does not fit; goes on all the same."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def topology(self, raw: object) -> Topology | None:
        return self._make(
            Topology,
            raw,
            "topology",
            exchanges=lambda rows: self._each(rows, "exchanges", partial(self._make, Exchange)),
            queues=lambda rows: self._each(rows, "queues", self._queue),
            bindings=lambda rows: self._each(rows, "bindings", partial(self._make, BindingDefinition)),
            naming=lambda row: self._make(Naming, row, "naming") or Naming(),
        )

    def _queue(self, raw: object, where: str) -> Queue | None:
        if isinstance(raw, Mapping) and isinstance(raw.get("name"), str):
            where = f"queue {raw['name'][:_MOST_WORDS]}"
        return self._make(
            Queue,
            raw,
            where,
            bind=lambda rows: self._binds(rows, f"{where}: bind"),
            retry=lambda row: self._retry(row, f"{where}: retry"),
            naming=lambda row: self._make(Naming, row, f"{where}: naming"),
        )

    def _retry(self, raw: object, where: str) -> Retry | None:
        return self._make(
            Retry, raw, where, exponential=lambda row: self._make(Exponential, row, f"{where}.exponential")
        )

    def _binds(self, raw: object, where: str) -> list[Bind]:
        """A table of exchanges with their keys, or a list of tables."""
        if isinstance(raw, Mapping):
            keys = ((exchange, [key] if isinstance(key, str) else key) for exchange, key in raw.items())
            return [Bind(exchange, key) for exchange, many in keys for key in self._texts(many, where)]
        return self._each(raw, where, partial(self._make, Bind))

    def _texts(self, raw: object, where: str) -> list[str]:
        if isinstance(raw, list) and all(isinstance(one, str) for one in raw):
            return raw
        self.problems.append(f"{where}: {brief_repr(raw)}: want routing keys, like ['orders.*']")
        return []

    def _each(self, raw: object, where: str, make: Callable[[object, str], T | None]) -> list[T]:
        if not isinstance(raw, list):
            self.problems.append(f"{where}: want a list of tables")
            return []
        made = (make(row, f"{where}[{number}]") for number, row in enumerate(raw))
        return [one for one in made if one is not None]

    def _make(self, kind: type[T], raw: object, where: str, **special: Callable[[Any], Any]) -> T | None:
        if not isinstance(raw, Mapping):
            self.problems.append(f"{where}: {brief_repr(raw)}: want a table")
            return None
        found = len(self.problems)
        values = self._values(kind, raw, where, special)
        if len(self.problems) > found:
            return None
        try:
            return kind(**values)
        except ConfigurationError as error:
            said = _brief(error)
            self.problems.append(said if said.startswith(where) else f"{where}: {said}")
        except TypeError as error:
            self.problems.append(f"{where}: {error}")
        return None

    def _values(
        self, kind: type, raw: _Table, where: str, special: Mapping[str, Callable[[Any], Any]]
    ) -> dict[str, Any]:
        known = {field.name: field for field in fields(kind) if field.name not in _UNSAYABLE}
        types, values = option_types(kind), {}
        for name, value in raw.items():
            if name not in known:
                hint = did_you_mean(name, known, f"; there are {', '.join(known)}")
                self.problems.append(f"{where}: unknown option {name[:_MOST_WORDS]}{hint}")
            elif name in special:
                values[name] = special[name](value)
            elif not fits(value, types[name]):
                self.problems.append(
                    f"{where}: {name} {brief_repr(value)}: want {describe(types[name]).removesuffix(' or None')}"
                )
            else:
                values[name] = value
        for name, field in known.items():
            if name not in raw and field.default is MISSING and field.default_factory is MISSING:
                self.problems.append(f"{where}: {name} is missing")
        return values


# Writing ------------------------------------------------------------------------------------------


def to_toml(topology: Topology) -> str:
    """The topology as a file that reads back as the same. What was taken as it is (`others`) is not part of it."""
    head = {"queue_type": str(topology.queue_type)} | ({"delays": True} if topology.delays else {})
    parts = ["".join(f"{name} = {_toml(value)}\n" for name, value in head.items())]
    if topology.naming != Naming():
        parts.append("[naming]\n" + _lines(topology.naming))
    parts += ["[[exchanges]]\n" + _lines(exchange) for exchange in topology.exchanges]
    parts += ["[[queues]]\n" + _lines(queue) for queue in topology.queues]
    parts += ["[[bindings]]\n" + _lines(binding) for binding in topology.bindings]
    return "\n".join(parts)


def to_yaml(topology: Topology) -> str:
    """The same file as YAML."""
    try:
        import yaml
    except ImportError:
        raise ConfigurationError("writing YAML needs PyYAML: pip install 'redrive[yaml]', or use TOML") from None
    written: str = yaml.safe_dump(_plain(topology), sort_keys=False, allow_unicode=True)
    return written


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(said) for name, said in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(said) for said in value]
    if isinstance(value, bool | int | float):
        return value
    return str(value) if isinstance(value, str) else {name: _plain(said) for name, said in _set_fields(value)}


def to_python(topology: Topology, name: str) -> str:
    """The exchanges, queues and bindings of queues as a module with an application of this name."""
    calls = [
        _call("app.exchange", _set_fields(exchange), positional=("name", "type")) for exchange in topology.exchanges
    ]
    calls += [_call("app.queue", _set_fields(queue), positional=("name",)) for queue in topology.queues]
    body = "\n".join(calls)
    imports = ["from redrive import App" + (", Retry" if "=Retry(" in body else "")]
    imports += ["from redrive.topology import Bind"] if "bind=[Bind(" in body else []
    return "\n".join([*imports, "", f"app = App({_text(name)})", body]) + "\n"


def _call(what: str, said: Iterable[tuple[str, Any]], *, positional: tuple[str, ...] = ()) -> str:
    arguments = [_python(value) if name in positional else f"{name}={_python(value)}" for name, value in said]
    line = f"{what}({', '.join(arguments)})"
    if len(line) <= _LINE or what[0].isupper():
        return line
    return f"{what}(\n" + "".join(f"    {argument},\n" for argument in arguments) + ")"


def _python(value: Any) -> str:
    if isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(name)}: {_python(said)}" for name, said in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_python, value)) + "]"
    first = ("exchange", "routing_key") if isinstance(value, Bind) else ()
    return _call(type(value).__name__, _set_fields(value), positional=first)


def _lines(value: Any) -> str:
    return "".join(f"{name} = {_toml(said)}\n" for name, said in _set_fields(value))


def _set_fields(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a value that are not as they would be without saying."""
    for field in (one for one in fields(value) if one.name not in _UNSAYABLE):
        said = getattr(value, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if isinstance(value, Retry) and field.name == "delay" and said is None:
            continue
        if said != default and said is not None and not (said in ((), {}) and default in ((), {})):
            yield field.name, said


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_text(name)} = {_toml(said)}" for name, said in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return "{ " + ", ".join(f"{name} = {_toml(said)}" for name, said in _set_fields(value)) + " }"


def _text(value: str) -> str:
    """A basic string of TOML, which is one of Python, too: quotes, backslashes and control characters escaped."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(f"\\u{ord(one):04x}" if ord(one) < 0x20 or ord(one) == 0x7F else one for one in escaped) + '"'
