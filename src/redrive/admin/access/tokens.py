"""JWTs: tokens of a sign-in that is somebody else's (RFC 7519), checked as RFC 8725 recommends.

- Which algorithms are right is said by the policy, never by the token. Those with a shared secret (HS...) are checked
  with the secret alone, those with a public key with the JWK Set alone, and there only with keys of the right kind,
  curve and purpose: a public key is never taken for a secret. `none` does not exist.
- `exp` must be there; `nbf` and `iat` must not lie ahead. They are compared with the given clock.
- A JWK Set signs for every application of its owner: with one, the policy must name the audience. A token that names an
  audience is refused where the policy names none (RFC 7519, 4.1.3).
- The role is the highest known one in the claim of roles. The queues are those in the claim of queues; every queue if
  there is no such claim, except where `queues_required` says that no claim means no queue.

PyJWT checks the signatures; it belongs to the extra `admin`, and is imported when it is needed.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from redrive.admin.access.jwks import KeySource, KeysUnavailable, check_place, key_source
from redrive.admin.access.keys import is_name
from redrive.admin.access.roles import ALL_QUEUES, Principal, Role
from redrive.errors import ConfigurationError, NoRole, Unauthenticated, VerificationUnavailable
from redrive.worker.clock import Clock

if TYPE_CHECKING:
    from jwt import PyJWK

LARGEST = 8 * 1024  # characters of a token
SHORTEST_SECRET = 32  # bytes; RFC 7518, 3.2 wants as many as the hash has, so HS512 wants more
_WEAKEST_RSA = 2048  # bits
_MOST_KEYS = 100  # of a set
_MOST_TRIED = 10  # for a token that names none
_MOST_QUEUES = 100

_WITH_SECRET = ("HS256", "HS384", "HS512")
_KINDS: dict[str, tuple[str, tuple[str, ...]]] = {  # the kind of key that each needs, and its curves
    "RS256": ("RSA", ()),
    "RS384": ("RSA", ()),
    "RS512": ("RSA", ()),
    "PS256": ("RSA", ()),
    "PS384": ("RSA", ()),
    "PS512": ("RSA", ()),
    "ES256": ("EC", ("P-256",)),
    "ES384": ("EC", ("P-384",)),
    "ES512": ("EC", ("P-521",)),
    "EdDSA": ("OKP", ("Ed25519", "Ed448")),
}
_KNOWN = (*_WITH_SECRET, *_KINDS)
_Claims: TypeAlias = "dict[str, Any]"
_JWK: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True, slots=True)
class TokenPolicy:
    """Whose tokens do, and what is read in them. Claims may be paths: `realm_access.roles`."""

    secret: str | None = field(default=None, repr=False)
    jwks: str | None = None  # a file, or a URL
    issuer: str | None = None
    audience: str | None = None
    algorithms: tuple[str, ...] | None = None  # None: HS256 with a secret, all there are with a JWK Set
    roles_claim: str = "roles"
    queues_claim: str = "queues"
    name_claim: str = "sub"
    leeway: timedelta = timedelta(seconds=30)  # for clocks that differ
    queues_required: bool = False

    def __post_init__(self) -> None:
        if self.secret is None and self.jwks is None:
            raise ConfigurationError("tokens: say what to check them with, a JWT secret or a JWKS")
        if self.secret is not None:
            _check_secret(self.secret)
        if self.jwks is not None:
            check_place(self.jwks)
            if self.audience is None:
                raise ConfigurationError(
                    "tokens: with a JWKS say the audience too (REDRIVE_ADMIN_JWT_AUDIENCE): its owner also signs "
                    "tokens for other applications, whose admins are not yours"
                )
        for name in ("issuer", "audience", "roles_claim", "queues_claim", "name_claim"):
            if getattr(self, name) == "":
                raise ConfigurationError(f"tokens: {name} is empty")
        if not timedelta(0) <= self.leeway <= timedelta(minutes=5):
            raise ConfigurationError("tokens: leeway is for clocks that differ: want 0 to 5 minutes")
        self._check_algorithms()

    def _check_algorithms(self) -> None:
        if self.algorithms is not None and not self.algorithms:
            raise ConfigurationError(f"tokens: no algorithm is allowed; there are {', '.join(_KNOWN)}")
        for name in self.algorithms or ():
            if name not in _KNOWN:
                raise ConfigurationError(f"tokens: algorithm {name!r} is none to trust; there are {', '.join(_KNOWN)}")
            if name in _WITH_SECRET and self.secret is None:
                raise ConfigurationError(f"tokens: {name} needs a secret; with a JWKS want RS256, ES256 or the like")
            if name in _WITH_SECRET:
                _check_secret(self.secret or "", int(name[2:]) // 8)
            if name in _KINDS and self.jwks is None:
                raise ConfigurationError(f"tokens: {name} needs a JWKS; with a secret want HS256")

    @property
    def allowed(self) -> tuple[str, ...]:
        if self.algorithms is not None:
            return self.algorithms
        shared = ("HS256",) if self.secret is not None else ()
        return (*shared, *(_KINDS if self.jwks is not None else ()))


def _check_secret(secret: str, shortest: int = SHORTEST_SECRET) -> None:
    size = len(secret.encode("utf-8", "surrogateescape"))
    if size < shortest:
        raise ConfigurationError(
            f"JWT secret: {size} bytes can be guessed by whoever has one token; want {shortest} or more, "
            "as from `openssl rand -base64 64`"
        )
    if secret.lstrip().startswith(("-----BEGIN", "ssh-", "ecdsa-")):
        raise ConfigurationError("JWT secret: that is a key of a pair, and half the world may have it; use a JWKS")


class Tokens:
    def __init__(self, policy: TokenPolicy, clock: Clock) -> None:
        _check_installed()
        self.policy = policy
        self._clock = clock
        self._source: KeySource[KeySet] | None = None
        if policy.jwks is not None:
            self._source = key_source(policy.jwks, KeySet.parse, clock)

    async def verify(self, token: str) -> Principal:
        """Return the principal; raise `Unauthenticated` if the token is invalid, `NoRole` if it has no role here."""
        header = _header(token)
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in self.policy.allowed:
            raise _invalid_token(f"its algorithm is not allowed: {_short(algorithm)}")
        if "crit" in header:  # "MUST be understood" (RFC 7515, 4.1.11), and there is nothing of it that we do
            raise _invalid_token("it has critical headers")
        claims = await self._verified_claims(token, algorithm, header.get("kid"))
        self._check_times(claims)
        self._check_parties(claims)
        return self._principal(claims)

    # The signature ------------------------------------------------------------------------------------

    async def _verified_claims(self, token: str, algorithm: str, kid: Any) -> _Claims:
        """What the token claims, once it is known who says it."""
        if algorithm in _WITH_SECRET:
            assert self.policy.secret is not None
            return _open(token, algorithm, [self.policy.secret.encode("utf-8", "surrogateescape")])
        found = await self._public_keys(algorithm, kid)
        if not found:
            raise _invalid_token(f"no key for it: kid {_short(kid)}, {algorithm}")
        return _open(token, algorithm, found)

    async def _public_keys(self, algorithm: str, kid: Any) -> list[Any]:
        assert self._source is not None
        if kid is not None and not isinstance(kid, str):
            raise _invalid_token("its kid is no string")
        try:
            found = (await self._source.keys()).candidate_keys(algorithm, kid)
            return found or (await self._source.newer()).candidate_keys(algorithm, kid)
        except KeysUnavailable as error:
            raise VerificationUnavailable("tokens cannot be checked at the moment", str(error)) from None

    # The claims ---------------------------------------------------------------------------------------

    def _check_times(self, claims: _Claims) -> None:
        now, leeway = self._clock.now().timestamp(), self.policy.leeway.total_seconds()
        if "exp" not in claims:
            raise _invalid_token("it never expires: exp is missing", is_guess=False)
        if _moment(claims, "exp") + leeway <= now:
            raise _invalid_token("it has expired", is_guess=False)
        for name in ("nbf", "iat"):
            if name in claims and _moment(claims, name) - leeway > now:
                raise _invalid_token(f"it is not valid yet ({name})", is_guess=False)

    def _check_parties(self, claims: _Claims) -> None:
        policy = self.policy
        if policy.issuer is not None and claims.get("iss") != policy.issuer:
            raise _invalid_token("it is of another issuer", f"iss {_short(claims.get('iss'))}", is_guess=False)
        said = claims.get("aud")
        is_ours = policy.audience in (said if isinstance(said, list) else [said])
        if said is not None if policy.audience is None else not is_ours:
            raise _invalid_token("it is for another audience", f"aud {_short(said)}", is_guess=False)

    def _principal(self, claims: _Claims) -> Principal:
        policy = self.policy
        name = claim(claims, policy.name_claim)
        if not isinstance(name, str) or not is_name(name):
            raise _invalid_token(f"it names nobody ({policy.name_claim})", is_guess=False)
        said = word_list(claim(claims, policy.roles_claim))
        roles = [role for role in Role if str(role) in said]
        if not roles:
            raise NoRole(name, f"{policy.roles_claim}: {_short(said)}")
        return Principal(name, max(roles), self._queues(claims), "token")

    def _queues(self, claims: _Claims) -> tuple[str, ...]:
        said = claim(claims, self.policy.queues_claim)
        if said is None and not self.policy.queues_required:
            return ALL_QUEUES
        return tuple(pattern for pattern in word_list(said) if is_name(pattern))[:_MOST_QUEUES]

    def __repr__(self) -> str:
        return f"<Tokens {' '.join(self.policy.allowed)} {self._source or 'secret'}>"


def claim(claims: Mapping[str, Any], path: str) -> Any:
    """What is there, or None. Names may have dots of their own, as in https://example.com/roles."""
    if path in claims:
        return claims[path]
    first, dot, rest = path.partition(".")
    inner = claims.get(first)
    return claim(inner, rest) if dot and isinstance(inner, dict) else None


