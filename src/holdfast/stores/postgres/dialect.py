"""How PostgreSQL writes the statements of ``stores.sql.statements``.

Changes and lookups come in numbers: a thousand runs that end, a hundred records that may be there. Statements that are
``BulkStatement`` take all of them at once, as one array for each value, so that the text never depends on the data, and
one round trip does for any number.

**Plans.** Every statement is made so that each of its steps is one descent of an index, whatever the planner believes:
it is not asked to guess how long an array is. Where rows are read, the array drives a ``LATERAL`` query that is kept
apart by ``OFFSET 0``. Rows that are to be changed are found in the same way, and then changed where they stand
(``ctid``): a join of the table itself could be turned round. ``EXISTS`` beside ``OR`` could be answered by reading all
that there is, and a single row that is not NULL cannot. ``PLANNER_SETTINGS`` rules out the rest. Plans are kept, and
one that was made while a table was empty may be a bad one when it has grown, so now and then they are made anew (see
``database``).

**Locks.** In ``READ COMMITTED`` a statement sees what was committed before it began. One that waits for a row looks at
that row again afterwards, but at nothing else. So rows are locked by statements that decide nothing, in the order of
their keys, and whatever is to be decided is read by those that follow. Whatever is changed belongs to a run that is
locked: so it stays where it stands until it is changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Self

from holdfast.stores.postgres.adapters import BytesArray, FloatArray, IntArray, TextArray
from holdfast.stores.sql.templates import Dialect, Value, replace_on_conflict

PLANNER_SETTINGS: Final[Mapping[str, str]] = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
"""Settings of every connection that keeps plans. One that plans each statement anew does as well without them."""

_COLUMN_TYPES: Final[Mapping[str, tuple[str, type[list[Any]]]]] = {
    "i": ("bigint", IntArray),
    "f": ("float8", FloatArray),
    "t": ("text", TextArray),
    "b": ("bytea", BytesArray),
}
_TABLE_PATTERN = re.compile(r"@(\w+)(?:\[\w+\])?")
_VALUE_PATTERN = re.compile(r"(?<![:\w]):([a-z_]+)\b")
_LIST_PATTERN = re.compile(r"\bIN (:[a-z_]+)\b")
_JOIN_PATTERN = re.compile(r"CROSS JOIN (@\w+)(?:\[\w+\])? (\w+) ON (\S+ = [\w.]+)")
_UTF8_PATTERN = re.compile(r"\butf8\(([^)]*)\)")
_REFERENCE_PATTERN = re.compile(r"\breference\((\w+)\)")


class BulkStatement(str):
    """A statement that takes a column for each value."""

    array_types: tuple[type[list[Any]], ...]

    def __new__(cls, text: str, array_types: tuple[type[list[Any]], ...]) -> Self:
        """Its text, and what each column is made of."""
        made = str.__new__(cls, text)
        made.array_types = array_types
        return made


class BulkWrite(BulkStatement):
    """One change for each row."""


class BulkLookup(BulkStatement):
    """One question for each row; the first column of the answers is the number of their question, from 1."""


class PostgresDialect(Dialect):
    """PostgreSQL. The tables are in one schema."""

    name = "postgres"

    def __init__(self, quoted_schema: str) -> None:
        self._schema = quoted_schema.replace("%", "%%")

    def query(self, values: tuple[Value, ...], text: str) -> str:
        """One statement for one row of values."""
        order = [value.name for value in values]
        used = [found[1] for found in _VALUE_PATTERN.finditer(text)]
        assert used == order, f"values in another order than declared, or twice: {text}"
        marks = {value.name: f"%s::{_get_sql_type(value)}" for value in values}
        return _VALUE_PATTERN.sub(lambda found: marks[found[1]], self._render(text))

    def query_by_name(self, values: tuple[Value, ...], text: str) -> str:
        """One statement with a mapping of values."""
        marks = {value.name: f"%({value.name})s::{_get_sql_type(value)}" for value in values}
        return _VALUE_PATTERN.sub(lambda found: marks[found[1]], self._render(text))

    def lookup(self, values: tuple[Value, ...], text: str, lock: str) -> str:
        """An array for each value drives the question."""
        lock = f" {lock}" if lock else ""
        asked = f"SELECT q.n, a.* FROM @rows CROSS JOIN LATERAL ({text} OFFSET 0{lock}) a"
        return BulkLookup(self._render_bulk(values, asked), _get_array_types(values))

    def write(self, values: tuple[Value, ...], text: str) -> str:
        """An array for each value."""
        return BulkWrite(self._render_bulk(values, text), _get_array_types(values))

    def update(self, values: tuple[Value, ...], assignments: str, condition: str) -> str:
        """The runs have been locked before."""
        return self.write(
            values,
            f"UPDATE @runs SET {assignments} FROM (SELECT q.*, r.ctid AS place FROM @rows CROSS JOIN LATERAL "
            f"(SELECT ctid FROM @runs WHERE key = q.key OFFSET 0) r) q WHERE runs.ctid = q.place{condition}",
        )

    def insert(self, table: str, values: tuple[Value, ...], conflict: str, order: str) -> str:
        """New rows, in order."""
        names = [value.name for value in values]
        chosen = ", ".join(f"q.{name}" for name in names)
        sorted_by = f" ORDER BY q.{order}" if order else ""
        return self.write(
            values, f"INSERT INTO @{table} ({', '.join(names)}) SELECT {chosen} FROM @rows{sorted_by}{conflict}"
        )

    def insert_selected(self, table: str, columns: str, values: tuple[Value, ...], select: str, key: str) -> str:
        """The query is asked for each row."""
        conflict = replace_on_conflict(columns.split(", "), key) if key else ""
        return self.write(
            values,
            f"INSERT INTO @{table} ({columns}) SELECT a.* FROM @rows "
            f"CROSS JOIN LATERAL ({select} OFFSET 0) a{conflict}",
        )

    def upsert(self, table: str, values: tuple[Value, ...], key: str) -> str:
        """One statement cannot change a row twice, so it is told the last one of each key."""
        names = [value.name for value in values]
        keys = ", ".join(f"q.{name}" for name in key.split(", "))
        chosen = ", ".join(f"q.{name}" for name in names)
        return self.write(
            values,
            f"INSERT INTO @{table} ({', '.join(names)}) SELECT DISTINCT ON ({keys}) {chosen} FROM @rows "
            f"ORDER BY {keys}, q.n DESC{replace_on_conflict(names, key)}",
        )

    def delete(self, table: str, values: tuple[Value, ...], condition: str) -> str:
        """Rows of runs that have been locked before."""
        return self.write(
            values,
            f"DELETE FROM @{table} WHERE ctid = ANY(ARRAY(SELECT t.ctid FROM @rows CROSS JOIN LATERAL "
            f"(SELECT ctid FROM @{table} WHERE {condition} OFFSET 0) t))",
        )

    def _render_bulk(self, values: tuple[Value, ...], text: str) -> str:
        arrays = ", ".join(f"%s::{_COLUMN_TYPES[value.kind][0]}[]" for value in values)
        rows = f"unnest({arrays}) WITH ORDINALITY AS q ({', '.join(value.name for value in values)}, n)"
        placed = self._render(text.replace("@rows", "\0"))
        return _VALUE_PATTERN.sub(r"q.\1", placed).replace("\0", rows)

    def _render(self, text: str) -> str:
        """The text with everything but its values."""
        text = text.replace("%", "%%")
        text = _JOIN_PATTERN.sub(r"CROSS JOIN LATERAL (SELECT * FROM \1 \2 WHERE \3 OFFSET 0) \2", text)
        text = _LIST_PATTERN.sub(r"= ANY(\1)", text)
        text = _UTF8_PATTERN.sub(r"convert_to(\1, 'UTF8')", text)
        text = _REFERENCE_PATTERN.sub(r"CASE WHEN octet_length(\1) = 33 AND get_byte(\1, 0) = 0 THEN \1 END", text)
        return _TABLE_PATTERN.sub(lambda found: f"{self._schema}.{found[1]}", text)


def _get_sql_type(value: Value) -> str:
    return _COLUMN_TYPES[value.kind][0] + ("[]" if value.is_list else "")


def _get_array_types(values: tuple[Value, ...]) -> tuple[type[list[Any]], ...]:
    return tuple(_COLUMN_TYPES[value.kind][1] for value in values)
