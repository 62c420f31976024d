"""Metrics and health pages of commands that run until they are stopped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import click

from redrive.integrations.health_server import HealthServer


def health_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--health-port` and `--health-host`, for `serve_health`."""
    host = click.option("--health-host", default="127.0.0.1", show_default=True, help="The address for that.")
    port = click.option("--health-port", type=int, help="Serve /metrics, /healthz and /readyz here; 0 picks a port.")
    return port(host(command))


@asynccontextmanager
async def serve_health(
    host: str, port: int | None, metrics: Callable[[], Awaitable[bytes]], ready: Callable[[], list[str]]
) -> AsyncIterator[None]:
    """Serve metrics and health on that port, and print the address. Without a port nothing is served."""
    if port is None:
        yield
        return
    async with HealthServer(metrics=metrics, ready=ready, host=host, port=port) as server:
        click.echo(f"health at {server.url}")
        yield
