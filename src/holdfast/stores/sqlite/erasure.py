"""Removing what was erased from a SQLite file and its write-ahead log.

A change leaves the old content in free pages, in free parts of pages, and in the log, until it is overwritten.
``VACUUM`` writes the whole database anew, without them, and a checkpoint that truncates the log leaves nothing in it.
The words of deleted memories stay in their index until its parts are merged, so that comes first.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from holdfast.errors import StoreUnavailable
from holdfast.stores.sql.database_access import DatabaseAccess
from holdfast.stores.sql.erasure import SqlErasure
from holdfast.stores.sqlite.connections import open_step_connection, retry_while_busy
from holdfast.stores.sqlite.errors import to_store_error

MERGE_WORDS = "INSERT INTO memory_words (memory_words) VALUES ('optimize')"
CHECKPOINT_TIMEOUT_S = 20.0
"""How long to wait for readers of old content, which keep the log from being truncated."""
_RETRY_DELAY_S = 0.02


class SqliteErasure(SqlErasure):
    """Erasing runs of a SQLite file."""

    def __init__(self, database: DatabaseAccess, path: Path) -> None:
        super().__init__(database)
        self._path = path

    async def scrub(self) -> None:
        await asyncio.to_thread(_scrub, self._path)


def _scrub(path: Path) -> None:
    try:
        with closing(open_step_connection(path, sqlite3.Connection)) as connection:
            for statement in (MERGE_WORDS, "VACUUM"):
                retry_while_busy(lambda statement=statement: connection.execute(statement))
            deadline = time.monotonic() + CHECKPOINT_TIMEOUT_S
            while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                if time.monotonic() > deadline:
                    raise StoreUnavailable(
                        f"the write-ahead log of {path} may still contain what was erased: a program has been reading "
                        f"from the database all the time. Close it, and repeat this."
                    )
                time.sleep(_RETRY_DELAY_S)
    except sqlite3.DatabaseError as error:
        raise to_store_error(error, path) from error
