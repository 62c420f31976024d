import pytest

from redrive.topology import BindingDefinition, ExchangeDefinition, Queue, Topology
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
    snapshot = seen(escalating, classic("urgent", TO_DLQ), classic("q.dlq"), consumers={"orders": 1, "urgent": 1})

    assert subjects(snapshot, "ttl-consumed") == []


def test_nobody_consumes_from_it() -> None:
    assert subjects(seen(classic("q", TO_RETRY), retry(), consumers={"q": 1}), "ttl-consumed") == []


def test_plain_amqp_shows_consumers() -> None:
    snapshot = seen(classic("q"), retry(), consumers={"q.retry": 1}, complete=False)

    assert subjects(snapshot, "ttl-consumed") == ["q.retry"]


# ttl-no-way-back, ttl-drops -----------------------------------------------------------------------


def test_a_retry_queue_without_a_way_back() -> None:
    finding = only(seen(classic("q"), classic("q.retry.15s", {"x-message-ttl": 15000})), "ttl-no-way-back")

    assert finding.evidence == "x-message-ttl 15000, no dead-letter exchange, and nobody consumes from it"
    assert finding.fix.endswith('\'{"dead-letter-exchange": "", "dead-letter-routing-key": "q"}\'')


def test_a_ttl_by_policy() -> None:
    assert subjects(seen(classic("parked"), policies={"parked": {"message-ttl": 5}}), "ttl-no-way-back") == ["parked"]


def test_a_queue_for_work_that_drops_what_is_too_old() -> None:
    snapshot = seen(classic("q", {"x-message-ttl": 5}), consumers={"q": 1})

    assert only(snapshot, "ttl-drops").evidence == "x-message-ttl 5 and no dead-letter exchange"
    assert subjects(snapshot, "ttl-no-way-back") == []


def test_the_topology_knows_the_queues_for_work_also_when_nobody_is_there() -> None:
    snapshot, wanted = (
        seen(classic("q", {"x-message-ttl": 5})),
        Topology(queues=[Queue("q", arguments={"x-message-ttl": 5})]),
    )

    assert subjects(snapshot, "ttl-drops", wanted) == ["q"]
    assert subjects(snapshot, "ttl-no-way-back", wanted) == []


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


# ttl-lost-by-name ---------------------------------------------------------------------------------

VIDEO = (
    ExchangeDefinition("video"),
    classic("video_tasks", TO_DLQ),
    classic("video_dlq"),
    BindingDefinition("video", "video_tasks", "video"),
    ExchangeDefinition("video-retry"),
    BindingDefinition("video-retry", "video_retry_60s", "video"),
)
WITHOUT_KEY = classic("video_retry_60s", {"x-message-ttl": 60_000, "x-dead-letter-exchange": "video"})


def test_a_retry_queue_that_loses_what_is_published_to_it_by_its_name() -> None:
    finding = only(seen(*VIDEO, WITHOUT_KEY), "ttl-lost-by-name")

    assert finding.subject == "video_retry_60s"
    assert finding.evidence == (
        "x-dead-letter-exchange 'video' without a dead-letter key, and with key 'video_retry_60s' it reaches no queue"
    )
    assert finding.fix == "bind video_tasks to exchange video with key 'video_retry_60s'"


def test_one_that_returns_to_itself_by_the_default_exchange() -> None:
    waiting = classic("q.retry", {"x-message-ttl": 5, "x-dead-letter-exchange": ""})
    snapshot = seen(classic("q"), waiting, ExchangeDefinition("waits"), BindingDefinition("waits", "q.retry", "q"))

    assert only(snapshot, "ttl-lost-by-name").fix.endswith("""'{"dead-letter-routing-key": "q"}'""")


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(BindingDefinition("video", "video_tasks", "video_retry_60s"), id="bound by the queue's name"),
        pytest.param(ExchangeDefinition("other"), id="a dead-letter key"),
    ],
)
def test_one_that_keeps_what_is_published_to_it_by_its_name(more: BindingDefinition | ExchangeDefinition) -> None:
    keyed = {**WITHOUT_KEY.arguments, "x-dead-letter-routing-key": "video"}
    waiting = classic("video_retry_60s", keyed) if isinstance(more, ExchangeDefinition) else WITHOUT_KEY

    assert subjects(seen(*VIDEO, waiting, more), "ttl-lost-by-name") == []


def test_what_is_lost_by_every_key_or_for_want_of_the_exchange_has_a_finding_of_its_own() -> None:
    nowhere = seen(ExchangeDefinition("video"), WITHOUT_KEY)

    assert subjects(nowhere, "dlx-unroutable") == ["video_retry_60s"]
    assert subjects(seen(WITHOUT_KEY), "dlx-missing") == ["video_retry_60s"]
    assert subjects(nowhere, "ttl-lost-by-name") == subjects(seen(WITHOUT_KEY), "ttl-lost-by-name") == []


@pytest.mark.parametrize(("name", "key"), [("work", "video"), ("video_retry_bits", "#")])
def test_a_queue_for_work_and_one_whose_keys_are_addresses_are_not_published_to_by_name(name: str, key: str) -> None:
    queue = classic(name, {"x-message-ttl": 5, "x-dead-letter-exchange": "video"})
    addresses = [ExchangeDefinition("addresses", "topic"), BindingDefinition("addresses", name, key)]

    assert subjects(seen(*VIDEO, queue, *addresses), "ttl-lost-by-name") == []
