"""RabbitMQ's definitions.json: read, changed and written without losing what is in it.

A file may hold users, permissions, policies, parameters, and whatever a newer RabbitMQ adds. `DefinitionsFile` keeps
all of it as it came and touches only the rows of exchanges, queues and bindings of one virtual host; rows that say the
same as before keep even their unknown fields.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeAlias, TypeVar

import msgspec

from redrive.errors import ConfigurationError
from redrive.topology.definitions import (
    BindingDefinition,
    Definition,
    Definitions,
    ExchangeDefinition,
    QueueDefinition,
    misfits,
)
from redrive.wire.values import brief_repr

_Row: TypeAlias = "dict[str, Any]"
_SECTIONS = ("exchanges", "queues", "bindings", "vhosts", "users", "permissions")
D = TypeVar("D", ExchangeDefinition, QueueDefinition, BindingDefinition)


@dataclass(frozen=True, slots=True)
class DefinitionsFile:
    raw: _Row

    # Reading ------------------------------------------------------------------------------------------

    @classmethod
    def parse(cls, text: str | bytes) -> DefinitionsFile:
        try:
            raw = msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"definitions.json is not JSON: {error}") from None
        except RecursionError:
            raise ConfigurationError("definitions.json is nested too deep to be read") from None
        if not isinstance(raw, dict):
            raise ConfigurationError("definitions.json: want an object with queues, exchanges and bindings")
        for section in _SECTIONS:
            rows = raw.get(section, [])
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise ConfigurationError(f"definitions.json: {section} is not a list of objects")
        return cls(raw)

    @property
    def vhosts(self) -> tuple[str, ...]:
        """The virtual hosts that it speaks of; a file exported from one of them may leave out which."""
        named = {
            _text(row, "vhost", section)
            for section in ("exchanges", "queues")
            for row in self._rows(section)
            if "vhost" in row
        }
        listed = {_text(row, "name", "vhosts") for row in self._rows("vhosts") if "name" in row}
        return tuple(sorted(named | listed)) or ("/",)

    def definitions(self, vhost: str = "/") -> Definitions:
        return Definitions.of(
            map(_read_exchange, self._definitions(vhost, "exchanges")),
            map(_read_queue, self._definitions(vhost, "queues")),
            (binding for binding in map(_read_binding, self._definitions(vhost, "bindings")) if binding.source),
        )

    def _definitions(self, vhost: str, section: str) -> list[_Row]:
        return [row for row in self._rows(section) if row.get("vhost", vhost) == vhost]

    def _rows(self, section: str) -> list[_Row]:
        rows: list[_Row] = self.raw.get(section, [])
        return rows

    # Writing ------------------------------------------------------------------------------------------

    @classmethod
    def of(cls, definitions: Definitions, vhost: str = "/") -> DefinitionsFile:
        return cls({"vhosts": [{"name": vhost}]}).with_definitions(definitions, vhost)

    def with_definitions(self, definitions: Definitions, vhost: str = "/") -> DefinitionsFile:
        """This file, with these definitions in place of the ones it has for the virtual host."""
        return DefinitionsFile(
            self.raw
            | {
                "exchanges": self._merge("exchanges", definitions.exchanges, vhost, _read_exchange),
                "queues": self._merge("queues", definitions.queues, vhost, _read_queue),
                "bindings": self._merge("bindings", definitions.bindings, vhost, _read_binding),
            }
        )

    def _merge(self, section: str, wanted: Iterable[D], vhost: str, read: Callable[[_Row], D]) -> list[_Row]:
        known = {_identity(read(row)): row for row in self._definitions(vhost, section)}
        others = [row for row in self._rows(section) if row.get("vhost", vhost) != vhost]
        rows = []
        for definition in wanted:
            row = known.get(_identity(definition))
            if isinstance(definition, QueueDefinition) and definition.existing:  # whoever has it declares it
                rows += [row] if row is not None else []
                continue
            rows.append(row if row is not None and read(row) == definition else _row(definition, vhost, row or {}))
        return others + rows

    def with_user(self, name: str, password_hash: str, vhost: str = "/", tags: Iterable[str] = ()) -> DefinitionsFile:
        """This file with a user who may do everything in the virtual host. See `hash_password`."""
        user = {
            "name": name,
            "password_hash": password_hash,
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": list(tags),
        }
        may = {"user": name, "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"}
        users = [row for row in self._rows("users") if row.get("name") != name]
        permissions = [row for row in self._rows("permissions") if (row.get("user"), row.get("vhost")) != (name, vhost)]
        return DefinitionsFile(self.raw | {"users": [*users, user], "permissions": [*permissions, may]})

    def __str__(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self.raw), indent=2).decode() + "\n"


def hash_password(password: str, salt: bytes) -> str:
    """As RabbitMQ stores it: four bytes of salt, then the SHA-256 of salt and password, in base64."""
    if len(salt) != 4:
        raise ValueError("RabbitMQ's salt has four bytes")
    return b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


# Rows ---------------------------------------------------------------------------------------------


def _identity(definition: Definition) -> object:
    return definition.key if isinstance(definition, BindingDefinition) else definition.name


def _read_exchange(row: _Row) -> ExchangeDefinition:
    name = _text(row, "name", "exchange")
    who = f"exchange {brief_repr(name)}"
    return ExchangeDefinition(
        name,
        _text(row, "type", who),
        _flag(row, "durable", True, who),
        _flag(row, "auto_delete", False, who),
        _flag(row, "internal", False, who),
        _arguments(row, who),
    )


def _read_queue(row: _Row) -> QueueDefinition:
    name = _text(row, "name", "queue")
    who = f"queue {brief_repr(name)}"
    return QueueDefinition(
        name, _flag(row, "durable", True, who), _flag(row, "auto_delete", False, who), _arguments(row, who)
    )


def _read_binding(row: _Row) -> BindingDefinition:
    kind = row.get("destination_type", "queue")
    if kind not in ("queue", "exchange"):
        raise ConfigurationError(f"definitions.json: a binding leads to a {brief_repr(kind)}: want queue or exchange")
    source, destination = _text(row, "source", "binding"), _text(row, "destination", "binding")
    who = f"binding {brief_repr(source)} → {brief_repr(destination)}"
    return BindingDefinition(source, destination, _text(row, "routing_key", who, ""), kind, _arguments(row, who))


# Fields of rows, which somebody may have written by hand.


def _text(row: _Row, name: str, who: str, otherwise: str | None = None) -> str:
    value = row.get(name, otherwise)
    if value is None:
        raise ConfigurationError(f"definitions.json: {who} {brief_repr(row.get('name', row))} has no {name}")
    if not isinstance(value, str):
        raise ConfigurationError(f"definitions.json: {who}: {name} {brief_repr(value)}: want a text")
    return value


def _flag(row: _Row, name: str, otherwise: bool, who: str) -> bool:
    value = row.get(name, otherwise)
    if not isinstance(value, bool):
        raise ConfigurationError(f"definitions.json: {who}: {name} {brief_repr(value)}: want true or false")
    return value


def _arguments(row: _Row, who: str) -> dict[str, Any]:
    value = row.get("arguments")
    if value is None or value == []:  # which is how some of RabbitMQ's own tools write an empty object
        return {}
    if not isinstance(value, dict):
        raise ConfigurationError(f"definitions.json: {who}: arguments {brief_repr(value)}: want an object")
    if problem := next(misfits(value), None):
        raise ConfigurationError(f"definitions.json: {who}: {problem}")
    return value


def _row(definition: Definition, vhost: str, known: _Row) -> _Row:
    """Return a row as RabbitMQ writes it; the other fields of a known row stay."""
    names = [field.name for field in fields(definition) if field.name != "existing"]
    row = {name: getattr(definition, name) for name in names}
    return known | {"vhost": vhost} | row | {"arguments": dict(definition.arguments)}
