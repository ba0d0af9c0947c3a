"""How a database gets its tables, and gets from one version of them to the next.

The text of ``tables`` and ``schema_changes`` is SQL with these additions, which ``render`` translates: the types
``int``, ``small``, ``float``, ``text``, and ``bytes``; ``@runs`` for a table; ``[sqlite: …]`` and ``[postgres: …]`` for
what only one database has.

``meta`` has the lowest version that a Holdfast must know to use the tables: ``compatible_from``. PostgreSQL stores
check it when they open, at each new connection, and with each poll. SQLite stores check it when they open, and before a
write if another process has written since. A process that is too old gets ``SchemaTooNew`` from then on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from holdfast.stores.sql.schema_changes import COMPACT_RECORDS, COUNT_EARLIER_RUNS, DAILY_RUNS, TRACE_PARENTS
from holdfast.stores.sql.tables import BASELINE


class Migration(NamedTuple):
    """A step to the next version, and the lowest version that a Holdfast must know to use the result."""

    statements: str
    compatible_from: int
    indexes: str = ""
    """Indexes on tables that may be large: PostgreSQL creates them last, without blocking writers."""
    backfill: str = ""
    """A statement that reads tables that may be large, and that may be repeated: PostgreSQL executes it after the rest,
    without blocking writers."""


BASELINE_VERSION = 101
"""The version of the first release. Databases of earlier versions cannot be used."""

MIGRATIONS: Final = (
    Migration(BASELINE, BASELINE_VERSION),
    Migration(DAILY_RUNS, BASELINE_VERSION, backfill=COUNT_EARLIER_RUNS),
    Migration(COMPACT_RECORDS, BASELINE_VERSION),
    Migration(TRACE_PARENTS, BASELINE_VERSION),
)
"""Numbered from ``BASELINE_VERSION`` on; forward only, and never edited once released.

While a fleet is updated, a database is newer than some of its users. That works as long as a migration only adds:
tables, columns with a default, and indexes. A release stops using something before a later one removes it. A migration
that older versions cannot work with raises ``compatible_from``."""


def latest_version(migrations: tuple[Migration, ...] = MIGRATIONS) -> int:
    """The version of a database after these migrations."""
    return BASELINE_VERSION + len(migrations) - 1


def missing_migrations(version: int, migrations: tuple[Migration, ...] = MIGRATIONS) -> tuple[Migration, ...]:
    """The migrations that a database of this version needs; 0: an empty database."""
    return migrations[version - BASELINE_VERSION + 1 :] if version else migrations


_TYPES: Final[Mapping[str, Mapping[str, str]]] = {
    "sqlite": {"int": "INTEGER", "small": "INTEGER", "float": "REAL", "text": "TEXT", "bytes": "BLOB"},
    "postgres": {
        "int": "bigint",
        "small": "smallint",
        "float": "double precision",
        "text": 'text COLLATE "C"',
        "bytes": "bytea",
    },
}
_COLUMN = re.compile(r"^(\s+\w+\s+)(int|small|float|text|bytes)\b", re.MULTILINE)
_ONLY = re.compile(r"\[(sqlite|postgres):(?: ((?:[^\[\]]|\[[^\]]*\])*?)|((?:[^\[\]]|\[[^\]]*\])*?))\]")
_TABLE = re.compile(r"@(\w+)")
_COMMENT = re.compile(r" *--.*$", re.MULTILINE)


def render(text: str, dialect: str, qualify: Callable[[str], str]) -> str:
    """Statements in the SQL of one database; ``qualify`` makes the name of a table."""
    text = _ONLY.sub(lambda found: (found[2] or found[3] or "") if found[1] == dialect else "", text)
    text = _COMMENT.sub("", text)
    text = _COLUMN.sub(lambda found: found[1] + _TYPES[dialect][found[2]], text)
    if dialect == "sqlite":
        text = text.replace("octet_length(", "length(")
    return _TABLE.sub(lambda found: qualify(found[1]), text)
