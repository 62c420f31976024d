"""The runs, as JSON lines for whoever goes on with them, and as the table of docs/reliability.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from chaos.faults import FAULTS
from chaos.scene import Outcome
from chaos.systems import SYSTEMS


class Run(msgspec.Struct, frozen=True):
    system: str
    broker: str
    fault: str
    seed: int
    messages: int  # that were confirmed
    strikes: int
    lost: int
    doubled: int
    stuck: int
    parked_wrongly: int
    beyond_limit: int
    recovery: float | None  # seconds after the worst strike; None if the run took too long and was cut off
    seconds: float
    memory: int

    @classmethod
    def of(cls, system: str, broker: str, fault: str, seed: int, outcome: Outcome) -> Run:
        account = outcome.account
        return cls(
            system=system,
            broker=broker,
            fault=fault,
            seed=seed,
            messages=account.confirmed,
            strikes=outcome.strikes,
            lost=len(account.lost),
            doubled=account.doubled,
            stuck=len(account.stuck),
            parked_wrongly=len(account.parked_wrongly),
            beyond_limit=len(account.beyond_limit),
            recovery=max(outcome.recoveries) if len(outcome.recoveries) == outcome.strikes else None,
            seconds=outcome.seconds,
            memory=outcome.memory,
        )

    def __str__(self) -> str:
        recovery = "unknown, cut off" if self.recovery is None else f"{self.recovery:.1f} s"
        wrong = f", {self.parked_wrongly} parked wrongly" if self.parked_wrongly else ""
        wrong += f", {self.beyond_limit} tried too often" if self.beyond_limit else ""
        return (
            f"{self.fault} × {self.strikes}, {self.broker}, {SYSTEMS[self.system].title}: {self.messages:,} confirmed, "
            f"{self.lost} lost, {self.doubled} doubled, {self.stuck} stuck{wrong}, recovery {recovery}, "
            f"{self.seconds:.0f} s, {self.memory / 1e6:.0f} MB"
        )


def append(path: Path, run: Run) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(run) + b"\n")


def read(path: Path) -> list[Run]:
    """The last run of each kind counts."""
    runs = [msgspec.json.decode(line, type=Run) for line in path.read_bytes().splitlines()] if path.exists() else []
    return list({(run.fault, run.broker, run.system): run for run in runs}.values())


def table(runs: Sequence[Run]) -> str:
    """Rows are faults on brokers, columns are systems; a cell: lost / doubled / stuck / recovery."""
    systems = [name for name in SYSTEMS if any(run.system == name for run in runs)]
    lines = [
        "| fault | broker | " + " | ".join(SYSTEMS[name].title for name in systems) + " |",
        "|---|---|" + "---|" * len(systems),
    ]
    for fault in FAULTS.values():
        for broker in sorted({run.broker for run in runs if run.fault == fault.name}, key=_place):
            cells = {run.system: _cell(run) for run in runs if (run.fault, run.broker) == (fault.name, broker)}
            shown = " | ".join(cells.get(name, "") for name in systems)
            lines.append(f"| {fault.title} × {fault.strikes} | {broker} | {shown} |")
    return "\n".join(lines)


def _place(broker: str) -> tuple[int, str]:
    """The embedded one, then the versions of RabbitMQ, then clusters."""
    return (broker != "embedded") + broker.startswith("cluster"), broker


def _cell(run: Run) -> str:
    lost = f"**{run.lost} lost**" if run.lost else "0"
    wrong = f" ({run.parked_wrongly} parked that could be done)" if run.parked_wrongly else ""
    if run.recovery is None:
        return f"{lost} / {run.doubled} / **{run.stuck} not done** / cut off after {run.seconds:.0f} s{wrong}"
    stuck = f"**{run.stuck} stuck**" if run.stuck else "0"
    return f"{lost} / {run.doubled} / {stuck} / {run.recovery:.1f} s{wrong}"


def write(document: Path, runs: Sequence[Run]) -> None:
    """The table, and what it sums up to."""
    between(document, "table", f"{table(runs)}\n\n{summary(runs)}.")


def between(document: Path, mark: str, text: str) -> None:
    """Put a text between the marks of the document."""
    begins, ends = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    before, rest = document.read_text().split(begins)
    after = rest.split(ends)[1]
    document.write_text(f"{before}{begins}\n{text}\n{ends}{after}")


def summary(runs: Iterable[Run]) -> str:
    runs = list(runs)
    own = [run for run in runs if run.system.startswith("redrive")]
    lost, stuck = sum(run.lost for run in own), sum(run.stuck for run in own)
    return f"{_sums(runs)}; Redrive: {_sums(own)}, {lost} lost, {stuck} stuck"


def _sums(runs: list[Run]) -> str:
    strikes, messages = sum(run.strikes for run in runs), sum(run.messages for run in runs)
    return f"{len(runs)} runs, {strikes:,} faults, {messages:,} messages"
