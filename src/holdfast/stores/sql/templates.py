"""SQL statements that are written once, for every database.

A statement is a template. ``Statements`` has all of them as attributes. On an instance of it they are texts, as the
``Dialect`` of its database renders them. In a template:

- ``:name`` is a bound value. Values are declared next to the text, in the order in which they are bound, each with a
  letter for its type: ``"run:i name:t at:f data:b"``. ``ids:t[]`` is a list; ``id IN :ids`` is true of its members.
- ``@runs`` is a table, and ``@runs[runs_due]`` a table with the index by which SQLite must read it. PostgreSQL's
  planner is guided by other means: see ``postgres.dialect``.
- ``CROSS JOIN @runs r ON r.key = l.child`` looks up rows by an index for each row to its left, in this order.
- ``least``, ``greatest``, and ``octet_length`` mean the same as in PostgreSQL. ``utf8(text)`` is the text's bytes, and
  ``reference(column)`` is the column if it is a reference to a large value (see ``blobs``), else NULL.
- ``lock`` is added by a database with concurrent writers, so that no other transaction changes the rows before the
  commit.

Where the databases need really different texts, both are given: ``sqlite=`` and ``postgres=``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Generic, NamedTuple, Self, TypeVar, overload

T = TypeVar("T")


class Value(NamedTuple):
    """A bound value of a statement."""

    name: str
    kind: str
    """``i``: an integer, ``f``: a float, ``t``: text, ``b``: bytes."""
    is_list: bool


def parse_values(declared: str) -> tuple[Value, ...]:
    """The values of a declaration such as ``run:i name:t``."""
    values: list[Value] = []
    for declaration in declared.split():
        name, _, kind = declaration.partition(":")
        assert re.fullmatch(r"[iftb](\[\])?", kind), f"{declaration!r} is not a name and a letter for its type"
        values.append(Value(name, kind[0], kind.endswith("[]")))
    return tuple(values)


class Dialect(ABC):
    """How one kind of database writes statements."""

    name: str

    @abstractmethod
    def query(self, values: tuple[Value, ...], text: str) -> str:
        """A statement whose values are bound in order."""

    @abstractmethod
    def query_by_name(self, values: tuple[Value, ...], text: str) -> str:
        """A statement whose values are bound by their names."""

    @abstractmethod
    def lookup(self, values: tuple[Value, ...], text: str, lock: str) -> str:
        """A query that is made many times in a transaction."""

    @abstractmethod
    def write(self, values: tuple[Value, ...], text: str) -> str:
        """A change that is made for each of many rows; ``@rows`` in the text stands for these rows."""

    @abstractmethod
    def update(self, values: tuple[Value, ...], assignments: str, condition: str) -> str:
        """A change of the run with the key ``:key``, made for each of many rows."""

    @abstractmethod
    def insert(self, table: str, values: tuple[Value, ...], conflict: str, order: str) -> str:
        """New rows, sorted by ``order`` where another transaction might insert the same ones."""

    @abstractmethod
    def insert_selected(self, table: str, columns: str, values: tuple[Value, ...], select: str, key: str) -> str:
        """New rows that a query selects for each of many rows of values; they replace rows with the same ``key``."""

    @abstractmethod
    def upsert(self, table: str, values: tuple[Value, ...], key: str) -> str:
        """New rows, each in place of the one with the same key. Of several with one key, the last one counts."""

    @abstractmethod
    def delete(self, table: str, values: tuple[Value, ...], condition: str) -> str:
        """The deletion of the rows that match, for each of many rows of values."""


class Rendered(ABC, Generic[T]):
    """Something with its own form for each database, which is an attribute of a ``Catalog`` instance.

    It is rendered at its first use, so a process pays only for the statements that it sends.
    """

    _name: str

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Catalog, owner: type) -> T: ...
    def __get__(self, instance: Catalog | None, owner: type) -> Self | T:
        if instance is None:
            return self
        rendered = vars(instance)[self._name] = self.render(instance.dialect)
        return rendered

    @abstractmethod
    def render(self, dialect: Dialect) -> T:
        """The form for one database."""


class Template(Rendered[str]):
    """A statement."""

    def __format__(self, format_spec: str) -> str:
        raise TypeError("a statement has a text only for one database, and is no part of another")


@dataclass(eq=False)
class Query(Template):
    """A query, or a change whose effect the caller needs: one text for all databases, or one for each."""

    values: str
    text: str = ""
    _: KW_ONLY
    sqlite: str = ""
    postgres: str = ""
    lock: str = ""

    def __post_init__(self) -> None:
        assert bool(self.text) != bool(self.sqlite and self.postgres), "one text for all databases, or one for each"

    def get_text(self, dialect: Dialect) -> str:
        return self.text or (self.sqlite if dialect.name == "sqlite" else self.postgres)

    def render(self, dialect: Dialect) -> str:
        lock = f" {self.lock}" if self.lock and dialect.name != "sqlite" else ""
        return dialect.query(parse_values(self.values), self.get_text(dialect) + lock)


class NamedQuery(Query):
    """A query with a mapping of values."""

    def render(self, dialect: Dialect) -> str:
        return dialect.query_by_name(parse_values(self.values), self.get_text(dialect))


class Lookup(Query):
    """A query that a transaction makes many times, and that may be prefetched."""

    def render(self, dialect: Dialect) -> str:
        return dialect.lookup(parse_values(self.values), self.get_text(dialect), self.lock)


class Write(Query):
    """A change that is made for each of many rows."""

    def render(self, dialect: Dialect) -> str:
        return dialect.write(parse_values(self.values), self.get_text(dialect))


@dataclass(eq=False)
class Update(Template):
    """A change of a run, found by its key."""

    values: str
    assignments: str
    condition: str = ""

    def render(self, dialect: Dialect) -> str:
        return dialect.update(parse_values(self.values), self.assignments, self.condition)


@dataclass(eq=False)
class Insert(Template):
    """New rows of a table."""

    table: str
    values: str
    conflict: str = ""
    _: KW_ONLY
    order: str = ""
    postgres: str = ""
    """What PostgreSQL does about a conflict, if that differs."""

    def render(self, dialect: Dialect) -> str:
        conflict = self.conflict if dialect.name == "sqlite" else self.postgres or self.conflict
        return dialect.insert(self.table, parse_values(self.values), conflict, self.order)


@dataclass(eq=False)
class InsertSelected(Template):
    """New rows of a table that a query selects."""

    table: str
    columns: str
    values: str
    select: str
    key: str = ""
    """The columns of a key, if new rows replace the rows with the same key."""

    def render(self, dialect: Dialect) -> str:
        return dialect.insert_selected(self.table, self.columns, parse_values(self.values), self.select, self.key)


@dataclass(eq=False)
class Upsert(Template):
    """New rows of a table, each in place of the one with the same key."""

    table: str
    values: str
    key: str

    def render(self, dialect: Dialect) -> str:
        return dialect.upsert(self.table, parse_values(self.values), self.key)


@dataclass(eq=False)
class Delete(Template):
    """The deletion of rows. Without a condition, the columns must equal the values of the same names."""

    table: str
    values: str
    condition: str = ""

    def render(self, dialect: Dialect) -> str:
        values = parse_values(self.values)
        condition = self.condition or " AND ".join(f"{value.name} = :{value.name}" for value in values)
        return dialect.delete(self.table, values, condition)


@dataclass(eq=False)
class Group(Rendered[Mapping[str, str]]):
    """Statements, or parts of them, by name."""

    templates: Mapping[str, Template]

    def render(self, dialect: Dialect) -> Mapping[str, str]:
        return {name: template.render(dialect) for name, template in self.templates.items()}


class Catalog:
    """Statements as attributes: templates on the class, and texts on an instance, which belongs to one database."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect


def flag(condition: str) -> str:
    """1 or 0 for a condition. (A condition is already that in SQLite, and a boolean in PostgreSQL.)"""
    return f"CASE WHEN {condition} THEN 1 ELSE 0 END"


def get_names(values: str) -> str:
    """The names in a declaration of values, as a list of columns."""
    return ", ".join(value.name for value in parse_values(values))


def get_placeholders(values: str) -> str:
    """The placeholders of declared values, as a list."""
    return ", ".join(f":{value.name}" for value in parse_values(values))


def assign(values: str) -> str:
    """Assignments of declared values to the columns of the same names."""
    return ", ".join(f"{value.name} = :{value.name}" for value in parse_values(values))


def replace_on_conflict(columns: list[str], key: str) -> str:
    """The clause that makes an insertion replace the row with the same key."""
    changed = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key.split(", "))
    return f" ON CONFLICT ({key}) DO UPDATE SET {changed}"
