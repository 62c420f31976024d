import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigurationError
from redrive.recovery.retry import Retry
from redrive.topology import (
    BindingDefinition,
    Definitions,
    ExchangeDefinition,
    Queue,
    QueueDefinition,
    Server,
    Topology,
    expand,
)
from redrive.topology.definitions_json import DefinitionsFile, hash_password
from topology_systems import SYSTEMS, VERSIONS, system

names = st.text(min_size=1, max_size=12)
arguments = st.dictionaries(
    names, st.one_of(st.integers(-(2**60), 2**60), st.booleans(), st.text(max_size=9)), max_size=3
)
every_definition = st.builds(
    Definitions.of,
    st.lists(st.builds(ExchangeDefinition, names, names, st.booleans(), st.booleans(), st.booleans(), arguments)),
    st.lists(st.builds(QueueDefinition, names, st.booleans(), st.booleans(), arguments)),
    st.lists(
        st.builds(
            BindingDefinition, names, names, st.text(max_size=9), st.sampled_from(["queue", "exchange"]), arguments
        )
    ),
)

FOREIGN = {
    "rabbit_version": "3.13.0",
    "users": [{"name": "shop", "password_hash": "abc", "tags": ""}],
    "vhosts": [{"name": "/"}, {"name": "other"}],
    "policies": [{"vhost": "/", "name": "ha", "pattern": ".*", "definition": {"ha-mode": "all"}}],
    "something_new": {"deep": [1, 2]},
    "queues": [
        {"name": "orders", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}, "limits": {"new": 1}},
        {"name": "theirs", "vhost": "other", "durable": True, "auto_delete": False, "arguments": {}},
    ],
    "exchanges": [],
    "bindings": [],
}


@given(every_definition, names)
def test_what_is_exported_is_imported_the_same(definitions: Definitions, vhost: str) -> None:
    written = str(DefinitionsFile.of(definitions, vhost))
    assert DefinitionsFile.parse(written).definitions(vhost) == definitions


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("version", VERSIONS)
def test_each_system_survives_export_and_import(name: str, version: str) -> None:
    definitions = expand(system(name), Server.of(version))
    assert DefinitionsFile.parse(str(DefinitionsFile.of(definitions))).definitions() == definitions


def test_what_is_not_understood_stays() -> None:
    file = DefinitionsFile.parse(json.dumps(FOREIGN))
    changed = file.with_definitions(file.definitions("/") | Definitions.of(queues=[QueueDefinition("more")]), "/")
    kept = json.loads(str(changed))
    assert {name: kept[name] for name in ("users", "policies", "something_new", "vhosts", "rabbit_version")} == {
        name: FOREIGN[name] for name in ("users", "policies", "something_new", "vhosts", "rabbit_version")
    }
    assert FOREIGN["queues"][0] in kept["queues"]  # type: ignore[index]
    assert FOREIGN["queues"][1] in kept["queues"]  # type: ignore[index]
    assert [row["name"] for row in kept["queues"]] == ["theirs", "more", "orders"]


def test_a_queue_that_changes_keeps_its_unknown_fields() -> None:
    changed = DefinitionsFile(FOREIGN).with_definitions(
        Definitions.of(queues=[QueueDefinition("orders", arguments={"x-max-length": 5})])
    )
    row = next(row for row in json.loads(str(changed))["queues"] if row["name"] == "orders")
    assert (row["limits"], row["arguments"]) == ({"new": 1}, {"x-max-length": 5})


def test_importing_over_itself_changes_nothing() -> None:
    file = DefinitionsFile.parse(json.dumps(FOREIGN))
    assert sorted(json.loads(str(file.with_definitions(file.definitions("/"), "/")))["queues"], key=str) == sorted(
        FOREIGN["queues"], key=str  # type: ignore[arg-type]
    )  # fmt: skip


def test_the_virtual_hosts_are_known() -> None:
    assert DefinitionsFile(FOREIGN).vhosts == ("/", "other")
    assert DefinitionsFile({"queues": [{"name": "a"}]}).vhosts == ("/",)


