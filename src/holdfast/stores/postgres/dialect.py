"""How PostgreSQL writes the statements of ``stores.sql.statements``.

Changes and lookups come in bulk: a thousand runs that end, a hundred records to look up. A ``BulkStatement`` takes all
of them at once, as one array for each value. So its text never depends on the data, and one round trip is enough for
any number.

**Plans.** Each step of every statement is one descent of an index, whatever the planner believes: it does not have to
guess the length of an array. For reads, the array drives a ``LATERAL`` query that ``OFFSET 0`` keeps separate. Rows to
change are found in the same way, and then changed by their physical address (``ctid``): the planner could reverse a
join with the table itself. It could answer ``EXISTS`` next to ``OR`` by reading the whole table, but not a subquery for
a single row that ``IS NOT NULL``. ``PLANNER_SETTINGS`` rules out the rest. The server keeps plans, and a plan made
while a table was empty may be bad once it has grown, so they are discarded now and then (see ``database``).

**Locks.** In ``READ COMMITTED`` a statement sees what was committed before it began. A statement that waits for a row
reads that row again afterwards, but nothing else. So rows are locked by statements that decide nothing, in the order of
their keys, and later statements read what the decisions need. Every changed row belongs to a locked run, so its
``ctid`` stays valid until the change.
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
"""Settings of every connection that keeps plans. A connection that plans each statement anew does not need them."""

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
    """A statement that takes an array for each value."""

    array_types: tuple[type[list[Any]], ...]

    def __new__(cls, text: str, array_types: tuple[type[list[Any]], ...]) -> Self:
        """``array_types``: the type of each array."""
        statement = str.__new__(cls, text)
        statement.array_types = array_types
        return statement


class BulkLookup(BulkStatement):
    """One lookup for each row of values. The first column of a result is the number of its lookup, from 1."""


class PostgresDialect(Dialect):
    """PostgreSQL, with all tables in one schema."""

    name = "postgres"

    def __init__(self, quoted_schema: str) -> None:
        self._schema = quoted_schema.replace("%", "%%")

    def query(self, values: tuple[Value, ...], text: str) -> str:
        declared = [value.name for value in values]
        used = [found[1] for found in _VALUE_PATTERN.finditer(text)]
        assert used == declared, f"values in another order than declared, or twice: {text}"
        marks = {value.name: f"%s::{_get_sql_type(value)}" for value in values}
        return _VALUE_PATTERN.sub(lambda found: marks[found[1]], self._render(text))

    def query_by_name(self, values: tuple[Value, ...], text: str) -> str:
        marks = {value.name: f"%({value.name})s::{_get_sql_type(value)}" for value in values}
        return _VALUE_PATTERN.sub(lambda found: marks[found[1]], self._render(text))

    def lookup(self, values: tuple[Value, ...], text: str, lock: str) -> str:
        lock = f" {lock}" if lock else ""
        query = f"SELECT q.n, a.* FROM @rows CROSS JOIN LATERAL ({text} OFFSET 0{lock}) a"
        return BulkLookup(self._render_bulk(values, query), _get_array_types(values))

    def write(self, values: tuple[Value, ...], text: str) -> str:
        return BulkStatement(self._render_bulk(values, text), _get_array_types(values))

    def update(self, values: tuple[Value, ...], assignments: str, condition: str) -> str:
        return self.write(
            values,
            f"UPDATE @runs SET {assignments} FROM (SELECT q.*, r.ctid AS place FROM @rows CROSS JOIN LATERAL "
            f"(SELECT ctid FROM @runs WHERE key = q.key OFFSET 0) r) q WHERE runs.ctid = q.place{condition}",
        )

    def insert(self, table: str, values: tuple[Value, ...], conflict: str, order: str) -> str:
        names = [value.name for value in values]
        chosen = ", ".join(f"q.{name}" for name in names)
        sorted_by = f" ORDER BY q.{order}" if order else ""
        return self.write(
            values, f"INSERT INTO @{table} ({', '.join(names)}) SELECT {chosen} FROM @rows{sorted_by}{conflict}"
        )

    def insert_selected(self, table: str, columns: str, values: tuple[Value, ...], select: str, key: str) -> str:
        conflict = replace_on_conflict(columns.split(", "), key) if key else ""
        return self.write(
            values,
            f"INSERT INTO @{table} ({columns}) SELECT a.* FROM @rows "
            f"CROSS JOIN LATERAL ({select} OFFSET 0) a{conflict}",
        )

    def upsert(self, table: str, values: tuple[Value, ...], key: str) -> str:
        # One statement cannot change a row twice, so only the last row of each key remains.
        names = [value.name for value in values]
        keys = ", ".join(f"q.{name}" for name in key.split(", "))
        chosen = ", ".join(f"q.{name}" for name in names)
        return self.write(
            values,
            f"INSERT INTO @{table} ({', '.join(names)}) SELECT DISTINCT ON ({keys}) {chosen} FROM @rows "
            f"ORDER BY {keys}, q.n DESC{replace_on_conflict(names, key)}",
        )

    def delete(self, table: str, values: tuple[Value, ...], condition: str) -> str:
        return self.write(
            values,
            f"DELETE FROM @{table} WHERE ctid = ANY(ARRAY(SELECT t.ctid FROM @rows CROSS JOIN LATERAL "
            f"(SELECT ctid FROM @{table} WHERE {condition} OFFSET 0) t))",
        )

    def _render_bulk(self, values: tuple[Value, ...], text: str) -> str:
        arrays = ", ".join(f"%s::{_COLUMN_TYPES[value.kind][0]}[]" for value in values)
        rows = f"unnest({arrays}) WITH ORDINALITY AS q ({', '.join(value.name for value in values)}, n)"
        rendered = self._render(text.replace("@rows", "\0"))
        return _VALUE_PATTERN.sub(r"q.\1", rendered).replace("\0", rows)

    def _render(self, text: str) -> str:
        """Everything but the values, rendered."""
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
