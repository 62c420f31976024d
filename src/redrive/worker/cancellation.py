"""Tell an error that a handler raised from one that ends its task or its process."""

from __future__ import annotations

import asyncio

_FATAL = (KeyboardInterrupt, SystemExit, GeneratorExit)  # they end the whole process, or a task that is not awaited


def ends_task(error: BaseException) -> bool:
    """Return whether an error ends the process or the current task. A handler that awaits another task which was
    cancelled has only failed.
    """
    return isinstance(error, _FATAL) or (isinstance(error, asyncio.CancelledError) and is_cancelled())


def is_cancelled() -> bool:
    """Return whether the current task is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
