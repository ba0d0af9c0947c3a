"""Removing what was erased from PostgreSQL's tables.

A change leaves the old version of its row until the table is vacuumed. ``VACUUM`` does not wait for workers, nor they
for it. It leaves versions that an open transaction may still read, and it does not give up the space, whose bytes are
overwritten by later rows.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from psycopg import sql

from holdfast.stores.postgres.inspection import open_connection
from holdfast.stores.sql.erasure import SqlErasure

if TYPE_CHECKING:
    from holdfast.stores.postgres.store import PgStore

_TABLES = (
    "runs", "run_tags", "records", "attempts", "signals", "signal_keys", "blobs", "approvals", "live_events",
    "memories", "memory_words",
)  # fmt: skip


class PgErasure(SqlErasure):
    """Erasing runs of a schema."""

    def __init__(self, store: PgStore, url: str) -> None:
        super().__init__(store)
        self._schema = store.schema
        self._url = url

    async def scrub(self) -> None:
        await asyncio.to_thread(self._vacuum)

    def _vacuum(self) -> None:
        tables = sql.SQL(", ").join(sql.Identifier(self._schema, table) for table in _TABLES)
        with open_connection(self._url) as connection:
            connection.execute("SET statement_timeout = 0")
            connection.execute(sql.SQL("VACUUM {}").format(tables))
