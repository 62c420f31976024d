"""How the retry and dead-letter parts of a queue are called.

Each name is a template; `{queue}` is the main queue's name and `{delay}` a rung's, as it was written ("15s"). A policy
with one wait uses `retry_queue` and `retry_key`; one with several uses `rung_queue` and `rung_key`. Exchanges of the
same name are one exchange: a system that does everything over one says its name three times.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from redrive.checks import checked
from redrive.errors import ConfigurationError
from redrive.recovery.retry import Rung
from redrive.wire.values import brief_repr

_KNOWN = {"queue", "delay"}
_LONGEST = 40  # of a word that is quoted


@dataclass(frozen=True, slots=True)
class RungNames:
    """The names of one rung. Without a `back_key` a message returns with the key it was published with: `key`, or the
    name of the queue.
    """

    queue: str
    key: str
    back_key: str


@checked("naming")
@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """The names of the retry and dead-letter queues, exchanges and keys; `{queue}` and `{delay}` are filled in."""

    retry_exchange: str = "retry.{queue}"  # to which retries are published
    retry_queue: str = "{queue}.retry"  # where they wait, if there is one wait
    retry_key: str = "retry"  # by which they get there
    rung_queue: str = "{queue}.retry.{delay}"  # where they wait, if there are several waits
    rung_key: str = "retry.{delay}"  # by which they get there
    back_exchange: str = ""  # where a retry queue sends what has waited: the default exchange
    back_key: str = "{queue}"  # "": the key they came with
    dlq_exchange: str = "dlq.{queue}"  # to which dead letters go
    dlq_queue: str = "{queue}.dlq"  # where they stay
    dlq_key: str = "parking"  # by which they get there
    delayed_exchange: str = "redrive.delayed"  # of messages that are published with a delay
    delayed_key: str = "{queue}"  # "": the key they were published with, where it leads to this queue alone
    # exceptions by wait: `{"60s": {"key": "video", "back_key": ""}}`
    rungs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (one.name for one in fields(self) if one.name != "rungs"):
            _check(name, getattr(self, name))
        for delay, exceptions in self.rungs.items():
            if unknown := set(exceptions) - {"queue", "key", "back_key"}:
                raise ConfigurationError(
                    f"naming.rungs[{delay!r}]: {unknown.pop()!r} is not one of queue, key, back_key"
                )
            for name, template in exceptions.items():
                _check(f"rungs[{delay!r}].{name}", template)

    def rung(self, queue: str, rung: Rung, *, alone: bool) -> RungNames:
        """The names of one rung of a queue's policy; `alone` if the policy has no other."""
        exceptions = self.rungs.get(rung.label, {})
        queue_name = exceptions.get("queue") or (self.retry_queue if alone else self.rung_queue)
        key = exceptions.get("key") or (self.retry_key if alone else self.rung_key)
        back_key = exceptions.get("back_key", self.back_key)
        return RungNames(
            fill(queue_name, queue, rung.label),
            fill(key, queue, rung.label),
            fill(back_key, queue, rung.label),
        )


def fill(template: str, queue: str, delay: str = "") -> str:
    return template.format(queue=queue, delay=delay)


def _check(name: str, template: str) -> None:
    if not isinstance(template, str):
        raise ConfigurationError(f"naming.{name} {brief_repr(template)}: want a text")
    try:
        parts = [part for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        raise ConfigurationError(f"naming.{name} {brief_repr(template)}: {error}") from None
    if unknown := {str(part[1]) for part in parts} - _KNOWN:
        word = unknown.pop()[:_LONGEST]
        raise ConfigurationError(
            f"naming.{name} {brief_repr(template)}: {{{word}}} is unknown; there are {{queue}}, {{delay}}"
        )
    if any(form or change for _, _, form, change in parts):
        raise ConfigurationError(f"naming.{name} {brief_repr(template)}: {{queue}} and {{delay}} stand as they are")
