import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigurationError, TopologyError
from redrive.recovery.retry import Exponential, Retry, RetryRoute
from redrive.topology import Bind, BindingDefinition, Exchange, Naming, Queue, QueueType, Topology
from redrive.topology.serialization import parse_toml, parse_yaml, to_toml
from topology_systems import SYSTEMS, system

text = st.text(max_size=12)
plain = text.map(lambda value: value.replace("{", "").replace("}", ""))
arguments = st.dictionaries(text, st.one_of(st.integers(-(2**60), 2**60), st.booleans(), text), max_size=3)
retries = st.one_of(
    st.none(),
    st.builds(
        Retry,
        attempts=st.integers(1, 20),
        delay=st.sampled_from(["1s", "15s", "1m30s"]),
        via=st.sampled_from(RetryRoute),
    ),
    st.builds(
        Retry, steps=st.lists(st.sampled_from(["1s", "2m", "1h"]), min_size=1), jitter=st.sampled_from([0.0, 0.25])
    ),
    st.builds(
        Retry,
        attempts=st.integers(1, 9),
        exponential=st.builds(Exponential, factor=st.floats(1, 9)),
        max_age=st.just("1d"),
    ),
)
binds = st.builds(Bind, text, text, arguments)
namings = st.builds(Naming, dlq_queue=plain, back_key=plain, rungs=st.just({"60s": {"key": "video", "back_key": ""}}))
topologies = st.builds(
    Topology,
    st.lists(st.builds(Exchange, text, text, st.booleans(), st.booleans(), st.booleans(), arguments), max_size=2),
    st.lists(
        st.builds(
            Queue,
            text,
            st.lists(binds, max_size=2),
            retry=retries,
            dlq=st.sampled_from([None, True, False, "{queue}.grave"]),
            type=st.sampled_from([None, *QueueType]),
            durable=st.booleans(),
            arguments=arguments,
            naming=st.none() | namings,
            dead_lettering=st.sampled_from([None, "at-least-once", "at-most-once"]),
            delivery_limit=st.none() | st.integers(-1, 9),
        ),
        max_size=2,
    ),
    st.lists(
        st.builds(BindingDefinition, text, text, text, st.sampled_from(["queue", "exchange"]), arguments), max_size=2
    ),
    naming=namings,
    queue_type=st.sampled_from(QueueType),
    delays=st.booleans(),
)


@given(topologies)
def test_a_topology_written_as_toml_reads_back_the_same(topology: Topology) -> None:
    assert parse_toml(to_toml(topology)) == topology


@pytest.mark.parametrize("name", SYSTEMS)
def test_each_system_reads_back_the_same(name: str) -> None:
    assert parse_toml(to_toml(system(name))) == system(name)


def test_yaml_says_the_same_as_toml() -> None:
    yaml = """
queue_type: quorum
exchanges: [{name: events, type: topic}]
queues:
  - name: orders
    bind: {events: [order.*, "invoice.#"]}
    retry: {attempts: 3, delay: 15s}
"""
    events = Exchange("events", "topic")
    queue = Queue("orders", events.on("order.*", "invoice.#"), retry=Retry(attempts=3, delay="15s"))
    assert parse_yaml(yaml) == Topology([events], [queue], queue_type=QueueType.QUORUM)


def test_one_key_needs_no_list_and_bindings_can_have_arguments() -> None:
    found = parse_toml('[[queues]]\nname = "a"\nbind = { e = "k" }\n[[queues]]\nname = "b"\n'
                       'bind = [{ exchange = "h", arguments = { x-match = "any" } }]')  # fmt: skip
    assert found.queues[0].bind == (Bind("e", "k"),)
    assert found.queues[1].bind == (Bind("h", "", {"x-match": "any"}),)


@pytest.mark.parametrize("to", ["retry", "exchange:retry.a:retry"])
def test_a_queue_says_where_its_dead_letters_are_re_driven_to(to: str) -> None:
    text = f'[[queues]]\nname = "a"\nretry = {{ attempts = 3, delay = "15s" }}\nredrive_to = "{to}"'

    assert parse_toml(text).queues[0].redrive_to == to
    assert parse_toml(to_toml(parse_toml(text))) == parse_toml(text)
    with pytest.raises(TopologyError, match="queue a: redrive_to 5: want a text"):
        parse_toml('[[queues]]\nname = "a"\nredrive_to = 5')


