import pytest

from redrive.recovery.retry import Retry
from redrive.topology import BindingDefinition, ExchangeDefinition, Queue, Topology
from unit.topology.doctor.surveys import SURE, TO_DLQ, TO_RETRY, classic, only, quorum, retry, seen, subjects

# cycle-expires, cycle-main-expires ----------------------------------------------------------------


def test_a_circle_of_ttls() -> None:
    finding = only(seen(retry("b", "a"), retry("a", "b")), "cycle-expires")

    assert finding.evidence == "a → b → a, and every queue in it has a TTL"
    assert finding.fix.startswith("let it end in a queue without TTL")


def test_a_queue_that_expires_into_itself() -> None:
    """Without bindings and without a key, what is published to it by name comes back by name."""
    assert subjects(seen(classic("a", {"x-message-ttl": 5, "x-dead-letter-exchange": ""})), "cycle-expires") == ["a"]


def test_ttls_by_policy_close_the_circle_too() -> None:
    main = classic("b", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a"})

    assert subjects(seen(retry("b", "a"), main), "cycle-expires") == []
    assert subjects(seen(retry("b", "a"), main, policies={"b": {"message-ttl": 5}}), "cycle-expires") == ["a"]


def test_a_queue_for_work_with_a_ttl_in_its_own_loop() -> None:
    snapshot = seen(classic("q", TO_RETRY | {"x-message-ttl": 60000}), retry(), consumers={"q": 1})

    finding = only(snapshot, "cycle-main-expires")

    assert finding.subject == "q"
    assert finding.evidence.startswith("q → q.retry → q, and x-message-ttl 60000 on q; on RabbitMQ 4 a rejection")
    assert finding.fix.startswith("make q again without x-message-ttl")
    assert subjects(snapshot, "cycle-expires") == []
    assert subjects(snapshot, "ttl-consumed") == []


def test_below_4_a_rejection_saves_what_it_can() -> None:
    snapshot = seen(classic("q", TO_RETRY | {"x-message-ttl": 60000}), retry(), consumers={"q": 1}, version="3.10")

    assert "rejection" not in only(snapshot, "cycle-main-expires").evidence


def test_messages_come_back_with_the_keys_they_have_not_with_any() -> None:
    """Both retry queues let go into the same exchange; each message returns to its own queue."""
    snapshot = seen(
        ExchangeDefinition("events", "topic"),
        ExchangeDefinition("later", "topic"),
        classic("later.orders", {"x-message-ttl": 5, "x-dead-letter-exchange": "events"}),
        classic("orders.slow", {"x-message-ttl": 5, "x-dead-letter-exchange": "later"}),
        BindingDefinition("later", "later.orders", "order.*"),
        BindingDefinition("events", "orders.slow", "user.*"),
    )

    assert subjects(snapshot, "cycle-expires") == []


# cycle-overflow -----------------------------------------------------------------------------------


@pytest.mark.parametrize("overflow", [{}, {"x-overflow": "drop-head"}, {"x-overflow": "reject-publish-dlx"}])
@pytest.mark.parametrize("length", ["x-max-length", "x-max-length-bytes"])
def test_a_full_queue_in_its_own_loop(length: str, overflow: dict[str, str]) -> None:
    finding = only(seen(classic("q", TO_RETRY | {length: 10} | overflow), retry()), "cycle-overflow")

    assert finding.evidence.startswith(f"q → q.retry → q; {length} 10, overflow ")
    assert "reject-publish" in finding.fix


def test_a_length_by_policy() -> None:
    snapshot = seen(classic("q", TO_RETRY), retry(), policies={"q": {"max-length": 10}})

    assert only(snapshot, "cycle-overflow").fix == 'add {"overflow": "reject-publish"} to policy p'


def test_who_refuses_when_full_drops_nothing() -> None:
    main = classic("q", TO_RETRY | {"x-max-length": 10, "x-overflow": "reject-publish"})

    assert subjects(seen(main, retry()), "cycle-overflow") == []


def test_a_full_retry_queue_only_lets_go_early() -> None:
    waiting = classic("q.retry", {**retry().arguments, "x-max-length": 10})

    assert subjects(seen(classic("q", TO_RETRY), waiting), "cycle-overflow") == []


def test_a_full_queue_whose_dead_letters_are_parked_loses_nothing() -> None:
    main = classic("q", TO_DLQ | {"x-max-length": 10})

    assert subjects(seen(main, retry(), classic("q.dlq")), "cycle-overflow") == []


# cycle-delivery-limit -----------------------------------------------------------------------------


def test_the_default_limit_of_a_quorum_queue_in_its_own_loop() -> None:
    finding = only(seen(quorum("q", TO_RETRY), retry(), version="4.0"), "cycle-delivery-limit")

    assert "delivery limit 20: what its consumers die of 21 times is dropped" in finding.evidence
    assert '{"delivery-limit": -1}' in finding.fix
    assert "via='republish'" in finding.fix


def test_with_at_least_once_it_stays_in_the_retry_queue() -> None:
    waiting = quorum("q.retry", retry().arguments | {"x-queue-type": "quorum"} | SURE)

    assert (
        "stays in the last queue indefinitely"
        in only(seen(quorum("q", TO_RETRY | SURE), waiting), "cycle-delivery-limit").evidence
    )


def test_below_4_0_only_a_limit_that_is_said() -> None:
    assert subjects(seen(quorum("q", TO_RETRY), retry(), version="3.10"), "cycle-delivery-limit") == []
    finding = only(
        seen(quorum("q", TO_RETRY | {"x-delivery-limit": 5}), retry(), version="3.10"), "cycle-delivery-limit"
    )
    assert finding.fix.startswith("make q again without x-delivery-limit")


def test_a_lifted_limit_and_a_parked_one_are_fine() -> None:
    lifted = seen(quorum("q", TO_RETRY | {"x-delivery-limit": -1}), retry())
    parked = seen(quorum("q", TO_DLQ | {"x-delivery-limit": 5}), retry(), classic("q.dlq"))

    assert subjects(lifted, "cycle-delivery-limit") == subjects(parked, "cycle-delivery-limit") == []


def test_a_loop_through_another_queue_for_work_has_a_rejection_in_it() -> None:
    first = quorum("a", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"})
    second = classic("b", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a"})

    assert subjects(seen(first, second), "cycle-delivery-limit") == []


# reject-classic -----------------------------------------------------------------------------------


def test_retries_by_rejecting_on_a_classic_queue_of_rabbitmq_4() -> None:
    finding = only(seen(classic("q", TO_RETRY), retry(), version="4.0"), "reject-classic")

    assert finding.evidence == "a classic queue on RabbitMQ 4.0, retried by rejecting (q → q.retry → q)"
    assert finding.fix.startswith("retry with via='republish'")


@pytest.mark.parametrize("safe", ["3.10", "quorum", "parked", "embedded"])
def test_what_loses_nothing(safe: str) -> None:
    snapshot = {
        "3.10": seen(classic("q", TO_RETRY), retry(), version="3.10"),
        "quorum": seen(quorum("q", TO_RETRY), retry()),
        "parked": seen(classic("q", TO_DLQ), classic("q.dlq"), retry()),
        "embedded": seen(classic("q", TO_RETRY), retry(), embedded=True),
    }[safe]

    assert subjects(snapshot, "reject-classic") == []


def test_over_plain_amqp_the_topology_says_how_it_retries() -> None:
    wanted = Topology(queues=[Queue("q", retry=Retry(via="reject"))])

    assert subjects(seen(classic("q"), complete=False), "reject-classic", wanted) == ["q"]


# retry-shared -------------------------------------------------------------------------------------

SHARED = (
    ExchangeDefinition("events", "topic"),
    classic("thumbs"),
    BindingDefinition("events", "thumbs", "files.#"),
    BindingDefinition("events", "q", "files.uploaded.*"),
)


def back(**arguments: object) -> dict[str, object]:
    return {"x-message-ttl": 5, "x-dead-letter-exchange": "events"} | {
        f"x-dead-letter-{name.replace('_', '-')}": value for name, value in arguments.items()
    }


def test_a_way_back_that_others_are_on() -> None:
    snapshot = seen(*SHARED, classic("q", TO_RETRY), classic("q.retry", back(routing_key="files.uploaded.png")))

    finding = only(snapshot, "retry-shared")

    assert finding.subject == "q.retry"
    assert finding.evidence == "what has waited goes to events with key 'files.uploaded.png', and reaches q, thumbs"
    assert "with x-dead-letter-exchange: '' and x-dead-letter-routing-key: q" in finding.fix


def test_with_keys_of_their_own_an_example_shows_it() -> None:
    snapshot = seen(
        *SHARED,
        classic("q", {"x-dead-letter-exchange": "retry"}),
        ExchangeDefinition("retry", "fanout"),
        classic("q.retry", back()),
        BindingDefinition("retry", "q.retry"),
    )

    assert "'files.uploaded.x', and reaches q, thumbs" in only(snapshot, "retry-shared").evidence


def test_a_way_back_of_its_own_through_the_same_exchange() -> None:
    snapshot = seen(
        *SHARED,
        classic("q", TO_RETRY),
        classic("q.retry", back(routing_key="again.q")),
        BindingDefinition("events", "q", "again.q"),
    )

    assert subjects(snapshot, "retry-shared") == []


def test_messages_that_wait_for_another_reason_may_go_to_many() -> None:
    snapshot = seen(*SHARED, classic("q"), classic("reminders", back(routing_key="files.uploaded.png")))

    assert subjects(snapshot, "retry-shared") == []


def test_of_a_headers_exchange_one_cannot_tell() -> None:
    snapshot = seen(
        ExchangeDefinition("events", "headers"),
        classic("q", TO_RETRY),
        classic("other"),
        classic("q.retry", back()),
        BindingDefinition("events", "q", arguments={"kind": "a"}),
        BindingDefinition("events", "other", arguments={"kind": "b"}),
    )

    assert subjects(snapshot, "retry-shared") == []
