"""The picture of a run: messages per second as bars, CPU per message written beside them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.contract import Scenario
from bench.report import OURS
from bench.results import Results

_OURS, _LIMIT, _OTHERS = "#1b7f5c", "#3b3b3b", "#9fb3c8"


def draw(results: Results, scenarios: Iterable[Scenario[Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [(scenario, case) for scenario in scenarios for case in results.cases(scenario.name)]
    if not panels:
        return
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    height = 0.34 * max(len(results.rows(scenario.name, case)) for scenario, case in panels) + 1.1
    figure, axes = pyplot.subplots(lines, columns, figsize=(6.8 * columns, height * lines), squeeze=False)
    for place, (scenario, case) in zip(axes.flat, panels, strict=False):
        _panel(place, results, scenario, case)
    for unused in axes.flat[len(panels) :]:
        unused.set_axis_off()
    figure.text(0.995, 0.004, _caption(results), ha="right", fontsize=7, color="#666666")
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _panel(place: Any, results: Results, scenario: Scenario[Any], case: str) -> None:
    rows = results.rows(scenario.name, case)[::-1]
    rates = [row.rate for row in rows]
    around = [[row.rate - row.slowest for row in rows], [row.fastest - row.rate for row in rows]]
    names = [row.contender for row in rows]
    place.barh(names, rates, color=[_colour(name) for name in names], xerr=around, ecolor="#555555", capsize=2)
    for height, row in enumerate(rows):
        text = f"  {row.rate:,.0f}/s · {row.cpu_per_message:.0f} µs CPU"
        place.text(row.fastest, height, text, va="center", fontsize=8)
    place.set_xlim(0, max(row.fastest for row in rows) * 1.42)
    place.set_title(f"{scenario.title}: {case}", loc="left", fontsize=10, fontweight="bold")
    place.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    place.tick_params(labelsize=8)
    place.spines[["top", "right"]].set_visible(False)


def _colour(contender: str) -> str:
    if contender.startswith(OURS):
        return _OURS
    return _LIMIT if contender == "C" else _OTHERS


def _caption(results: Results) -> str:
    broker = results.versions.get("RabbitMQ", "")
    rounds = results.settings.get("rounds", 1)
    return (
        f"RabbitMQ {broker}, Python {results.machine['Python']}, {results.machine['cores']} cores for client and "
        f"broker; median of {rounds}, whiskers slowest and fastest; {results.began[:10]}"
    )
