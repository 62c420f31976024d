"""What the environment says of access. Which variables there are: `redrive.environment`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TypeAlias

from redrive import environment
from redrive.admin.access.roles import Role
from redrive.admin.access.tokens import TokenPolicy
from redrive.errors import ConfigurationError

Network: TypeAlias = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class AccessSettings:
    tokens: TokenPolicy | None = None  # None: only keys are accepted
    editing: bool = False  # may messages be edited before they are re-driven?
    proxies: tuple[Network, ...] = ()  # whose X-Forwarded-For and X-Forwarded-Proto are read
    least_role: Role = Role.VIEWER  # principals with a lower role are refused, whatever they ask for

    @classmethod
    def from_environment(cls) -> AccessSettings:
        return cls(_tokens(), _allows_editing(), networks(environment.admin_trust_proxy()))


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Return the networks of trusted proxies: `10.0.0.0/8`, or `10.1.2.3` for a single address."""
    return tuple(map(_network, texts))


def _network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ConfigurationError(f"trusted proxy {text!r}: {error}; want a network such as 10.0.0.0/8") from None


def _tokens() -> TokenPolicy | None:
    secret, jwks = environment.admin_jwt_secret(), environment.admin_jwt_jwks()
    if secret is None and jwks is None:
        _check_unused_settings()
        return None
    queues = environment.admin_jwt_queues()
    return TokenPolicy(
        secret=secret,
        jwks=jwks,
        issuer=environment.admin_jwt_issuer(),
        audience=environment.admin_jwt_audience(),
        algorithms=environment.admin_jwt_algorithms(),
        roles_claim=environment.admin_jwt_roles() or "roles",
        queues_claim=queues or "queues",
        queues_required=queues is not None,
    )


def _check_unused_settings() -> None:
    """Who names an issuer believes that tokens are accepted."""
    others = {
        environment.ADMIN_JWT_ISSUER: environment.admin_jwt_issuer(),
        environment.ADMIN_JWT_AUDIENCE: environment.admin_jwt_audience(),
        environment.ADMIN_JWT_ALGORITHMS: environment.admin_jwt_algorithms(),
        environment.ADMIN_JWT_ROLES: environment.admin_jwt_roles(),
        environment.ADMIN_JWT_QUEUES: environment.admin_jwt_queues(),
    }
    for name, value in others.items():
        if value is not None:
            raise ConfigurationError(
                f"{name} is set, and neither {environment.ADMIN_JWT_SECRET} nor {environment.ADMIN_JWT_JWKS}: "
                "say what tokens are checked with"
            )


def _allows_editing() -> bool:
    said = environment.admin_editing()
    if said not in (None, "0", "1"):
        raise ConfigurationError(f"{environment.ADMIN_EDITING} is {said!r}: want 1 or 0")
    return said == "1"
