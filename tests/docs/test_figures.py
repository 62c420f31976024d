"""The figures of the README are those that were measured."""

import json
from pathlib import Path

import pytest

import readme_figures


def test_the_readme_says_what_was_measured() -> None:
    text = readme_figures.README.read_text()
    assert text == readme_figures.page(text, readme_figures.figures()), "run tools/readme_figures.py"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two rounds in which we took 2 s and the others 4, for a thousand messages."""
    contenders = {"redrive publish": 2, "aio-pika": 4, "aio-pika uvloop": 1, "Celery solo": 8, "C": 1}
    samples = [
        {"scenario": scenario, "case": "256 B", "contender": name, "count": 1000, "seconds": s, "cpu_seconds": s / 100}
        for scenario in ("publish", "consume")
        for name, s in contenders.items()
        for _ in range(2)
    ]
    machine = {"cores": "2", "processor": "P", "Python": "3.11"}
    run = {"machine": machine, "versions": {"RabbitMQ": "3.10"}, "settings": {"rounds": 2}, "samples": samples}
    (tmp_path / "foundation.json").write_text(json.dumps(run))
    return tmp_path


def test_figures_are_medians_beside_the_others_without_uvloop(results: Path) -> None:
    said = readme_figures.figures(results)
    assert "| publish, confirmed, one connection: messages/s | 500 | aio-pika 250, Celery solo 125, C 1,000 |" in said
    assert "| CPU for a publish and its confirm | 20 µs | aio-pika 40 µs, Celery solo 80 µs, C 10 µs |" in said


def test_what_was_not_measured_has_no_row(results: Path) -> None:
    assert "outbox" not in readme_figures.figures(results)


def test_every_machine_is_told_on_which_something_was_measured(results: Path) -> None:
    assert "with 2 cores (P), Python" in readme_figures.figures(results)
    (results / "outbox.json").write_text(json.dumps({"machine": {"processor": "Q"}, "measured": {}}))
    assert "with 2 cores (P or Q), Python" in readme_figures.figures(results)
