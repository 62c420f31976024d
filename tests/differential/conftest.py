"""Adds up what the batches of the differential test compared, and says so in the summary of the run."""

import pytest

from differential.play import Tally


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tallies: dict[str, Tally] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "differential" and report.when == "teardown":
                    version, *counts = value
                    tallies.setdefault(".".join(map(str, version)), Tally()).add(counts)
    for version, tally in tallies.items():
        terminalreporter.write_line(f"differential test beside RabbitMQ {version}: {tally}")
