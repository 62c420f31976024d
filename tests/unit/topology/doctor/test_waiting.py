import pytest

from redrive.topology import Queue, Topology
from unit.topology.doctor.surveys import TO_DLQ, TO_RETRY, classic, only, retry, seen, subjects

# ttl-consumed -------------------------------------------------------------------------------------


def test_a_consumer_on_a_retry_queue() -> None:
    finding = only(seen(classic("q", TO_RETRY), retry(), consumers={"q.retry": 2}), "ttl-consumed")

    assert finding.evidence == "x-message-ttl 1000, then back to q; and 2 consumers"
    assert finding.fix == "stop the consumers of q.retry: consume from q"


def test_a_retry_queue_that_only_its_name_shows() -> None:
    assert subjects(seen(classic("q", TO_DLQ), retry(), consumers={"q.retry": 1}), "ttl-consumed") == ["q.retry"]


def test_a_queue_for_work_may_park_or_pass_on_what_is_too_old() -> None:
    escalating = classic(
        "orders", {"x-message-ttl": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "urgent"}
    )
    survey = seen(escalating, classic("urgent", TO_DLQ), classic("q.dlq"), consumers={"orders": 1, "urgent": 1})

    assert subjects(survey, "ttl-consumed") == []


def test_nobody_consumes_from_it() -> None:
    assert subjects(seen(classic("q", TO_RETRY), retry(), consumers={"q": 1}), "ttl-consumed") == []


def test_plain_amqp_shows_consumers() -> None:
    survey = seen(classic("q"), retry(), consumers={"q.retry": 1}, complete=False)

    assert subjects(survey, "ttl-consumed") == ["q.retry"]


# ttl-no-way-back, ttl-drops -----------------------------------------------------------------------


def test_a_retry_queue_without_a_way_back() -> None:
    finding = only(seen(classic("q"), classic("q.retry.15s", {"x-message-ttl": 15000})), "ttl-no-way-back")

    assert finding.evidence == "x-message-ttl 15000, no dead-letter exchange, and nobody consumes from it"
    assert finding.fix.endswith('\'{"dead-letter-exchange": "", "dead-letter-routing-key": "q"}\'')


def test_a_ttl_by_policy() -> None:
    assert subjects(seen(classic("parked"), policies={"parked": {"message-ttl": 5}}), "ttl-no-way-back") == ["parked"]


def test_a_queue_for_work_that_drops_what_is_too_old() -> None:
    survey = seen(classic("q", {"x-message-ttl": 5}), consumers={"q": 1})

    assert only(survey, "ttl-drops").evidence == "x-message-ttl 5 and no dead-letter exchange"
    assert subjects(survey, "ttl-no-way-back") == []


def test_the_topology_knows_the_queues_for_work_also_when_nobody_is_there() -> None:
    survey, wanted = (
        seen(classic("q", {"x-message-ttl": 5})),
        Topology(queues=[Queue("q", arguments={"x-message-ttl": 5})]),
    )

    assert subjects(survey, "ttl-drops", wanted) == ["q"]
    assert subjects(survey, "ttl-no-way-back", wanted) == []


@pytest.mark.parametrize("rule", ["ttl-no-way-back", "ttl-drops"])
@pytest.mark.parametrize("consumers", [0, 1])
def test_what_may_vanish(rule: str, consumers: int) -> None:
    """Queues for a while (Celery's pidbox is one), and dead-letter queues, which have a finding of their own."""
    queues = [
        classic("pidbox", {"x-message-ttl": 5}, auto_delete=True),
        classic("q.dlq", {"x-message-ttl": 5}),
        retry(),
    ]

    assert subjects(seen(*queues, consumers={"pidbox": consumers, "q.dlq": consumers}), rule) == []


def test_over_plain_amqp_a_policy_may_lead_back() -> None:
    assert subjects(seen(classic("q.retry", {"x-message-ttl": 5}), complete=False), "ttl-no-way-back") == []
