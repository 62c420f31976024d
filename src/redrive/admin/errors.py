"""What the admin API and the console do not do, and why. They can be read without the extra that serves them.

A branch of the tree in `redrive.errors`, with who may come in (`access/refusals.py`) beside it:

    RedriveError
    ├── NotAllowed            this person may not
    ├── QueueNotAccepted      this server accepts the dead-letter queues of its application, and no other queue
    ├── NotEditable           nobody may: changing messages is switched off
    ├── CrossSite             a browser that another site sent
    ├── PlanExpired           a plan that was carried out, or is too old
    │   └── PlanDiffers       a plan of something else than the form asks for, or of a queue that was changed since
    ├── TargetUnroutable      there is nothing where the messages should go
    └── NoOutbox              no application, no outbox
"""

from __future__ import annotations

from collections.abc import Sequence

from redrive.admin.access.roles import Act, Principal
from redrive.errors import RedriveError

_MOST_SHOWN = 20  # names of queues in a message


class NotAllowed(RedriveError):
    """This person may not do that. It is in the audit.

    Whose: whoever gives out roles.

    Do: ask somebody with that role, or have the role or the queue patterns of the key changed.
    """

    def __init__(self, act: Act, who: Principal, queue: str | None = None) -> None:
        if queue is not None and not who.sees(queue):
            why = f"{who.name} sees the queues {', '.join(who.queues)}, and nothing else"
        else:
            why = f"that needs the role {act.needs}, and {who.name} is {who.role}"
        super().__init__(f"not allowed: {why}")
        self.act = act


class QueueNotAccepted(RedriveError):
    """This server accepts only the dead-letter queues of its application, and this queue is none of them.

    Whose: the caller's, or the server's settings.

    Do: ask for one of the queues that the message lists. `own_queues_only` is what limits the server to them; `redrive
    dlq` is not limited.
    """

    def __init__(self, queue: str, description: str, app: str, accepted: Sequence[str]) -> None:
        """`description`: what the queue is instead. `accepted`: those dead-letter queues that the principal sees."""
        shown = ", ".join(accepted[:_MOST_SHOWN]) + (", ..." if len(accepted) > _MOST_SHOWN else "")
        super().__init__(
            f"{queue} is {description}; this server accepts only the dead-letter queues of {app}: {shown or 'none'}"
        )


class PlanExpired(RedriveError):
    """A plan is carried out once, by whoever made it, within a quarter of an hour.

    Whose: nobody's.

    Why: the queue may look different by now, so an old plan is not a promise any more.

    Do: plan again and look at what it would do now.
    """

    def __init__(self, why: str = "it was carried out, or is too old", *, operation: str = "") -> None:
        """`operation`: the one that carried it out, if that is known."""
        super().__init__(f"this plan is not valid any more: {why}. Plan again")
        self.operation = operation


class PlanDiffers(PlanExpired):
    """The plan that was shown is not what would happen now. Nothing was done.

    Whose: nobody's.

    Why: the form was changed after it was planned, or another operation worked on the queue since.

    Do: plan again and look at what it would do now.
    """

    def __init__(self, *, queue_changed: bool = False) -> None:
        super().__init__("another operation worked on the queue since" if queue_changed else "it is of something else")
        self.queue_changed = queue_changed


class NotEditable(RedriveError):
    """Changing messages is switched off.

    Whose: the server's settings.

    Do: set REDRIVE_ADMIN_EDITING=1 where people may change messages; the audit has every change.
    """

    def __init__(self) -> None:
        super().__init__("messages are not changed here: it is switched off. REDRIVE_ADMIN_EDITING=1 switches it on")


class NoOutbox(RedriveError):
    """There is no application here whose outbox could be shown.

    Whose: of how the server was started.

    Do: `redrive serve module:app`.
    """

    def __init__(self) -> None:
        super().__init__("there is no outbox here: start the server with an application, `redrive serve module:app`")


class TargetUnroutable(RedriveError):
    """Where the messages should go, there is nothing.

    Whose: the topology's.

    Do: make the queue (`redrive topology apply APP`), or name another target.
    """

    def __init__(self, target: str) -> None:
        super().__init__(f"{target} does not exist: nothing can be moved there, and nothing was done")


class CrossSite(RedriveError):
    """A browser was sent here by another site.

    Whose: the other site's.

    Do: open the console itself, and do it there.
    """

    def __init__(self) -> None:
        super().__init__("this came from another site, and was not done: open the console itself, and do it there")
