"""`redrive health`: is a worker, relay or admin server ready? For whoever starts processes and waits for them.

Containers ask this every few seconds, so nothing is imported that it can do without.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import click

from redrive.cli.exit_codes import UNREACHABLE
from redrive.errors import ConfigurationError
from redrive.recovery.durations import duration

_PATIENCE = 10.0  # seconds for one answer: an admin server asks its broker and its database first
_AGAIN = 0.2  # seconds between two questions


@click.command()
@click.argument("url", default="http://127.0.0.1:9000/readyz")
@click.option("--within", default="0s", show_default=True, help="Ask again for so long, until it is ready.")
def health(url: str, within: str) -> None:
    """Ask URL (http://127.0.0.1:9000/readyz) once, or until it is ready. Exit code 0 if it is, 7 if it is not.

    \b
    redrive health
    redrive health http://127.0.0.1:8080/readyz --within 30s
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise click.UsageError(f"{url}: want http://... or https://...")
    try:
        deadline = time.monotonic() + duration(within, "--within").total_seconds()
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    while (problem := _ask(url)) is not None:
        if time.monotonic() >= deadline:
            click.echo(f"redrive: {url}: {problem}", err=True)
            sys.exit(UNREACHABLE)
        time.sleep(_AGAIN)
    click.echo("ready")


def _ask(url: str) -> str | None:
    """What is wrong, if anything is."""
    # A proxy that the environment names is for the world outside, not for the process next door.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_PATIENCE):
            return None
    except urllib.error.HTTPError as error:
        with error:
            return _problem_text(error.code, error.read(10_000))
    except (OSError, http.client.HTTPException) as error:
        return str(getattr(error, "reason", None) or error or type(error).__name__)


def _problem_text(status: int, body: bytes) -> str:
    """Workers and relays tell a list in JSON, the admin server a line for each."""
    text = body.decode(errors="replace").strip()
    try:
        return ", ".join(json.loads(text)["problems"])
    except (ValueError, LookupError, TypeError):
        return ", ".join(text.splitlines()) or f"status {status}"
