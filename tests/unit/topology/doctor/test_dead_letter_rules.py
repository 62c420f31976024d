import pytest

from redrive.topology import BindingDefinition, ExchangeDefinition, Queue, Topology
from unit.topology.doctor.surveys import SURE, TO_DLQ, classic, only, quorum, seen, subjects

TO_DLX = {"x-dead-letter-exchange": "dlx"}

# dlx-missing --------------------------------------------------------------------------------------


def test_a_dead_letter_exchange_that_is_not_there() -> None:
    finding = only(seen(classic("q", TO_DLX)), "dlx-missing")

    assert finding.evidence == (
        "x-dead-letter-exchange 'dlx', and there is no such exchange: every dead letter is dropped"
    )
    assert finding.fix == "declare exchange dlx, and bind a queue to it"


def test_by_policy_too() -> None:
    finding = only(seen(classic("q"), policies={"q": {"dead-letter-exchange": "dlx"}}), "dlx-missing")

    assert finding.evidence.startswith("dead-letter-exchange 'dlx' by policy p")


def test_with_at_least_once_they_are_not_dropped_but_block() -> None:
    assert "32 of them block all others" in only(seen(quorum("q", TO_DLX | SURE)), "dlx-missing").evidence


def test_the_default_exchange_and_the_brokers_own_are_always_there() -> None:
    own = classic("other", {"x-dead-letter-exchange": "amq.direct"})

    assert subjects(seen(classic("q", TO_DLQ), classic("q.dlq"), own), "dlx-missing") == []


def test_over_plain_amqp_only_an_exchange_that_was_asked_about_is_known_to_be_missing() -> None:
    wanted = Topology(queues=[Queue("q")])
    made = classic("q", {"x-dead-letter-exchange": "dlq.q", "x-dead-letter-routing-key": "parking"})

    finding = only(seen(made, complete=False), "dlx-missing", wanted)

    assert finding.fix == "redrive topology apply APP"
    assert subjects(seen(classic("q", TO_DLX), complete=False), "dlx-missing", wanted) == []


# dlx-unroutable -----------------------------------------------------------------------------------


def test_a_key_for_which_nothing_is_bound() -> None:
    main = classic("q", TO_DLX | {"x-dead-letter-routing-key": "parking"})
    dlx, bind = ExchangeDefinition("dlx"), BindingDefinition("dlx", "q.dlq", "praking")

    finding = only(seen(main, classic("q.dlq"), dlx, bind), "dlx-unroutable")

    assert "with key 'parking' it reaches no queue: every dead letter is dropped" in finding.evidence
    assert finding.fix == "bind a queue to exchange dlx with key 'parking'"


def test_a_queue_nobody_made() -> None:
    finding = only(seen(classic("q", TO_DLQ)), "dlx-unroutable")

    assert finding.fix == "declare queue q.dlq"


def test_a_queue_that_the_topology_would_make() -> None:
    wanted = Topology(queues=[Queue("q", dlq=False), Queue("q.dlq", dlq=False)])

    assert (
        only(seen(classic("q", TO_DLQ), complete=False), "dlx-unroutable", wanted).fix == "redrive topology apply APP"
    )


def test_messages_that_keep_their_key_are_lost_when_only_some_keys_are_bound() -> None:
    snapshot = seen(
        classic("q", TO_DLX),
        classic("q.dlq"),
        ExchangeDefinition("events", "topic"),
        ExchangeDefinition("dlx"),
        BindingDefinition("events", "q", "order.created"),
        BindingDefinition("events", "q", "order.paid"),
        BindingDefinition("dlx", "q.dlq", "order.created"),
    )

    finding = only(snapshot, "dlx-unroutable")

    assert "with key 'order.paid', which messages bring along, it reaches no queue" in finding.evidence


def test_after_a_retry_through_the_default_exchange_the_key_is_the_queues_name() -> None:
    snapshot = seen(
        classic("q", TO_DLX),
        classic("q.retry", {"x-message-ttl": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}),
        classic("q.dlq"),
        ExchangeDefinition("events", "topic"),
        ExchangeDefinition("dlx"),
        BindingDefinition("events", "q", "order.created"),
        BindingDefinition("dlx", "q.dlq", "order.created"),
    )

    assert "with key 'q'" in only(snapshot, "dlx-unroutable").evidence


def test_without_a_key_of_its_own_the_default_exchange_rarely_knows_the_messages() -> None:
    snapshot = seen(
        classic("q", {"x-dead-letter-exchange": ""}),
        ExchangeDefinition("events", "topic"),
        BindingDefinition("events", "q", "order.created"),
    )

    finding = only(snapshot, "dlx-unroutable")

    assert finding.fix.endswith('\'{"dead-letter-routing-key": "q.dlq"}\'')


@pytest.mark.parametrize("kind", ["fanout", "headers", "x-consistent-hash"])
def test_exchanges_that_do_not_look_at_keys_need_a_binding_only(kind: str) -> None:
    main, dlx = classic("q", TO_DLX), ExchangeDefinition("dlx", kind)

    assert subjects(seen(main, dlx), "dlx-unroutable") == ["q"]
    assert subjects(seen(main, dlx, classic("d"), BindingDefinition("dlx", "d")), "dlx-unroutable") == []


def test_an_alternate_exchange_catches_what_nothing_is_bound_for() -> None:
    snapshot = seen(
        classic("q", TO_DLX),
        classic("d"),
        ExchangeDefinition("dlx", arguments={"alternate-exchange": "rest"}),
        ExchangeDefinition("rest", "fanout"),
        BindingDefinition("rest", "d"),
    )

    assert subjects(snapshot, "dlx-unroutable") == []


