"""The admin API and the console: who may enter, and what is refused. No command raises these.

The text in `why` may be shown to anybody; `detail` is for the audit alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from redrive.errors.base import RedriveError

_MOST_SHOWN = 20  # names of queues in a message


class Unauthenticated(RedriveError):
    """Who this is was not proven (HTTP: 401). `is_guess`: it may have been one, so it counts towards the throttle.

    Whose: whoever asks.

    Why: no key or token, one that is revoked, expired or signed by somebody else; or a session that has ended.

    Do: sign in again. An administrator makes keys with `redrive admin keys create NAME --role ROLE`. A key is valid
    for the servers that use the same database: that command and `redrive serve` print which one it is. The audit says
    what exactly was wrong.
    """

    def __init__(self, why: str, detail: str = "", *, is_guess: bool = True) -> None:
        super().__init__(why)
        self.why = why
        self.detail = detail or why
        self.is_guess = is_guess


class VerificationUnavailable(Unauthenticated):
    """Nobody's fault who asks: what proofs are checked with is not to be had at the moment (HTTP: 401, better 503).

    Whose: the identity provider's, or the network's to it.

    Do: wait, and ask again. REDRIVE_ADMIN_JWT_JWKS says where the keys are to be had; API keys work meanwhile.
    """

    def __init__(self, why: str, detail: str = "") -> None:
        super().__init__(why, detail, is_guess=False)


class NoRole(RedriveError):
    """It is proven who this is, and they have no role here (HTTP: 403).

    Whose: whoever gives out roles.

    Do: give the person the role viewer, operator or admin in the identity provider; REDRIVE_ADMIN_JWT_ROLES names the
    claim that is read.
    """

    def __init__(self, name: str, detail: str = "", *, why: str = "") -> None:
        self.why = why or f"{name} has no role here: viewer, operator or admin"
        super().__init__(self.why)
        self.name = name
        self.detail = detail or self.why


class RoleTooLow(NoRole):
    """The role of this principal is lower than the least role of this server (HTTP: 403).

    Whose: the server's settings, or the administrator who gives out roles.

    Do: use a key or token with that role. The least role is set by `redrive serve --least-role`, or by
    `redrive.admin.router(app, least_role=...)`.
    """

    def __init__(self, name: str, role: str, needed: str) -> None:
        super().__init__(name, why=f"{name} has the role {role}, and this server needs the role {needed}")
        self.role, self.needed = role, needed


class TooManyAttempts(RedriveError):
    """It failed, as too many did before: try again in `wait` seconds (HTTP: 429 with Retry-After).

    Whose: whoever guesses.

    Why: many attempts of this address, or of all addresses together, failed. A valid key or token is never refused so.
    Behind a proxy all clients have its address, unless `--trust-proxy` names it.

    Do: wait as long as `Retry-After` says. If nobody guessed, look for a script with an old key.
    """

    def __init__(self, wait: float) -> None:
        self.why = "this is not valid, and too many attempts failed before it: try again later"
        super().__init__(self.why)
        self.wait = wait


class NotAllowed(RedriveError):
    """This person may not do that. It is in the audit.

    Whose: whoever gives out roles.

    Do: ask somebody with that role, or have the role or the queue patterns of the key changed.
    """

    def __init__(self, act: str, why: str) -> None:
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
