"""A panel or an alert about a metric or a label that does not exist would show that all is well."""

import json
import re

import pytest
from prometheus_client.core import HistogramMetricFamily

from dashboards import ALERTS, DASHBOARD, EXPRESSIONS, PANELS, series_in
from redrive.integrations.prometheus import METRICS, OTHER
from redrive.worker.events import BreakerState, DeliveryOutcome

SERIES = {
    metric.name + suffix: metric
    for metric in METRICS.values()
    for suffix in (("_bucket", "_sum", "_count") if metric.kind is HistogramMetricFamily else ("",))
}
ROLES = {"main", "retry", "dlq"}


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS.keys())
def test_an_expression_asks_for_series_and_labels_that_exist(expression: str) -> None:
    asked = list(series_in(expression))
    assert asked
    for name, wanted in asked:
        assert name in SERIES
        assert set(wanted) <= set(SERIES[name].labels)


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS.keys())
def test_an_expression_groups_by_labels_that_its_series_have(expression: str) -> None:
    known = {label for name, _ in series_in(expression) for label in SERIES[name].labels} | {"le", "instance"}
    for group in re.findall(r"(?:by|on) \(([^)]*)\)", expression):
        assert set(group.split(", ")) <= known


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS.keys())
def test_an_expression_asks_for_values_that_labels_have(expression: str) -> None:
    values: dict[str, set[str]] = {"outcome": set(DeliveryOutcome), "state": set(BreakerState), "role": ROLES}
    for _, wanted in series_in(expression):
        for label in wanted.keys() & values.keys():
            assert set(wanted[label].split("|")) <= values[label]


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS.keys())
def test_an_expression_closes_what_it_opens(expression: str) -> None:
    for left, right in ("()", "{}", "[]"):
        assert expression.count(left) == expression.count(right)


def test_every_metric_has_a_panel() -> None:
    shown = {
        SERIES[name].name for panel in PANELS for target in panel["targets"] for name, _ in series_in(target["expr"])
    }

    assert shown == set(METRICS)


def test_the_alerts_are_about_what_can_go_wrong() -> None:
    names = {alert["alert"] for alert in ALERTS}

    assert {
        "RedriveDeadLettersGrowing",
        "RedriveOldestRetry",
        "RedriveBreakerOpen",
        "RedriveNoConsumers",
        "RedriveErrorRate",
    } <= names
    assert len(names) == len(ALERTS)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_an_alert_says_how_bad_it_is_and_speaks_of_labels_that_it_has(alert: dict[str, object]) -> None:
    labels, annotations = alert["labels"], alert["annotations"]
    assert isinstance(labels, dict)
    assert isinstance(annotations, dict)
    assert labels["severity"] in ("info", "warning", "critical")
    assert annotations.keys() == {"summary", "description"}
    [grouped, *_] = re.findall(r"by \(([^)]*)\)", str(alert["expr"]))
    spoken = set(re.findall(r"\$labels\.(\w+)", " ".join(annotations.values())))
    assert spoken <= set(grouped.split(", "))


def test_panels_have_numbers_and_places_of_their_own() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken = set[tuple[int, int]]()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_every_panel_says_what_it_shows() -> None:
    assert all(panel["title"] and panel["description"] for panel in PANELS)
    assert OTHER not in json.dumps(DASHBOARD["templating"])