def test_everything_wrong_with_a_file_is_told_at_once() -> None:
    with pytest.raises(TopologyError) as caught:
        parse_toml("""
queue_typ = "quorum"
[naming]
dlq_queue = "{qeue}.dlq"
[[exchanges]]
type = "topic"
[[queues]]
name = "a"
retry = { atempts = 3, delay = "15s" }
[[queues]]
name = "b"
retry = { delay = 15 }
[[queues]]
name = "c"
dlq = 5
type = "quorom"
bind = { events = [1] }
[[queues]]
name = "d"
retry = { delay = "1 lightyear" }
arguments = 5
[[bindings]]
source = "x"
""")
    assert caught.value.problems == (
        "topology: unknown option queue_typ, did you mean queue_type?",
        "naming.dlq_queue '{qeue}.dlq': {qeue} is unknown; there are {queue}, {delay}",
        "exchanges[0]: name is missing",
        "queue a: retry: unknown option atempts, did you mean attempts?",
        "queue b: retry: delay 15: want a length of time with its unit, such as '15s', '500ms', '1m30s', '2h' or '1d'",
        "queue c: dlq 5: want true, false or the name of its dead-letter queue",
        "queue c: bind: [1]: want routing keys, like ['orders.*']",
        "queue d: retry: retry.delay '1 lightyear' is not a length of time: write it like '15s', '500ms', '1m30s', "
        "'2h' or '1d'",
        "queue d: arguments 5: want a mapping of texts to values",
        "bindings[0]: destination is missing",
    )


@pytest.mark.parametrize("parse", [parse_toml, parse_yaml])
def test_what_is_not_even_a_file_of_that_kind_is_refused(parse: object) -> None:
    with pytest.raises(ConfigurationError, match=r"not (TOML|YAML)"):
        parse("queues: [}")  # type: ignore[operator]


@pytest.mark.parametrize("yaml", ["[]", "5", "queues: 5", "queues: [5]", "queues: {a: 1}"])
def test_a_file_of_the_wrong_shape_is_refused(yaml: str) -> None:
    with pytest.raises(TopologyError, match="want a"):
        parse_yaml(yaml)


def test_an_empty_file_is_an_empty_topology() -> None:
    assert parse_yaml("") == parse_toml("") == Topology()


# What somebody wrote to do harm ---------------------------------------------------------------------------------

LAUGHS = "a: &a [x, x, x, x]\n" + "".join(
    f"{name}: &{name} [*{before}, *{before}, *{before}, *{before}]\n"
    for before, name in zip("abcdefghijklmno", "bcdefghijklmnop", strict=True)
)


@pytest.mark.parametrize(
    ("yaml", "complaint"),
    [
        (LAUGHS + "queues: *p", "topology: more than 200000 values"),
        (LAUGHS + "queues: [{name: q, arguments: {x: *p}}]", "topology: more than 200000 values"),
        ("queues:\n- name: q\n  arguments: &a {x: *a}", "topology: nested more than 40 deep, at queues[0].arguments.x"),
        ("queues: " + "[" * 2_000, "nested too deep"),
        ("queues: [{name: q, arguments: {x: 2001-99-99}}]", "not YAML: month must be in 1..12"),
        ("queues: [{name: q, arguments: {x: 2001-12-14}}]", "topology: queues[0].arguments.x datetime.date"),
        ("queues: [{name: q, arguments: {x: .nan}}]", "topology: queues[0].arguments.x nan: want a number"),
        ("queues: [{name: q, arguments: {1: x}}]", "topology: queues[0].arguments: 1 is no name"),
        ("queues: [{name: q, retry: null}]", "topology: queues[0].retry is nothing: leave it out"),
        ('queues: [{name: "\\ud800"}]', "topology: queues[0].name '\\ud800': want a text"),
        ("queues: [{name: q, arguments: {x: 99999999999999999999}}]", "want a number of at most 64 bits"),
    ],
)
def test_a_document_that_no_topology_is_made_of_is_refused_by_its_place(yaml: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_yaml(yaml)
    assert complaint in str(refused.value)
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize("toml", [f"x = {'9' * 5_000}", "x = " + "[" * 3_000])
def test_toml_that_python_cannot_read_is_not_toml(toml: str) -> None:
    with pytest.raises(ConfigurationError, match="not TOML"):
        parse_toml(toml)


def test_what_is_quoted_of_a_file_is_short() -> None:
    with pytest.raises(TopologyError) as refused:
        parse_toml(f'queues = "{"x" * 100_000}"\nqueue_types = 1\n[[exchanges]]\nname = ["{"y" * 100_000}"]')
    assert [len(problem) < 200 for problem in refused.value.problems] == [True] * 3


def test_what_a_value_itself_complains_about_is_quoted_in_short_too() -> None:
    with pytest.raises(TopologyError) as refused:
        parse_toml(f'queue_type = "{"x" * 100_000}"')
    assert len(str(refused.value)) < 500


def test_an_existing_queue_is_one_word_of_a_file() -> None:
    topology = parse_toml('[[queues]]\nname = "orders"\nexisting = true\nretry = { delay = "15s" }\n')
    assert topology.queues == (Queue("orders", existing=True, retry=Retry(delay="15s")),)
    assert parse_toml(to_toml(topology)) == topology
    assert parse_yaml("queues: [{name: orders, existing: true, retry: {delay: 15s}}]") == topology
    with pytest.raises(TopologyError, match="queue orders: existing=True takes it as it is, and arguments would"):
        parse_toml('[[queues]]\nname = "orders"\nexisting = true\narguments = { x-max-length = 5 }\n')