def test_over_plain_amqp_bindings_are_unknown() -> None:
    main = classic("q", TO_DLX | {"x-dead-letter-routing-key": "parking"})

    assert subjects(seen(main, ExchangeDefinition("dlx"), complete=False), "dlx-unroutable") == []


# no-dlq -------------------------------------------------------------------------------------------


def test_a_queue_with_consumers_and_no_dead_letter_exchange() -> None:
    finding = only(seen(classic("q"), consumers={"q": 1}), "no-dlq")

    assert finding.evidence == "it has 1 consumer, and has no dead-letter exchange"
    assert finding.fix.startswith("declare queue q.dlq; rabbitmqctl set_policy --apply-to queues q '^q$' '{")


def test_a_queue_of_the_topology() -> None:
    finding = only(seen(classic("q")), "no-dlq", Topology(queues=[Queue("q")]))

    assert finding.evidence == "it is in the topology, and has no dead-letter exchange"


def test_who_says_dlq_false_means_it() -> None:
    assert subjects(seen(classic("q")), "no-dlq", Topology(queues=[Queue("q", dlq=False)])) == []


def test_a_dead_letter_exchange_by_policy_is_one() -> None:
    snapshot = seen(classic("q"), consumers={"q": 1}, policies={"q": {"dead-letter-exchange": "dlx"}})

    assert subjects(snapshot, "no-dlq") == []


@pytest.mark.parametrize(
    "queue",
    [
        classic("q", auto_delete=True),
        classic("q", durable=False),
        classic("q", {"x-expires": 60000}),
        classic("q", {"x-queue-type": "stream"}),
        classic("amq.gen-1"),
        classic("q.dlq"),
    ],
    ids=["auto-delete", "transient", "expiring", "stream", "server-named", "a DLQ"],
)
def test_queues_that_need_no_dlq(queue: object) -> None:
    assert subjects(seen(queue, consumers={"q": 1, "q.dlq": 1, "amq.gen-1": 1}), "no-dlq") == []  # type: ignore[arg-type]


def test_over_plain_amqp_a_policy_may_have_given_it_one() -> None:
    assert subjects(seen(classic("q"), consumers={"q": 1}, complete=False), "no-dlq") == []


# at-most-once, at-least-once-ineffective ----------------------------------------------------------


def test_a_quorum_queue_that_does_not_make_sure() -> None:
    finding = only(seen(quorum("q", TO_DLQ), classic("q.dlq")), "at-most-once")

    assert finding.fix.endswith('\'{"dead-letter-strategy": "at-least-once", "overflow": "reject-publish"}\'')


def test_one_that_does_by_argument_or_by_policy() -> None:
    policy = {"dead-letter-strategy": "at-least-once", "overflow": "reject-publish"}

    for snapshot in (
        seen(quorum("q", TO_DLQ | SURE), classic("q.dlq")),
        seen(quorum("q", TO_DLQ), classic("q.dlq"), policies={"q": policy}),
    ):
        assert subjects(snapshot, "at-most-once") == []
        assert subjects(snapshot, "at-least-once-ineffective") == []


def test_classic_queues_have_no_choice_and_the_embedded_broker_needs_none() -> None:
    assert subjects(seen(classic("q", TO_DLQ), classic("q.dlq")), "at-most-once") == []
    assert subjects(seen(quorum("q", TO_DLQ), classic("q.dlq"), embedded=True), "at-most-once") == []


@pytest.mark.parametrize("overflow", [{}, {"x-overflow": "drop-head"}])
def test_at_least_once_without_reject_publish_is_none(overflow: dict[str, str]) -> None:
    snapshot = seen(quorum("q", TO_DLQ | {"x-dead-letter-strategy": "at-least-once"} | overflow), classic("q.dlq"))

    finding = only(snapshot, "at-least-once-ineffective")

    assert finding.evidence == "x-dead-letter-strategy 'at-least-once' with overflow drop-head"
    assert "reject-publish" in finding.fix


def test_over_plain_amqp_the_overflow_may_come_from_a_policy() -> None:
    main = quorum("q", TO_DLQ | {"x-dead-letter-strategy": "at-least-once"})

    assert subjects(seen(main, complete=False), "at-least-once-ineffective") == []


# Existing queues ----------------------------------------------------------------------------------

TAKEN = Topology(queues=[Queue("q", existing=True)])


def test_what_the_broker_removes_from_an_existing_queue_goes_where_it_went_before() -> None:
    to_old = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "old.dead"}
    found = seen(classic("q", to_old), classic("old.dead"), classic("q.dlq"))

    finding = only(found, "parked-elsewhere", TAKEN)

    assert finding.severity == "info"
    assert finding.evidence == (
        "taken as it is, with x-dead-letter-exchange '': what expires, overflows or is rejected by others goes to "
        "old.dead, and what its consumer parks to q.dlq"
    )
    assert finding.fix.startswith("look into old.dead, too; or make q again with x-dead-letter-exchange: ''")


def test_an_existing_queue_whose_dead_letters_end_with_the_applications_is_in_order() -> None:
    to_own = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q.dlq"}
    found = seen(classic("q", to_own), classic("q.dlq"))
    assert subjects(found, "parked-elsewhere", TAKEN) == []
    assert subjects(found, "parked-elsewhere", Topology(queues=[Queue("q", existing=True, dlq=False)])) == []


def test_an_existing_queue_without_a_dead_letter_exchange_can_get_one_by_policy() -> None:
    finding = only(seen(classic("q"), classic("q.dlq")), "no-dlq", TAKEN)
    assert finding.fix == (
        "rabbitmqctl set_policy --apply-to queues q '^q$' "
        '\'{"dead-letter-exchange": "", "dead-letter-routing-key": "q.dlq"}\''
    )