def word_list(value: Any) -> list[str]:
    """A list of words, or words with spaces between."""
    if isinstance(value, str):
        return value.split()
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _moment(claims: _Claims, name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _invalid_token(f"its {name} is no time", is_guess=False)
    return value


def _invalid_token(why: str, detail: str = "", *, is_guess: bool = True) -> Unauthenticated:
    return Unauthenticated(f"this token is not valid: {why}", detail, is_guess=is_guess)


def _short(value: Any) -> str:
    return repr(value)[:100]


# The pieces of a token ----------------------------------------------------------------------------


def _header(token: str) -> _Claims:
    if len(token) > LARGEST:
        raise _invalid_token(f"it is larger than {LARGEST // 1024} KB")
    parts = token.split(".")
    if len(parts) != 3:
        raise _invalid_token("it is malformed")
    return _object(_decode(parts[0]))


def _decode(part: str) -> bytes:
    """base64url without padding (RFC 7515, 2): and nothing that Python would pass over in silence."""
    try:
        return base64.b64decode(part.encode("ascii") + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _invalid_token("it is malformed") from None


def _object(data: bytes) -> _Claims:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _invalid_token("it is malformed")
    return found


def _open(token: str, algorithm: str, keys: list[Any]) -> _Claims:
    import jwt

    for key in keys[:_MOST_TRIED]:
        try:
            opened = jwt.PyJWS().decode_complete(token, key, algorithms=[algorithm])
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            continue
        payload: bytes = opened["payload"]
        return _object(payload)
    raise _invalid_token("its signature is wrong")


def _check_installed() -> None:
    try:
        import jwt
    except ImportError:
        jwt = None  # type: ignore[assignment]
    if jwt is None:
        raise ConfigurationError("tokens need PyJWT: pip install 'redrive[admin]'")


# Public keys --------------------------------------------------------------------------------------


class KeySet:
    """The keys of a JWK Set that tokens can be checked with. What is for something else, or is junk, is left aside."""

    def __init__(self, keys: list[tuple[_JWK, PyJWK]]) -> None:
        self._keys = keys

    @classmethod
    def parse(cls, data: bytes) -> KeySet:
        try:
            whole = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ValueError("this is no JSON") from None
        rows = whole.get("keys") if isinstance(whole, dict) else None
        if not isinstance(rows, list):
            raise ValueError('this is no JWK Set: want {"keys": [...]}')
        made = [(row, key) for row in rows[:_MOST_KEYS] if (key := _public_key(row)) is not None]
        if not made:
            raise ValueError("there is no public key in it that tokens could be checked with")
        return cls(made)

    def candidate_keys(self, algorithm: str, kid: str | None) -> list[Any]:
        """A token that names no key may be of any. Names may be used twice: then each is tried."""
        return [
            key.key for row, key in self._keys if (kid is None or row.get("kid") == kid) and _is_for(row, algorithm)
        ]

    def __len__(self) -> int:
        return len(self._keys)


def _is_for(row: _JWK, algorithm: str) -> bool:
    kind, curves = _KINDS[algorithm]
    if row["kty"] != kind or (curves and row.get("crv") not in curves):
        return False
    return row.get("alg") in (None, algorithm)


def _public_key(row: Any) -> PyJWK | None:
    import jwt
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    if not isinstance(row, dict) or row.get("kty") not in ("RSA", "EC", "OKP") or "d" in row:
        return None  # "oct" is a secret, and with "d" it is a private key: neither has any business here
    operations = row.get("key_ops", ["verify"])
    if row.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    algorithm = next((name for name in _KINDS if _is_for(row, name)), None)
    if algorithm is None:
        return None
    try:
        made = jwt.PyJWK(row, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError):
        return None
    is_weak = isinstance(made.key, RSAPublicKey) and made.key.key_size < _WEAKEST_RSA
    return None if is_weak else made
