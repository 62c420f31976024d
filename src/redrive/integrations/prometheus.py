"""What Prometheus gets to see.

Messages pass far more often than Prometheus asks. So while they pass, plain numbers are added up, and the metrics are
made of them at the scrape: a message costs a few additions, where the client library's own counters and histograms
would cost several locks. `METRICS` is the list of all there is; dashboard and alert rules are checked against it.

No label may have as many values as there are messages. Queues are the application's own. What comes with an error or a
message (error types, reasons, exchanges) is a name only as long as it looks like one and there are not too many; the
rest is "other".

Each process tells of itself: with several worker processes, scrape each. In the `prometheus_client` library's
multi-process mode these metrics do not appear.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeAlias

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from redrive.recovery.failure_headers import ParkReason
from redrive.worker.consumer_spec import ConsumerSpec
from redrive.worker.events import (
    BreakerChanged,
    BreakerState,
    ConnectionChanged,
    DeliveryOutcome,
    DeliverySettled,
    Observer,
)

__all__ = ["MetricNames", "PrometheusObserver", "exposition"]

log = logging.getLogger("redrive.integrations")

OTHER = "other"
MOST_ERRORS = 200
MOST_REASONS = 50
MOST_EXCHANGES = 200
MOST_ATTEMPTS = 10

_DEFAULT_EXCHANGE = "(default)"  # its name is empty, and an empty label is no label

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)

# Failed attempts: a message that was snoozed or discarded was so on purpose.
_FAILED = {DeliveryOutcome.RETRIED, DeliveryOutcome.PARKED, DeliveryOutcome.RELEASED}

# By the name of a metric, and by the tuple of its labels.
Samples: TypeAlias = "Mapping[str, Mapping[Any, float]]"


# What there is ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily] | type[HistogramMetricFamily]
    labels: tuple[str, ...]
    meaning: str

    def family(self) -> Family:
        return self.kind(self.name, self.meaning, labels=self.labels)


_COUNTER, _GAUGE, _HISTOGRAM = CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("redrive_processed_total", _COUNTER, ("queue", "outcome"), "Messages settled, by how"),
        Metric("redrive_failures_total", _COUNTER, ("queue", "error"), "Failed attempts, by type of error"),
        Metric("redrive_retries_total", _COUNTER, ("queue", "attempt"), "Retries, by the attempt that had failed"),
        Metric("redrive_parked_total", _COUNTER, ("queue", "reason"), "Messages put in the dead-letter queue, by why"),
        Metric("redrive_in_flight", _GAUGE, ("queue",), "Messages that are being handled"),
        Metric("redrive_handler_seconds", _HISTOGRAM, ("queue",), "How long the handler took for a message"),
        Metric("redrive_batch_size", _HISTOGRAM, ("queue",), "Messages in a batch"),
        Metric("redrive_batch_seconds", _HISTOGRAM, ("queue",), "How long the handler took for a batch"),
        Metric("redrive_breaker_state", _GAUGE, ("name", "queue", "state"), "1 for the state a breaker is in, else 0"),
        Metric(
            "redrive_connected",
            _GAUGE,
            ("connection",),
            "1 while a connection to the broker, or to the consumers' database, is open, else 0",
        ),
        Metric("redrive_reconnects_total", _COUNTER, ("connection",), "Connections opened again after they were lost"),
        Metric("redrive_publish_seconds", _HISTOGRAM, ("exchange",), "From publishing a message to its confirm"),
        Metric("redrive_queue_messages", _GAUGE, ("queue", "role"), "Messages ready in a queue's main, retry, dlq"),
        Metric(
            "redrive_queue_oldest_seconds",
            _GAUGE,
            ("queue", "role"),
            "How long ago the first message there was published, where the broker reports it",
        ),
        Metric("redrive_unsettled", _GAUGE, ("queue",), "Messages taken from a queue and not settled, paused ones too"),
        Metric("redrive_queue_consumers", _GAUGE, ("queue",), "Consumers of a queue, of all processes"),
        Metric("redrive_outbox_pending", _GAUGE, ("table",), "Rows of the outbox that are to be published"),
        Metric("redrive_outbox_oldest_seconds", _GAUGE, ("table",), "Age of the oldest of these"),
        Metric("redrive_outbox_parked", _GAUGE, ("table",), "Rows of the outbox that were given up"),
        Metric("redrive_outbox_published_total", _COUNTER, ("table",), "Rows of the outbox that were published here"),
    )
}


# What is added up ---------------------------------------------------------------------------------


class Distribution:
    """How many values were at most each of the bounds."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def tell(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        so_far, buckets = 0, list[tuple[str, float]]()
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            so_far += count
            buckets.append((bound, so_far))
        family.add_metric(labels, buckets, self._total)


