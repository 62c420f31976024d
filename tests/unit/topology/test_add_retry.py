import pytest

from redrive.errors import ConfigurationError
from redrive.recovery.retry import Retry
from redrive.topology import BindingDefinition, Definitions, ExchangeDefinition, Naming, QueueDefinition, Server, expand
from redrive.topology.add_retry import as_topology, equip, queues_without_dlx
from redrive.topology.serialization import parse_toml, to_toml
from topology_systems import SYSTEMS, VERSIONS, system

V43 = Server.of("4.3")
FOREIGN = Definitions.of(
    [ExchangeDefinition("shop", "topic"), ExchangeDefinition("dead")],
    [
        QueueDefinition("orders", arguments={"x-max-length": 5}),
        QueueDefinition("mail"),
        QueueDefinition("billing", arguments={"x-dead-letter-exchange": "dead"}),
        QueueDefinition("graveyard"),
        QueueDefinition("session", durable=False),
    ],
    [BindingDefinition("shop", "orders", "order.*"), BindingDefinition("dead", "graveyard", "billing")],
)


def test_queues_for_work_without_a_dead_letter_exchange_lack_one() -> None:
    assert [queue.name for queue in queues_without_dlx(FOREIGN)] == ["mail", "orders"]


def test_they_are_given_retry_and_dead_letter_queue_and_the_rest_stays() -> None:
    made = equip(FOREIGN, Retry(attempts=3, delay="15s"), V43, Naming())
    assert {queue.name for queue in made.queues} == {
        "orders", "orders.retry", "orders.dlq", "mail", "mail.retry", "mail.dlq", "billing", "graveyard", "session",
    }  # fmt: skip
    orders = made.queue("orders")
    assert orders is not None
    assert orders.arguments["x-max-length"] == 5
    assert orders.dead_letter_exchange == "dlq.orders"
    assert made.queue("billing") == FOREIGN.queue("billing")
    assert all(binding in made.bindings for binding in FOREIGN.bindings)


def test_only_those_that_match_are_changed() -> None:
    made = equip(FOREIGN, None, V43, Naming(), ["ord*"])
    assert made.queue("mail") == FOREIGN.queue("mail")
    assert made.queue("orders.dlq") is not None
    assert made.queue("orders.retry") is None


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="no queue that lacks a dead-letter exchange matches nope"):
        equip(FOREIGN, None, V43, Naming(), ["nope"])


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("version", VERSIONS)
def test_definitions_become_a_file_that_makes_the_same_definitions(name: str, version: str) -> None:
    server = Server.of(version)
    definitions = expand(system(name), server)
    assert expand(parse_toml(to_toml(as_topology(definitions))), server) == definitions


def test_a_type_that_nobody_knows_is_refused_by_the_name_of_its_queue() -> None:
    definitions = Definitions.of(queues=[QueueDefinition("orders", arguments={"x-queue-type": "odd"})])
    with pytest.raises(ConfigurationError, match="queue orders: queue type 'odd'"):
        as_topology(definitions)
    with pytest.raises(ConfigurationError, match="queue orders: queue type 'odd'"):
        equip(definitions, Retry(delay="15s"), V43, Naming())


def test_a_queue_with_a_name_of_a_megabyte_is_refused_in_few_words() -> None:
    definitions = Definitions.of(queues=[QueueDefinition("q" * 1_000_000, arguments={"x-queue-type": "odd"})])
    with pytest.raises(ConfigurationError) as refused:
        as_topology(definitions)
    assert len(str(refused.value)) < 500
