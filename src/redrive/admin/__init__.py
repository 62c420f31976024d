"""Operating dead letters: one service, and the faces that people use it through.

| module               | what                                                                               |
|----------------------|------------------------------------------------------------------------------------|
| `target`             | a broker with what is known about it: topology, management API, the application's  |
| `access`             | who may come in, and what they may do there                                        |
| `service`            | look, plan, re-drive, discard, steer: everything the faces can do                  |
| `context`            | what a server has: the service, what was seen lately, what runs, who may come in   |
| `authorized_service` | what one person does there, as far as they may                                     |
| `api`                | the REST API and the console around it                                             |
| `authorization`      | what one principal may do, and what the audit says about a refusal                 |
| `authorized_queries` | queries of one principal                                                           |
| `cache`              | what was seen in a queue, kept for a while                                         |
| `cached_target`      | a broker target for a server                                                       |
| `console`            | the console                                                                        |
| `executor`           | run the operations of an admin server                                              |
| `notifications`      | notifications about new dead letters and stalled operations, by webhook or command |
| `queries`            | read dead-letter queues                                                            |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redrive.admin.api.application import Admin
    from redrive.app import App

__all__ = ["router"]


def router(app: App, **options: Any) -> Admin:
    """The admin API and the console of an application, to be mounted in another: `api.mount("/ops", router(app))`.

    `options` are those of `AdminContext`: `access` says who may come in, where the environment does not.
    """
    try:
        from redrive.admin.api.application import Admin
    except ModuleNotFoundError as error:
        from redrive.errors import ConfigurationError

        raise ConfigurationError(
            f"there is no module {error.name}: the admin server needs more. pip install 'redrive[admin]'"
        ) from None
    from redrive.admin.context import AdminContext

    return Admin(AdminContext.of(app, **options))
