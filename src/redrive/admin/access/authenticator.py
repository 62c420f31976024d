"""Who is this? Keys, tokens, sessions and the throttle as one question.

Whoever shows something in `Authorization: Bearer` is judged by that alone; a cookie beside it does not count. What is
in another scheme (`Basic`, of a proxy in front) is not for us. A cookie that is nobody's is no attempt, but a session
that is over: the answer is None, and a page to sign in. What is shown and fails counts towards the throttle, if it may
have been a guess.

A key or token is verified first, and only failures are throttled: a valid one always works, however many attempts of
its address have failed. A verification costs one query by primary key, less than the rest of a request. From addresses
that have to wait at most `_SUSPECTS` run at a time, so that a flood of wrong keys leaves the database and the threads
to others.

Database errors are not refusals, and propagate as they are. Nobody comes in without showing something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TypeVar

from redrive.admin.access.keys import PREFIX, Keys
from redrive.admin.access.roles import BY_SESSION, Principal, Role
from redrive.admin.access.sessions import Sessions
from redrive.admin.access.settings import AccessSettings
from redrive.admin.access.throttle import Throttle
from redrive.admin.access.tokens import Tokens
from redrive.database.engine import Database
from redrive.errors import RoleTooLow, TooManyAttempts, Unauthenticated
from redrive.worker.clock import Clock, SystemClock

T = TypeVar("T")

_SCHEME = "bearer"
_SUSPECTS = 2


class Authenticator:
    def __init__(
        self,
        keys: Keys,
        sessions: Sessions,
        tokens: Tokens | None,
        clock: Clock,
        throttle: Throttle | None = None,
        least_role: Role = Role.VIEWER,
    ) -> None:
        """`least_role`: principals with a lower role are refused."""
        self.keys = keys
        self.sessions = sessions
        self.tokens = tokens
        self.throttle = throttle or Throttle()
        self._suspects = asyncio.Semaphore(_SUSPECTS)
        self._clock = clock
        self._least_role = least_role

    @classmethod
    def of(cls, database: Database, settings: AccessSettings, clock: Clock | None = None) -> Authenticator:
        clock = clock or SystemClock()
        tokens = Tokens(settings.tokens, clock) if settings.tokens is not None else None
        return cls(Keys(database, clock), Sessions(database, clock), tokens, clock, least_role=settings.least_role)

    async def authenticate(self, *, authorization: str | None, cookie: str | None, address: str) -> Principal | None:
        """None: nothing was shown. Raises Refused, NoRole or TooManyAttempts."""
        shown = _bearer_token(authorization)
        if shown is not None:
            return await self._attempt(self._verify, shown, address)
        return await self._find_session(cookie) if cookie else None

    async def reauthenticate(self, *, authorization: str | None, cookie: str | None) -> Principal | None:
        """Return who a credential belongs to that was admitted before. It is not a guess, whatever became of it."""
        shown = _bearer_token(authorization)
        if shown is not None:
            return await self._verify(shown)
        return await self._find_session(cookie) if cookie else None

    async def sign_in(self, key: str, address: str) -> tuple[Principal, str]:
        """A new session for who shows a key, and its cookie."""
        return await self._attempt(self._open, key.strip(), address)

    async def sign_out(self, cookie: str) -> None:
        await asyncio.to_thread(self.sessions.close, cookie)

    async def can_anybody_sign_in(self) -> bool:
        """Else the first thing to do is to make a key: `redrive admin keys create`."""
        return self.tokens is not None or await asyncio.to_thread(self.keys.any)

    async def _verify(self, shown: str) -> Principal:
        if shown.startswith(PREFIX):
            return self._check_role(await asyncio.to_thread(self.keys.verify, shown))
        if self.tokens is None:
            raise Unauthenticated("this is no key, and tokens are not accepted here", "a token; none are accepted")
        return self._check_role(await self.tokens.verify(shown))

    async def _find_session(self, cookie: str) -> Principal | None:
        found = await asyncio.to_thread(self.sessions.find, cookie)
        return self._check_role(found) if found is not None else None

    def _check_role(self, who: Principal) -> Principal:
        """Return the principal, or raise RoleTooLow."""
        if who.role < self._least_role:
            raise RoleTooLow(who.name, who.role, self._least_role)
        return who

    async def _open(self, text: str) -> tuple[Principal, str]:
        key = await asyncio.to_thread(self.keys.verify_key, text)
        self._check_role(key.principal)
        cookie = await asyncio.to_thread(self.sessions.open, key.principal, key.id)
        return Principal(key.name, key.role, key.queues, BY_SESSION), cookie

    async def _attempt(self, judge: Callable[[str], Awaitable[T]], shown: str, address: str) -> T:
        try:
            async with self._suspects if self._wait(address) > 0 else nullcontext():
                return await judge(shown)
        except Unauthenticated as refusal:
            if refusal.is_guess:
                self._count_failure(address)
            raise

    def _count_failure(self, address: str) -> None:
        """Raise TooManyAttempts if there were too many before this one; which then does not count."""
        wait = self._wait(address)
        if wait > 0:
            raise TooManyAttempts(wait) from None
        self.throttle.record_failure(address, self._clock.monotonic())

    def _wait(self, address: str) -> float:
        return self.throttle.wait(address, self._clock.monotonic())

    def __repr__(self) -> str:
        return f"<Gate {self.keys!r} {self.tokens or 'no tokens'} {self.throttle!r}>"


def _bearer_token(authorization: str | None) -> str | None:
    scheme, _, shown = (authorization or "").strip().partition(" ")
    return shown.strip() if scheme.lower() == _SCHEME else None
