"""Write the measured figures of the README from bench/results, so that none is typed in by hand.

    python tools/readme_figures.py

A file that was not measured has no row. `tests/docs/test_figures.py` fails when the README says something else.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "bench" / "results"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->"
_CASE = "256 B"
_MOST = 4  # peers in a row
_FILES = ("foundation.json", "workers.json", "outbox.json")


def figures(results: Path = RESULTS) -> str:
    """The part of the README between its marks."""
    lines = ["| | Redrive | beside it |", "|---|---|---|"]
    for title, ours, beside in _rows(results):
        lines.append(f"| {title} | {ours} | {beside} |")
    return "\n".join([*lines, "", _where(results), ""])


def _rows(results: Path) -> Iterator[tuple[str, str, str]]:
    client = _samples(results / "foundation.json")
    for scenario, title in (
        ("publish", "publish, confirmed, one connection: messages/s"),
        ("consume", "consume, acknowledged: messages/s"),
    ):
        yield _rates(title, client, scenario)
    yield _cpu("CPU for a publish and its confirm", client, "publish")
    yield _cpu("CPU for a delivery and its ack", client, "consume")
    workers = _samples(results / "workers.json")
    if any(scenario == "handle" for scenario, _, _ in workers):
        case = next(case for scenario, case, _ in workers if scenario == "handle")
        yield _rates(f"a whole worker, {case}: messages/s", workers, "handle", case)
    outbox = _measured(results / "outbox.json")
    if outbox:
        bare = outbox["relay ÷ bare publish"]
        yield (
            "outbox relay, PostgreSQL: rows/s",
            f"{outbox['relay, rows/s']:,.0f}",
            f"{bare:.0%} of publishing without a database; row by row: {outbox['one row at a time, rows/s']:,.0f}",
        )


def _rates(
    title: str, found: dict[tuple[str, str, str], Any], scenario: str, case: str = _CASE
) -> tuple[str, str, str]:
    rates = _medians(found, scenario, case, lambda sample: sample["count"] / sample["seconds"])
    ours = _ours(rates)
    beside = ", ".join(f"{name} {rate:,.0f}" for name, rate in _peers(rates, highest=True))
    return title, f"{ours:,.0f}", beside


def _cpu(title: str, found: dict[tuple[str, str, str], Any], scenario: str) -> tuple[str, str, str]:
    costs = _medians(found, scenario, _CASE, lambda sample: sample["cpu_seconds"] / sample["count"] * 1e6)
    beside = ", ".join(f"{name} {cost:.0f} µs" for name, cost in _peers(costs, highest=False))
    return title, f"{_ours(costs):.0f} µs", beside


def _medians(found: dict[tuple[str, str, str], Any], scenario: str, case: str, of: Any) -> dict[str, float]:
    return {
        contender: statistics.median(of(sample) for sample in samples)
        for (its, its_case, contender), samples in found.items()
        if (its, its_case) == (scenario, case)
    }


def _ours(values: dict[str, float]) -> float:
    """One message at a time, as the others: `publish`, where there is a `publish_many` beside it."""
    return values["redrive" if "redrive" in values else "redrive publish"]


def _peers(values: dict[str, float], *, highest: bool) -> list[tuple[str, float]]:
    """The best of the others, with plain asyncio, as ours is; C, which stands for the broker's own speed, last."""
    plain = {name: value for name, value in values.items() if "uvloop" not in name and not name.startswith("redrive")}
    in_c = {name: value for name, value in plain.items() if name.split()[0] == "C"}
    others = sorted(plain.items() - in_c.items(), key=lambda one: one[1], reverse=highest)
    return [*others[:_MOST], *in_c.items()]


def _samples(path: Path) -> dict[tuple[str, str, str], Any]:
    found: dict[tuple[str, str, str], Any] = {}
    for sample in json.loads(path.read_text())["samples"] if path.exists() else []:
        found.setdefault((sample["scenario"], sample["case"], sample["contender"]), []).append(sample)
    return found


def _measured(path: Path) -> dict[str, float]:
    return dict(json.loads(path.read_text())["measured"]) if path.exists() else {}


def _where(results: Path) -> str:
    run = json.loads((results / "foundation.json").read_text())
    machine, versions = run["machine"], run["versions"]
    measured = [json.loads(path.read_text()) for name in _FILES if (path := results / name).exists()]
    processors = " or ".join(sorted({each["machine"]["processor"] for each in measured if "machine" in each}))
    return (
        f"Messages of {_CASE}, persistent, on RabbitMQ {versions['RabbitMQ']}; client and broker on one machine with "
        f"{machine['cores']} cores ({processors}), Python {machine['Python']}, medians of "
        f"{run['settings']['rounds']} rounds. C is rabbitmq-c, which stands for the broker's own speed."
    )


def page(text: str, said: str) -> str:
    before, found, rest = text.partition(BEGIN)
    if not found:
        raise LookupError("the README has no place for figures")
    return f"{before}{BEGIN}{said}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    README.write_text(page(README.read_text(), figures()))
