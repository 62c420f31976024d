"""Every finding of the doctor, produced on a living RabbitMQ: declare what is bad, look, and find it."""

import asyncio
import secrets
import shlex
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import quote

import pytest

from contracts.observing import DEADLINE, eventually, ready
from redrive.client import Connection
from redrive.inspection import inspect_broker
from redrive.inspection.management import Management, ManagementMonitor
from redrive.inspection.passive import probe, server_of
from redrive.migration.run import preview
from redrive.recovery.retry import Retry, RetryRoute
from redrive.testing import Endpoint, RabbitMQ
from redrive.topology import Exchange, Queue, QueueType, Topology, expand
from redrive.topology.doctor import RULES, Finding, examine
from redrive.topology.snapshot import BrokerSnapshot
from redrive.worker.topology_apply import declare
from servers import open_directory, rabbitmq_root

pytestmark = pytest.mark.rabbitmq

TO_DLQ = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q.dlq"}
TO_RETRY = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q.retry"}
BACK = {"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
CLASSIC = {"x-queue-type": "classic"}
QUORUM = {"x-queue-type": "quorum"}

_LATE = 0.2  # consumers and policies show up to five seconds late in the management API: there is no hurry to ask

Test = TypeVar("Test", bound=Callable[..., Any])
PRODUCED: set[str] = set()


def produces(*rules: str) -> Callable[[Test], Test]:
    """Notes which findings a test produces."""
    PRODUCED.update(rules)
    return lambda test: test


@dataclass
class Ward:
    """A virtual host to be ill in."""

    node: Endpoint
    vhost: str
    connection: Connection

    @property
    def is_4(self) -> bool:
        return self.node.version >= (4,)

    async def queue(self, name: str, kind: Mapping[str, Any], /, *more: Mapping[str, Any]) -> None:
        arguments = {key: value for part in (kind, *more) for key, value in part.items()}
        await self.connection.declare_queue(name, arguments=arguments)

    def policy(self, queue: str, **definition: object) -> None:
        said = {key.replace("_", "-"): value for key, value in definition.items()}
        policy = {"pattern": f"^{queue}$", "definition": said, "apply-to": "queues"}
        self.node.api(f"/policies/{quote(self.vhost, safe='')}/{queue}", "PUT", policy)

    async def snapshot(self) -> BrokerSnapshot:
        return await Management(f"http://guest:guest@127.0.0.1:{self.node.management_port}").snapshot(self.vhost)

    async def findings(self, wanted: Topology | None = None, **options: Any) -> tuple[Finding, ...]:
        return examine(await self.snapshot(), wanted, vhost=self.vhost, **options)

    async def found(self, rule: str, wanted: Topology | None = None, **options: Any) -> Finding:
        """The one finding of that kind."""
        async with asyncio.timeout(DEADLINE):
            while True:
                several = [finding for finding in await self.findings(wanted, **options) if finding.id == rule]
                if several:
                    (finding,) = several
                    return finding
                await asyncio.sleep(_LATE)

    async def healed(self) -> None:
        async with asyncio.timeout(DEADLINE):
            while await self.findings():  # noqa: ASYNC110 - a broker gives no sign
                await asyncio.sleep(_LATE)


async def test_the_figures_of_an_applications_queues_are_of_now(ward: Ward) -> None:
    """The management API reports a consumer up to ten seconds late."""
    await ward.queue("orders", CLASSIC)
    await ward.connection.publish("", "orders", b"1")
    await ready(ward.connection, "orders", 1)
    management = f"http://guest:guest@127.0.0.1:{ward.node.management_port}"
    wanted = Topology(queues=[Queue("orders", arguments={"x-message-ttl": 60_000})])
    async with await ward.connection.consume("orders", prefetch=1):
        snapshot = await inspect_broker(ward.connection, wanted, management)
        watcher = ManagementMonitor(Management(management), ward.vhost)
        plan = await preview("orders", expand(wanted, snapshot.server), ward.connection, watcher)

    assert snapshot.state("orders").consumers == 1
    assert plan is not None
    assert plan.consumers == 1
    assert plan.messages == 0, "it is unacknowledged"


@pytest.fixture
def vhost(rabbitmq: Endpoint) -> Iterator[str]:
    name = f"doctor-{secrets.token_hex(8)}"
    rabbitmq.add_vhost(name)
    yield name
    rabbitmq.delete_vhost(name)


@pytest.fixture
async def ward(rabbitmq: Endpoint, vhost: str, cleanliness: None) -> AsyncIterator[Ward]:  # noqa: ARG001
    async with Connection(rabbitmq.url_for(vhost), name="doctor") as connection:
        yield Ward(rabbitmq, vhost, connection)


@pytest.fixture(scope="module")
def own_node() -> Iterator[RabbitMQ]:
    """A node whose insides may be changed: it gets an exchange type and a policy that no plugin brought."""
    directory = open_directory()
    with RabbitMQ(directory / "node", name="doctor", root=rabbitmq_root(), management=True) as node:
        yield node
    directory.rmdir()


@pytest.fixture
async def own_ward(own_node: RabbitMQ, cleanliness: None) -> AsyncIterator[Ward]:  # noqa: ARG001
    vhost = "own"
    own_node.add_vhost(vhost)
    async with Connection(own_node.url_for(vhost), name="doctor") as connection:
        yield Ward(own_node, vhost, connection)
    own_node.delete_vhost(vhost)


# Dead-letter queues -------------------------------------------------------------------------------


@produces("peek-deletes")
async def test_a_dlq_where_getting_and_rejecting_deletes(ward: Ward) -> None:
    await ward.queue("q.dlq", QUORUM, {} if ward.is_4 else {"x-delivery-limit": 3})

    finding = await ward.found("peek-deletes")

    looks = 21 if ward.is_4 else 4
    assert f"get {looks} " in finding.evidence
    await ward.connection.publish("", "q.dlq", b"precious")
    for _ in range(looks):
        await ready(ward.connection, "q.dlq", 1)
        look = await ward.connection.get("q.dlq")
        assert look is not None
        look.reject(requeue=True)
    await ready(ward.connection, "q.dlq", 0)


@produces("peek-deletes")
async def test_a_policy_lifts_the_limit(ward: Ward) -> None:
    if not ward.is_4:
        pytest.skip("RabbitMQ 3.10 has no default limit to lift, and refuses a negative one in a policy")
    await ward.queue("q.dlq", QUORUM)
    await ward.found("peek-deletes")

    ward.policy("q.dlq", delivery_limit=-1)

    await ward.healed()


@produces("negative-delivery-limit")
async def test_a_negative_limit_before_4_0(ward: Ward) -> None:
    if ward.is_4:
        pytest.skip("from RabbitMQ 4.0 on, -1 means what it should")
    await ward.queue("q", QUORUM, {"x-delivery-limit": -1})

    await ward.found("negative-delivery-limit")

    await ward.connection.publish("", "q", b"precious")
    look = await ward.connection.get("q")
    assert look is not None
    look.reject(requeue=True)
    await ready(ward.connection, "q", 0)


@produces("dlq-evicts")
@pytest.mark.parametrize("how", ["argument", "policy"])
async def test_a_dlq_that_forgets(ward: Ward, how: str) -> None:
    if how == "argument":
        await ward.queue("q.dlq", CLASSIC, {"x-max-length": 10})
    else:
        await ward.queue("q.dlq", CLASSIC)
        ward.policy("q.dlq", message_ttl=60000)

    finding = await ward.found("dlq-evicts")

    assert ("x-max-length 10" if how == "argument" else "message-ttl 60000 by policy q.dlq") in finding.evidence


# Dead letters -------------------------------------------------------------------------------------


@produces("dlx-missing")
@pytest.mark.parametrize("how", ["argument", "policy"])
async def test_a_dead_letter_exchange_that_is_not_there(ward: Ward, how: str) -> None:
    if how == "argument":
        await ward.queue("q", CLASSIC, {"x-dead-letter-exchange": "dlx"})
    else:
        await ward.queue("q", CLASSIC)
        ward.policy("q", dead_letter_exchange="dlx")

    assert (await ward.found("dlx-missing")).subject == "q"


@produces("dlx-unroutable")
async def test_dead_letters_that_reach_no_queue(ward: Ward) -> None:
    await ward.connection.declare_exchange("dlx", "direct")
    await ward.queue("q", CLASSIC, {"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "parking"})
    await ward.queue("q.dlq", CLASSIC)
    await ward.connection.bind_queue("q.dlq", "dlx", "praking")

    finding = await ward.found("dlx-unroutable")

    assert finding.fix == "bind a queue to exchange dlx with key 'parking'"
    await ward.connection.bind_queue("q.dlq", "dlx", "parking")
    await ward.healed()


@produces("no-dlq")
async def test_a_queue_for_work_without_dlq(ward: Ward) -> None:
    await ward.queue("q", CLASSIC)

    async with await ward.connection.consume("q"):
        assert (await ward.found("no-dlq")).evidence == "it has 1 consumer, and has no dead-letter exchange"


@produces("parked-elsewhere")
async def test_an_existing_queue_that_dead_letters_elsewhere_than_its_consumer_parks(ward: Ward) -> None:
    await ward.queue("q", CLASSIC, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "old.dead"})
    await ward.queue("old.dead", CLASSIC)
    wanted = Topology(queues=[Queue("q", existing=True)])

    finding = await ward.found("parked-elsewhere", wanted)

    assert finding.evidence.endswith("goes to old.dead, and what its consumer parks to q.dlq")
    await ward.connection.publish("", "q", b"refused")
    await ready(ward.connection, "q", 1)
    delivery = await ward.connection.get("q")
    assert delivery is not None
    delivery.reject()
    await ready(ward.connection, "old.dead", 1)


@produces("at-most-once")
async def test_a_quorum_queue_that_does_not_make_sure(ward: Ward) -> None:
    await ward.queue("q", QUORUM, TO_DLQ)
    await ward.queue("q.dlq", CLASSIC)
    await ward.found("at-most-once")

    ward.policy("q", dead_letter_strategy="at-least-once", overflow="reject-publish")

    await ward.healed()


@produces("at-least-once-ineffective")
async def test_at_least_once_that_is_none(ward: Ward) -> None:
    await ward.queue("q", QUORUM, TO_DLQ, {"x-dead-letter-strategy": "at-least-once"})
    await ward.queue("q.dlq", CLASSIC)

    await ward.found("at-least-once-ineffective")

    ward.policy("q", overflow="reject-publish")
    await ward.healed()


# Loops --------------------------------------------------------------------------------------------


@produces("cycle-expires")
async def test_a_circle_of_ttls(ward: Ward) -> None:
    await ward.queue("q", CLASSIC, TO_RETRY, {"x-message-ttl": 50})
    await ward.queue("q.retry", CLASSIC, BACK)

    finding = await ward.found("cycle-expires")

    assert finding.evidence.startswith("q → q.retry → q")
    await ward.connection.publish("", "q", b"precious")
    await _is_gone(ward, "q", "q.retry")


@produces("cycle-main-expires")
async def test_a_queue_for_work_with_a_ttl_in_its_loop(ward: Ward) -> None:
    await ward.queue("q", CLASSIC, TO_RETRY, {"x-message-ttl": 60000})
    await ward.queue("q.retry", CLASSIC, BACK)

    async with await ward.connection.consume("q"):
        assert (await ward.found("cycle-main-expires")).subject == "q"


@produces("cycle-overflow")
async def test_a_full_queue_in_its_loop(ward: Ward) -> None:
    await ward.queue("q", CLASSIC, TO_RETRY, {"x-max-length": 1})
    await ward.queue("q.retry", CLASSIC, BACK)

    await ward.found("cycle-overflow")

    for body in (b"one", b"two", b"three"):
        await ward.connection.publish("", "q", body)
    await _is_gone(ward, "q.retry")
    await ready(ward.connection, "q", 1)


@produces("cycle-delivery-limit")
async def test_a_delivery_limit_in_its_own_loop(ward: Ward) -> None:
    await ward.queue("q", QUORUM, TO_RETRY, {} if ward.is_4 else {"x-delivery-limit": 20})
    await ward.queue("q.retry", CLASSIC, BACK)

    finding = await ward.found("cycle-delivery-limit")

    assert "delivery limit 20" in finding.evidence
    await ward.connection.publish("", "q", b"precious")
    for _ in range(21):
        await ready(ward.connection, "q", 1)
        delivery = await ward.connection.get("q")
        assert delivery is not None
        delivery.reject(requeue=True)
    await _is_gone(ward, "q", "q.retry")


async def _is_gone(ward: Ward, *queues: str) -> None:
    """A message on its way is in one of them, except for a moment: look until they stay empty."""

    async def empty() -> bool:
        for _ in range(3):
            if any([(await ward.connection.queue_info(queue)).messages for queue in queues]):
                return False
            await asyncio.sleep(0.1)
        return True

    await eventually(empty, True)


@produces("reject-classic")
async def test_retries_by_rejecting_on_a_classic_queue(ward: Ward) -> None:
    if not ward.is_4:
        pytest.skip("RabbitMQ 3.10 lost none when it was killed")
    await ward.queue("q", CLASSIC, TO_RETRY)
    await ward.queue("q.retry", CLASSIC, BACK)

    assert (await ward.found("reject-classic")).subject == "q"


@produces("retry-shared")
async def test_retries_that_others_receive(ward: Ward) -> None:
    await ward.connection.declare_exchange("events", "topic")
    await ward.queue("q", CLASSIC, TO_RETRY)
    await ward.queue("thumbs", CLASSIC)
    await ward.queue(
        "q.retry", CLASSIC, BACK, {"x-dead-letter-exchange": "events", "x-dead-letter-routing-key": "f.up"}
    )
    await ward.connection.bind_queue("q", "events", "f.up")
    await ward.connection.bind_queue("thumbs", "events", "f.#")

    finding = await ward.found("retry-shared")

    assert finding.evidence.endswith("reaches q, thumbs")
    await ward.connection.publish("", "q.retry", b"again")
    await ready(ward.connection, "thumbs", 1)


# Waiting ------------------------------------------------------------------------------------------


@produces("ttl-no-way-back")
async def test_a_retry_queue_without_a_way_back(ward: Ward) -> None:
    await ward.queue("q.retry", CLASSIC, {"x-message-ttl": 50})

    await ward.found("ttl-no-way-back")

    await ward.connection.publish("", "q.retry", b"precious")
    await ready(ward.connection, "q.retry", 0)


@produces("ttl-drops")
async def test_a_queue_for_work_that_drops_what_is_too_old(ward: Ward) -> None:
    await ward.queue("q", CLASSIC)
    ward.policy("q", message_ttl=60000)

    async with await ward.connection.consume("q"):
        assert (await ward.found("ttl-drops")).evidence.startswith("message-ttl 60000 by policy q")


@produces("ttl-lost-by-name")
async def test_a_retry_queue_that_loses_what_is_published_to_it_by_its_name(ward: Ward) -> None:
    await ward.connection.declare_exchange("work", "direct")
    await ward.connection.declare_exchange("waits", "direct")
    await ward.queue("q", CLASSIC, TO_DLQ)
    await ward.queue("q.dlq", CLASSIC)
    await ward.queue("q.retry", CLASSIC, {"x-message-ttl": 50, "x-dead-letter-exchange": "work"})
    await ward.connection.bind_queue("q", "work", "q")
    await ward.connection.bind_queue("q.retry", "waits", "q")

    finding = await ward.found("ttl-lost-by-name")

    assert finding.fix == "bind q to exchange work with key 'q.retry'"
    await ward.connection.publish("", "q.retry", b"lost")
    await ready(ward.connection, "q.retry", 0)
    await ward.connection.publish("waits", "q", b"returned by its key")
    await ready(ward.connection, "q", 1)
    await ward.connection.bind_queue("q", "work", "q.retry")
    await ward.connection.publish("", "q.retry", b"returned by its name")
    await ready(ward.connection, "q", 2)
    await ward.healed()


@produces("ttl-consumed")
async def test_a_consumer_on_a_retry_queue(ward: Ward) -> None:
    await ward.queue("q", CLASSIC, TO_RETRY)
    await ward.queue("q.retry", CLASSIC, BACK)

    async with await ward.connection.consume("q.retry"):
        assert (await ward.found("ttl-consumed")).subject == "q.retry"


# The broker ---------------------------------------------------------------------------------------


@produces("consumer-timeout")
async def test_a_handler_more_patient_than_the_broker(ward: Ward) -> None:
    await ward.queue("q", QUORUM)

    finding = await ward.found("consumer-timeout", handler_limits={"q": timedelta(hours=1)})

    assert finding.evidence == "its handler may take 1h, and the broker waits 30m for an ack"


@produces("transient-queue")
async def test_a_transient_queue(ward: Ward) -> None:
    if not ward.is_4:
        pytest.skip("RabbitMQ 3.10 has nothing against transient queues")
    await ward.connection.declare_queue("q", durable=False, arguments=CLASSIC)

    assert (await ward.found("transient-queue")).subject == "q"


@produces("delayed-no-plugin")
async def test_a_delayed_exchange_that_is_wanted_without_the_plugin(ward: Ward) -> None:
    wanted = Topology(exchanges=[Exchange("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})])

    assert (await ward.found("delayed-no-plugin", wanted)).evidence.startswith("it is wanted")


@produces("delayed-no-plugin", "delayed-ending")
async def test_a_delayed_exchange_with_the_plugin_and_after_it(own_ward: Ward, own_node: RabbitMQ) -> None:
    """The plugin is not at hand. The broker believes in its exchange type when it is entered in its registry."""
    type_ = 'exchange, <<"x-delayed-message">>'
    own_node.ctl("eval", f"rabbit_registry:register({type_}, rabbit_exchange_type_direct).")
    await own_ward.connection.declare_exchange("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})

    found = {finding.id for finding in await own_ward.findings()}

    assert found == ({"delayed-ending"} if own_ward.is_4 else set())
    own_node.ctl("eval", f"rabbit_registry:unregister({type_}).")
    assert (await own_ward.found("delayed-no-plugin")).evidence.startswith("it exists")


@produces("mirrored")
async def test_a_mirrored_queue(own_ward: Ward, own_node: RabbitMQ) -> None:
    """RabbitMQ 4 takes no such policy any more, and keeps the ones it had: a validator lets one in."""
    if own_ward.is_4:
        own_node.ctl("eval", _LENIENT)
    await own_ward.queue("q", CLASSIC)
    own_ward.policy("q", ha_mode="all")

    finding = await own_ward.found("mirrored")

    assert finding.evidence.startswith("ha-mode all by policy q")


_LENIENT = """
{ok, Module, Binary} = compile:forms([
    {attribute, 1, module, lenient_validator},
    {attribute, 1, behaviour, rabbit_policy_validator},
    {attribute, 1, export, [{validate_policy, 1}]},
    {function, 1, validate_policy, 1, [{clause, 1, [{var, 1, '_'}], [], [{atom, 1, ok}]}]}]),
{module, Module} = code:load_binary(Module, "lenient_validator.erl", Binary),
rabbit_registry:register(policy_validator, <<"ha-mode">>, Module).
"""


# What can be seen ---------------------------------------------------------------------------------


@produces("not-examined")
async def test_plain_amqp_shows_less(ward: Ward) -> None:
    wanted = Topology(queues=[Queue("q", retry=Retry())], queue_type=QueueType.QUORUM)
    server = server_of(ward.connection)
    definitions = expand(wanted, server)
    await declare(definitions, ward.connection)

    findings = examine(await probe(ward.connection, definitions, server), wanted)

    assert [finding.id for finding in findings] == ["not-examined"]


@pytest.mark.parametrize("kind", [QueueType.CLASSIC, QueueType.QUORUM])
@pytest.mark.parametrize("via", RetryRoute)
async def test_what_redrive_makes_is_healthy(ward: Ward, kind: QueueType, via: RetryRoute) -> None:
    server = (await ward.snapshot()).server
    if via is RetryRoute.QUORUM and (kind is QueueType.CLASSIC or not server.native_delayed_retry):
        pytest.skip("native delayed retry needs quorum queues and RabbitMQ 4.3")
    events = Exchange("events", "topic")
    queue = Queue("q", bind=events.on("order.*"), retry=Retry(via=via))
    wanted = Topology(exchanges=[events], queues=[queue], queue_type=kind)
    await declare(expand(wanted, server), ward.connection)

    price = {"reject-classic"} if via is RetryRoute.REJECT and kind is QueueType.CLASSIC and ward.is_4 else set()
    assert {finding.id for finding in await ward.findings(wanted)} == price
    assert {finding.id for finding in await ward.findings()} == price


async def test_the_commands_that_it_gives_mend_what_it_found(own_ward: Ward, own_node: RabbitMQ) -> None:
    await own_ward.queue("a b.dlq", QUORUM)
    await own_ward.queue("q", QUORUM, TO_DLQ)
    await own_ward.queue("q.dlq", CLASSIC)
    await own_ward.queue("r", CLASSIC)
    await own_ward.queue("r.retry", CLASSIC, {"x-message-ttl": 50})

    for finding in await own_ward.findings():
        command, *arguments = shlex.split(finding.fix)
        assert command == "rabbitmqctl"
        own_node.ctl(*arguments)

    await own_ward.healed()


def test_every_finding_is_produced_here() -> None:
    assert {rule.id for rule in RULES} == PRODUCED