def test_a_file_of_one_virtual_host_may_leave_out_which() -> None:
    file = DefinitionsFile.parse('{"queues": [{"name": "a", "durable": true, "arguments": {}}]}')
    assert file.definitions("any").queues == (QueueDefinition("a"),)


def test_a_password_is_written_as_rabbitmq_hashes_it() -> None:
    # The pair is that of RabbitMQ's own documentation of its hashing: salt 908D C60A, password test12.
    assert hash_password("test12", bytes.fromhex("908DC60A")) == "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
    file = DefinitionsFile.of(Definitions()).with_user("shop", hash_password("secret", b"salt"))
    assert "secret" not in str(file)
    assert json.loads(str(file))["permissions"][0]["user"] == "shop"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not JSON"),
        ("[]", "want an object"),
        ('{"queues": {}}', "queues is not a list of objects"),
        ('{"queues": [5]}', "queues is not a list of objects"),
        ('{"queues": [{"vhost": "/"}]}', "has no name"),
        ('{"exchanges": [{"name": "x"}]}', "has no type"),
        ('{"bindings": [{"source": "x", "destination": "y", "destination_type": "z"}]}', "want queue or exchange"),
    ],
)
def test_what_is_no_definitions_file_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        DefinitionsFile.parse(text).definitions()


# What somebody wrote by hand, or to do harm ---------------------------------------------------------------------

DEEP: object = "bottom"
for _ in range(40):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"queues": [' + "[" * 5_000, "definitions.json is nested too deep"),
        (b'{"queues": "\xff"}', "definitions.json is not JSON"),
        ({"vhosts": [7]}, "definitions.json: vhosts is not a list of objects"),
        ({"users": {}}, "definitions.json: users is not a list of objects"),
        ({"queues": [{"name": "q", "vhost": 7}]}, "definitions.json: queues: vhost 7: want a text"),
        ({"vhosts": [{"name": []}]}, "definitions.json: vhosts: name []: want a text"),
        ({"queues": [{"name": "q", "durable": "yes"}]}, "queue 'q': durable 'yes': want true or false"),
        ({"queues": [{"name": "q", "arguments": [1]}]}, "queue 'q': arguments [1]: want an object"),
        ({"queues": [{"name": "q", "arguments": {"x-dead-letter-exchange": {}}}]}, "x-dead-letter-exchange {}: want a"),
        ({"queues": [{"name": "q", "arguments": {"x-message-ttl": "9"}}]}, "x-message-ttl '9': want a number from 0"),
        ({"queues": [{"name": "q", "arguments": {"deep": DEEP}}]}, "'deep' is nested more than 32 deep"),
        ({"exchanges": [{"name": "e", "type": 5}]}, "exchange 'e': type 5: want a text"),
        ({"bindings": [{"source": "e", "destination": "q", "routing_key": True}]}, "routing_key True: want a text"),
        ({"bindings": [{"source": "e", "destination": "q", "destination_type": {}}]}, "a binding leads to a {}"),
        ({"bindings": [{"source": "e", "destination": "q", "arguments": "x"}]}, "arguments 'x': want an object"),
    ],
)
def test_a_row_that_is_none_is_refused_by_its_place(text: object, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_all(text if isinstance(text, str | bytes) else json.dumps(text))
    assert complaint in str(refused.value)


def read_all(text: str | bytes) -> None:
    file = DefinitionsFile.parse(text)
    for vhost in file.vhosts:
        file.definitions(vhost)


def test_what_is_quoted_of_a_file_is_short() -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_all(json.dumps({"queues": [{"name": ["x" * 1_000_000]}]}))
    assert len(str(refused.value)) < 200


def test_an_existing_queue_is_left_to_whoever_declares_it() -> None:
    wanted = expand(Topology(queues=[Queue("orders", existing=True, retry=Retry(delay="15s"))]), Server.of("4.3"))
    assert [row["name"] for row in DefinitionsFile.of(wanted).raw["queues"]] == ["orders.dlq", "orders.retry"]
    held = {"name": "orders", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {"x-max-length": 5}}
    merged = DefinitionsFile({"queues": [held]}).with_definitions(wanted)
    assert merged.raw["queues"][0] == held
    assert merged.definitions().queue("orders") == QueueDefinition("orders", arguments={"x-max-length": 5})
