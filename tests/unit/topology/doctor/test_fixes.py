"""A fix can be followed as it is printed: no command in it is accepted by a broker with a made-up value."""

import json
import re
import shlex
from datetime import timedelta

import pytest

from redrive.topology import BindingDefinition, ExchangeDefinition, Queue, Topology
from redrive.topology.doctor import RULES, Finding, examine
from redrive.topology.doctor.phrases import UNKNOWN_QUEUE
from redrive.topology.snapshot import BrokerSnapshot
from unit.topology.doctor.surveys import SURE, TO_RETRY, classic, only, quorum, retry, seen

EVENTS = ExchangeDefinition("events", "topic")
TO_EVENTS = {"x-dead-letter-exchange": "events", "x-dead-letter-routing-key": "again"}

SURVEYS = [
    seen(
        quorum("q.dlq"),
        quorum("a", TO_RETRY | {"x-max-length": 5}),
        quorum("q.retry", retry("a").arguments | {"x-queue-type": "quorum"}),
        quorum("b", {"x-dead-letter-exchange": "gone"}),
        quorum("c", {"x-dead-letter-exchange": ""}),
        quorum("d", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "missing"}),
        quorum(
            "e", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q.dlq", **SURE, "x-overflow": "drop-head"}
        ),
        classic("f", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "f.retry"}),
        retry("f", "f.retry"),
        classic("parked", {"x-message-ttl": 5}),
        classic("g", {"x-message-ttl": 5}),
        classic("h.retry", {"x-message-ttl": 5}),
        classic("old.dlq", {"x-max-length": 9}),
        classic("brief", durable=False),
        classic("mirrored"),
        ExchangeDefinition("later", "x-delayed-message"),
        consumers={"g": 1, "f.retry": 1, "mirrored": 1, "a": 1},
        policies={"mirrored": {"ha-mode": "all"}},
    ),
    seen(
        classic("x", {"x-message-ttl": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "y"}),
        classic("y", {"x-message-ttl": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "x"}),
        classic("v", {"x-message-ttl": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "w"}),
        classic("w", {"x-message-ttl": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "v"}),
        EVENTS,
        BindingDefinition("events", "one", "#"),
        BindingDefinition("events", "two", "#"),
        classic("one"),
        classic("two"),
        classic("elsewhere.retry", {"x-message-ttl": 5, **TO_EVENTS}),
        ExchangeDefinition("later", "x-delayed-message"),
        consumers={"v": 1},
        delayed=True,
    ),
    seen(classic("parked"), classic("q.retry"), policies={"parked": {"message-ttl": 5}, "q.retry": {"message-ttl": 5}}),
    seen(quorum("q", {"x-delivery-limit": -1}), version="3.10"),
    seen(
        EVENTS,
        BindingDefinition("events", "one", "again"),
        BindingDefinition("later", "one.retry", "again"),
        ExchangeDefinition("later"),
        classic("one"),
        classic("one.retry", {"x-message-ttl": 5, "x-dead-letter-exchange": "events"}),
    ),
    seen(classic("q"), complete=False),
    seen(
        classic("taken", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "old.dead"}),
        classic("taken.dlq"),
        classic("old.dead"),
    ),
]


def findings() -> list[tuple[BrokerSnapshot, Finding]]:
    wanted = Topology(queues=[Queue("a"), Queue("slow"), Queue("taken", existing=True)])
    return [
        (snapshot, finding)
        for snapshot in SURVEYS
        for finding in examine(snapshot, wanted, handler_limits={"slow": timedelta(hours=2)})
    ]


def test_the_surveys_produce_every_finding_there_is() -> None:
    assert {finding.id for _, finding in findings()} == {rule.id for rule in RULES}


@pytest.mark.parametrize(("snapshot", "finding"), findings(), ids=lambda one: f"{getattr(one, 'id', '')}")
def test_every_queue_in_a_fix_exists_or_is_declared_by_it_or_is_refused_by_the_command(
    snapshot: BrokerSnapshot, finding: Finding
) -> None:
    names = {queue.name for queue in snapshot.definitions.queues}
    declared = set(re.findall(r"declare queue (\S+)", finding.fix.replace(";", " ")))

    for definition in re.findall(r"\{.*?\}", finding.fix):
        try:
            policy = json.loads(definition)
        except ValueError:
            assert UNKNOWN_QUEUE in definition
            continue
        assert policy.get("dead-letter-routing-key", finding.subject) in names | declared
        assert "<" not in definition
    for key in re.findall(r"x-dead-letter-routing-key: (\S+)", finding.fix):
        assert key in names | declared | {UNKNOWN_QUEUE.split()[0]}


def test_a_queue_that_is_not_known_is_a_placeholder_that_is_not_json() -> None:
    finding = only(seen(classic("parked", {"x-message-ttl": 5})), "ttl-no-way-back")

    definition = shlex.split(finding.fix)[-1]

    assert definition == '{"dead-letter-exchange": "", "dead-letter-routing-key": <NAME OF THE QUEUE>}'
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(definition)


def test_a_shared_retry_queue_returns_to_the_queue_it_is_named_after() -> None:
    shared = [EVENTS, BindingDefinition("events", "one", "#"), BindingDefinition("events", "two", "#")]
    snapshot = seen(*shared, classic("one"), classic("two"), classic("one.retry", {"x-message-ttl": 5, **TO_EVENTS}))

    assert "x-dead-letter-routing-key: one " in only(snapshot, "retry-shared").fix
