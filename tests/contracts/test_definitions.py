"""RabbitMQ loads what Redrive exports, in each of its three ways, and then there is nothing left to do."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.client import Connection
from redrive.inspection.management import Management
from redrive.testing import Endpoint, RabbitMQ
from redrive.topology import Definitions, Queue, QueueDefinition, Server, Topology, expand
from redrive.topology.definitions_json import DefinitionsFile, hash_password
from redrive.topology.plan import Action, make_plan
from servers import rabbitmq_root
from topology_systems import SYSTEMS, orders, routes, system

pytestmark = pytest.mark.rabbitmq


@pytest.fixture
def vhost(rabbitmq: Endpoint) -> Iterator[str]:
    name = f"definitions-{secrets.token_hex(4)}"
    rabbitmq.add_vhost(name)
    yield name
    rabbitmq.delete_vhost(name)


def management(node: Endpoint) -> Management:
    return Management(f"http://guest:guest@127.0.0.1:{node.management_port}")


def server(node: Endpoint) -> Server:
    return Server(node.version)


def everything(node: Endpoint) -> Definitions:
    """The five systems, and a queue for each route and type, all in one."""
    found = Definitions()
    for name in SYSTEMS:
        found |= expand(system(name), server(node))
    for kind, via in routes(server(node)):
        queue = orders(kind, via).queues[0]
        found |= expand(Topology(queues=[Queue(f"{kind}-{via}", retry=queue.retry, type=queue.type)]), server(node))
    return found


@pytest.mark.parametrize("name", SYSTEMS)
async def test_each_system_uploaded_leaves_an_empty_plan(rabbitmq: Endpoint, vhost: str, name: str) -> None:
    wanted = expand(system(name), server(rabbitmq))
    rabbitmq.api("/definitions", "POST", DefinitionsFile.of(wanted, vhost).raw)
    plan = make_plan(wanted, await management(rabbitmq).snapshot(vhost))
    assert [str(step) for step in plan.steps if step.action is not Action.UNCHANGED] == []


async def test_what_rabbitmq_exports_imports_as_the_same(rabbitmq: Endpoint, vhost: str) -> None:
    wanted = everything(rabbitmq)
    rabbitmq.api("/definitions", "POST", DefinitionsFile.of(wanted, vhost).raw)
    exported = DefinitionsFile(await management(rabbitmq).definitions())
    assert vhost in exported.vhosts
    again = DefinitionsFile.parse(str(exported)).definitions(vhost)
    snapshot = await management(rabbitmq).snapshot(vhost)
    assert make_plan(again, snapshot).is_empty
    assert [queue.name for queue in again.queues] == [queue.name for queue in wanted.queues]
    assert again.bindings == wanted.bindings


async def test_a_conflict_is_seen_after_an_import_that_said_yes(rabbitmq: Endpoint, vhost: str) -> None:
    """RabbitMQ answers ok and changes nothing when a queue exists with other arguments."""
    async with Connection(rabbitmq.url_for(vhost)) as connection:
        await connection.declare_queue("q", arguments={"x-max-length": 5})
    wanted = Definitions.of(queues=[QueueDefinition("q", arguments={"x-queue-type": "classic", "x-max-length": 9})])
    rabbitmq.api("/definitions", "POST", DefinitionsFile.of(wanted, vhost).raw)
    (conflict,) = make_plan(wanted, await management(rabbitmq).snapshot(vhost)).conflicts
    assert str(conflict.differences[0]) == "x-max-length: has 5, wanted 9"


async def test_a_node_boots_with_them_and_the_tool_imports_them(tmp_path: Path) -> None:
    """`load_definitions` and `rabbitmqctl import_definitions`, with a user whose password is hashed."""
    node = RabbitMQ(tmp_path / "node", name="defs", root=rabbitmq_root(), management=True)
    node.config = f"load_definitions = {node.directory / 'boot.json'}"
    node.directory.mkdir(parents=True)
    first, second = expand(system("raffle"), server(node)), everything(node)
    hashed = hash_password("a secret", secrets.token_bytes(4))
    boot = DefinitionsFile.of(first).with_user("guest", hash_password("guest", b"salt"), tags=["administrator"])
    (node.directory / "boot.json").write_text(str(boot.with_user("shop", hashed)))
    (node.directory / "more.json").write_text(str(DefinitionsFile.of(second)))
    with node:
        assert make_plan(first, await management(node).snapshot("/")).is_empty
        node.ctl("import_definitions", str(node.directory / "more.json"))
        assert make_plan(second, await management(node).snapshot("/")).is_empty
        async with Connection(f"amqp://shop:a%20secret@127.0.0.1:{node.port}/") as connection:
            assert (await connection.queue_info("raffle_queue")).messages == 0
        exported = json.loads(node.ctl("export_definitions", "-", "--silent"))
        assert {queue.name for queue in DefinitionsFile(exported).definitions("/").queues} >= {
            queue.name for queue in second.queues
        }
