"""Facts about a SQLite file, for people who look after it. Nothing here changes the database."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
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
    """Whose database it is, and how far its schema goes."""

    application_id: int
    schema_version: int
    table_count: int
    size: int


def is_holdfast_file(facts: FileFacts) -> bool:
    """Whether Holdfast made it, or will: an empty file is free to be taken."""
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
    """Look at a database that is there, read-only; raises ``StoreError`` when it cannot be read."""
    try:
        connection = sqlite3.connect(f"file:{quote(os.fspath(path))}?mode=ro", uri=True, timeout=5)
        try:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        raise to_store_error(error, path) from error
    return FileFacts(application, version, tables, path.stat().st_size)


def read_writer_settings(path: Path) -> dict[str, str]:
    """What a writer's connection to a database of the current schema really has; raises if it cannot be written."""
    try:
        connection = open_writer(path)
        try:
            mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
            synchronous = connection.execute("PRAGMA synchronous").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        raise to_store_error(error, path) from error
    return {"journal_mode": mode, "synchronous": _SYNCHRONOUS_MODES[synchronous]}


def measure_commit_times(folder: Path) -> list[float]:
    """Seconds that each of a few small durable commits took, in a file of its own in ``folder``."""
    with tempfile.TemporaryDirectory(prefix=".holdfast-doctor-", dir=folder) as place:
        path = Path(place) / "commits.db"
        try:
            connection = sqlite3.connect(path, isolation_level=None)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("CREATE TABLE commits (payload BLOB)")
                return [_time_commit(connection) for _ in range(_COMMIT_COUNT)]
            finally:
                connection.close()
        except sqlite3.DatabaseError as error:
            raise to_store_error(error, path) from error


def _time_commit(connection: sqlite3.Connection) -> float:
    began = time.perf_counter()
    connection.execute("INSERT INTO commits VALUES (zeroblob(500))")
    return time.perf_counter() - began
