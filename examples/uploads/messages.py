"""What the parts tell each other. The kind of a message is in its routing key and its `type`."""

from typing import Any

from msgspec import Struct


class Upload(Struct):
    """A file as it came in, and as it was found to be."""

    file: str
    name: str
    kind: str
    size: int


class Rejected(Struct):
    file: str
    reason: str


class Processed(Struct):
    """One part of the processing is done: a thumbnail is there, metadata were read."""

    file: str
    part: str
    result: dict[str, Any]


class Command(Struct):
    """To take a file on; or, without a word about it, to have one go through everything once more."""

    file: str
    name: str | None = None
    kind: str | None = None
    size: int | None = None


class Event(Struct):
    """Any of the events: those who follow all of them want to know about which file they are."""

    file: str
    name: str | None = None
    kind: str | None = None
    size: int | None = None
    reason: str | None = None
    part: str | None = None
    result: dict[str, Any] | None = None
