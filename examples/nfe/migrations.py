"""The tables, made by numbered scripts, each once: `python -m examples.nfe.migrations`.

`db/migration/V3__create_nfe_inbox_processed.sql` is the third; what databases write differently is in a folder for
each. Statements end with a semicolon at the end of a line. All that are missing are applied in one transaction, and of
several processes that begin at the same moment one applies them.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import click
import sqlalchemy as sa

from redrive import Database

FOLDER = Path(__file__).parent / "db" / "migration"
HISTORY = "nfe_schema_history"
_SCRIPT = re.compile(r"V(\d+)__\w+\.sql")
_END = re.compile(r";\s*$", re.MULTILINE)


def scripts(kind: str) -> dict[int, Path]:
    """By their numbers, for that kind of database."""
    found = [path for folder in (FOLDER, FOLDER / kind) for path in folder.glob("V*.sql")]
    return dict(sorted((_number(path), path) for path in found))


def migrate(database: Database) -> list[str]:
    """Apply what has not been applied, in the order of the numbers. Which scripts those were."""
    with database.exclusive_transaction(HISTORY) as connection:
        connection.exec_driver_sql(
            f"CREATE TABLE IF NOT EXISTS {HISTORY} (version INTEGER PRIMARY KEY, script VARCHAR(255) NOT NULL, "
            "applied_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT CURRENT_TIMESTAMP)"
        )
        done = set(connection.exec_driver_sql(f"SELECT version FROM {HISTORY}").scalars())
        missing = {number: path for number, path in scripts(database.kind).items() if number not in done}
        for number, path in missing.items():
            _apply(connection, number, path)
    return [path.name for path in missing.values()]


def _apply(connection: sa.Connection, number: int, path: Path) -> None:
    for statement in filter(str.strip, _END.split(path.read_text(encoding="utf-8"))):
        connection.exec_driver_sql(statement)
    note = sa.text(f"INSERT INTO {HISTORY} (version, script) VALUES (:version, :script)")
    connection.execute(note, {"version": number, "script": path.name})


def _number(path: Path) -> int:
    match = _SCRIPT.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path.name}: want V1__what_it_does.sql")
    return int(match[1])


def main() -> None:
    from examples.nfe.app import app

    asyncio.run(app.prepare())
    click.echo(f"{app.database} is up to date")


if __name__ == "__main__":
    main()
