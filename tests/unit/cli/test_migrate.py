"""`redrive topology migrate`, as its user types it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from click.testing import CliRunner, Result

from redrive.cli import main
from redrive.cli import migrate as module
from redrive.client import Connection
from redrive.inspection.embedded import read_status
from redrive.migration.ports import MigrationOptions
from redrive.testing import Endpoint, free_port
from redrive.testing.broker import ThreadedBroker
from redrive.topology.definitions import Definitions

T = TypeVar("T")

TOPOLOGY = """
[[exchanges]]
name = "events"
type = "topic"

[[queues]]
name = "orders"
bind = { events = ["order.*"] }
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker() as broker:
        yield broker


@pytest.fixture
def url(broker: ThreadedBroker, request: pytest.FixtureRequest) -> str:
    """Of a virtual host with a queue `orders`, which has no dead-letter exchange yet, and two messages in it."""
    url = broker.add_vhost(request.node.name)

    async def fill(connection: Connection) -> None:
        await connection.declare_exchange("events", "topic")
        await connection.declare_queue("orders", arguments={"x-queue-type": "classic"})
        await connection.bind_queue("orders", "events", "order.*")
        for body in (b"1", b"2"):
            await connection.publish("events", "order.new", body)

    on(url, fill)
    return url


@pytest.fixture
def app(tmp_path: Path) -> str:
    path = tmp_path / "topology.toml"
    path.write_text(TOPOLOGY)
    return str(path)


def on(url: str, action: Callable[[Connection], Awaitable[T]]) -> T:
    async def act() -> T:
        async with Connection(url) as connection:
            return await action(connection)

    return asyncio.run(act())


def command(*arguments: str, given: str | None = None) -> Result:
    return CliRunner(env={"REDRIVE_MANAGEMENT": "", "REDRIVE_BROKER": ""}).invoke(
        main, ["topology", "migrate", *arguments], input=given
    )


def definitions(url: str) -> Definitions:
    async def look(connection: Connection) -> Definitions:
        return (await read_status(connection)).definitions

    return on(url, look)


def arguments_of_the_queue(url: str) -> dict[str, object]:
    queue = definitions(url).queue("orders")
    assert queue is not None
    return dict(queue.arguments)


WANTED = {
    "x-queue-type": "classic",
    "x-dead-letter-exchange": "dlq.orders",
    "x-dead-letter-routing-key": "parking",
}


# What it does -----------------------------------------------------------------------------------------


def test_it_shows_the_plan_and_carries_it_out(url: str, app: str) -> None:
    result = command(app, "orders", "--broker", url, "--yes")

    assert result.exit_code == 0, result.output
    assert "x-dead-letter-exchange: has nothing, wanted 'dlq.orders'" in result.stdout
    assert "2 messages, 0 consumers, 1 binding\n" in result.stdout
    assert "makes also: queue orders.dlq" in result.stdout
    assert "mind: what is published straight to orders by its name" in result.stdout
    assert result.stdout.endswith("queue orders is as wanted now. Start its consumers\n")
    assert "carried 2 messages from orders" in result.stderr
    assert arguments_of_the_queue(url) == WANTED


def test_a_dry_run_shows_the_plan_and_changes_nothing(url: str, app: str) -> None:
    before = definitions(url)

    result = command(app, "orders", "--broker", url, "--dry-run")

    assert result.exit_code == 0
    assert "1 prepare" in result.stdout
    assert definitions(url) == before


def test_nothing_happens_without_a_yes(url: str, app: str) -> None:
    before = definitions(url)

    for answer in ("n\n", ""):
        result = command(app, "orders", "--broker", url, given=answer)

        assert result.exit_code == 2
        assert "not confirmed, so nothing was done" in result.stderr
    assert definitions(url) == before


def test_a_yes_may_be_typed(url: str, app: str) -> None:
    assert command(app, "orders", "--broker", url, given="y\n").exit_code == 0
    assert arguments_of_the_queue(url) == WANTED


def test_a_queue_that_is_as_wanted_is_left_alone(url: str, app: str) -> None:
    command(app, "orders", "--broker", url, "--yes")

    result = command(app, "orders", "--broker", url)

    assert result.exit_code == 0
    assert result.stdout == ""
    assert "queue orders is as wanted: there is nothing to do" in result.stderr


# For scripts ------------------------------------------------------------------------------------------


def test_a_plan_can_be_had_as_json(url: str, app: str) -> None:
    plan = json.loads(command(app, "orders", "--broker", url, "--dry-run", "--json").stdout)

    assert (plan["queue"], plan["needed"], plan["resumes"], plan["messages"]) == ("orders", True, False, 2)
    assert plan["differences"][0] == {"what": "x-dead-letter-exchange", "have": None, "want": "dlq.orders"}
    assert plan["steps"][0]["step"] == "prepare"


