"""Parameters that the routes of the REST API and the pages of the console share."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

from fastapi import Depends, Header, Path, Query
from pydantic import AfterValidator

from redrive.admin.api import request_schemas as r
from redrive.operations.browse import GroupBy
from redrive.operations.operation import ItemOutcome

# Paths come as they were sent: a name's own / is not one of the path's.
Named = Annotated[str, Path(max_length=2000, description="Percent-encoded."), AfterValidator(unquote)]
Limit = Annotated[int, Query(ge=1, le=r.MOST, description="The number of items on a page, at most.")]
Cursor = Annotated[str | None, Query(max_length=200, description="`next_cursor` of the page before.")]
Words = Annotated[str, Query(max_length=10_000, description="Which messages: `error:Timeout since:2h`.")]
GroupedBy = Annotated[GroupBy, Query(description="What makes a group.")]
Became = Annotated[ItemOutcome | None, Query(description="Only those of which this became.")]
Fresh = Annotated[bool, Query(description="Look again, instead of showing what was seen half a minute ago.")]
Everything = Annotated[bool, Query(description="With what belongs to other applications.")]
Reveal = Annotated[bool, Query(description="With what looks like a secret. Goes into the audit.")]
Prefer = Annotated[str | None, Header(description="`wait=10`: answer when it is over, or after so many seconds.")]
RowId = Annotated[int, Path(ge=1, le=2**63 - 1, description="The number of the row.")]


def _key(
    idempotency_key: Annotated[str | None, Header(max_length=255, description="Sent again, it is done once.")] = None,
) -> None:
    """For the document: `IdempotentRoute` reads it."""


ONCE = [Depends(_key)]
