"""The harness at work, in small: Redrive comes through, and whoever loses messages is found out."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from chaos.brokers import Broker, Embedded, Node
from chaos.faults import FAULTS
from chaos.report import Run, append, read, table, write
from chaos.scene import EFFECTS, Outcome, Scene
from chaos.systems import CARELESS, SYSTEMS, System
from chaos.work import Job

from servers import rabbitmq_root

MESSAGES, RATE = 600, 300.0


async def disturbed(system: System, broker: Broker, fault: str, folder: Path, quiet: float = 45) -> Outcome:
    scene = Scene(system, broker, FAULTS[fault], folder / "run", quiet=quiet)
    try:
        return await scene.run(messages=MESSAGES, rate=RATE, seed=1)
    finally:
        broker.close()


@pytest.mark.parametrize("fault", ["kill-worker", "cut"])
async def test_redrive_loses_nothing(fault: str, tmp_path: Path) -> None:
    outcome = await disturbed(SYSTEMS["redrive"], Embedded(tmp_path / "broker"), fault, tmp_path)

    assert outcome.account.sound, outcome
    assert (outcome.account.confirmed, outcome.account.parked) == (MESSAGES, MESSAGES // 200)
    assert len(outcome.recoveries) == FAULTS[fault].strikes


@pytest.mark.rabbitmq
async def test_redrive_loses_nothing_on_rabbitmq(tmp_path: Path) -> None:
    broker = Node(tmp_path / "broker", "3.10", rabbitmq_root())

    outcome = await disturbed(SYSTEMS["redrive"], broker, "kill-broker", tmp_path)

    assert outcome.account.sound, outcome
    assert outcome.account.confirmed == MESSAGES


async def test_a_worker_that_acknowledges_first_is_found_out(tmp_path: Path) -> None:
    """It takes all there is, acknowledged as it is sent; what a killed one had in its hands is nowhere."""
    outcome = await disturbed(CARELESS, Embedded(tmp_path / "broker"), "kill-worker", tmp_path, quiet=5)

    assert outcome.account.lost
    assert not outcome.account.sound


@pytest.mark.postgres
async def test_what_a_frozen_worker_did_is_found_however_late_it_commits(postgres_url: str, tmp_path: Path) -> None:
    scene = Scene(SYSTEMS["redrive_inbox"], Embedded(tmp_path / "broker"), FAULTS["freeze-worker"], tmp_path / "run")
    scene.job = Job("amqp://", str(tmp_path), 3001, 1.0, "classic")
    scene._engine = sa.create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    with scene._engine.begin() as connection:
        connection.exec_driver_sql(EFFECTS)
    with scene._engine.begin() as frozen:
        frozen.exec_driver_sql("INSERT INTO effects (number) VALUES (0)")
        with scene._engine.begin() as other:
            other.exec_driver_sql("INSERT INTO effects (number) SELECT generate_series(1, 3000)")
        scene._refresh()
    scene._refresh()
    assert 0 not in scene.books.done, "more rows than are looked at again have come meanwhile"

    scene._recount_rows()
    scene._refresh()

    assert scene.books.done == dict.fromkeys(range(3001), 1)
    scene._engine.dispose()


def test_runs_are_kept_and_told_in_a_table(tmp_path: Path) -> None:
    run = Run("redrive", "3.10", "cut", 1, 600, 5, 0, 2, 0, 0, 0, 0.41, 12.0, 60_000_000)
    other = Run("celery", "3.10", "cut", 1, 600, 5, 3, 0, 7, 0, 0, None, 12.0, 60_000_000)
    for each in (Run("redrive", "3.10", "cut", 0, 600, 5, 9, 9, 9, 9, 9, None, 12.0, 0), run, other):
        append(tmp_path / "results", each)

    assert read(tmp_path / "results") == [run, other]
    assert table(read(tmp_path / "results")).splitlines() == [
        "| fault | broker | Redrive | Celery, acks_late |",
        "|---|---|---|---|",
        "| network: connections reset × 5 | 3.10 | 0 / 2 / 0 / 0.4 s "
        "| **3 lost** / 0 / **7 not done** / cut off after 12 s |",
    ]


def test_the_table_is_put_between_its_marks(tmp_path: Path) -> None:
    document = tmp_path / "reliability.md"
    document.write_text("before\n<!-- table -->\nold\n<!-- /table -->\nafter\n")
    run = Run("redrive", "3.10", "cut", 1, 1600, 5, 0, 2, 0, 0, 0, 0.41, 12.0, 60_000_000)

    write(document, [run])
    write(document, [run])

    told = "1 runs, 5 faults, 1,600 messages"
    assert document.read_text() == (
        f"before\n<!-- table -->\n{table([run])}\n\n{told}; Redrive: {told}, 0 lost, 0 stuck.\n<!-- /table -->\nafter\n"
    )