@dataclass(slots=True)
class Work:
    """What was done for one queue."""

    done: int = 0
    in_flight: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)  # but for DONE
    failures: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    parked: Counter[str] = field(default_factory=Counter)
    seconds: Distribution = field(default_factory=lambda: Distribution(SECONDS))
    batch_sizes: Distribution | None = None
    batch_seconds: Distribution | None = None

    def expect_batches(self) -> tuple[Distribution, Distribution]:
        if self.batch_sizes is None or self.batch_seconds is None:
            self.batch_sizes, self.batch_seconds = Distribution(SIZES), Distribution(SECONDS)
        return self.batch_sizes, self.batch_seconds


@dataclass(slots=True)
class Reconnects:
    """A connection counts its own from zero: what it tells after an application made another is added."""

    total: int = 0
    last: int = 0
    is_open: bool = False

    def update(self, count: int) -> None:
        self.total += count - self.last if count >= self.last else count
        self.last = count


class MetricNames:
    """The first `most` names are themselves, and all others, or what is no name, are "other"."""

    __slots__ = ("_known", "_most", "_pattern")

    def __init__(self, most: int, pattern: str) -> None:
        self._most = most
        self._pattern = re.compile(pattern)
        self._known: set[str] = set()

    def name(self, value: str) -> str:
        """Return what a metric is called."""
        if value in self._known:
            return value
        if len(self._known) >= self._most or not self._pattern.fullmatch(value):
            return OTHER
        self._known.add(value)
        return value


# The observer -------------------------------------------------------------------------------------


