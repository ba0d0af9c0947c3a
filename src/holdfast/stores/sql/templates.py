"""SQL statements that are written once, for every database.

A statement is a template. ``Statements`` has all of them as attributes, and on an instance of it they are texts, as the
``Dialect`` of its database renders them. In a template:

- ``:name`` is a value that goes in. The values are declared beside the text, in the order in which they are bound, each
  with a letter for its type: ``"run:i name:t at:f data:b"``. ``ids:t[]`` is a list; ``id IN :ids`` is true of its
  members.
- ``@runs`` is a table, and ``@runs[runs_due]`` a table with the index by which SQLite must read it. PostgreSQL's
  planner is guided by other means: see ``postgres.dialect``.
- ``CROSS JOIN @runs r ON r.key = l.child`` looks up rows by an index for each row to its left, in this order.
- ``least``, ``greatest`` and ``octet_length`` mean what they do in PostgreSQL. ``utf8(text)`` are its bytes, and
  ``reference(column)`` is a payload's reference to a large value (see ``blobs``), or NULL if it is not one.
- ``lock`` is what a database in which others write at the same time adds, to keep rows as they are until the commit.

Where the databases have really different texts, both are given: ``sqlite=`` and ``postgres=``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, NamedTuple, Self, TypeVar, overload

T = TypeVar("T")


class Value(NamedTuple):
    """A value that goes into a statement."""

    name: str
    kind: str
    """``i``: a whole number, ``f``: a number, ``t``: text, ``b``: bytes."""
    is_list: bool


def parse_values(declared: str) -> tuple[Value, ...]:
    """The values that a statement declares."""
    values: list[Value] = []
    for one in declared.split():
        name, _, kind = one.partition(":")
        assert re.fullmatch(r"[iftb](\[\])?", kind), f"{one!r}: a name and a letter for its type"
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
        """A change that is made for each of many rows; ``@rows`` are those rows where the text names them."""

    @abstractmethod
    def update(self, values: tuple[Value, ...], assignments: str, condition: str) -> str:
        """A change of the run with the key ``:key``, made for each of many rows."""

    @abstractmethod
    def insert(self, table: str, values: tuple[Value, ...], conflict: str, order: str) -> str:
        """New rows. ``order`` is the column by which they are sorted where others might insert the same ones."""

    @abstractmethod
    def insert_selected(self, table: str, columns: str, values: tuple[Value, ...], select: str, key: str) -> str:
        """New rows that a query finds, for each of many rows of values; in place of what has the same key, if any."""

    @abstractmethod
    def upsert(self, table: str, values: tuple[Value, ...], key: str) -> str:
        """New rows, each in place of the one that has the same key. Of several with one key, the last one counts."""

    @abstractmethod
    def delete(self, table: str, values: tuple[Value, ...], condition: str) -> str:
        """The deletion of what matches, for each of many rows."""


class Rendered(ABC, Generic[T]):
    """Something that has a form of its own for each database: an instance of a ``Catalog`` has that as its attribute.

    It is rendered when it is first used, so that a process pays only for the statements that it sends.
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
        """Its form for one database."""


class Template(Rendered[str]):
    """A statement."""

    def __format__(self, format_spec: str) -> str:
        raise TypeError("a statement has a text only for one database, and is no part of another")


class _Text:
    """One text for all databases, or one for each."""

    def __init__(self, text: str, sqlite: str, postgres: str) -> None:
        assert bool(text) != bool(sqlite and postgres), "one text for all databases, or one for each"
        self._texts = {"sqlite": sqlite or text, "postgres": postgres or text}

    def choose(self, dialect: Dialect) -> str:
        return self._texts[dialect.name]


class Query(Template):
    """A query, or a change whose effect is needed."""

    def __init__(self, values: str, text: str = "", *, sqlite: str = "", postgres: str = "", lock: str = "") -> None:
        self._values = parse_values(values)
        self._text = _Text(text, sqlite, postgres)
        self._lock = lock

    def render(self, dialect: Dialect) -> str:
        lock = f" {self._lock}" if self._lock and dialect.name != "sqlite" else ""
        return dialect.query(self._values, self._text.choose(dialect) + lock)


class NamedQuery(Query):
    """A query whose values are a mapping."""

    def render(self, dialect: Dialect) -> str:
        return dialect.query_by_name(self._values, self._text.choose(dialect))


class Lookup(Query):
    """A query that a transaction makes many times, and that may be prefetched."""

    def render(self, dialect: Dialect) -> str:
        return dialect.lookup(self._values, self._text.choose(dialect), self._lock)


class Write(Query):
    """A change that is made for each of many rows."""

    def render(self, dialect: Dialect) -> str:
        return dialect.write(self._values, self._text.choose(dialect))


class Update(Template):
    """A change of a run, found by its key."""

    def __init__(self, values: str, assignments: str, condition: str = "") -> None:
        self._values = parse_values(values)
        self._assignments = assignments
        self._condition = condition

    def render(self, dialect: Dialect) -> str:
        return dialect.update(self._values, self._assignments, self._condition)


class Insert(Template):
    """New rows of a table."""

    def __init__(self, table: str, values: str, conflict: str = "", *, order: str = "", postgres: str = "") -> None:
        self._table = table
        self._values = parse_values(values)
        self._conflict = conflict
        self._postgres = postgres or conflict
        """What PostgreSQL does about a conflict, if that is something else."""
        self._order = order

    def render(self, dialect: Dialect) -> str:
        conflict = self._conflict if dialect.name == "sqlite" else self._postgres
        return dialect.insert(self._table, self._values, conflict, self._order)


class InsertSelected(Template):
    """New rows of a table that a query finds."""

    def __init__(self, table: str, columns: str, values: str, select: str, *, key: str = "") -> None:
        self._table = table
        self._columns = columns
        self._values = parse_values(values)
        self._select = select
        self._key = key
        """What is there under the same key is replaced."""

    def render(self, dialect: Dialect) -> str:
        return dialect.insert_selected(self._table, self._columns, self._values, self._select, self._key)


class Upsert(Template):
    """New rows of a table, each in place of the one with the same key."""

    def __init__(self, table: str, values: str, key: str) -> None:
        self._table = table
        self._values = parse_values(values)
        self._key = key

    def render(self, dialect: Dialect) -> str:
        return dialect.upsert(self._table, self._values, self._key)


class Delete(Template):
    """The deletion of rows; of those whose columns have the given values, if there is no other condition."""

    def __init__(self, table: str, values: str, condition: str = "") -> None:
        self._table = table
        self._values = parse_values(values)
        self._condition = condition or " AND ".join(f"{value.name} = :{value.name}" for value in self._values)

    def render(self, dialect: Dialect) -> str:
        return dialect.delete(self._table, self._values, self._condition)


class Group(Rendered[Mapping[str, str]]):
    """Statements, or parts of them, by name."""

    def __init__(self, templates: Mapping[str, Template]) -> None:
        self._templates = templates

    def render(self, dialect: Dialect) -> Mapping[str, str]:
        return {name: template.render(dialect) for name, template in self._templates.items()}


class Catalog:
    """Statements as attributes: templates of the class, and texts of an instance, which belongs to one database."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect


def flag(condition: str) -> str:
    """1 or 0 for a condition: what SQLite makes of it by itself, and PostgreSQL does not."""
    return f"CASE WHEN {condition} THEN 1 ELSE 0 END"


def replace_on_conflict(columns: list[str], key: str) -> str:
    """What makes an insertion replace the row with the same key."""
    changed = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key.split(", "))
    return f" ON CONFLICT ({key}) DO UPDATE SET {changed}"
