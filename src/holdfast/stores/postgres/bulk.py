"""Statements for any number of rows, each value of which is one array: see ``statements``.

What they are made of is written down once: the names of the values, each with a letter for its kind, as in
``run:i name:t``. ``{s}`` stands for the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

from holdfast.stores.postgres.adapters import Blobs, Floats, Ints, Texts

_KINDS: Final[Mapping[str, tuple[str, type[list[Any]]]]] = {
    "i": ("bigint", Ints),
    "f": ("double precision", Floats),
    "t": ("text", Texts),
    "b": ("bytea", Blobs),
}


class Bulk(str):
    """A statement that takes a column for each value."""

    columns: tuple[type[list[Any]], ...]

    def __new__(cls, text: str, columns: tuple[type[list[Any]], ...]) -> Self:
        """Its text, and what each column is made of."""
        made = str.__new__(cls, text)
        made.columns = columns
        return made


class Changes(Bulk):
    """One change for each row."""


class Questions(Bulk):
    """One question for each row; the first column of the answers is the number of their question, from 1."""


def given(values: str) -> tuple[str, tuple[type[list[Any]], ...]]:
    """Rows as a table ``q``, numbered by ``n``; ``values`` are names with a letter for their kind, as in ``run:i``."""
    names, kinds = zip(*(value.split(":") for value in values.split()), strict=True)
    arrays = ", ".join(f"%s::{_KINDS[kind][0]}[]" for kind in kinds)
    table = f"unnest({arrays}) WITH ORDINALITY AS q ({', '.join(names)}, n)"
    return table, tuple(_KINDS[kind][1] for kind in kinds)


def single(values: str) -> str:
    """One row of them, as expressions."""
    return ", ".join(f"%s::{_KINDS[value.split(':')[1]][0]}" for value in values.split())


def changes(values: str, text: str) -> Changes:
    """``text`` has ``{q}`` where the rows come from."""
    table, columns = given(values)
    return Changes(text.replace("{q}", table), columns)


def questions(values: str, text: str, lock: str = "") -> Questions:
    """``text`` answers one question ``q``."""
    table, columns = given(values)
    return Questions(f"SELECT q.n, a.* FROM {table} CROSS JOIN LATERAL ({text} OFFSET 0{lock}) a", columns)


def update(values: str, assignments: str, condition: str = "") -> Changes:
    """A change of runs, which are found by their key, and have been locked before."""
    return changes(
        values,
        f"UPDATE {{s}}.runs SET {assignments} FROM (SELECT q.*, r.ctid AS place FROM {{q}} CROSS JOIN LATERAL "
        f"(SELECT ctid FROM {{s}}.runs WHERE key = q.key OFFSET 0) r) q WHERE runs.ctid = q.place{condition}",
    )


def delete(table: str, values: str, condition: str) -> Changes:
    """Rows of runs that have been locked before."""
    return changes(
        values,
        f"DELETE FROM {{s}}.{table} WHERE ctid = ANY(ARRAY(SELECT t.ctid FROM {{q}} CROSS JOIN LATERAL "
        f"(SELECT ctid FROM {{s}}.{table} WHERE {condition} OFFSET 0) t))",
    )


def insert(table: str, values: str, conflict: str = "") -> Changes:
    """New rows, in order."""
    names = [value.split(":")[0] for value in values.split()]
    chosen = ", ".join(f"q.{name}" for name in names)
    return changes(values, f"INSERT INTO {{s}}.{table} ({', '.join(names)}) SELECT {chosen} FROM {{q}}{conflict}")


def insert_last(table: str, values: str, place: str) -> Changes:
    """Of the rows for one ``place``, the last one counts, and it takes the place of what is there."""
    names = [value.split(":")[0] for value in values.split()]
    places = place.split(", ")
    one_each = ", ".join(f"q.{name}" for name in places)
    chosen = ", ".join(f"q.{name}" for name in names)
    return changes(
        values,
        f"INSERT INTO {{s}}.{table} ({', '.join(names)}) SELECT DISTINCT ON ({one_each}) {chosen} FROM {{q}} "
        f"ORDER BY {one_each}, q.n DESC ON CONFLICT ({place}) DO UPDATE SET {_excluded(names, places)}",
    )


def _excluded(names: list[str], without: list[str]) -> str:
    return ", ".join(f"{name} = excluded.{name}" for name in names if name not in without)
