"""Options that several of the commands have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from redrive.runtime.dlq.spending import Risk

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "json", is_flag=True, help="JSON for scripts.")


def risk_options(command: F) -> F:
    """`--spend-deliveries` and `--any-queue`; the command gets them as `risk`."""

    @functools.wraps(command)
    def wrapped(spend: bool, any_queue: bool, **others: Any) -> Any:
        return command(risk=Risk(spend, any_queue), **others)

    any_queue = click.option(
        "--any-queue",
        is_flag=True,
        help="Also a queue that is not a dead-letter queue, or that has consumers.",
    )
    spend = click.option(
        "--spend-deliveries",
        "spend",
        is_flag=True,
        help="Look although it counts towards the queue's delivery limit: each look costs one, and never the last one.",
    )
    return spend(any_queue(wrapped))  # type: ignore[return-value]


query_option = click.option(
    "-q", "--query", default="", metavar="QUERY", help="Which messages; see `redrive dlq query`."
)
