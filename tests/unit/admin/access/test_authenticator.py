"""Who is this? Asked with real keys, tokens and sessions on SQLite."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from sqlalchemy.exc import SQLAlchemyError

from redrive.admin.access.authenticator import Authenticator
from redrive.admin.access.keys import Key
from redrive.admin.access.roles import Principal, Role
from redrive.admin.access.secrets import new_secret
from redrive.admin.access.settings import AccessSettings
from redrive.admin.access.throttle import CEILING, FREE
from redrive.admin.access.tokens import TokenPolicy
from redrive.database.engine import Database
from redrive.database.schema import Schema
from redrive.errors import NoRole, RoleTooLow, TooManyAttempts, Unauthenticated, VerificationUnavailable
from redrive.testing import free_port
from redrive.testing.clock import ManualClock

NOON = datetime(2026, 5, 17, 12, 0, 0, 123456, tzinfo=UTC)
SECRET = "correct horse battery staple, and then some"
HERE, THERE = "192.0.2.1", "192.0.2.2"
WITH_TOKENS = AccessSettings(TokenPolicy(secret=SECRET))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database.embedded(tmp_path)
    Schema().upgrade(database)
    yield database
    await database.close()


@pytest.fixture
def gate(database: Database, clock: ManualClock) -> Authenticator:
    return Authenticator.of(database, WITH_TOKENS, clock)


def token(**claims: Any) -> str:
    times = {"exp": int(NOON.timestamp()) + 60}
    return "Bearer " + jwt.encode({"sub": "ann", "roles": ["viewer"]} | times | claims, SECRET, "HS256")


def unknown_key() -> str:
    return f"Bearer rdk_{new_secret(12)}_{new_secret()}"


async def admit(
    gate: Authenticator, authorization: str | None = None, cookie: str | None = None, address: str = HERE
) -> Any:
    return await gate.authenticate(authorization=authorization, cookie=cookie, address=address)


async def fail(gate: Authenticator, times: int, address: str = HERE) -> None:
    for _ in range(times):
        with pytest.raises(Unauthenticated):
            await admit(gate, unknown_key(), address=address)


# Who shows what -----------------------------------------------------------------------------------


@pytest.mark.parametrize("authorization", [None, "", " ", "Basic YTpi", "rdk_x", "Negotiate x"])
@pytest.mark.parametrize("cookie", [None, "", "x", "0" * 43])
async def test_who_shows_nothing_of_ours_is_nobody(
    authorization: str | None, cookie: str | None, gate: Authenticator
) -> None:
    assert await admit(gate, authorization, cookie) is None
    assert len(gate.throttle) == 0


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER   "])
async def test_a_key_and_a_token_let_in(scheme: str, gate: Authenticator) -> None:
    key, text = gate.keys.create("ci", Role.OPERATOR, ("orders.*",))
    assert await admit(gate, scheme + text) == Principal("ci", Role.OPERATOR, ("orders.*",), f"key {key.id}")
    assert await admit(gate, scheme + token().split()[1]) == Principal("ann", Role.VIEWER, ("*",), "token")


@pytest.mark.parametrize("authorization", ["Bearer", "Bearer ", "Bearer x", "Bearer rdk_", "bearer ü", "Bearer \udcff"])
async def test_what_is_shown_and_is_no_proof_is_refused(authorization: str, gate: Authenticator) -> None:
    with pytest.raises(Unauthenticated):
        await admit(gate, authorization)
    assert len(gate.throttle) == 1


async def test_a_cookie_does_not_help_who_shows_a_wrong_key(gate: Authenticator) -> None:
    _, text = gate.keys.create("ci", Role.ADMIN)
    _, cookie = await gate.sign_in(text, HERE)
    with pytest.raises(Unauthenticated):
        await admit(gate, unknown_key(), cookie)
    found = await admit(gate, "Basic YTpi", cookie)
    assert found.is_by_cookie


async def test_who_is_known_and_has_no_role_is_told_so_and_has_not_guessed(gate: Authenticator) -> None:
    for _ in range(FREE + 1):
        with pytest.raises(NoRole, match="ann has no role here"):
            await admit(gate, token(roles=["guest"]))


async def test_who_has_less_than_the_least_role_is_told_so_and_has_not_guessed(
    database: Database, clock: ManualClock, gate: Authenticator
) -> None:
    strict = Authenticator.of(database, replace(WITH_TOKENS, least_role=Role.ADMIN), clock)
    key = strict.keys.create("bob", Role.OPERATOR)[1]
    _, cookie = await gate.sign_in(key, HERE)  # at another server of the same database

    for _ in range(FREE + 1):
        with pytest.raises(RoleTooLow, match="ann has the role viewer, and this server needs the role admin"):
            await admit(strict, token())
        with pytest.raises(RoleTooLow, match="bob has the role operator"):
            await admit(strict, f"Bearer {key}")
        with pytest.raises(RoleTooLow):
            await admit(strict, cookie=cookie)
        with pytest.raises(RoleTooLow):
            await strict.reauthenticate(authorization=None, cookie=cookie)
        with pytest.raises(RoleTooLow):
            await strict.sign_in(key, HERE)
    assert (await admit(strict, token(roles=["admin"]))).role is Role.ADMIN


async def test_without_a_policy_tokens_are_not_accepted(database: Database, clock: ManualClock) -> None:
    gate = Authenticator.of(database, AccessSettings(), clock)
    with pytest.raises(Unauthenticated, match="tokens are not accepted here"):
        await admit(gate, token())


async def test_a_database_that_is_broken_refuses_nobody_and_counts_nothing(tmp_path: Path, clock: ManualClock) -> None:
    database = Database.embedded(tmp_path / "empty")
    gate = Authenticator.of(database, WITH_TOKENS, clock)
    with pytest.raises(SQLAlchemyError):
        await admit(gate, unknown_key())
    with pytest.raises(SQLAlchemyError):
        await admit(gate, cookie=new_secret())
    assert len(gate.throttle) == 0
    await database.close()


async def test_an_owner_of_keys_who_is_away_makes_nobody_a_guesser(database: Database, clock: ManualClock) -> None:
    policy = TokenPolicy(jwks=f"http://127.0.0.1:{free_port()}/keys", audience="x")
    gate = Authenticator.of(database, AccessSettings(policy), clock)
    header = "Bearer eyJhbGciOiJSUzI1NiJ9.e30.AAAA"  # {"alg":"RS256"}
    for _ in range(FREE + 1):
        with pytest.raises(VerificationUnavailable, match="cannot be checked at the moment") as caught:
            await admit(gate, header)
    assert "Connection refused" in caught.value.detail
    assert "127.0.0.1" not in caught.value.why


# Signing in and out -------------------------------------------------------------------------------


async def test_who_signs_in_with_a_key_has_a_session_until_they_sign_out(gate: Authenticator) -> None:
    _, text = gate.keys.create("ann", Role.ADMIN, ("orders.*",))
    principal, cookie = await gate.sign_in(f" {text}\n", HERE)
    assert principal == Principal("ann", Role.ADMIN, ("orders.*",), "session")
    assert await admit(gate, cookie=cookie) == principal
    await gate.sign_out(cookie)
    assert await admit(gate, cookie=cookie) is None


async def test_a_session_ends_with_the_key_it_was_opened_with(gate: Authenticator) -> None:
    _, text = gate.keys.create("ann", Role.ADMIN)
    _, cookie = await gate.sign_in(text, HERE)
    gate.keys.revoke("ann")
    assert await admit(gate, cookie=cookie) is None
    with pytest.raises(Unauthenticated):
        await gate.sign_in(text, HERE)


async def test_one_does_not_sign_in_with_a_token_or_a_cookie(gate: Authenticator) -> None:
    _, text = gate.keys.create("ann", Role.ADMIN)
    _, cookie = await gate.sign_in(text, HERE)
    for shown in (token().split()[1], cookie, "", f"Bearer {text}"):
        with pytest.raises(Unauthenticated):
            await gate.sign_in(shown, HERE)


async def test_nobody_comes_in_without_proof_and_it_is_known_whether_anybody_can(
    database: Database, clock: ManualClock
) -> None:
    gate = Authenticator.of(database, AccessSettings(), clock)
    assert await admit(gate) is None
    assert not await gate.can_anybody_sign_in()
    gate.keys.create("ann", Role.ADMIN)
    assert await gate.can_anybody_sign_in()
    gate.keys.revoke("ann")
    assert await Authenticator.of(database, WITH_TOKENS, clock).can_anybody_sign_in()


# Guessing -----------------------------------------------------------------------------------------


async def test_a_valid_key_works_however_many_attempts_of_its_address_failed(
    gate: Authenticator, clock: ManualClock
) -> None:
    _, text = gate.keys.create("ci", Role.VIEWER)
    await fail(gate, FREE)
    with pytest.raises(TooManyAttempts) as caught:
        await admit(gate, unknown_key())
    assert caught.value.wait == 1

    assert (await admit(gate, f"Bearer {text}")).name == "ci"
    assert (await admit(gate, token())).name == "ann"
    principal, _ = await gate.sign_in(text, HERE)
    assert principal.name == "ci"

    with pytest.raises(TooManyAttempts):
        await admit(gate, unknown_key())
    await fail(gate, FREE - 1, THERE)
    clock.advance(timedelta(seconds=1))
    await fail(gate, 1)


async def test_of_fifty_wrong_keys_at_once_five_are_answered_as_failures(gate: Authenticator) -> None:
    answers = await asyncio.gather(*(admit(gate, unknown_key()) for _ in range(50)), return_exceptions=True)

    assert Counter(map(type, answers)) == {Unauthenticated: FREE, TooManyAttempts: 50 - FREE}


async def test_a_flood_of_wrong_keys_delays_nobody_at_another_address(gate: Authenticator) -> None:
    """Those of the flood wait for each other, not for the threads that others need."""
    _, text = gate.keys.create("ci", Role.VIEWER)
    await fail(gate, FREE)
    running, most, verify = 0, 0, gate.keys.verify_key

    def counting(shown: str) -> Key:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return verify(shown)
        finally:
            running -= 1

    gate.keys.verify_key = counting  # type: ignore[method-assign]
    flood = asyncio.gather(*(admit(gate, unknown_key()) for _ in range(200)), return_exceptions=True)
    assert (await admit(gate, f"Bearer {text}", address=THERE)).name == "ci"
    assert set(map(type, await flood)) == {TooManyAttempts}
    assert most <= 3


async def test_failed_sign_ins_count_too(gate: Authenticator) -> None:
    for _ in range(FREE):
        with pytest.raises(Unauthenticated):
            await gate.sign_in("wrong", HERE)
    with pytest.raises(TooManyAttempts):
        await admit(gate, unknown_key())


async def test_who_is_signed_in_does_not_wait_for_who_guesses_at_the_same_address(gate: Authenticator) -> None:
    _, text = gate.keys.create("ci", Role.VIEWER)
    _, cookie = await gate.sign_in(text, HERE)
    await fail(gate, FREE)
    assert (await admit(gate, cookie=cookie)).name == "ci"


async def test_an_expired_token_is_no_guess(gate: Authenticator, clock: ManualClock) -> None:
    shown = token()
    clock.advance(timedelta(hours=1))
    for _ in range(FREE + 1):
        with pytest.raises(Unauthenticated, match="expired"):
            await admit(gate, shown)


async def test_a_crowd_of_guessers_does_not_lock_out_who_works_here(gate: Authenticator) -> None:
    _, text = gate.keys.create("ci", Role.VIEWER)
    for number in range(CEILING):
        with pytest.raises(Unauthenticated):
            await admit(gate, "Bearer rdk_", address=f"10.0.0.{number}")
    with pytest.raises(TooManyAttempts):
        await admit(gate, unknown_key(), address=THERE)
    assert (await admit(gate, f"Bearer {text}", address=THERE)).name == "ci"


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "refusal",
    [
        Unauthenticated("why", "detail", is_guess=False),
        VerificationUnavailable("why", "detail"),
        NoRole("ann", "roles"),
        RoleTooLow("ann", "viewer", "admin"),
        TooManyAttempts(2.5),
    ],
)
def test_a_refusal_survives_the_way_to_another_process(refusal: Exception) -> None:
    again = pickle.loads(pickle.dumps(refusal))
    assert type(again) is type(refusal)
    assert vars(again) == vars(refusal)
    assert str(again) == str(refusal)


def test_nothing_in_a_repr_is_secret(gate: Authenticator) -> None:
    assert SECRET not in repr(gate)
