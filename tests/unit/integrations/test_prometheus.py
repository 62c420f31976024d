"""What was told is what is scraped, however much it was and whatever it was called."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.parser import text_string_to_metric_families

from redrive.integrations.prometheus import METRICS, PrometheusObserver, Samples, exposition
from redrive.worker.events import BreakerChanged, BreakerState, ConnectionChanged, DeliveryOutcome, DeliverySettled

Q = {"queue": "q.orders"}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def observer(registry: CollectorRegistry) -> PrometheusObserver:
    return PrometheusObserver(registry)


def settled(outcome: DeliveryOutcome, reason: str = "failed", **more: object) -> DeliverySettled:
    return DeliverySettled("q.orders", outcome, **{"attempt": 1, "max_attempts": 3, "reason": reason, **more})  # type: ignore[arg-type]


def samples(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by the values of its labels, in the order of their names."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == name
    }


# Work --------------------------------------------------------------------------------------------------


def test_messages_are_counted_by_queue_and_outcome(registry: CollectorRegistry, observer: PrometheusObserver) -> None:
    for _ in range(3):
        observer.done("q.orders", 0.1)
    observer.settled(settled(DeliveryOutcome.RETRIED))
    observer.done("q.mail", 0.1)

    assert registry.get_sample_value("redrive_processed_total", Q | {"outcome": "done"}) == 3
    assert registry.get_sample_value("redrive_processed_total", Q | {"outcome": "retried"}) == 1
    assert registry.get_sample_value("redrive_processed_total", {"queue": "q.mail", "outcome": "done"}) == 1


def test_every_outcome_is_there_from_the_start_so_that_the_first_is_an_increase(registry: CollectorRegistry) -> None:
    PrometheusObserver(registry, queues=["q.orders"])

    assert samples(registry, "redrive_processed_total") == {
        (outcome.value, "q.orders"): 0 for outcome in DeliveryOutcome
    }


def test_in_flight_is_what_was_started_and_has_not_ended(
    registry: CollectorRegistry, observer: PrometheusObserver
) -> None:
    for _ in range(5):
        observer.started("q.orders")
    observer.done("q.orders", 0.1)
    observer.settled(settled(DeliveryOutcome.PARKED))

    assert registry.get_sample_value("redrive_in_flight", Q) == 3


def test_in_flight_is_never_below_zero(registry: CollectorRegistry, observer: PrometheusObserver) -> None:
    observer.settled(settled(DeliveryOutcome.PARKED, "malformed"))  # never started
    observer.done("q.orders", 0.1)
    observer.started("q.orders")

    assert registry.get_sample_value("redrive_in_flight", Q) == 1


def test_handlers_are_timed_whether_they_succeed_or_fail(
    registry: CollectorRegistry, observer: PrometheusObserver
) -> None:
    observer.done("q.orders", 0.5)
    observer.settled(settled(DeliveryOutcome.RETRIED, seconds=0.25))
    observer.settled(settled(DeliveryOutcome.PARKED, "malformed"))  # no handler saw it
    observer.done("q.orders", 0.0)  # in a batch, which is timed as a whole

    assert registry.get_sample_value("redrive_handler_seconds_count", Q) == 2
    assert registry.get_sample_value("redrive_handler_seconds_sum", Q) == 0.75


@given(st.lists(st.floats(1e-6, 1000) | st.sampled_from([0.001, 0.5, 1.0, 300.0])))
def test_a_distribution_is_that_of_the_client_library(values: list[float]) -> None:
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry, queues=["q.orders"])
    bounds = [float(le) for le, _ in samples(registry, "redrive_handler_seconds_bucket") if le != "+Inf"]
    theirs = Histogram("theirs", "", ["queue"], buckets=bounds, registry=registry).labels("q.orders")
    for value in values:
        observer.done("q.orders", value)
        theirs.observe(value)

    for suffix in ("_bucket", "_count", "_sum"):
        assert samples(registry, f"redrive_handler_seconds{suffix}") == samples(registry, f"theirs{suffix}")


def test_batches_are_measured_where_there_are_any(registry: CollectorRegistry, observer: PrometheusObserver) -> None:
    observer.done("q.mail", 0.1)
    observer.batch("q.orders", 100, 0.5)
    observer.batch("q.orders", 50, 0.25)

    assert samples(registry, "redrive_batch_size_sum") == {("q.orders",): 150}
    assert samples(registry, "redrive_batch_seconds_sum") == {("q.orders",): 0.75}


# Failure -----------------------------------------------------------------------------------------------


def test_failures_are_counted_by_the_type_of_their_error(
    registry: CollectorRegistry, observer: PrometheusObserver
) -> None:
    observer.settled(settled(DeliveryOutcome.RETRIED, error="httpx.ReadTimeout: order 17: no answer"))
    observer.settled(settled(DeliveryOutcome.PARKED, error="httpx.ReadTimeout: order 18: no answer"))
    observer.settled(settled(DeliveryOutcome.PARKED, error="KeyError"))

    assert samples(registry, "redrive_failures_total") == {
        ("httpx.ReadTimeout", "q.orders"): 2,
        ("KeyError", "q.orders"): 1,
    }


@pytest.mark.parametrize("outcome", [DeliveryOutcome.SNOOZED, DeliveryOutcome.DISCARDED])
def test_what_was_done_on_purpose_is_no_failure(
    registry: CollectorRegistry, observer: PrometheusObserver, outcome: DeliveryOutcome
) -> None:
    observer.settled(settled(outcome, error="redrive.Snooze: later"))

    assert samples(registry, "redrive_failures_total") == {}


def test_there_are_never_more_than_so_many_error_types(
    registry: CollectorRegistry, observer: PrometheusObserver
) -> None:
    for number in range(1000):
        observer.settled(settled(DeliveryOutcome.RETRIED, error=f"Error{number}: x"))
    observer.settled(settled(DeliveryOutcome.RETRIED, error="Error7: known before there were too many"))

    counted = samples(registry, "redrive_failures_total")
    assert len(counted) == 201
    assert (counted["Error7", "q.orders"], counted["other", "q.orders"]) == (2, 800)


@pytest.mark.parametrize("error", ["", "no type here", "x" * 1000, 'Ev"il\n: x', "\ud800Error"])
def test_an_error_without_a_proper_type_is_another(
    registry: CollectorRegistry, observer: PrometheusObserver, error: str
) -> None:
    observer.settled(settled(DeliveryOutcome.RETRIED, error=error))

    assert samples(registry, "redrive_failures_total") == {("other", "q.orders"): 1}


def test_retries_are_counted_by_attempt_up_to_a_number(
    registry: CollectorRegistry, observer: PrometheusObserver
) -> None:
    for attempt in (1, 1, 10, 11, 10**9):
        observer.settled(settled(DeliveryOutcome.RETRIED, attempt=attempt))

    assert samples(registry, "redrive_retries_total") == {
        ("1", "q.orders"): 2,
        ("10", "q.orders"): 1,
        ("other", "q.orders"): 2,
    }


def test_parked_messages_are_counted_by_reason_and_prose_is_no_reason(
    registry: CollectorRegistry, observer: PrometheusObserver
) -> None:
    for reason in ("exhausted", "exhausted", "malformed", "customer 4711 is blocked"):
        observer.settled(settled(DeliveryOutcome.PARKED, reason))

    assert samples(registry, "redrive_parked_total") == {
        ("q.orders", "exhausted"): 2,
        ("q.orders", "malformed"): 1,
        ("q.orders", "other"): 1,
    }


def test_a_breaker_is_in_one_state_at_a_time(registry: CollectorRegistry, observer: PrometheusObserver) -> None:
    for state in (BreakerState.OPEN, BreakerState.PROBING):
        observer.breaker(BreakerChanged("db", "q.orders", state, 0.5))

    assert samples(registry, "redrive_breaker_state") == {
        ("db", "q.orders", "closed"): 0,
        ("db", "q.orders", "open"): 0,
        ("db", "q.orders", "probing"): 1,
    }


# The broker --------------------------------------------------------------------------------------------


def test_reconnects_never_go_back_even_if_another_connection_counts_from_zero(
    registry: CollectorRegistry, observer: PrometheusObserver
) -> None:
    for count in (0, 1, 1, 3, 0, 2):
        observer.connection(ConnectionChanged("consuming", "OPEN", None, count))

    assert samples(registry, "redrive_reconnects_total") == {("consuming",): 5}


def test_a_connection_is_open_or_not(registry: CollectorRegistry, observer: PrometheusObserver) -> None:
    observer.connection(ConnectionChanged("consuming", "open", None, 0))
    observer.connection(ConnectionChanged("publishing", "RECONNECTING", "reset", 1))

    assert samples(registry, "redrive_connected") == {("consuming",): 1, ("publishing",): 0}


def test_publishing_is_timed_by_exchange_and_the_default_one_has_a_name(
    registry: CollectorRegistry, observer: PrometheusObserver
) -> None:
    observer.published("domain.events", 0.5)
    observer.published("domain.events", 0.5)
    observer.published("", 0.25)

    assert samples(registry, "redrive_publish_seconds_sum") == {("domain.events",): 1.0, ("(default)",): 0.25}


def test_there_are_never_more_than_so_many_exchanges(registry: CollectorRegistry, observer: PrometheusObserver) -> None:
    for number in range(1000):
        observer.published(f"reply.{number}", 0.1)

    assert len(samples(registry, "redrive_publish_seconds_sum")) == 201


# Queues ------------------------------------------------------------------------------------------------


def test_queues_are_asked_for_at_the_scrape(registry: CollectorRegistry) -> None:
    depths = {("q.orders", "main"): 5, ("q.orders", "retry"): 2, ("q.orders", "dlq"): 1}
    PrometheusObserver(
        registry,
        sources={
            "depths of queues": lambda: {"redrive_queue_messages": depths},
            "other facts": lambda: {
                "redrive_queue_oldest_seconds": {("q.orders", "retry"): 12.5},
                "redrive_queue_consumers": {("q.orders",): 3},
                "redrive_unsettled": {("q.orders",): 4},
            },
        },
    )
    depths["q.orders", "dlq"] = 9

    assert samples(registry, "redrive_queue_messages") == {
        ("q.orders", "main"): 5,
        ("q.orders", "retry"): 2,
        ("q.orders", "dlq"): 9,
    }
    assert samples(registry, "redrive_queue_oldest_seconds") == {("q.orders", "retry"): 12.5}
    assert samples(registry, "redrive_queue_consumers") == {("q.orders",): 3}
    assert samples(registry, "redrive_unsettled") == {("q.orders",): 4}


def test_an_outbox_is_told_by_its_table(registry: CollectorRegistry) -> None:
    facts = {"pending": 2, "oldest_seconds": 1.5, "published_total": 7}
    found = {f"redrive_outbox_{name}": {("t",): value} for name, value in facts.items()}
    PrometheusObserver(registry, sources={"rows of the outbox": lambda: found})

    assert samples(registry, "redrive_outbox_pending") == {("t",): 2}
    assert samples(registry, "redrive_outbox_oldest_seconds") == {("t",): 1.5}
    assert samples(registry, "redrive_outbox_published_total") == {("t",): 7}
    assert samples(registry, "redrive_outbox_parked") == {}


def test_when_the_queues_cannot_be_asked_the_rest_is_told_all_the_same(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Samples:
        raise OSError("no broker")

    PrometheusObserver(registry, sources={"depths of queues": broken}).done("q.orders", 0.1)

    assert registry.get_sample_value("redrive_processed_total", Q | {"outcome": "done"}) == 1
    assert samples(registry, "redrive_queue_messages") == {}
    assert "depths of queues are not known" in caplog.text


# The whole ---------------------------------------------------------------------------------------------


def test_what_is_served_can_be_read_by_prometheus_and_is_what_the_list_says(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(
        registry,
        sources={
            "all": lambda: {
                "redrive_queue_messages": {('q."or\\ders\n', "main"): 1},
                "redrive_queue_oldest_seconds": {("q", "retry"): 1.0},
                "redrive_queue_consumers": {("q",): 1},
                "redrive_unsettled": {("q",): 1},
                "redrive_outbox_pending": {("t",): 2},
                "redrive_outbox_oldest_seconds": {("t",): 1.5},
                "redrive_outbox_parked": {("t",): 0},
                "redrive_outbox_published_total": {("t",): 7},
            }
        },
    )
    observer.done("q", 0.1)
    observer.settled(settled(DeliveryOutcome.RETRIED, error="E: x"))
    observer.settled(settled(DeliveryOutcome.PARKED))
    observer.batch("q", 1, 0.1)
    observer.published("x", 0.1)
    observer.breaker(BreakerChanged("b", "q", BreakerState.OPEN, 1.0))
    observer.connection(ConnectionChanged("consuming", "open", None, 0))

    found = {
        (family.name, tuple(label for label in sample.labels if label != "le"))
        for family in text_string_to_metric_families(exposition(registry).decode())
        for sample in family.samples
    }

    assert found == {(metric.name.removesuffix("_total"), tuple(sorted(metric.labels))) for metric in METRICS.values()}


def test_a_registry_takes_it_once(registry: CollectorRegistry, observer: PrometheusObserver) -> None:
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        PrometheusObserver(registry)

    registry.unregister(observer)
    PrometheusObserver(registry)


def test_nothing_is_lost_between_threads(registry: CollectorRegistry, observer: PrometheusObserver) -> None:
    def work() -> None:
        for _ in range(2000):
            observer.started("q.orders")
            observer.done("q.orders", 0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        exposition(registry)
    for thread in threads:
        thread.join()

    assert registry.get_sample_value("redrive_handler_seconds_sum", Q) == 4000
    assert registry.get_sample_value("redrive_in_flight", Q) == 0


def test_it_introduces_itself(observer: PrometheusObserver) -> None:
    observer.done("q.orders", 0.1)

    assert repr(observer) == "<PrometheusObserver queues=1>"