def test_a_result_can_be_had_as_json_and_is_all_there_is_on_stdout(url: str, app: str) -> None:
    result = json.loads(command(app, "orders", "--broker", url, "--yes", "--json").stdout)

    assert (result["queue"], result["migrated"], result["carried"]["orders"]) == ("orders", True, 2)


# What goes wrong --------------------------------------------------------------------------------------


def test_a_queue_that_nobody_wants_ends_with_code_4(url: str, app: str) -> None:
    result = command(app, "order", "--broker", url, "--yes")

    assert result.exit_code == 4
    assert "nobody wants a queue order, did you mean orders?" in result.stderr


def test_a_queue_that_is_not_there_ends_with_code_4(url: str, app: str) -> None:
    on(url, lambda connection: connection.delete_queue("orders"))

    result = command(app, "orders", "--broker", url, "--yes")

    assert result.exit_code == 4
    assert "there is no queue orders: `redrive topology apply` makes it" in result.stderr


def test_what_cannot_be_done_ends_with_code_6_in_a_dry_run_too(url: str, app: str) -> None:
    on(url, lambda connection: connection.declare_queue("orders.migrating"))

    for option in ("--dry-run", "--yes"):
        result = command(app, "orders", "--broker", url, option)

        assert result.exit_code == 6
        assert "queue orders.migrating exists, and no migration is recorded that made it" in result.stderr


def test_a_queue_with_consumers_ends_with_code_6(url: str, app: str) -> None:
    async def beside_a_consumer(connection: Connection) -> Result:
        async with await connection.consume("orders"):
            return await asyncio.to_thread(command, app, "orders", "--broker", url, "--yes")

    result = on(url, beside_a_consumer)

    assert result.exit_code == 6
    assert "1 consumer is attached to it" in result.stderr


def test_waiting_in_vain_ends_with_code_3_and_can_be_resumed(url: str, app: str) -> None:
    async def beside_a_consumer(connection: Connection) -> Result:
        async with await connection.consume("orders"):
            waiting = ("--wait-for-consumers", "--timeout", "200ms")
            return await asyncio.to_thread(command, app, "orders", "--broker", url, "--yes", *waiting)

    result = on(url, beside_a_consumer)

    assert result.exit_code == 3
    assert "Run it again to go on" in result.stderr
    seen = command(app, "orders", "--broker", url, "--dry-run")
    assert "a migration of orders was begun, and goes on from where it stopped" in seen.stderr
    assert command(app, "orders", "--broker", url, "--yes").exit_code == 0
    assert arguments_of_the_queue(url) == WANTED


def test_a_broker_that_is_not_there_ends_with_code_7(app: str) -> None:
    result = command(app, "orders", "--broker", f"amqp://me:secret@localhost:{free_port()}/", "--yes")

    assert result.exit_code == 7
    assert "secret" not in result.output


def test_a_timeout_without_a_unit_is_a_usage_error(url: str, app: str) -> None:
    result = command(app, "orders", "--broker", url, "--timeout", "10")

    assert result.exit_code == 2
    assert "--timeout '10' is not a length of time" in result.stderr


def test_ctrl_c_says_how_to_go_on(url: str, app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "carry_out", interrupted)

    result = command(app, "orders", "--broker", url, "--yes")

    assert result.exit_code == 130
    assert f"nothing is lost. To go on: redrive topology migrate {app} orders" in result.stderr


def test_what_is_asked_for_reaches_the_migration(url: str, app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[MigrationOptions] = []

    async def carry_out(*arguments: object, **_: object) -> None:
        seen.extend(one for one in arguments if isinstance(one, MigrationOptions))
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "carry_out", carry_out)

    command(app, "orders", "--broker", url, "--yes", "--wait-for-consumers", "--timeout", "1m", "--allow-reorder")

    (terms,) = seen
    assert (terms.wait_for_consumers, str(terms.timeout), terms.allow_reorder) == (True, "0:01:00", True)


def test_rabbitmq_must_be_seen_through_its_management_api(amqp_url: str, app: str) -> None:
    result = command(app, "orders", "--broker", amqp_url, "--yes")

    assert result.exit_code == 2
    assert "plain AMQP cannot list them: give --management" in result.stderr


def test_rabbitmq_is_migrated_with_it(rabbitmq: Endpoint, amqp_url: str, app: str) -> None:
    async def make(connection: Connection) -> None:
        await connection.declare_exchange("events", "topic")
        await connection.declare_queue("orders", arguments={"x-queue-type": "classic"})
        await connection.publish("", "orders", b"1")

    on(amqp_url, make)
    management = f"http://guest:guest@127.0.0.1:{rabbitmq.management_port}"

    result = command(app, "orders", "--broker", amqp_url, "--management", management, "--yes")

    assert result.exit_code == 0, result.output

    async def look(connection: Connection) -> bytes | None:
        await connection.declare_queue("orders", arguments=WANTED)  # is refused if it is not so
        delivery = await connection.get("orders")
        return delivery.body if delivery is not None else None

    assert on(amqp_url, look) == b"1"
