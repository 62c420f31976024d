"""The console: pages that a server writes, for an operator who wants to know what is broken, why, and what to press.

Every state is a URL; what changes something is a form that is posted, and answered by a redirect. Without JavaScript
everything can be read and re-driven; with it, numbers that change are refreshed (`static/console.js`).

What a page shows was written by strangers. There is one way into the HTML, `pages.environment`: it escapes, always, and
makes what hides in a text visible.

| module        | what                                                                         |
|---------------|------------------------------------------------------------------------------|
| `rendering`   | how a page is made of a template, and what all of them have                  |
| `urls`        | addresses, under whatever path the console is mounted, of queues of any name |
| `formatting`  | numbers, times and states, as people read them                               |
| `sparkline`   | a line of depths                                                             |
| `forms`       | fields of a form, and what is wrong with them                                 |
| `overview`    | what is dead, where, since when; what runs                                   |
| `queues`      | a queue in groups, its messages, one message                                 |
| `redrive`     | a plan, and carrying it out; discarding                                      |
| `edit`        | a message that is changed before it goes back                                |
| `import_`     | exported messages that are put into a queue                                  |
| `operations`  | what runs and what ran; steering it                                          |
| `sign_in`     | signing in and out; light and dark                                           |
| `error_pages` | what is shown instead of a page                                              |
| `audit`       | the audit page                                                               |
| `doctor`      | the doctor page                                                              |
| `outbox`      | the outbox page                                                              |
| `topology`    | the topology page                                                            |
"""

from __future__ import annotations

from fastapi import APIRouter

from redrive.admin.console import (
    audit,
    doctor,
    edit,
    import_,
    operations,
    outbox,
    overview,
    queues,
    redrive,
    sign_in,
    topology,
)
from redrive.admin.console.error_pages import explain, is_page
from redrive.admin.console.rendering import assets

__all__ = ["explain", "is_page", "router"]

router = APIRouter(include_in_schema=False)
router.include_router(assets)
# The pages of queues come last, those with longer paths first: the name of a queue may hold anything.
for part in (sign_in, overview, operations, outbox, topology, doctor, audit, edit, import_, redrive, queues):
    router.include_router(part.router)
