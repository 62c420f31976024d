"""`python -m examples.errorfilter`: the consumers, and a gateway to try against.

`send` publishes a charge, `decisions` shows what the filter decides, `gateway` is the gateway alone.
"""

from __future__ import annotations

import asyncio
import signal
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from examples.errorfilter import settings
from examples.errorfilter.filtering import DECISION_TABLE
from examples.errorfilter.messages import Charge
from examples.errorfilter.sandbox import Sandbox
from redrive.integrations.logs import LogObserver, configure_logging

if TYPE_CHECKING:
    from redrive import ConnectedApp


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    if context.invoked_subcommand is None:
        work()


def work() -> None:
    from examples.errorfilter.app import app
    from redrive.cli.exit_codes import stop_on_signals

    configure_logging(logger="")
    app.observers.append(LogObserver(app.name))

    def ready(running: ConnectedApp) -> None:
        click.echo(f"{app!r} on {running.server}")
        click.echo("pay:    python -m examples.errorfilter send --source tok_visa")

    async def handle() -> None:
        await app.run_worker(stop=stop_on_signals("draining; once more to quit at once"), ready=ready)

    with ExitStack() as stack:
        if settings.GATEWAY_URL is None:
            stack.enter_context(Sandbox(settings.SANDBOX).serving())
        asyncio.run(handle())


@main.command()
@click.option("--source", default="tok_visa", show_default=True, help="The token of a card, see sandbox.py.")
@click.option("--amount", default=1990, show_default=True, help="In cents.")
@click.option("--customer", default="ana", show_default=True)
@click.option("--retry-count", help="What x-retry-count says, as other publishers may have written it.")
def send(source: str, amount: int, customer: str, retry_count: str | None) -> None:
    """Publish a charge."""
    from examples.errorfilter.app import app, exchange

    identity = f"ch_{uuid.uuid4().hex[:8]}"
    headers = {settings.FILTER.header: retry_count} if retry_count is not None else None

    async def publish() -> None:
        async with app:
            order = Charge(identity, customer, amount, source=source)
            await app.publish(exchange, "minha.chave", order, type="Charge", correlation_id=identity, headers=headers)

    asyncio.run(publish())
    click.echo(identity)


@main.command()
def decisions() -> None:
    """What the filter decides, asked of what decides."""
    table = Table("error", settings.FILTER.header, "should retry", "action", "x-delay")
    for row in DECISION_TABLE:
        first, *others = row.errors
        for error, count in [*((first, count) for count in row.counts), *((other, row.counts[0]) for other in others)]:
            made = settings.FILTER.decide(error, {} if count is None else {settings.FILTER.header: count})
            said = ("none" if count is None else count, made.should_retry, made.action, made.x_delay)
            table.add_row(type(error).__name__, *("–" if one is None else str(one) for one in said))
    Console().print(table)


@main.command()
@click.option("--port", default=settings.SANDBOX[1], show_default=True)
def gateway(port: int) -> None:
    """The gateway alone, so that it can be stopped."""
    ending = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)  # whoever waits for a signal must have it blocked
    sandbox = Sandbox((settings.SANDBOX[0], port))
    with sandbox.serving():
        click.echo(f"the gateway is at {sandbox.url}")
        signal.sigwait(ending)


if __name__ == "__main__":
    main()
