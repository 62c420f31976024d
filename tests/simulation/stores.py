"""SQLite without threads, and databases that are ready: a copy of one that was made once."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import aiosqlite.core
import pytest

from redrive import App


class _AtOnce:
    """The queue to aiosqlite's thread, without the thread."""

    def put_nowait(self, item: tuple[asyncio.Future[Any] | None, Callable[[], Any]]) -> None:
        future, function = item
        try:
            result = function()
        except Exception as error:
            if future is not None:
                future.set_exception(error)
        else:
            if future is not None:
                future.set_result(result)


class _NoThread:
    daemon = True

    def __init__(self, **_: object) -> None:
        pass

    def start(self) -> None:
        pass


@contextmanager
def no_threads() -> Iterator[None]:
    """What aiosqlite has done by a thread is done at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aiosqlite.core, "SimpleQueue", _AtOnce)
        patch.setattr(aiosqlite.core, "Thread", _NoThread)
        yield


@cache
def _made() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="simulation-"))
    app = App("simulated", database=f"sqlite:///{folder / 'made.db'}")
    app.upgrade_database()
    with app.database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE effects (number integer NOT NULL)")
    app.database.engine.dispose()
    return folder


def fresh_database() -> str:
    """With all tables of Redrive's, and one for effects."""
    file = Path(tempfile.mkdtemp(dir=_made())) / "simulated.db"
    shutil.copy(_made() / "made.db", file)
    return f"sqlite:///{file}"


def throw_away(database: str) -> None:
    shutil.rmtree(Path(database.removeprefix("sqlite:///")).parent)


def throw_all_away() -> None:
    if _made.cache_info().currsize:
        shutil.rmtree(_made())
        _made.cache_clear()
