from datetime import timedelta

import pytest

from redrive.topology import Exchange, ExchangeDefinition, Queue, Topology
from unit.topology.doctor.surveys import classic, only, quorum, seen, subjects

HOUR = timedelta(hours=1)
DELAYED = ExchangeDefinition("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})

# consumer-timeout ---------------------------------------------------------------------------------


def test_a_handler_that_may_take_longer_than_the_broker_waits() -> None:
    finding = only(seen(quorum("q"), version="4.0"), "consumer-timeout", handler_limits={"q": HOUR})

    assert finding.evidence == "its handler may take 1h, and the broker waits 30m for an ack"
    assert finding.fix == "consumer_timeout = 3660000 in rabbitmq.conf, or a shorter limit"


def test_from_4_3_on_the_queue_can_have_its_own() -> None:
    finding = only(seen(quorum("q")), "consumer-timeout", handler_limits={"q": HOUR})

    assert finding.fix.startswith("x-consumer-timeout: 3660000 on the queue, or ")
    patient = seen(quorum("q", {"x-consumer-timeout": 7_200_000}))
    assert subjects(patient, "consumer-timeout", handler_limits={"q": HOUR}) == []


def test_what_the_broker_said_counts_more_than_what_was_assumed() -> None:
    impatient = seen(quorum("q"), consumer_timeout=1000)
    patient = seen(quorum("q"), consumer_timeout=2 * 60 * 60 * 1000)

    assert subjects(impatient, "consumer-timeout", handler_limits={"q": timedelta(seconds=1)}) == ["q"]
    assert subjects(patient, "consumer-timeout", handler_limits={"q": HOUR}) == []


def test_from_4_3_on_classic_queues_wait_for_ever_and_so_does_the_embedded_broker() -> None:
    limits = {"q": HOUR}

    assert subjects(seen(classic("q"), version="4.0"), "consumer-timeout", handler_limits=limits) == ["q"]
    assert subjects(seen(classic("q"), version="4.3"), "consumer-timeout", handler_limits=limits) == []
    assert subjects(seen(quorum("q"), embedded=True), "consumer-timeout", handler_limits=limits) == []


def test_a_queue_that_is_not_there_yet_is_known_by_the_topology() -> None:
    wanted = Topology(queues=[Queue("q")])

    assert subjects(seen(), "consumer-timeout", wanted, handler_limits={"q": HOUR}) == []
    assert subjects(seen(version="4.0"), "consumer-timeout", wanted, handler_limits={"q": HOUR}) == ["q"]


# delayed-no-plugin, delayed-ending ----------------------------------------------------------------


def test_a_delayed_exchange_that_is_wanted_where_there_is_no_plugin() -> None:
    wanted = Topology(exchanges=[Exchange("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})])

    finding = only(seen(version="3.10.8"), "delayed-no-plugin", wanted)

    assert finding.evidence == "it is wanted as x-delayed-message, and RabbitMQ 3.10.8 has no such type"
    assert finding.fix.startswith("rabbitmq-plugins enable rabbitmq_delayed_message_exchange")


def test_a_delayed_exchange_that_outlived_the_plugin() -> None:
    assert only(seen(DELAYED), "delayed-no-plugin").evidence.startswith("it exists as x-delayed-message")


def test_over_plain_amqp_plugins_are_unknown() -> None:
    assert subjects(seen(DELAYED, complete=False), "delayed-no-plugin") == []


def test_the_plugin_is_at_its_end_on_4() -> None:
    assert subjects(seen(DELAYED, delayed=True), "delayed-ending") == ["later"]
    assert subjects(seen(DELAYED, delayed=True), "delayed-no-plugin") == []


def test_but_not_on_3_nor_on_the_embedded_broker_nor_if_nobody_uses_it() -> None:
    assert subjects(seen(DELAYED, delayed=True, version="3.10"), "delayed-ending") == []
    assert subjects(seen(DELAYED, delayed=True, embedded=True), "delayed-ending") == []
    assert subjects(seen(delayed=True), "delayed-ending") == []


# transient-queue, mirrored ------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "expected"), [("3.10", []), ("4.0", ["q"]), ("4.3", ["q"])])
def test_a_transient_queue_is_on_its_way_out_from_4_on(version: str, expected: list[str]) -> None:
    assert subjects(seen(classic("q", durable=False), version=version), "transient-queue") == expected


def test_durable_and_exclusive_queues_stay() -> None:
    exclusive = classic("mine", {"exclusive": True}, durable=False)

    assert subjects(seen(classic("q"), exclusive), "transient-queue") == []


@pytest.mark.parametrize(("version", "what"), [("3.10", "for the last time"), ("4.0", "there is one copy")])
def test_mirrors(version: str, what: str) -> None:
    finding = only(seen(classic("q"), version=version, policies={"q": {"ha-mode": "all"}}), "mirrored")

    assert what in finding.evidence
    assert "x-queue-type: quorum" in finding.fix


def test_a_quorum_queue_has_copies_of_its_own() -> None:
    assert subjects(seen(quorum("q"), policies={"q": {"ha-mode": "all"}}), "mirrored") == []
