"""The root of the tree, and errors of no particular area."""

from __future__ import annotations

import re
from typing import Any, ClassVar


class RedriveError(Exception):
    """The root: `except RedriveError` catches everything Redrive raises on purpose.

    Whose: see the one that was raised.

    Do: read the message: it says what happened, and most often what to do. Every kind has a page of its own.
    """

    __module__ = "redrive.errors"
    area: ClassVar[str] = "base"

    def __init_subclass__(cls) -> None:
        """Name every class `redrive.errors.NAME`, whichever file it is in: failure records contain that name."""
        package, _, area = cls.__module__.rpartition(".")
        if package == "redrive.errors":
            cls.__module__, cls.area = package, area

    def __reduce__(self) -> tuple[Any, ...]:  # exceptions cross processes: Celery and multiprocessing pickle them
        return _restore, (type(self), self.args, vars(self))


def _restore(kind: type[RedriveError], args: tuple[Any, ...], state: dict[str, Any]) -> RedriveError:
    error = kind.__new__(kind, *args)
    vars(error).update(state)
    return error


def name_of(kind: type[RedriveError]) -> str:
    """By which an error can be looked up: `redrive explain topology-conflict`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower()


class ConfigurationError(RedriveError):
    """A setting makes no sense. Nothing was started.

    Whose: yours.

    Why: an option, a file, an environment variable or an argument says something that cannot be meant; the message
    names it, and what would do.

    Do: correct it and start again. Where a name is nearly right, the message says which one was probably meant.
    """

    def __init__(self, *args: object, option: str = "") -> None:
        super().__init__(*args)
        self.option = option  # the one that is wrong, if a form has a field for it


class DatabaseUnavailable(RedriveError):
    """The database cannot be reached. Nothing was started.

    Whose: nobody's: the database is down, or unreachable from here.

    Why: it is not started, the URL has the wrong host, port, user or password, or a firewall blocks the connection. The
    message contains the reason that the driver reports.

    Do: start the database or correct its URL (`REDRIVE_DATABASE`), then start again. An outage that begins later ends
    nothing: consumers wait until the database is back.
    """


class Stuck(RedriveError):
    """Messages of the demo are still under way after two minutes.

    Whose: the machine's, or a defect.

    Do: try again on a machine that is less busy; with `--data FOLDER` the demo keeps its log there.
    """
