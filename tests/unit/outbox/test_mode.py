"""One setting decides where events go and who handles them, and nothing is left behind without a word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from redrive.app import App
from redrive.errors import ConfigurationError
from redrive.inspection.stranded import warning_about
from redrive.outbox.mode import ModeSettings, OutboxMode, mode_settings
from redrive.outbox.outbox import OutboxPolicy

RABBITMQ = "amqp://rabbit.example/"
MANAGEMENT = "http://rabbit.example:15672/"
FOLDER = Path(".redrive")


# The decision -------------------------------------------------------------------------------------


@pytest.mark.parametrize("broker", [RABBITMQ, None])
def test_rabbit_leaves_the_application_as_it_is_and_no_api_listens(broker: str | None) -> None:
    assert mode_settings(OutboxMode.RABBIT, broker=broker, management=MANAGEMENT) == ModeSettings(
        broker, MANAGEMENT, listens=False
    )


@pytest.mark.parametrize("broker", [RABBITMQ, None])
def test_local_needs_no_rabbitmq_and_the_api_listens(broker: str | None) -> None:
    arranged = mode_settings(OutboxMode.LOCAL, broker=broker, management=MANAGEMENT)
    assert (arranged.broker, arranged.management, arranged.listens) == (None, None, True)


def test_where_an_api_listens_a_relay_alone_has_no_business_and_nowhere_else() -> None:
    for transport in OutboxMode:
        arranged = mode_settings(transport, broker=RABBITMQ, management=None)
        assert (arranged.no_relay is not None) == arranged.listens


@pytest.mark.parametrize("name", ["LOCAL", "local", "Local", OutboxMode.LOCAL])
def test_a_transport_is_known_by_its_name(name: str) -> None:
    assert OutboxMode.of(name) is OutboxMode.LOCAL


@pytest.mark.parametrize(
    ("name", "hint"), [("LOKAL", "did you mean LOCAL"), ("rabbitmq", "did you mean RABBIT"), ("x", "RABBIT or LOCAL")]
)
def test_another_name_is_refused_where_it_is_said(name: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=f"outbox.transport '{name}'.*{hint}"):
        OutboxPolicy(transport=name)


# The application ----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDRIVE_BROKER", "REDRIVE_MANAGEMENT", "REDRIVE_OUTBOX_TRANSPORT"):
        monkeypatch.delenv(name, raising=False)


def test_an_application_is_on_rabbit_unless_told_otherwise() -> None:
    app = App("shop", broker=RABBITMQ)
    assert (app.transport, app.broker) == (OutboxMode.RABBIT, RABBITMQ)


def test_the_environment_chooses_where_the_program_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_OUTBOX_TRANSPORT", "local")
    assert App("shop", broker=RABBITMQ, management=MANAGEMENT).transport is OutboxMode.LOCAL
    assert App("shop", outbox_policy=OutboxPolicy(transport="RABBIT")).transport is OutboxMode.RABBIT


def test_a_mistake_in_the_environment_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_OUTBOX_TRANSPORT", "LOKAL")
    with pytest.raises(ConfigurationError, match="did you mean LOCAL"):
        App("shop")


# What is left behind ------------------------------------------------------------------------------


OWN, DEAD = {"orders", "orders.retry", "orders.dlq"}, {"orders.dlq"}


@pytest.mark.parametrize(
    ("held", "told", "to_do"),
    [
        ({"orders": 10}, "10 messages .* [(]orders 10[)]", "on this machine, `redrive worker` handles them$"),
        (
            {"orders.retry": 1, "orders.dlq": 2, "others": 7},
            "3 messages .* [(]orders.dlq 2, orders.retry 1[)]",
            "`redrive worker` handles them and dead letters can be dealt with$",
        ),
        ({"orders.dlq": 2}, "2 messages .* [(]orders.dlq 2[)]", "on this machine, dead letters can be dealt with$"),
    ],
)
def test_messages_that_nobody_handles_any_more_are_counted_with_what_to_do(
    held: dict[str, int], told: str, to_do: str
) -> None:
    said = warning_about(held, OWN, DEAD, FOLDER)
    assert said is not None
    assert re.match(told, said)
    assert re.search(to_do, said)


@pytest.mark.parametrize("held", [{}, {"orders": 0}, {"others": 7}])
def test_nothing_is_said_where_nothing_of_ones_own_is_left(held: dict[str, int]) -> None:
    assert warning_about(held, OWN, DEAD, FOLDER) is None
