"""FastAPI: an API that publishes, writes to the outbox, and handles messages if it is told to.

    from redrive.integrations.fastapi import Publishing, Transaction, explain_errors, lifespan

    api = FastAPI(lifespan=lifespan(app))
    explain_errors(api)

    @api.post("/users")
    async def sign_up(user: User, publisher: Publishing) -> None:
        await publisher.publish("users", "user.new", user)  # a confirm, or an error that the caller is told

    @api.post("/orders")
    async def place(order: NewOrder, session: Transaction) -> None:
        session.add(Order(...))
        await app.publish("events", "order.placed", order, session=session)  # both, or neither

A `Transaction` is committed before the answer is sent: whoever hears 200 can rely on it. That wants FastAPI 0.121, from
which on a dependency can end with the function that asked for it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Annotated, Any, TypeAlias

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from redrive.app import App
from redrive.database.connection_errors import is_outage
from redrive.errors import (
    BrokerError,
    Closed,
    ConfigurationError,
    ConnectionFailed,
    ConnectionLost,
    NotPublished,
    PublishRefused,
    PublishUnknown,
    RedriveError,
    Unroutable,
)
from redrive.integrations.health_server import PROMETHEUS, HealthPage, health
from redrive.integrations.logs import LogObserver
from redrive.integrations.monitoring import Monitoring
from redrive.outbox.mode import OutboxMode
from redrive.recovery.durations import Duration, duration
from redrive.worker.publisher import Publisher

__all__ = ["Application", "Lifespan", "Publishing", "Transaction", "explain_errors", "lifespan", "monitor"]

try:
    from fastapi import Depends, FastAPI, Request
    from starlette.requests import HTTPConnection
    from starlette.responses import JSONResponse, Response
except ModuleNotFoundError as missing:
    raise ConfigurationError(
        f"there is no module {missing.name}: redrive.integrations.fastapi wants it. pip install 'redrive[fastapi]'"
    ) from None

Lifespan: TypeAlias = Annotated[
    Callable[[FastAPI], AbstractAsyncContextManager[Any]],
    "The lifespan of a FastAPI application: `FastAPI(lifespan=...)`.",
]

log = logging.getLogger("redrive.integrations")

_RETRY_AFTER = {"Retry-After": "2"}


def lifespan(
    app: App,
    *,
    connect: bool = True,
    work: bool = False,
    relay: bool = False,
    queues: Iterable[str] = (),
    drain: Duration = "30s",
    within: Lifespan | None = None,
) -> Lifespan:
    """The application is connected for as long as the API runs: `FastAPI(lifespan=lifespan(app))`.

    `connect=False` is for an API that publishes by the outbox alone: it starts, and takes requests, while the broker is
    away. `work`: handle its messages in this process, too (those of `queues`, or all); `relay`: publish the outbox's
    rows. With the outbox's transport LOCAL both happen here in any case. `drain` is how long what is under way may take
    when the API ends. `within` is a lifespan of your own, which begins when the application is connected.

    An API that cannot start takes no request: the functions of `App.on_start` and, with `connect=False`, the table of
    the outbox come first. uvicorn logs the reason in one line.
    """
    limit, some = duration(drain, "drain"), tuple(queues)
    if (some or relay) and not work:
        raise ConfigurationError(
            "lifespan: queues and relay are for work=True; `redrive worker` and `redrive outbox relay` do it elsewhere"
        )

    @asynccontextmanager
    async def run_lifespan(api: FastAPI) -> AsyncIterator[Any]:
        if not any(isinstance(observer, LogObserver) for observer in app.observers):
            app.observers.append(LogObserver(app.name))  # as `redrive worker` does: what fails must not be silent
        async with AsyncExitStack() as stack:
            with _log_failure_in_one_line():
                await _start(app, stack, connect=connect)
                api.state.redrive = app
                if (handling := _worker(app, work, relay, some, limit)) is not None:
                    await stack.enter_async_context(handling)
            yield await stack.enter_async_context(within(api)) if within is not None else None

    return run_lifespan


async def _start(app: App, stack: AsyncExitStack, *, connect: bool) -> None:
    if connect:
        await stack.enter_async_context(app)
        return
    await app.prepare()
    with app.database.explain_errors():
        await app.ensure_outbox_table()


@contextmanager
def _log_failure_in_one_line() -> Iterator[None]:
    """Starlette reports a failed start to the server as a traceback, and uvicorn logs that. Have it log the message of
    Redrive's error instead.
    """
    try:
        yield
    except RedriveError as error:
        sentence = str(error)

        def shorten(record: logging.LogRecord) -> bool:
            if str(record.msg).startswith("Traceback") and sentence in str(record.msg):
                record.msg, record.args = sentence, ()
            return True

        logging.getLogger("uvicorn.error").addFilter(shorten)
        raise


def _worker(
    app: App, work: bool, relay: bool, queues: tuple[str, ...], limit: timedelta
) -> AbstractAsyncContextManager[Any] | None:
    local = app.transport is OutboxMode.LOCAL
    if work:
        return app.worker(queues=queues, relay=relay or local, within=limit)
    return app.local_worker(within=limit) if local else None


# For whoever watches ------------------------------------------------------------------------------


def monitor(api: FastAPI, app: App) -> None:
    """`/metrics` for Prometheus; `/healthz` and `/readyz` for whoever starts and stops processes."""
    monitoring = Monitoring(app)

    @api.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(await monitoring.metrics(), media_type=PROMETHEUS)

    @api.get("/healthz", include_in_schema=False)
    async def alive() -> Response:
        return _answer(health([]))

    @api.get("/readyz", include_in_schema=False)
    async def ready() -> Response:
        return _answer(health(monitoring.problems()))


def _answer(page: HealthPage) -> Response:
    return Response(page.body, page.status, media_type=page.type)


# What a path operation can ask for ----------------------------------------------------------------


def application(request: HTTPConnection) -> App:
    """Return the application of a request."""
    app = getattr(request.app.state, "redrive", None)
    if not isinstance(app, App):
        raise ConfigurationError("the API has no Redrive application: FastAPI(lifespan=lifespan(app))")
    return app


def publisher(app: Annotated[App, Depends(application)]) -> Publisher:
    """Return the publisher of the application."""
    return app.publisher


async def transaction(app: Annotated[App, Depends(application)]) -> AsyncIterator[AsyncSession]:
    """Committed when the path operation returns, rolled back when it raises."""
    await app.ensure_outbox_table()
    async with app.database.async_sessions()() as session, session.begin():
        yield session


Application = Annotated[App, Depends(application)]
Publishing = Annotated[Publisher, Depends(publisher)]
Transaction = Annotated[AsyncSession, Depends(transaction, scope="function")]


# What the caller is told --------------------------------------------------------------------------


def explain_errors(api: FastAPI) -> None:
    """A broker or database that is unavailable is not the caller's fault, and worth another try: 503, as a problem
    (RFC 9457). Any other error of the database is raised as before.
    """

    @api.exception_handler(RedriveError)
    @api.exception_handler(SQLAlchemyError)
    async def explain(request: Request, error: Exception) -> JSONResponse:
        status, title, detail = explanation(error)
        log.warning("%s %s: %s", request.method, request.url.path, str(error).partition("\n")[0])
        problem = {"type": "about:blank", "title": title, "status": status, "detail": detail}
        headers = _RETRY_AFTER if status == 503 else {}
        return JSONResponse(
            {**problem, "instance": request.url.path}, status, headers, media_type="application/problem+json"
        )


def explanation(error: Exception) -> tuple[int, str, str]:
    """A status, a title, and what to do: without addresses and names, which are not the caller's business."""
    match error:
        case PublishUnknown():
            return 503, "It may have been taken", "The broker went away before it confirmed. Send it again, as it was."
        case NotPublished() | ConnectionFailed() | ConnectionLost() | Closed():
            return 503, "The broker cannot be reached", "Nothing was taken. Send it again in a moment."
        case PublishRefused():
            return 503, "The broker takes no more", "Nothing was taken. Send it again in a moment."
        case DBAPIError(connection_invalidated=True) if is_outage(error):
            return 503, "It may have been stored", "The database went away meanwhile. Send it again, as it was."
        case SQLAlchemyError() if is_outage(error):
            return 503, "The database cannot be reached", "Nothing was stored. Send it again in a moment."
        case Unroutable() | BrokerError():
            return 502, "The broker cannot take that", "Nothing was taken, and another try will not help."
        case _:
            raise error
