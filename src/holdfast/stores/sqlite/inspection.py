"""Facts about a SQLite file, for operators. Nothing here changes the database."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from holdfast.stores.sql.schema import latest_version
from holdfast.stores.sqlite.connections import APPLICATION_ID, open_writer
from holdfast.stores.sqlite.errors import to_store_error

_SYNCHRONOUS_MODES = ("off", "normal", "full", "extra")
_COMMIT_COUNT = 12


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Which program's database it is, and its schema version."""

    application_id: int
    schema_version: int
    table_count: int
    size: int


def is_holdfast_file(facts: FileFacts) -> bool:
    """Whether Holdfast created it, or may use it: an empty file belongs to no program."""
    return facts.application_id == APPLICATION_ID or not (
        facts.application_id or facts.schema_version or facts.table_count
    )


def is_newer_schema(facts: FileFacts) -> bool:
    """Whether a newer Holdfast has migrated it."""
    return facts.schema_version > latest_version()


def is_older_schema(facts: FileFacts) -> bool:
    """Whether opening it would migrate it."""
    return facts.schema_version < latest_version()


def read_facts(path: Path) -> FileFacts:
    """Read an existing database; raises ``StoreError`` if that fails."""
    try:
        with closing(sqlite3.connect(f"file:{quote(os.fspath(path))}?mode=ro", uri=True, timeout=5)) as connection:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise to_store_error(error, path) from error
    return FileFacts(application, version, tables, path.stat().st_size)


def read_writer_settings(path: Path) -> dict[str, str]:
    """The settings that a connection for writing really has; raises ``StoreError`` if the file cannot be written."""
    try:
        with closing(open_writer(path)) as connection:
            mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
            synchronous = connection.execute("PRAGMA synchronous").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise to_store_error(error, path) from error
    return {"journal_mode": mode, "synchronous": _SYNCHRONOUS_MODES[synchronous]}


def measure_commit_times(folder: Path) -> list[float]:
    """Seconds that each of a few small durable commits took, in a temporary file in ``folder``."""
    with tempfile.TemporaryDirectory(prefix=".holdfast-doctor-", dir=folder) as temporary_folder:
        path = Path(temporary_folder) / "commits.db"
        try:
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("CREATE TABLE commits (payload BLOB)")
                return [_time_commit(connection) for _ in range(_COMMIT_COUNT)]
        except sqlite3.DatabaseError as error:
            raise to_store_error(error, path) from error


def _time_commit(connection: sqlite3.Connection) -> float:
    began = time.perf_counter()
    connection.execute("INSERT INTO commits VALUES (zeroblob(500))")
    return time.perf_counter() - began