class PrometheusObserver(Observer, Collector):
    """Adds up what it is told, and registers itself to be asked. May be told and asked by different threads.

    `queues` are there from the start: a counter that begins at 1 has, for Prometheus, never increased. `sources` are
    functions, by what they know: each is called at each scrape, and returns samples of the metrics about queues and
    the outbox. The roles of queues are "main", "retry" and "dlq".
    """

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        *,
        queues: Iterable[str] = (),
        sources: Mapping[str, Callable[[], Samples]] | None = None,
    ) -> None:
        self._lock = Lock()
        self._work = defaultdict(Work, {queue: Work() for queue in queues})
        self._published: dict[str, Distribution] = {}
        self._breakers: dict[tuple[str, str], BreakerState] = {}
        self._connections: dict[str, Reconnects] = {}
        self._errors = MetricNames(MOST_ERRORS, r"[A-Za-z_][\w.<>]{0,199}")
        self._reasons = MetricNames(
            MOST_REASONS, r"[a-z][a-z0-9_-]{0,49}"
        )  # a word, not what somebody wrote into `Park`
        self._exchanges = MetricNames(MOST_EXCHANGES, r"[^\ud800-\udfff]{1,255}")
        self._sources = sources or {}
        registry.register(self)

    def expect_consumer(self, spec: ConsumerSpec) -> None:
        """Have what this consumer can count there from the start."""
        queue = spec.queue.name
        with self._lock:
            work = self._work[queue]
            work.failures[OTHER] += 0
            for attempt in range(1, min(spec.retry.attempts, MOST_ATTEMPTS + 1)):
                work.retries[str(attempt)] += 0
            for reason in ParkReason:
                work.parked[self._reasons.name(reason)] += 0
            if spec.batch is not None:
                work.expect_batches()
            for name in spec.breakers:
                self._breakers.setdefault((name or queue, queue), BreakerState.CLOSED)

    def expect_exchange(self, exchange: str) -> None:
        """Export the metrics of an exchange before the first publish."""
        with self._lock:
            self._publishes(exchange)

    # What happens for every message

    def started(self, queue: str) -> None:
        with self._lock:
            self._work[queue].in_flight += 1

    def done(self, queue: str, seconds: float) -> None:
        with self._lock:
            work = self._work[queue]
            work.done += 1
            if work.in_flight:
                work.in_flight -= 1
            if seconds > 0:  # a batch's time is told as a whole
                work.seconds.add(seconds)

    def published(self, exchange: str, seconds: float) -> None:
        with self._lock:
            self._publishes(exchange).add(seconds)

    def _publishes(self, exchange: str) -> Distribution:
        label = self._exchanges.name(exchange) if exchange else _DEFAULT_EXCHANGE
        known = self._published.get(label)
        if known is None:
            known = self._published[label] = Distribution(SECONDS)
        return known

    # What happens more rarely

    def settled(self, event: DeliverySettled) -> None:
        with self._lock:
            work = self._work[event.queue]
            work.outcomes[event.outcome.value] += 1
            if work.in_flight:  # what was never started, as a malformed message, is settled all the same
                work.in_flight -= 1
            if event.seconds > 0:
                work.seconds.add(event.seconds)
            if event.error is not None and event.outcome in _FAILED:
                work.failures[self._errors.name(error_type(event.error))] += 1
            if event.outcome is DeliveryOutcome.RETRIED:
                work.retries[str(event.attempt) if 1 <= event.attempt <= MOST_ATTEMPTS else OTHER] += 1
            elif event.outcome is DeliveryOutcome.PARKED:
                work.parked[self._reasons.name(event.reason)] += 1

    def batch(self, queue: str, size: int, seconds: float) -> None:
        with self._lock:
            work = self._work[queue]
            sizes, times = work.expect_batches()
            sizes.add(size)
            times.add(seconds)

    def breaker(self, event: BreakerChanged) -> None:
        """Count that a breaker changed its state."""
        with self._lock:
            self._breakers[event.name, event.queue] = event.state

    def connection(self, event: ConnectionChanged) -> None:
        """Count that a connection was made or lost."""
        with self._lock:
            known = self._connections.setdefault(event.name, Reconnects())
            known.update(event.reconnects)
            known.is_open = event.state.lower() == "open"

    # The scrape

    def describe(self) -> Iterable[Family]:
        """Names and types, by which a registry refuses what it has already."""
        return [metric.family() for metric in METRICS.values()]

    def collect(self) -> Iterable[Family]:
        families = {name: metric.family() for name, metric in METRICS.items()}
        with self._lock:
            for queue, work in self._work.items():
                _tell_work(families, queue, work)
            self._tell_rest(families)
        self._tell_sources(families)
        return families.values()

    def _tell_rest(self, families: Mapping[str, Family]) -> None:
        for exchange, seconds in self._published.items():
            seconds.tell(_histogram(families, "redrive_publish_seconds"), [exchange])
        for (name, queue), current in self._breakers.items():
            for state in BreakerState:
                _add(families, "redrive_breaker_state", (name, queue, state.value), state == current)
        for name, connection in self._connections.items():
            _add(families, "redrive_connected", (name,), connection.is_open)
            _add(families, "redrive_reconnects_total", (name,), connection.total)

    def _tell_sources(self, families: Mapping[str, Family]) -> None:
        for what, source in self._sources.items():
            try:
                found = source()
            except Exception:  # the other metrics are wanted then more than ever
                log.warning("%s are not known for this scrape", what, exc_info=True)
                continue
            for name, values in found.items():
                for labels, value in values.items():
                    _add(families, name, labels, value)

    def __repr__(self) -> str:
        return f"<PrometheusObserver queues={len(self._work)}>"


def exposition(registry: CollectorRegistry = REGISTRY) -> bytes:
    """What is served at `/metrics`, in the text format that every Prometheus reads."""
    return generate_latest(registry)


def error_type(error: str) -> str:
    """ "TimeoutError" of "TimeoutError: no answer"."""
    return error.partition(":")[0]


def _tell_work(families: Mapping[str, Family], queue: str, work: Work) -> None:
    for outcome in DeliveryOutcome:
        count = work.done if outcome is DeliveryOutcome.DONE else work.outcomes[outcome.value]
        _add(families, "redrive_processed_total", (queue, outcome.value), count)
    for name, counts in (
        ("redrive_failures_total", work.failures),
        ("redrive_retries_total", work.retries),
        ("redrive_parked_total", work.parked),
    ):
        for label, count in counts.items():
            _add(families, name, (queue, label), count)
    _add(families, "redrive_in_flight", (queue,), work.in_flight)
    work.seconds.tell(_histogram(families, "redrive_handler_seconds"), [queue])
    if work.batch_sizes is not None and work.batch_seconds is not None:
        work.batch_sizes.tell(_histogram(families, "redrive_batch_size"), [queue])
        work.batch_seconds.tell(_histogram(families, "redrive_batch_seconds"), [queue])


def _add(families: Mapping[str, Family], name: str, labels: Sequence[str], value: float) -> None:
    family = families[name]
    assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
    family.add_metric(labels, float(value))


def _histogram(families: Mapping[str, Family], name: str) -> HistogramMetricFamily:
    family = families[name]
    assert isinstance(family, HistogramMetricFamily)
    return family
