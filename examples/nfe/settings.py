"""What can be set from outside: by `application-local.yml` in the working directory and, above it, by the environment.

| option                                 | default    | means                                                          |
|----------------------------------------|------------|----------------------------------------------------------------|
| `sagnus.nfe.outbox.transport`          | LOCAL      | RABBIT: events go to RabbitMQ; LOCAL: they stay here           |
| `sagnus.nfe.outbox.rabbit.autoDeclare` | true       | exchange and queues are made; if not, they must be there       |
| `sagnus.nfe.outbox.rabbit.retryTtlMs`  | 30000      | how long a failed event waits in the retry queue               |
| `sagnus.nfe.worker.enabled`            | false      | a worker makes the XML, and the listener in the API does not   |
| `sagnus.nfe.worker.maxDeliveries`      | 5          | how often an event is delivered before it goes to the DLQ      |
| `sagnus.nfe.xml.folder`                | (data)/nfe | where the XML is kept; it must be there                        |

In the environment the same is SAGNUS_NFE_OUTBOX_RABBIT_AUTODECLARE and so on: capitals, and dots as underscores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from redrive import OutboxMode, explain_uncaught_errors
from redrive.errors import ConfigurationError

FILE = Path("application-local.yml")

explain_uncaught_errors()  # of uvicorn and `redrive worker`, who read the settings when they import the application


@dataclass(frozen=True, slots=True)
class Settings:
    transport: OutboxMode = OutboxMode.LOCAL
    auto_declare: bool = True
    retry_ttl_ms: int = 30_000
    worker_enabled: bool = False
    max_deliveries: int = 5
    xml_folder: Path | None = None  # None: one of our own, in the data folder

    def __post_init__(self) -> None:
        if self.worker_enabled and self.transport is OutboxMode.LOCAL:
            raise ConfigurationError(
                "sagnus.nfe.worker.enabled=true with sagnus.nfe.outbox.transport=LOCAL: the worker consumes from "
                "RabbitMQ, to which LOCAL sends nothing, and the listener would be off: nobody would make the XML. Set "
                "the transport to RABBIT, or leave the worker off"
            )


def load() -> Settings:
    """As this process finds them."""
    text = FILE.read_text(encoding="utf-8") if FILE.exists() else ""
    return settings_of(text, os.environ)


def settings_of(file: str, variables: Mapping[str, str]) -> Settings:
    said = dict(_from_file(file)) | dict(_from_environment(variables))
    return Settings(**dict(_read(option, text) for option, text in said.items()))


# Where options are said ---------------------------------------------------------------------------


def _from_file(text: str) -> Iterator[tuple[str, str]]:
    try:
        content = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{FILE}: {error}") from None
    for path, value in _leaves(content, ""):
        if _plain(path).startswith("sagnusnfe"):  # the rest of the file is for others
            yield _known(path, FILE.name), str(value)


def _leaves(content: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(content, Mapping):
        for name, value in content.items():
            yield from _leaves(value, f"{path}.{name}" if path else str(name))
    else:
        yield path, content


def _from_environment(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in variables.items():
        if name.startswith("SAGNUS_NFE_"):
            yield _known(name, "the environment"), value


def _known(name: str, where: str) -> str:
    """The option of that name, as it is written here: `auto-declare` and AUTODECLARE are autoDeclare."""
    by_plain = {_plain(option): option for option in OPTIONS}
    if (found := by_plain.get(_plain(name))) is not None:
        return found
    close = get_close_matches(_plain(name), by_plain, 1)
    hint = f"did you mean {by_plain[close[0]]}?" if close else f"there are {', '.join(OPTIONS)}"
    raise ConfigurationError(f"{where}: unknown option {name}, {hint}")


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()


# What they say ------------------------------------------------------------------------------------


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("want true or false")
    return text.lower() == "true"


def _number(text: str, *, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise ValueError(f"want a number from {least}")
    return int(text)


def _folder(text: str) -> Path:
    if not text:
        raise ValueError("want a folder")
    return Path(text)


# The field of each option, and who reads it. One delivery alone would need no retry queue: that is another topology.
OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "sagnus.nfe.outbox.transport": ("transport", OutboxMode.of),
    "sagnus.nfe.outbox.rabbit.autoDeclare": ("auto_declare", _truth),
    "sagnus.nfe.outbox.rabbit.retryTtlMs": ("retry_ttl_ms", partial(_number, least=1)),
    "sagnus.nfe.worker.enabled": ("worker_enabled", _truth),
    "sagnus.nfe.worker.maxDeliveries": ("max_deliveries", partial(_number, least=2)),
    "sagnus.nfe.xml.folder": ("xml_folder", _folder),
}


def _read(option: str, text: str) -> tuple[str, Any]:
    field, read = OPTIONS[option]
    try:
        return field, read(text.strip())
    except ValueError as error:
        raise ConfigurationError(f"{option}={text}: {error}") from None
