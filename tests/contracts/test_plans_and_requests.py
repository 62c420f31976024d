"""Plans and requests are remembered, on SQLite and on PostgreSQL."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from redrive.database.engine import Database
from redrive.database.schema import Schema
from redrive.operations.idempotency_keys import IdempotencyKeys, KeyStanding, StoredAnswer
from redrive.operations.operation import CanarySchedule, Destination, OperationKind, OperationRequest, Selection
from redrive.operations.plan_tokens import LASTS, PlanTokens, digest_of, is_plan_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ORDER = OperationRequest(
    OperationKind.REDRIVE,
    "orders.dlq",
    Selection("error:Timeout", NOON, ("m-1", "m-2"), "3fa9", 10),
    Destination.parse("exchange:events:order.new"),
    50.0,
    CanarySchedule((1, 5), 20.0, 3.0),
    "ada",
    "INC-42",
)


@pytest.fixture
def database(fresh_database: Database) -> Database:
    Schema().upgrade(fresh_database)
    return fresh_database


def test_a_plan_is_taken_as_it_was_kept_and_once(database: Database) -> None:
    plans = PlanTokens(database)
    token = plans.keep(ORDER, 7, "ada", NOON)
    assert plans.take(token, "orders.dlq", "ada", NOON + SECOND) == (ORDER, 7)
    assert plans.take(token, "orders.dlq", "ada", NOON + SECOND) is None


def test_a_plan_that_was_taken_is_recognised_by_its_maker(database: Database) -> None:
    plans = PlanTokens(database)
    token = plans.keep(ORDER, 0, "ada", NOON)
    assert plans.carried_out_order(token, "orders.dlq", "ada") is None
    assert plans.take(token, "orders.dlq", "ada", NOON) == (ORDER, 0)
    assert plans.carried_out_order(token, "orders.dlq", "ada") == ORDER
    assert plans.carried_out_order(token, "orders.dlq", "bob") is None
    assert plans.carried_out_order(token, "payments.dlq", "ada") is None


def test_a_token_is_of_what_was_planned(database: Database) -> None:
    token = PlanTokens(database).keep(ORDER, 7, "ada", NOON, digest_of(ORDER))
    assert is_plan_of(token, digest_of(ORDER))
    assert not is_plan_of(token, digest_of(replace(ORDER, queue="payments.dlq")))
    assert not is_plan_of(token, digest_of(ORDER, "more"))


def test_of_many_who_take_a_plan_one_gets_it(database: Database) -> None:
    plans = PlanTokens(database)
    token = plans.keep(ORDER, 7, "ada", NOON)
    with ThreadPoolExecutor(8) as threads:
        taken = list(threads.map(lambda _: plans.take(token, "orders.dlq", "ada", NOON), range(8)))
    assert sum(one is not None for one in taken) == 1


def test_a_plan_is_for_its_maker_its_queue_and_a_quarter_of_an_hour(database: Database) -> None:
    plans = PlanTokens(database)
    token = plans.keep(ORDER, 7, "ada", NOON)
    assert plans.take(token, "orders.dlq", "bob", NOON) is None
    assert plans.take(token, "payments.dlq", "ada", NOON) is None
    assert plans.take("other", "orders.dlq", "ada", NOON) is None
    assert plans.take(token, "orders.dlq", "ada", NOON + LASTS + SECOND) is None
    assert plans.take(token, "orders.dlq", "ada", NOON + LASTS) is not None


def test_the_same_request_gets_the_same_answer(database: Database) -> None:
    requests, answer = IdempotencyKeys(database), StoredAnswer(202, '{"id": "op_1"}', "/admin/operations/op_1")
    assert requests.begin("ada", "k", "digest", NOON) is KeyStanding.NEW
    assert requests.begin("ada", "k", "digest", NOON) is KeyStanding.UNDER_WAY
    requests.finish("ada", "k", answer)
    assert requests.begin("ada", "k", "digest", NOON) == answer
    assert requests.begin("ada", "k", "another", NOON) is KeyStanding.OTHER
    assert requests.begin("bob", "k", "another", NOON) is KeyStanding.NEW


def test_a_key_is_free_again_after_nothing_was_done_or_a_day(database: Database) -> None:
    requests = IdempotencyKeys(database)
    requests.begin("ada", "k", "digest", NOON)
    requests.forget("ada", "k")
    assert requests.begin("ada", "k", "another", NOON) is KeyStanding.NEW
    requests.finish("ada", "k", StoredAnswer(200, "{}"))
    assert requests.begin("ada", "k", "digest", NOON + timedelta(hours=25)) is KeyStanding.NEW


def test_a_server_that_died_over_a_request_keeps_its_key_for_a_minute(database: Database) -> None:
    requests = IdempotencyKeys(database)
    requests.begin("ada", "k", "digest", NOON)
    assert requests.begin("ada", "k", "digest", NOON + 59 * SECOND) is KeyStanding.UNDER_WAY
    assert requests.begin("ada", "k", "digest", NOON + 61 * SECOND) is KeyStanding.NEW


def test_a_request_that_takes_long_keeps_its_key_for_as_long_as_somebody_says_so(database: Database) -> None:
    requests = IdempotencyKeys(database)
    requests.begin("ada", "k", "digest", NOON)
    requests.keep("ada", "k", NOON + 50 * SECOND)
    assert requests.begin("ada", "k", "digest", NOON + 109 * SECOND) is KeyStanding.UNDER_WAY
    assert requests.begin("ada", "k", "digest", NOON + 111 * SECOND) is KeyStanding.NEW


def test_what_was_answered_is_not_kept_from_whoever_asks_again(database: Database) -> None:
    requests, answer = IdempotencyKeys(database), StoredAnswer(200, "{}")
    requests.begin("ada", "k", "digest", NOON)
    requests.finish("ada", "k", answer)
    requests.keep("ada", "k", NOON + SECOND)
    requests.keep("ada", "never begun", NOON + SECOND)
    assert requests.begin("ada", "k", "digest", NOON + 2 * SECOND) == answer


def test_of_many_who_send_the_same_one_is_the_first(database: Database) -> None:
    requests = IdempotencyKeys(database)
    with ThreadPoolExecutor(8) as threads:
        told = list(threads.map(lambda _: requests.begin("ada", "k", "digest", NOON), range(8)))
    assert sorted(one.name for one in told if isinstance(one, KeyStanding)) == ["NEW"] + ["UNDER_WAY"] * 7
