"""Many rows by one statement: `INSERT INTO … VALUES (…), (…), …`.

An insert of many rows is otherwise as many statements, each bound and stepped by itself; and at each of them SQLite's
driver lets other threads have the interpreter, and waits for its turn again. Values are prepared column by column,
each distinct one once: in most columns they are all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import sqlalchemy as sa

_AT_ONCE = 500  # rows; SQLite takes 32,766 values in a statement
_MARKS = {"qmark": "?", "pyformat": "%s", "format": "%s"}


def insert_rows(
    connection: sa.Connection, table: sa.Table, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> None:
    """`rows` hold the values of `columns`, in their order."""
    dialect = connection.dialect
    quote = dialect.identifier_preparer.quote
    into = f"INSERT INTO {quote(table.name)} ({', '.join(map(quote, columns))}) VALUES "
    row = f"({', '.join([_MARKS[dialect.paramstyle]] * len(columns))})"
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        by_column = zip(columns, zip(*some, strict=True), strict=True)
        prepared = (_driver_values(table.c[name].type, dialect, values) for name, values in by_column)
        values = tuple(chain.from_iterable(zip(*prepared, strict=True)))
        connection.exec_driver_sql(into + ", ".join([row] * len(some)), values)


def _driver_values(kind: sa.types.TypeEngine[Any], dialect: sa.Dialect, values: tuple[Any, ...]) -> Iterable[Any]:
    """As the driver takes them."""
    prepare = kind.dialect_impl(dialect).bind_processor(dialect)
    if prepare is None:
        return values
    known = {value: prepare(value) for value in set(values)}
    return map(known.__getitem__, values)
