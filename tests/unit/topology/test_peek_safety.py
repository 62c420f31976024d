import pytest

from redrive.topology import QueueDefinition, Server
from redrive.topology.peek_safety import PeekCost, PeekSafety, peek_cost
from redrive.topology.snapshot import QueueState

V3, V40, V43 = Server((3, 10, 8)), Server((4, 0, 5)), Server((4, 3, 6))


def look(
    server: Server, type: str = "quorum", *, limit: int | None = None, policy: int | None = None, sees: bool = True
) -> PeekCost:
    arguments = {"x-queue-type": type} | ({"x-delivery-limit": limit} if limit is not None else {})
    state = QueueState(effective_policy={"delivery-limit": policy} if policy is not None else {})
    return peek_cost(QueueDefinition("q.dlq", arguments=arguments), state, server, sees_policies=sees)


@pytest.mark.parametrize("server", [V3, V40, V43])
@pytest.mark.parametrize("sees", [False, True])
def test_a_classic_queue_does_not_mind(server: Server, sees: bool) -> None:
    assert look(server, "classic", sees=sees) == PeekCost(PeekSafety.SAFE)


@pytest.mark.parametrize("server", [V3, V40, V43])
def test_a_stream_cannot_be_looked_into(server: Server) -> None:
    found = look(server, "stream")
    assert found.safety is PeekSafety.IMPOSSIBLE
    assert not found.is_free
    assert not found.may_be_spent


@pytest.mark.parametrize(
    ("server", "limit", "policy", "wanted"),
    [
        (V3, None, None, PeekSafety.SAFE),
        (V3, 10, None, PeekSafety.COUNTS),
        (V3, None, 10, PeekSafety.COUNTS),
        (V3, -1, None, PeekSafety.DELETES),
        (V3, 10, -1, PeekSafety.DELETES),
        (V40, None, None, PeekSafety.COUNTS),
        (V40, 50, None, PeekSafety.COUNTS),
        (V40, -1, None, PeekSafety.SAFE),
        (V40, None, -1, PeekSafety.SAFE),
        (V43, None, None, PeekSafety.SAFE),
        (V43, 3, None, PeekSafety.SAFE),
        (V43, -1, None, PeekSafety.SAFE),
    ],
)
def test_a_quorum_queue_by_version_and_limit(
    server: Server, limit: int | None, policy: int | None, wanted: PeekSafety
) -> None:
    assert look(server, limit=limit, policy=policy).safety is wanted


def test_the_lower_of_argument_and_policy_counts() -> None:
    assert look(V40, limit=10, policy=5).limit == 5
    assert look(V40, limit=5, policy=10).limit == 5


def test_a_limit_that_only_one_of_them_lifts_counts_from_4_0_on() -> None:
    assert look(V40, limit=-1, policy=5).limit == 5
    assert look(V40, limit=5, policy=-1).limit == 5
    assert look(V40, limit=-1, policy=-1).safety is PeekSafety.SAFE
    assert look(V40).limit == 20


def test_what_a_look_costs_is_said_with_its_remedy() -> None:
    found = look(V40, limit=7)
    assert "look 8 deletes what it shows" in found.why
    assert "RabbitMQ 4.0.5" in found.why
    assert "redrive topology migrate" in found.fix
    assert found.may_be_spent


def test_what_deletes_cannot_be_spent() -> None:
    found = look(V3, limit=-1)
    assert not found.may_be_spent
    assert "first return" in found.why


def test_without_policies_3_x_is_unknown_and_the_management_api_would_tell() -> None:
    found = look(V3, sees=False)
    assert found.safety is PeekSafety.UNKNOWN
    assert found.may_be_spent
    assert "REDRIVE_MANAGEMENT" in found.fix


def test_from_4_3_on_policies_do_not_matter() -> None:
    assert look(V43, sees=False).is_free
