"""The console: pages that a server writes, for an operator who wants to know what is broken, why, and what to press.

Every state is a URL; what changes something is a form that is posted, and answered by a redirect. Without JavaScript
everything can be read and re-driven; with it, numbers that change are refreshed (`static/console.js`).

What a page shows was written by strangers. There is one way into the HTML, `pages.environment`: it escapes, always, and
makes what hides in a text visible.

| module       | what                                                                            |
|--------------|---------------------------------------------------------------------------------|
| `pages`      | how a page is made of a template, and what all of them have                     |
| `links`      | addresses, under whatever path the console is mounted, of queues of any name    |
| `words`      | numbers, times and states, as people read them                                  |
| `drawing`    | a line of depths                                                                |
| `forms`      | what somebody typed, and what is wrong with it                                  |
| `overview`   | what is dead, where, since when; what runs                                      |
| `queues`     | a queue in groups, its messages, one message                                    |
| `redriving`  | a plan, and carrying it out; discarding                                         |
| `editing`    | a message that is changed before it goes back                                   |
| `importing`  | exported messages that are put into a queue                                     |
| `operations` | what runs and what ran; steering it                                             |
| `others`     | outbox, topology, doctor, audit                                                 |
| `entering`   | signing in and out; light and dark                                              |
| `troubles`   | what is shown instead of a page                                                 |
"""

from __future__ import annotations

from fastapi import APIRouter

from redrive.admin.console import edit, import_, operations, others, overview, queues, redrive, sign_in
from redrive.admin.console.error_pages import explain, is_page
from redrive.admin.console.rendering import assets

__all__ = ["explain", "is_page", "router"]

router = APIRouter(include_in_schema=False)
# Whose paths are longer come first: the name of a queue may hold anything.
for part in (assets, sign_in.router, overview.router, operations.router, others.router, edit.router):
    router.include_router(part)
for part in (import_.router, redrive.router, queues.router):
    router.include_router(part)
