"""How a page is made of a template.

Texts that are shown come from messages, and messages from anybody. Autoescaping is on and never off, and what comes out
of an expression is made `printable` first: nothing in it turns the direction of writing, or hides. A value that a form
sends back must stay as it is: `{{ value|exactly }}`, which is escaped and nothing else.

The policy of the server (`headers.POLICY`) allows neither scripts nor styles inside of a page. There are none: what is
drawn has a class, or attributes of SVG.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from redrive import __version__
from redrive.admin.access.roles import Permission
from redrive.admin.api.dependencies import context_of
from redrive.admin.authorized_service import AuthorizedService
from redrive.admin.console import formatting, sparkline
from redrive.admin.console.urls import address_asked_for, links_of
from redrive.deadletters.redaction import redact_text
from redrive.operations.operation import OperationKind, OperationState
from redrive.text import one_line, printable

THEME = "redrive_theme"
THEMES = ("auto", "light", "dark")

_HERE = Path(__file__).parent
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

# What a redirect may have a page say: a link that somebody else wrote says one of these, too, and nothing worse.
NOTICES = {
    "looked": "Looked again just now.",
    "plan-expired": "Nothing was done: the plan was older than 15 minutes, or was carried out already (Operations has "
    "it then). This is a new plan.",
    "plan-changed": "Nothing was done yet: the form was changed after the plan was made. This is the plan for what it "
    "says now.",
    "queue-changed": "Nothing was done yet: another operation worked on this queue after the plan was made. This is a "
    "new plan.",
    "once": "This plan was carried out already, by this operation. Nothing was done twice.",
    "imported": "The messages of the file are in the queue.",
    "imported-once": "This form was sent already, and its file is imported once. Nothing was done twice.",
    "retried": "It will be published again within seconds.",
    "all-retried": "All parked rows will be published again within seconds.",
    "row-discarded": "The row is deleted. The audit says what it was.",
    "row-gone": "That row is not parked any more: somebody else was faster, or it was published.",
    "heard": "Your wish is written down; it is heard within a second.",
    "signed-out": "You are signed out.",
}


def _finalize(value: Any) -> Any:
    """Every expression's last step before it is escaped."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else printable(value)


def _verbatim(value: str) -> Markup:
    """As it is, but for what cannot be written at all."""
    return escape(value.encode("utf-8", "replace").decode())


@pass_context
def _ago(context: Context, moment: datetime | None, otherwise: str = "–") -> Markup:
    if moment is None:
        return escape(otherwise)
    said = formatting.age(moment, context["now"])
    return Markup('<time datetime="{}" title="{}">{}</time>').format(moment.isoformat(), formatting.stamp(moment), said)


@cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        ago=_ago,
        cut=one_line,
        exactly=_verbatim,
        number=formatting.number,
        percent=formatting.percent,
        size=formatting.size,
    )
    made.filters["without_secrets"] = redact_text
    made.globals.update(
        {
            name: getattr(formatting, name)
            for name in formatting.__dict__
            if callable(getattr(formatting, name)) and name[0] != "_"
        }
    )
    made.globals.update(
        Permission=Permission,
        OperationKind=OperationKind,
        OperationState=OperationState,
        version=__version__,
        trend_of=sparkline.trend_of,
    )
    return made


def page(
    request: Request, template: str, at: AuthorizedService | None, *, status: int = 200,
    headers: Mapping[str, str] | None = None, notice: str = "", **what: Any,
) -> HTMLResponse:  # fmt: skip
    context = context_of(request)
    known: dict[str, Any] = {
        "to": links_of(request),
        "at": at,
        "admin": context,
        "now": context.clock.now(),
        "theme": theme_of(request),
        "address": address_asked_for(request),
        "asset": asset_version,
        "notice": notice or NOTICES.get(request.query_params.get("said", ""), ""),
        "has_outbox": context.outbox is not None,
    }
    text = environment().get_template(template).render(known | what)
    return HTMLResponse(text, status, dict(headers or {}))


def theme_of(request: Request) -> str:
    said = request.cookies.get(THEME, "auto")
    return said if said in THEMES else "auto"


def see_other(address: str) -> RedirectResponse:
    """After a form: the browser asks for the page that shows what came of it, and asking again does nothing twice."""
    return RedirectResponse(address, 303)


# Style and script ---------------------------------------------------------------------------------------

assets = APIRouter()


_ASSETS = {path.name: path.read_bytes() for path in (_HERE / "static").iterdir() if path.suffix in _TYPES}
_VERSIONS = {name: sha256(content).hexdigest()[:12] for name, content in _ASSETS.items()}


def asset_version(name: str) -> str:
    """A browser may keep a file for as long as it is called the same."""
    return _VERSIONS[name]


@assets.get("/static/{name}")
async def asset(name: str) -> Response:
    content = _ASSETS.get(name)
    if content is None:  # not as a page: to render one for every made-up name is work
        return PlainTextResponse("there is no such file", 404)
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(content, media_type=_TYPES[Path(name).suffix], headers=headers)
