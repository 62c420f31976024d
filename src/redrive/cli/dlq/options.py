"""Options that several of the commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "json", is_flag=True, help="JSON for scripts.")
spend_option = click.option(
    "--spend-deliveries",
    "spend",
    is_flag=True,
    help="Look although it counts towards the queue's delivery limit: each look costs one.",
)
query_option = click.option(
    "-q", "--query", default="", metavar="QUERY", help="Which messages; see `redrive dlq query`."
)
