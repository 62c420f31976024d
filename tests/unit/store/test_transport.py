"""One setting decides where events go and who handles them, and nothing is left behind without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrive.app import App
from redrive.errors import ConfigurationError
from redrive.store.outbox import OutboxPolicy
from redrive.store.transport import Arrangement, Transport, arrange, stranded

RABBITMQ = "amqp://rabbit.example/"
MANAGEMENT = "http://rabbit.example:15672/"
FOLDER = Path(".redrive")


# The decision -------------------------------------------------------------------------------------


@pytest.mark.parametrize("broker", [RABBITMQ, None])
def test_rabbit_leaves_the_application_as_it_is_and_no_api_listens(broker: str | None) -> None:
    assert arrange(Transport.RABBIT, broker=broker, management=MANAGEMENT) == Arrangement(
        broker, MANAGEMENT, listens=False
    )


@pytest.mark.parametrize("broker", [RABBITMQ, None])
def test_local_needs_no_rabbitmq_and_the_api_listens(broker: str | None) -> None:
    arranged = arrange(Transport.LOCAL, broker=broker, management=MANAGEMENT)
    assert (arranged.broker, arranged.management, arranged.listens) == (None, None, True)


def test_where_an_api_listens_a_relay_alone_has_no_business_and_nowhere_else() -> None:
    for transport in Transport:
        arranged = arrange(transport, broker=RABBITMQ, management=None)
        assert (arranged.no_relay is not None) == arranged.listens


@pytest.mark.parametrize("name", ["LOCAL", "local", "Local", Transport.LOCAL])
def test_a_transport_is_known_by_its_name(name: str) -> None:
    assert Transport.of(name) is Transport.LOCAL


@pytest.mark.parametrize(
    ("name", "hint"), [("LOKAL", "did you mean LOCAL"), ("rabbitmq", "did you mean RABBIT"), ("x", "RABBIT or LOCAL")]
)
def test_another_name_is_refused_where_it_is_said(name: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=f"outbox.transport '{name}': .*{hint}"):
        OutboxPolicy(transport=name)


# The application ----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDRIVE_BROKER", "REDRIVE_MANAGEMENT", "REDRIVE_OUTBOX_TRANSPORT"):
        monkeypatch.delenv(name, raising=False)


def test_an_application_is_on_rabbit_unless_told_otherwise() -> None:
    app = App("shop", broker=RABBITMQ)
    assert (app.transport, app.broker) == (Transport.RABBIT, RABBITMQ)


def test_the_environment_chooses_where_the_program_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_OUTBOX_TRANSPORT", "local")
    assert App("shop", broker=RABBITMQ, management=MANAGEMENT).transport is Transport.LOCAL
    assert App("shop", outbox_policy=OutboxPolicy(transport="RABBIT")).transport is Transport.RABBIT


def test_a_mistake_in_the_environment_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_OUTBOX_TRANSPORT", "LOKAL")
    with pytest.raises(ConfigurationError, match="did you mean LOCAL"):
        App("shop")


# What is left behind ------------------------------------------------------------------------------


def test_messages_that_nobody_handles_any_more_are_counted_with_what_to_do() -> None:
    said = stranded({"orders": 10, "orders.dlq": 2, "others": 7}, {"orders", "orders.dlq"}, FOLDER)
    assert said is not None
    assert said.startswith("12 messages are still in the embedded broker in .redrive (orders 10, orders.dlq 2)")
    assert "run `redrive worker` on this machine with the transport LOCAL" in said


@pytest.mark.parametrize("held", [{}, {"orders": 0}, {"others": 7}])
def test_nothing_is_said_where_nothing_of_ones_own_is_left(held: dict[str, int]) -> None:
    assert stranded(held, {"orders"}, FOLDER) is None
