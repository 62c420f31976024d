from dataclasses import replace

import pytest

from redrive.topology import Queue, Server, Topology
from redrive.topology.peek_safety import peek_cost
from unit.topology.doctor.surveys import TO_DLQ, classic, only, quorum, seen, subjects

# peek-deletes -------------------------------------------------------------------------------------


def test_a_quorum_dlq_has_the_default_limit_of_20_from_4_0_on() -> None:
    finding = only(seen(quorum("q.dlq"), version="4.0.5"), "peek-deletes")

    assert finding.subject == "q.dlq"
    assert finding.evidence == (
        'a quorum queue with no delivery limit of its own, and 20 is the default of RabbitMQ 4.0.5: "Get messages" in '
        "the management UI and other tools that requeue count as deliveries, as do peeks of Redrive, which refuses "
        "them: get 21 deletes the messages that it shows"
    )
    assert finding.fix == "rabbitmqctl set_policy --apply-to queues q.dlq '^q\\.dlq$' '{\"delivery-limit\": -1}'"


def test_on_4_3_the_gets_of_other_tools_are_meant_and_the_peeks_of_redrive_are_safe() -> None:
    snapshot = seen(quorum("q.dlq"), version="4.3.6")

    finding = only(snapshot, "peek-deletes")

    assert finding.evidence == (
        'a quorum queue with no delivery limit of its own, and 20 is the default of RabbitMQ 4.3.6: "Get messages" in '
        "the management UI and other tools that requeue can delete messages from get 21 on; peeks of Redrive do not "
        "count"
    )
    (queue,) = snapshot.definitions.queues
    assert peek_cost(queue, snapshot.state("q.dlq"), snapshot.server, sees_policies=True).is_free


def test_below_4_0_there_is_no_default() -> None:
    assert subjects(seen(quorum("q.dlq"), version="3.10"), "peek-deletes") == []


@pytest.mark.parametrize(
    ("version", "how"), [("3.10", "without x-delivery-limit"), ("4.3", "with x-delivery-limit: -1")]
)
def test_a_limit_by_argument_counts_everywhere_and_needs_a_new_queue(version: str, how: str) -> None:
    finding = only(seen(quorum("q.dlq", {"x-delivery-limit": 5}), version=version), "peek-deletes")

    assert "x-delivery-limit 5: " in finding.evidence
    assert "get 6 " in finding.evidence
    assert finding.fix.startswith(f"make q.dlq again {how}")


def test_a_limit_by_policy_counts_and_is_mended_in_the_policy() -> None:
    snapshot = seen(quorum("q.dlq"), version="3.10", policies={"q.dlq": {"delivery-limit": 5}})

    finding = only(snapshot, "peek-deletes")

    assert "delivery-limit 5 by policy p" in finding.evidence
    assert finding.fix == "take delivery-limit out of policy p"


def test_a_policy_that_is_there_must_take_the_limit_in() -> None:
    finding = only(seen(quorum("q.dlq"), policies={"q.dlq": {"max-length": 5}}), "peek-deletes")

    assert finding.fix == 'add {"delivery-limit": -1} to policy p'


def test_the_command_names_the_virtual_host() -> None:
    assert "set_policy -p shop " in only(seen(quorum("q.dlq")), "peek-deletes", vhost="shop").fix


def test_a_lifted_limit_is_fine_by_argument_and_by_policy() -> None:
    assert subjects(seen(quorum("q.dlq", {"x-delivery-limit": -1})), "peek-deletes") == []
    assert subjects(seen(quorum("q.dlq"), policies={"q.dlq": {"delivery-limit": -1}}), "peek-deletes") == []


def test_looking_into_classic_queues_and_queues_for_work_is_no_matter() -> None:
    assert subjects(seen(classic("q.dlq"), quorum("q", TO_DLQ)), "peek-deletes") == []


def test_a_dlq_is_known_by_what_arrives_in_it() -> None:
    main = quorum("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graveyard"})

    assert subjects(seen(main, quorum("graveyard")), "peek-deletes") == ["graveyard"]


def test_over_plain_amqp_only_a_limit_that_is_said_counts_since_a_policy_may_lift_the_default() -> None:
    wanted = Topology(queues=[Queue("q")], queue_type="quorum")  # type: ignore[arg-type]

    assert subjects(seen(quorum("q.dlq"), complete=False), "peek-deletes", wanted) == []
    assert subjects(seen(quorum("q.dlq", {"x-delivery-limit": 9}), complete=False), "peek-deletes", wanted) == ["q.dlq"]


# negative-delivery-limit --------------------------------------------------------------------------


def test_a_limit_below_zero_drops_at_the_first_return_before_4_0() -> None:
    finding = only(seen(quorum("q", {"x-delivery-limit": -1}), version="3.10.8"), "negative-delivery-limit")

    assert finding.evidence == "x-delivery-limit -1 on RabbitMQ 3.10.8"
    assert finding.fix.startswith("make q again without x-delivery-limit")


def test_a_limit_below_zero_is_fine_from_4_0_on_and_unjudged_where_the_version_is_unknown() -> None:
    snapshot = seen(quorum("q", {"x-delivery-limit": -1}), version="4.0")

    assert subjects(snapshot, "negative-delivery-limit") == []
    assert subjects(replace(snapshot, server=Server(())), "negative-delivery-limit") == []


# dlq-evicts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", ["x-message-ttl", "x-max-length", "x-max-length-bytes", "x-expires"])
def test_a_dlq_that_forgets(argument: str) -> None:
    finding = only(seen(classic("q.dlq", {argument: 1000})), "dlq-evicts")

    assert finding.evidence == f"a dead-letter queue with {argument} 1000"
    assert finding.fix.startswith(f"make q.dlq again without {argument}")


def test_a_dlq_that_forgets_by_policy() -> None:
    finding = only(seen(classic("q.dlq"), policies={"q.dlq": {"max-length": 9, "message-ttl": 5}}), "dlq-evicts")

    assert finding.evidence == "a dead-letter queue with message-ttl 5 by policy p, max-length 9 by policy p"
    assert finding.fix == "take message-ttl out of policy p; take max-length out of policy p"


def test_a_dlq_whose_messages_go_on_does_not_forget() -> None:
    on = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "archive", "x-max-length": 9}

    assert subjects(seen(classic("q.dlq", on), classic("archive")), "dlq-evicts") == []


def test_a_stream_is_made_to_forget() -> None:
    stream = classic("q.dlq", {"x-queue-type": "stream", "x-max-length-bytes": 10**9})

    assert subjects(seen(stream), "dlq-evicts") == []
