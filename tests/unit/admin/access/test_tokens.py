"""Tokens, honest and forged, against real signatures."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from redrive.admin.access.roles import Principal, Role
from redrive.admin.access.tokens import LARGEST, KeySet, TokenPolicy, Tokens
from redrive.errors import ConfigurationError, NoRole, Unauthenticated
from redrive.testing.clock import ManualClock

NOON = datetime(2026, 5, 17, 12, 0, 0, 123456, tzinfo=UTC)
SECRET = "correct horse battery staple, and then some"
AUDIENCE = "redrive"
NOW = int(NOON.timestamp())
CLAIMS: dict[str, Any] = {"sub": "ann", "roles": ["operator"], "exp": NOW + 60}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
def shared(clock: ManualClock) -> Tokens:
    return Tokens(TokenPolicy(secret=SECRET), clock)


@cache
def private(kind: str) -> Any:
    match kind:
        case "RSA":
            return rsa.generate_private_key(65537, 2048)
        case "other RSA":
            return rsa.generate_private_key(65537, 2048)
        case "weak RSA":
            return rsa.generate_private_key(65537, 1024)
        case "P-256":
            return ec.generate_private_key(ec.SECP256R1())
        case "P-384":
            return ec.generate_private_key(ec.SECP384R1())
        case _:
            return ed25519.Ed25519PrivateKey.generate()


def jwk(kind: str, kid: str | None = None, **more: Any) -> dict[str, Any]:
    public = private(kind).public_key()
    algorithm = {"P": ECAlgorithm, "E": OKPAlgorithm}.get(kind[0], RSAAlgorithm)
    row: dict[str, Any] = algorithm.to_jwk(public, as_dict=True)
    row.pop("key_ops", None)
    return row | ({"kid": kid} if kid is not None else {}) | more


def public_pem(kind: str) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    pem: bytes = private(kind).public_key().public_bytes(serialization.Encoding.PEM, form)
    return pem


def write(path: Path, *rows: Any) -> Path:
    path.write_text(json.dumps({"keys": rows}))
    return path


def with_keys(path: Path, clock: ManualClock, *rows: Any, **policy: Any) -> Tokens:
    place = str(write(path / "jwks.json", *rows))
    return Tokens(TokenPolicy(**{"jwks": place, "audience": AUDIENCE} | policy), clock)


def signed(claims: dict[str, Any] = CLAIMS, key: Any = SECRET, alg: str = "HS256", **header: Any) -> str:
    return jwt.encode(claims, key, alg, header)


def ours(kind: str, alg: str, **header: Any) -> str:
    return signed(CLAIMS | {"aud": AUDIENCE}, private(kind), alg, **header)


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def forged(header: Any, claims: Any = CLAIMS, key: bytes | None = None) -> str:
    """By hand: libraries refuse to make some of these."""
    return raw(json.dumps(header).encode(), json.dumps(claims).encode(), key)


def raw(header: bytes, claims: bytes, key: bytes | None) -> str:
    start = f"{encoded(header)}.{encoded(claims)}"
    signature = b"" if key is None else hmac.digest(key, start.encode(), hashlib.sha256)
    return f"{start}.{encoded(signature)}"


async def refusal(tokens: Tokens, token: str) -> Unauthenticated:
    with pytest.raises(Unauthenticated) as caught:
        await tokens.verify(token)
    assert type(caught.value) is Unauthenticated
    return caught.value


# Honest ones --------------------------------------------------------------------------------------


async def test_a_token_of_the_secret_says_who_it_is(shared: Tokens) -> None:
    assert await shared.verify(signed()) == Principal("ann", Role.OPERATOR, ("*",), "token")


def test_what_the_forger_makes_is_right_but_for_what_is_forged() -> None:
    assert jwt.decode(forged({"alg": "HS256"}, {"sub": "x"}, SECRET.encode()), SECRET, ["HS256"]) == {"sub": "x"}


@pytest.mark.parametrize(
    ("kind", "alg"),
    [("RSA", "RS256"), ("RSA", "RS512"), ("RSA", "PS256"), ("P-256", "ES256"), ("P-384", "ES384"), ("Ed", "EdDSA")],
)
async def test_a_token_of_each_kind_of_key_says_who_it_is(
    kind: str, alg: str, tmp_path: Path, clock: ManualClock
) -> None:
    tokens = with_keys(tmp_path, clock, jwk("other RSA", "1"), jwk(kind, "2"))
    assert (await tokens.verify(ours(kind, alg, kid="2"))).name == "ann"
    assert (await tokens.verify(ours(kind, alg))).name == "ann"


@pytest.mark.parametrize(
    ("path", "claims", "role"),
    [
        ("roles", {"roles": ["viewer", "admin", "operator"]}, Role.ADMIN),
        ("roles", {"roles": "viewer operator"}, Role.OPERATOR),
        ("roles", {"roles": ["offline_access", 7, None, {"admin": 1}, "viewer"]}, Role.VIEWER),
        ("realm_access.roles", {"realm_access": {"roles": ["admin"]}}, Role.ADMIN),
        ("a.b.c", {"a": {"b": {"c": "viewer"}}}, Role.VIEWER),
        ("https://example.com/roles", {"https://example.com/roles": ["admin"]}, Role.ADMIN),
    ],
)
async def test_the_highest_known_role_counts(path: str, claims: dict[str, Any], role: Role, clock: ManualClock) -> None:
    tokens = Tokens(TokenPolicy(secret=SECRET, roles_claim=path), clock)
    token = signed({"sub": "ann", "exp": NOW + 60} | claims)
    assert (await tokens.verify(token)).role is role


@pytest.mark.parametrize(
    "roles",
    [
        None,
        [],
        "",
        "Admin",
        ["ADMIN"],
        "administrator",
        "admin,viewer",
        1,
        True,
        {"admin": True},
        [["admin"]],
        "admin\0",
    ],
)
async def test_who_has_no_role_is_known_and_not_let_in(roles: Any, shared: Tokens) -> None:
    with pytest.raises(NoRole, match="ann has no role here"):
        await shared.verify(signed(CLAIMS | {"roles": roles}))


@pytest.mark.parametrize("claims", [{"realm_access": []}, {"realm_access": "roles"}, {"realm_access": {"roles": None}}])
async def test_a_path_that_leads_nowhere_is_no_role(claims: dict[str, Any], clock: ManualClock) -> None:
    tokens = Tokens(TokenPolicy(secret=SECRET, roles_claim="realm_access.roles"), clock)
    with pytest.raises(NoRole):
        await tokens.verify(signed(CLAIMS | claims))


@pytest.mark.parametrize(
    ("queues", "seen"),
    [
        (["orders.*", "mail"], ("orders.*", "mail")),
        ("orders.* mail", ("orders.*", "mail")),
        ([], ()),
        ("", ()),
        (7, ()),
        ({"*": 1}, ()),
        ([7, "a\nb", "", "mail"], ("mail",)),
    ],
)
async def test_a_claim_of_queues_restricts_and_junk_in_it_is_no_queue(
    queues: Any, seen: tuple[str, ...], shared: Tokens
) -> None:
    assert (await shared.verify(signed(CLAIMS | {"queues": queues}))).queues == seen


@pytest.mark.parametrize("claims", [{}, {"queues": None}])
async def test_no_claim_of_queues_is_every_queue_unless_it_is_required(
    claims: dict[str, Any], shared: Tokens, clock: ManualClock
) -> None:
    strict = Tokens(TokenPolicy(secret=SECRET, queues_required=True), clock)
    assert (await shared.verify(signed(CLAIMS | claims))).is_unrestricted
    assert (await strict.verify(signed(CLAIMS | claims))).queues == ()


# Forged ones --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "alg", ["none", "None", "NONE", "nOnE", "", None, 7, ["HS256"], {"HS256": 1}, "HS384", "RS256"]
)
async def test_an_algorithm_that_is_not_allowed_is_refused_even_if_rightly_signed(alg: Any, shared: Tokens) -> None:
    for key in (None, SECRET.encode()):
        assert "algorithm is not allowed" in (await refusal(shared, forged({"alg": alg}, key=key))).why


async def test_a_token_without_an_algorithm_or_with_two_is_refused(shared: Tokens) -> None:
    assert "algorithm" in (await refusal(shared, forged({}, key=SECRET.encode()))).why
    for key in (None, SECRET.encode()):
        await refusal(shared, raw(b'{"alg":"HS256","alg":"none"}', json.dumps(CLAIMS).encode(), key))


async def test_the_public_key_is_not_taken_for_a_secret(tmp_path: Path, clock: ManualClock) -> None:
    """The confusion attack: everybody has the public key, and signs with it as if it were the shared secret."""
    claims = CLAIMS | {"aud": AUDIENCE}
    whole = json.dumps(jwk("RSA", "1")).encode()
    alone = with_keys(tmp_path, clock, jwk("RSA", "1"))
    both = with_keys(tmp_path, clock, jwk("RSA", "1"), secret=SECRET)
    for key in (public_pem("RSA"), public_pem("RSA").strip(), whole, base64.b64decode(jwk("RSA")["n"] + "===", b"-_")):
        token = forged({"alg": "HS256", "kid": "1"}, claims, key)
        assert "algorithm is not allowed" in (await refusal(alone, token)).why
        assert "signature" in (await refusal(both, token)).why
        for alg in ("RS256", "ES256", "EdDSA"):
            await refusal(both, forged({"alg": alg, "kid": "1"}, claims, key))
    assert await both.verify(signed(claims))
    assert await both.verify(ours("RSA", "RS256", kid="1"))


async def test_keys_and_urls_that_a_token_brings_along_are_not_looked_at(tmp_path: Path, clock: ManualClock) -> None:
    tokens = with_keys(tmp_path, clock, jwk("RSA", "1"))
    for header in ({"jwk": jwk("other RSA")}, {"jku": "http://127.0.0.1:1/"}, {"x5u": "file:///etc/passwd"}):
        assert "signature" in (await refusal(tokens, ours("other RSA", "RS256", kid="1", **header))).why


async def test_a_token_of_another_key_is_refused(shared: Tokens, tmp_path: Path, clock: ManualClock) -> None:
    wrong = await refusal(shared, signed(key=SECRET + "!"))
    assert "signature" in wrong.why
    assert wrong.is_guess
    tokens = with_keys(tmp_path, clock, jwk("RSA", "1"))
    assert "signature" in (await refusal(tokens, ours("other RSA", "RS256", kid="1"))).why
    assert "no key for it" in (await refusal(tokens, ours("RSA", "RS256", kid="2"))).why


async def test_what_was_changed_after_signing_is_refused(shared: Tokens) -> None:
    header, claims, signature = signed().split(".")
    better = encoded(json.dumps(CLAIMS | {"roles": ["admin"]}).encode())
    for token in (f"{header}.{better}.{signature}", f"{header}.{claims}.", f"{header}.{claims}.{signature[:-4]}AAAA"):
        await refusal(shared, token)


async def test_a_key_serves_the_algorithms_of_its_kind_its_curve_and_its_word(
    tmp_path: Path, clock: ManualClock
) -> None:
    tokens = with_keys(tmp_path, clock, jwk("RSA", "1", alg="RS256"), jwk("P-256", "2"), jwk("P-384", "3"))
    assert await tokens.verify(ours("RSA", "RS256", kid="1"))
    for token in (
        ours("RSA", "PS256", kid="1"),
        ours("RSA", "RS256", kid="2"),
        ours("P-256", "ES256", kid="3"),
        forged({"alg": "ES384", "kid": "2"}),
    ):
        assert "no key for it" in (await refusal(tokens, token)).why


async def test_algorithms_beyond_the_list_are_refused_though_there_is_a_key(tmp_path: Path, clock: ManualClock) -> None:
    tokens = with_keys(tmp_path, clock, jwk("RSA"), algorithms=("RS256",))
    assert await tokens.verify(ours("RSA", "RS256"))
    assert "algorithm" in (await refusal(tokens, ours("RSA", "RS512"))).why


@pytest.mark.parametrize("kid", [7, ["1"], {"1": 1}, True])
async def test_a_kid_that_is_no_string_is_refused(kid: Any, tmp_path: Path, clock: ManualClock) -> None:
    tokens = with_keys(tmp_path, clock, jwk("RSA", "1"))
    await refusal(tokens, forged({"alg": "RS256", "kid": kid}))


@pytest.mark.parametrize("kid", ["../../dev/null", "' OR 1=1 --", "1\0", "x" * 4000, "\u202e"])
async def test_a_kid_is_only_ever_compared(kid: str, tmp_path: Path, clock: ManualClock) -> None:
    tokens = with_keys(tmp_path, clock, jwk("RSA", "1"))
    told = await refusal(tokens, forged({"alg": "RS256", "kid": kid}))
    assert len(told.why) < 300
    assert told.why.isprintable()


async def test_critical_headers_are_refused_since_none_is_understood(shared: Tokens) -> None:
    header = {"alg": "HS256", "crit": ["b64"], "b64": False}
    assert "critical" in (await refusal(shared, forged(header, key=SECRET.encode()))).why
    await refusal(shared, forged({"alg": "HS256", "b64": False}, key=SECRET.encode()))


# Times --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": NOW - 31}, "expired"),
        ({"exp": NOON.timestamp() - 30}, "expired"),
        ({"exp": 0}, "expired"),
        ({"exp": -1e300}, "expired"),
        ({"nbf": NOW + 32}, "not valid yet"),
        ({"iat": NOW + 32}, "not valid yet"),
        ({"nbf": 10**30}, "not valid yet"),
        ({"exp": None}, "exp is no time"),
        ({"exp": str(NOW + 60)}, "exp is no time"),
        ({"exp": True}, "exp is no time"),
        ({"exp": [NOW + 60]}, "exp is no time"),
        ({"nbf": "now"}, "nbf is no time"),
        ({"iat": None}, "iat is no time"),
    ],
)
async def test_a_token_out_of_its_time_is_refused_and_is_no_guess(
    claims: dict[str, Any], why: str, shared: Tokens
) -> None:
    told = await refusal(shared, forged({"alg": "HS256"}, CLAIMS | claims, SECRET.encode()))
    assert why in told.why
    assert not told.is_guess


async def test_a_token_that_never_expires_is_refused(shared: Tokens) -> None:
    told = await refusal(shared, signed({"sub": "ann", "roles": ["admin"]}))
    assert "exp is missing" in told.why
    assert not told.is_guess


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_a_time_that_is_no_number_is_refused(number: str, shared: Tokens) -> None:
    claims = b'{"sub":"ann","roles":"admin","exp":%s}' % number.encode()
    await refusal(shared, raw(b'{"alg":"HS256"}', claims, SECRET.encode()))


async def test_the_given_clock_counts_and_clocks_may_differ_a_little(shared: Tokens, clock: ManualClock) -> None:
    token = signed(CLAIMS | {"nbf": NOW + 30, "iat": NOW + 30})
    assert await shared.verify(token)
    clock.advance(timedelta(seconds=89))
    assert await shared.verify(token)
    clock.advance(timedelta(seconds=1))
    assert "expired" in (await refusal(shared, token)).why


async def test_the_systems_clock_does_not_count() -> None:
    long_ago = ManualClock(datetime(2001, 1, 1, tzinfo=UTC))
    token = signed(CLAIMS | {"exp": int(long_ago.now().timestamp()) + 60, "iat": int(long_ago.now().timestamp())})
    assert await Tokens(TokenPolicy(secret=SECRET), long_ago).verify(token)


# Parties ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("issuer", ["https://other", "https://idp/", "HTTPS://IDP", "", None, ["https://idp"], 7])
async def test_another_issuer_is_refused(issuer: Any, clock: ManualClock) -> None:
    tokens = Tokens(TokenPolicy(secret=SECRET, issuer="https://idp"), clock)
    assert "issuer" in (await refusal(tokens, forged({"alg": "HS256"}, CLAIMS | {"iss": issuer}, SECRET.encode()))).why
    assert "issuer" in (await refusal(tokens, signed())).why
    assert await tokens.verify(signed(CLAIMS | {"iss": "https://idp"}))


@pytest.mark.parametrize(
    "audience", ["shop", ["shop"], [], "", None, ["redriven"], "redriv", [["redrive"]], {"redrive": 1}]
)
async def test_another_audience_is_refused(audience: Any, clock: ManualClock) -> None:
    tokens = Tokens(TokenPolicy(secret=SECRET, audience=AUDIENCE), clock)
    assert "audience" in (await refusal(tokens, signed(CLAIMS | {"aud": audience}))).why
    assert "audience" in (await refusal(tokens, signed())).why
    assert await tokens.verify(signed(CLAIMS | {"aud": ["shop", AUDIENCE]}))


@pytest.mark.parametrize("audience", ["shop", ["shop"], [None], [], ""])
async def test_a_token_for_somebody_is_not_for_one_who_has_no_name(audience: Any, shared: Tokens) -> None:
    assert "audience" in (await refusal(shared, signed(CLAIMS | {"aud": audience}))).why


@pytest.mark.parametrize(
    "name", ["", " ", "x\r\nX-Evil: 1", "x\n", "x\0", "\x1b[2J", "x\u202ey", "x" * 256, 7, None, ["ann"], "\ud800"]
)
async def test_a_name_that_could_break_a_line_or_hide_is_refused(name: Any, shared: Tokens) -> None:
    claims = {key: value for key, value in CLAIMS.items() if key != "sub"} | {"sub": name}
    told = await refusal(shared, forged({"alg": "HS256"}, claims, SECRET.encode()))
    assert told.why.isprintable()


async def test_another_claim_may_be_the_name(clock: ManualClock) -> None:
    tokens = Tokens(TokenPolicy(secret=SECRET, name_claim="preferred_username"), clock)
    assert (await tokens.verify(signed(CLAIMS | {"preferred_username": "Ann Ø"}))).name == "Ann Ø"
    assert "names nobody" in (await refusal(tokens, signed())).why


# Malformed ones -----------------------------------------------------------------------------------


def malformed() -> Iterator[str]:
    header, claims, signature = signed().split(".")
    yield from ("", ".", "..", "...", "a.b.c", "Bearer", header, f"{header}.{claims}", f"{signed()}.{signature}")
    yield from (f"{header}=.{claims}.{signature}", f"{header}\n.{claims}.{signature}", f" {signed()}", "ü.ü.ü")
    yield from (f"!{header}.{claims}.{signature}", f"{header[:-1]}.{claims}.{signature}", "\udcff.\udcff.\udcff")
    yield from (f"{header}.{claims}.{signature}\udcff", f"{header}.\udcff.{signature}", f"{header}.!.{signature}")
    for junk in (b"", b"null", b"[]", b'"HS256"', b"{", b"\xff", b"[" * 5000, b'{"a":' * 1000):
        yield f"{encoded(junk)}.{claims}.{signature}"
        yield raw(b'{"alg":"HS256"}', junk, SECRET.encode())


@pytest.mark.parametrize("token", list(malformed()), ids=str.__len__)
async def test_a_malformed_token_is_refused_and_nothing_else_happens(token: str, shared: Tokens) -> None:
    assert len((await refusal(shared, token)).why) < 100


@pytest.mark.parametrize("junk", ["!", "=", " ", "\n"])
async def test_what_python_would_pass_over_in_base64_is_malformed_though_rightly_signed(
    junk: str, shared: Tokens
) -> None:
    header, claims, _ = signed().split(".")
    start = f"{header[:4]}{junk}{header[4:]}.{claims}"
    signature = encoded(hmac.digest(SECRET.encode(), start.encode(), hashlib.sha256))
    assert "malformed" in (await refusal(shared, f"{start}.{signature}")).why


async def test_a_token_of_more_than_8_kb_is_not_even_opened(shared: Tokens) -> None:
    small, large = (signed(CLAIMS | {"x": "y" * size}) for size in (5_000, 7_000))
    assert len(small) < LARGEST < len(large)
    assert await shared.verify(small)
    assert "larger than 8 KB" in (await refusal(shared, large)).why
    await refusal(shared, "x" * 100_000_000)


@given(st.text() | st.builds(lambda *parts: ".".join(parts), *[st.binary().map(encoded)] * 3))
async def test_whatever_comes_is_refused(token: str) -> None:
    await refusal(Tokens(TokenPolicy(secret=SECRET), ManualClock(NOON)), token)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["alg", "kid", "exp", "sub", "roles", "aud", "iss", "crit"]), inner)
        ),
    )
)
async def test_whatever_is_claimed_and_rightly_signed_ends_in_an_answer(value: Any) -> None:
    tokens = Tokens(TokenPolicy(secret=SECRET, issuer="x"), ManualClock(NOON))
    claims = value if isinstance(value, dict) else {"roles": value}
    for token in (
        forged({"alg": "HS256"}, {"iss": "x"} | CLAIMS | claims, SECRET.encode()),
        forged(value, CLAIMS, SECRET.encode()),
    ):
        try:
            assert isinstance(await tokens.verify(token), Principal)
        except (Unauthenticated, NoRole):
            pass


# Key sets -----------------------------------------------------------------------------------------


async def test_a_set_with_duplicates_and_junk_serves_with_what_is_good_in_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    secret_key = base64.urlsafe_b64encode(b"x" * 32).decode()
    tokens = with_keys(
        tmp_path,
        clock,
        None,
        7,
        "key",
        [],
        {},
        {"kty": "RSA"},
        {"kty": "RSA", "n": "!", "e": "AQAB", "kid": "1"},
        {"kty": ["RSA"], "kid": "1"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "1"},
        {"kty": "EC", "crv": {"P-256": 1}, "kid": "1"},
        {"kty": "oct", "k": secret_key, "kid": "1", "alg": "RS256"},
        jwk("RSA", "1", use="enc"),
        jwk("other RSA", "1"),
        jwk("RSA", "1"),
        jwk("RSA", "1"),
    )
    assert await tokens.verify(ours("RSA", "RS256", kid="1"))
    assert await tokens.verify(ours("other RSA", "RS256", kid="1"))
    await refusal(tokens, forged({"alg": "HS256", "kid": "1"}, key=b"x" * 32))
    await refusal(tokens, forged({"alg": "RS256", "kid": "1"}, key=b"x" * 32))


def not_for_tokens() -> list[Any]:
    secret_key = RSAAlgorithm.to_jwk(private("RSA"), as_dict=True) | {"key_ops": ["sign", "verify"]}
    return [
        jwk("RSA", use="enc"),
        jwk("RSA", key_ops=["encrypt"]),
        jwk("RSA", key_ops="verify"),
        jwk("RSA", alg="HS256"),
        jwk("RSA", alg="none"),
        jwk("weak RSA"),
        secret_key,
        {"kty": "oct", "k": "eHh4"},
        jwk("P-256") | {"crv": "P-384"},
    ]


@pytest.mark.parametrize("number", range(9))
def test_a_key_that_is_not_for_checking_tokens_is_left_aside(number: int) -> None:
    row = not_for_tokens()[number]
    assert len(KeySet.parse(json.dumps({"keys": [jwk("Ed"), row]}).encode())) == 1
    with pytest.raises(ValueError, match="no public key in it"):
        KeySet.parse(json.dumps({"keys": [row]}).encode())


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"keys":7}', b'{"keys":{}}', b"\xff", b"[" * 10**5, b"<html>"]
)
def test_what_is_no_key_set_says_so(data: bytes) -> None:
    with pytest.raises(ValueError, match="this is no"):
        KeySet.parse(data)


def test_a_set_is_read_up_to_a_hundred_keys() -> None:
    assert len(KeySet.parse(json.dumps({"keys": [jwk("Ed")] * 150}).encode())) == 100


# The policy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ({}, "a JWT secret or a JWKS"),
        ({"secret": ""}, "0 bytes"),
        ({"secret": "x" * 31}, "31 bytes.*want 32 or more.*openssl rand"),
        ({"secret": "x" * 32, "algorithms": ("HS512",)}, "32 bytes.*want 64 or more"),
        ({"secret": "-----BEGIN PUBLIC KEY-----" + "x" * 99}, "key of a pair"),
        ({"secret": SECRET, "algorithms": ()}, "no algorithm is allowed"),
        ({"secret": SECRET, "algorithms": ("none",)}, "'none' is none to trust"),
        ({"secret": SECRET, "algorithms": ("HS256", "hs256")}, "'hs256' is none to trust"),
        ({"secret": SECRET, "algorithms": ("RS256",)}, "RS256 needs a JWKS"),
        ({"jwks": "k.json", "audience": "x", "algorithms": ("HS256",)}, "HS256 needs a secret"),
        ({"jwks": "k.json"}, "REDRIVE_ADMIN_JWT_AUDIENCE"),
        ({"jwks": "", "audience": "x"}, "want a file or an https"),
        ({"jwks": "ftp://idp/k", "audience": "x"}, "want a file or an https"),
        ({"jwks": "file:///etc/passwd", "audience": "x"}, "want a file or an https"),
        ({"jwks": "https://", "audience": "x"}, "want a file or an https"),
        ({"jwks": "https://idp:x/", "audience": "x"}, "JWKS: "),
        ({"jwks": "http://idp.example/k", "audience": "x"}, "answered by anybody on the way"),
        ({"jwks": "http://127.0.0.1.evil.example/k", "audience": "x"}, "answered by anybody"),
        ({"jwks": "https://me:hunter2@idp/k", "audience": "x"}, "a URL with a password"),
        ({"secret": SECRET, "issuer": ""}, "issuer is empty"),
        ({"secret": SECRET, "audience": ""}, "audience is empty"),
        ({"secret": SECRET, "roles_claim": ""}, "roles_claim is empty"),
        ({"secret": SECRET, "leeway": timedelta(days=1)}, "leeway"),
        ({"secret": SECRET, "leeway": timedelta(-1)}, "leeway"),
    ],
)
def test_a_policy_that_would_let_in_others_says_what_to_do(policy: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        TokenPolicy(**policy)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "place", ["http://127.0.0.1:8/k", "http://localhost/k", "http://[::1]/k", "https://idp/k", "k"]
)
def test_keys_may_come_from_here_or_over_tls(place: str) -> None:
    assert TokenPolicy(jwks=place, audience="x").allowed[0] == "RS256"


def test_the_secret_is_in_no_repr(shared: Tokens) -> None:
    assert SECRET not in repr(shared.policy) + repr(shared)


def test_a_file_of_keys_that_is_not_there_or_is_none_is_a_mistake(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(ConfigurationError, match=r"JWKS .*nowhere\.json: .*No such file"):
        Tokens(TokenPolicy(jwks=str(tmp_path / "nowhere.json"), audience="x"), clock)
    (tmp_path / "junk.json").write_text("junk")
    with pytest.raises(ConfigurationError, match=r"JWKS .*junk\.json: this is no JSON"):
        Tokens(TokenPolicy(jwks=str(tmp_path / "junk.json"), audience="x"), clock)


def test_without_pyjwt_all_of_access_can_be_imported_and_tokens_say_what_to_install() -> None:
    program = """
import sys
sys.modules["jwt"] = sys.modules["cryptography"] = None
from redrive.admin.access import authenticator, csrf, jwks, keys, roles, sessions, settings, throttle, tokens
from redrive.cli import admin
from redrive.worker.clock import SystemClock
try:
    tokens.Tokens(tokens.TokenPolicy(secret="x" * 32), SystemClock())
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "ConfigurationError tokens need PyJWT: pip install 'redrive[admin]'\n"
