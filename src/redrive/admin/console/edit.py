"""A message that is changed before it goes back to work: typed, seen as a difference, and only then sent.

One form is both. The button that sends carries the token of the difference that is shown; if the fields say something
else by then, nothing is sent, and the page shows the new difference.

The body is shown with all it holds, since nobody can change what they do not see: to open the form is to reveal, and
the audit says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fastapi import APIRouter, Request
from starlette.responses import Response

from redrive.admin.api.dependencies import CurrentService
from redrive.admin.api.parameters import Named
from redrive.admin.authorized_service import AuthorizedService
from redrive.admin.console.forms import Mistakes, Typed, form_of, text_of
from redrive.admin.console.redrive import why_not
from redrive.admin.console.rendering import NOTICES, page, see_other
from redrive.admin.console.urls import links_of
from redrive.deadletters.edits import Edit, EditPreview
from redrive.errors import ConfigurationError, PlanExpired, TransformFailed
from redrive.operations.browse import MessageDetail
from redrive.operations.operation import Destination, OperationKind, OperationRequest, Selection
from redrive.operations.transforms import ByHand, Transform, from_patch

router = APIRouter()

_TEXTS = ("patch", "set_headers", "remove_headers", "to", "reason")
_MOST_TYPED = 512 * 1024  # bytes of a body that a browser's text field can be trusted with


@dataclass(slots=True)
class EditForm:
    body: str
    patch: str = ""
    set_headers: str = ""
    remove_headers: str = ""
    to: str = "own"
    reason: str = ""
    force: bool = False
    mistakes: Mistakes = field(default_factory=Mistakes)

    @classmethod
    def of(cls, typed: Typed, destination: Destination) -> EditForm:
        """Return the form with what was typed. `destination`: where the message goes if no other is typed."""
        patch, set_headers, remove_headers, to, reason = (text_of(typed, name) for name in _TEXTS)
        body, force = typed.get("body", ""), "force" in typed
        return cls(body, patch, set_headers, remove_headers, to or str(destination), reason, force)

    def transform(self, was: str | None) -> Transform:
        """`was`: the body as the form showed it, or None if it could not."""
        changed = was is not None and _lines_of(self.body) != _lines_of(was)
        headers = dict(_pairs(self.set_headers))
        gone = tuple(filter(None, (line.strip() for line in self.remove_headers.splitlines())))
        if self.patch:
            if changed or headers or gone:
                raise ConfigurationError("a patch changes the body, and goes with nothing else: empty one of them")
            return from_patch(self.patch)
        edit = Edit(_with_line_ends_of(self.body, was).encode() if changed else None, headers, gone)
        if edit.is_nothing:
            raise ConfigurationError("nothing would change: edit the body or the headers, or write a patch")
        return ByHand(edit)

    def order(self, queue: str, found: MessageDetail) -> OperationRequest:
        selection = Selection(ids=(found.dead_letter.id,), limit=1)
        return OperationRequest(OperationKind.REDRIVE, queue, selection, Destination.parse(self.to), reason=self.reason)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in filter(None, map(str.strip, text.splitlines())):
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise ConfigurationError(f"header {line!r}: want a line for each, as tenant: acme")
        yield name.strip(), value.strip()


def _lines_of(text: str) -> str:
    """A browser sends every line's end as CR LF, whatever it was."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _with_line_ends_of(text: str, was: str | None) -> str:
    return _lines_of(text).replace("\n", "\r\n") if was is not None and "\r\n" in was else _lines_of(text)


def text_in(body: bytes) -> str | None:
    """The body for a text field; None: one would not give back what it was given."""
    if len(body) > _MOST_TYPED:
        return None
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    mixed = "\r" in text.replace("\r\n", "") or ("\r\n" in text and "\n" in text.replace("\r\n", ""))
    plain = all(char.isprintable() or char in "\r\n\t" for char in text)
    return text if plain and not mixed else None


@router.get("/queues/{queue:path}/messages/{id}/edit")
async def edit_form(request: Request, at: CurrentService, queue: Named, id: Named) -> Response:
    await at.need_editing(queue)
    found = (await at.message(queue, id, reveal=True)).value
    return _form_page(request, at, queue, found, EditForm(text_in(found.body) or "", to=str(at.redrive_to(queue))))


def _form_page(
    request: Request, at: AuthorizedService, queue: str, found: MessageDetail, form: EditForm, *, notice: str = "",
    difference: str | None = None, token: str = "",
) -> Response:  # fmt: skip
    return page(
        request,
        "edit.html",
        at,
        status=422 if form.mistakes else 200,
        here="overview",
        queue=queue,
        letter=found.dead_letter,
        form=form,
        mistakes=form.mistakes,
        is_text=text_in(found.body) is not None,
        notice=notice,
        difference=difference,
        token=token,
    )


@router.post("/queues/{queue:path}/messages/{id}/edit")
async def edit(request: Request, at: CurrentService, queue: Named, id: Named) -> Response:
    await at.need_editing(queue)
    typed, to = await form_of(request), links_of(request)
    token = typed.get("token")
    if token is not None and (done := await at.operation_of_plan(queue, token)):
        return see_other(to("operations", done, said="once"))
    form, found = EditForm.of(typed, at.redrive_to(queue)), (await at.message(queue, id, reveal=True)).value
    notice = ""
    try:
        order, transform = form.order(queue, found), form.transform(text_in(found.body))
        if token is not None:
            try:
                operation = await at.edit(order, transform, force=form.force, token=token)
                return see_other(to("operations", operation.id))
            except PlanExpired as error:
                notice = NOTICES[why_not(error)]
        previews = {one.id: one for one in await at.preview(order, transform, force=form.force)}
        preview = previews.get(found.dead_letter.id, EditPreview("", problem="it is not in the queue any more"))
        if preview.problem:
            raise ConfigurationError(f"It {preview.text}")
    except (ConfigurationError, TransformFailed) as error:
        form.mistakes.add(error)
        return _form_page(request, at, queue, found, form)
    shown = await at.keep_edit(order, transform, force=form.force)
    return _form_page(request, at, queue, found, form, notice=notice, difference=preview.text, token=shown)
