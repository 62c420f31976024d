"""What the environment says of access."""

from __future__ import annotations

import pytest

from redrive import environment
from redrive.admin.access.settings import AccessSettings
from redrive.admin.access.tokens import TokenPolicy
from redrive.errors import ConfigurationError

SECRET = "x" * 32


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in vars(environment):
        if name.startswith("ADMIN_"):
            monkeypatch.delenv(getattr(environment, name), raising=False)


def said(monkeypatch: pytest.MonkeyPatch, **values: str) -> AccessSettings:
    for name, value in values.items():
        monkeypatch.setenv(f"REDRIVE_ADMIN_{name}", value)
    return AccessSettings.from_environment()


def test_nothing_said_is_keys_alone_and_no_editing() -> None:
    assert AccessSettings.from_environment() == AccessSettings(tokens=None, editing=False)


def test_a_secret_suffices_for_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, JWT_SECRET=SECRET).tokens == TokenPolicy(secret=SECRET)


def test_everything_can_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = said(
        monkeypatch,
        JWT_SECRET=SECRET,
        JWT_JWKS="https://idp/keys",
        JWT_ISSUER="https://idp",
        JWT_AUDIENCE="redrive",
        JWT_ALGORITHMS="HS256, RS256 ES256",
        JWT_ROLES="realm_access.roles",
        JWT_QUEUES="redrive.queues",
        EDITING="1",
    )
    policy = TokenPolicy(
        SECRET,
        "https://idp/keys",
        "https://idp",
        "redrive",
        ("HS256", "RS256", "ES256"),
        "realm_access.roles",
        "redrive.queues",
        queues_required=True,
    )
    assert settings == AccessSettings(policy, editing=True)
    assert SECRET not in repr(settings)


def test_who_names_the_claim_of_queues_means_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = said(monkeypatch, JWT_SECRET=SECRET, JWT_QUEUES="queues")
    assert settings.tokens is not None
    assert settings.tokens.queues_required


@pytest.mark.parametrize("name", ["ISSUER", "AUDIENCE", "ALGORITHMS", "ROLES", "QUEUES"])
def test_who_says_half_of_it_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=f"REDRIVE_ADMIN_JWT_{name} is set, and neither REDRIVE_ADMIN_JWT_S"):
        said(monkeypatch, **{f"JWT_{name}": "x"})


@pytest.mark.parametrize(("value", "editing"), [("1", True), ("0", False), ("", False)])
def test_editing_is_on_or_off(value: str, editing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, EDITING=value).editing is editing


@pytest.mark.parametrize("value", ["true", "yes", "on", "2", " 1"])
def test_editing_is_not_guessed(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"REDRIVE_ADMIN_EDITING is .*: want 1 or 0"):
        said(monkeypatch, EDITING=value)


def test_trusted_proxies_are_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = said(monkeypatch, TRUST_PROXY="10.0.0.0/8, 127.0.0.1 2001:db8::/32")
    assert list(map(str, settings.proxies)) == ["10.0.0.0/8", "127.0.0.1/32", "2001:db8::/32"]


@pytest.mark.parametrize("text", ["proxy", "10.0.0.1/8", "10.0.0.0/33"])
def test_a_proxy_that_is_no_network_is_an_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="trusted proxy"):
        said(monkeypatch, TRUST_PROXY=text)
