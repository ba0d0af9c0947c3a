"""How SQLite writes the statements of ``stores.sql.statements``.

A list is bound as one JSON text and read by ``json_each``, so the text of a statement never depends on its data and
stays in the statement cache.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.stores.sql.templates import Dialect, Value, replace_on_conflict

_NOT_A_KEYWORD = r"(?!WHERE\b|ON\b|ORDER\b|CROSS\b|GROUP\b|LIMIT\b|AND\b)"
_TABLE_PATTERN = re.compile(rf"@(\w+)(?:\[(\w+)\](?: {_NOT_A_KEYWORD}(\w+))?)?")
_VALUE_PATTERN = re.compile(r"(?<![:\w]):([a-z_]+)\b")
_LIST_PATTERN = re.compile(r"\bIN (:[a-z_]+)\b")
_FUNCTION_REPLACEMENTS: Final = (
    (re.compile(r"\bleast\("), "min("),
    (re.compile(r"\bgreatest\("), "max("),
    (re.compile(r"\boctet_length\("), "length("),
    (re.compile(r"\butf8\(([^)]*)\)"), r"CAST(\1 AS BLOB)"),
    (re.compile(r"\breference\((\w+)\)"), r"CASE WHEN length(\1) = 33 AND substr(\1, 1, 1) = x'00' THEN \1 END"),
)


class SqliteDialect(Dialect):
    """The SQL of SQLite."""

    name = "sqlite"

    def query(self, values: tuple[Value, ...], text: str) -> str:
        """Values that are used once and in order are not numbered, so other conditions can be inserted between them."""
        order = [value.name for value in values]
        text = self.query_by_name(values, text)
        if [found[1] for found in _VALUE_PATTERN.finditer(text)] == order:
            return _VALUE_PATTERN.sub("?", text)
        return _VALUE_PATTERN.sub(lambda found: f"?{order.index(found[1]) + 1}", text)

    def query_by_name(self, values: tuple[Value, ...], text: str) -> str:
        text = _LIST_PATTERN.sub(r"IN (SELECT value FROM json_each(\1))", text)
        for function, replacement in _FUNCTION_REPLACEMENTS:
            text = function.sub(replacement, text)
        return _TABLE_PATTERN.sub(_render_table, text)

    def lookup(self, values: tuple[Value, ...], text: str, lock: str) -> str:
        return self.query(values, text)

    def write(self, values: tuple[Value, ...], text: str) -> str:
        return self.query(values, text)

    def update(self, values: tuple[Value, ...], assignments: str, condition: str) -> str:
        return self.query(values, f"UPDATE @runs SET {assignments} WHERE key = :key{condition}")

    def insert(self, table: str, values: tuple[Value, ...], conflict: str, order: str) -> str:
        names = ", ".join(value.name for value in values)
        marks = ", ".join(f":{value.name}" for value in values)
        return self.query(values, f"INSERT INTO @{table} ({names}) VALUES ({marks}){conflict}")

    def insert_selected(self, table: str, columns: str, values: tuple[Value, ...], select: str, key: str) -> str:
        if key:  # ``WHERE true`` keeps the parser from reading ``ON CONFLICT`` as part of a join
            select = f"SELECT * FROM ({select}) WHERE true{replace_on_conflict(columns.split(', '), key)}"
        return self.query(values, f"INSERT INTO @{table} ({columns}) {select}")

    def upsert(self, table: str, values: tuple[Value, ...], key: str) -> str:
        return self.insert(table, values, replace_on_conflict([value.name for value in values], key), "")

    def delete(self, table: str, values: tuple[Value, ...], condition: str) -> str:
        return self.query(values, f"DELETE FROM @{table} WHERE {condition}")


def _render_table(found: re.Match[str]) -> str:
    alias = f" {found[3]}" if found[3] else ""
    return f"{found[1]}{alias} INDEXED BY {found[2]}" if found[2] else found[1]
