"""How one is told that one may not. What they say in `why` may be told to anybody; `detail` is for the audit alone."""

from __future__ import annotations

from typing import Any

from redrive.errors import RedriveError


class Refused(RedriveError):
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

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.why, self.detail), {"is_guess": self.is_guess}


class CannotTell(Refused):
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

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.detail)


class RoleTooLow(NoRole):
    """The role of this principal is lower than the least role of this server (HTTP: 403).

    Whose: the server's settings, or the administrator who gives out roles.

    Do: use a key or token with that role. The least role is set by `redrive serve --least-role`, or by
    `redrive.admin.router(app, least_role=...)`.
    """

    def __init__(self, name: str, role: str, needed: str) -> None:
        super().__init__(name, why=f"{name} has the role {role}, and this server needs the role {needed}")
        self.role, self.needed = role, needed

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.role, self.needed)


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

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.wait,)
