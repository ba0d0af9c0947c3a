"""Documents and the audit log of servers, and daily usage.

A single statement changes a document and checks its version, so of two processes that have read the same version, only
one succeeds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.admission.usage import Usage
from holdfast.stores.audit_log import AuditEvent, AuditLog, AuditRow
from holdfast.stores.daily_usage import (
    DailyRunCount,
    DailyUsage,
    DailyUsageCounters,
    DailyUsageIncrement,
    from_day_number,
    to_day_number,
)
from holdfast.stores.documents import Document, Documents, check_document_name
from holdfast.stores.sql.database import Database, Row
from holdfast.stores.sql.database_access import SqlCapability
from holdfast.stores.sql.statements import MAX_INT64
from holdfast.stores.utf8 import is_encodable


class SqlDocuments(SqlCapability, Documents):
    """The table ``documents``."""

    async def put(self, kind: str, name: str, data: bytes, *, if_version: int | None = None) -> Document | None:
        check_document_name(kind, name)
        database = self._database
        return await database.write(lambda db: _put_document(db, kind, name, data, if_version, database.now()))

    async def delete(self, kind: str, name: str) -> bool:
        if not (is_encodable(kind) and is_encodable(name)):
            return False
        return await self._database.write(lambda db: db.execute(db.sql.DELETE_DOCUMENT, (kind, name)) == 1)

    async def list(
        self, kind: str, names: Collection[str] | None = None, *, after: str = "", limit: int = 1000
    ) -> list[Document]:
        return await self._database.read(
            lambda db: _list_documents(db, kind, names, after, limit), is_slow=names is None
        )


def _put_document(
    db: Database, kind: str, name: str, data: bytes, if_version: int | None, now: float
) -> Document | None:
    """Write a document; ``None``: it has another version."""
    if if_version:
        rows = db.query(db.sql.UPDATE_DOCUMENT, (data, now, kind, name, if_version))
    else:
        statement = db.sql.PUT_DOCUMENT if if_version is None else db.sql.ADD_DOCUMENT
        rows = db.query(statement, (kind, name, now, now, data))
    return Document(*rows[0]) if rows else None


def _list_documents(db: Database, kind: str, names: Collection[str] | None, after: str, limit: int) -> list[Document]:
    if not (is_encodable(kind) and is_encodable(after)):
        return []
    if names is None:
        rows = db.query(db.sql.DOCUMENTS, (kind, after, limit))
    else:
        wanted = [name for name in names if is_encodable(name)]
        rows = db.query(db.sql.DOCUMENTS_NAMED, (kind, after, db.to_list_parameter(wanted), limit)) if wanted else []
    return [Document(*row) for row in rows]


class SqlAuditLog(SqlCapability, AuditLog):
    """The table ``audit``."""

    async def append(self, events: Sequence[AuditEvent]) -> None:
        if events:
            await self._database.write(lambda db: _append_audit(db, events), len(events))

    async def trim(self, before: float, limit: int = 10_000) -> int:
        return await self._database.write(lambda db: db.execute(db.sql.TRIM_AUDIT, (before, limit)), is_slow=True)

    async def list(self, *, before_id: int | None = None, limit: int = 100) -> list[AuditRow]:
        page = (MAX_INT64 if before_id is None else before_id, limit)
        rows = await self._database.read_for_client(lambda db: db.query(db.sql.AUDIT, page))
        return [AuditRow(id, AuditEvent(*event)) for id, *event in rows]


def _append_audit(db: Database, events: Sequence[AuditEvent]) -> None:
    db.begin()
    db.write(db.sql.APPEND_AUDIT, [*map(audit_to_row, events)])
    db.commit()


def audit_to_row(event: AuditEvent) -> Row:
    """The row of ``APPEND_AUDIT``."""
    return (
        event.at, event.key_id, event.key_name, event.action, event.target, event.outcome, event.remote_address,
    )  # fmt: skip


class SqlDailyUsage(SqlCapability, DailyUsageCounters):
    """The tables ``spending`` and ``daily_runs``."""

    async def get(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyUsage]:
        rows = await self._database.read_for_client(lambda db: db.query(db.sql.DAILY_USAGE, (since, until, workflow)))
        return [DailyUsage(day, name, model, Usage(*used)) for day, name, model, *used in rows]

    async def get_run_counts(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyRunCount]:
        days = (to_day_number(since), to_day_number(until))
        rows = await self._database.read_for_client(lambda db: db.query(db.sql.DAILY_RUNS, (*days, workflow)))
        return [DailyRunCount(from_day_number(day), name, run_count) for day, name, run_count in rows]


def increment_to_row(run: int, increment: DailyUsageIncrement) -> Row:
    """The row of ``ADD_DAILY_USAGE``."""
    used = increment.used
    return (
        increment.day, increment.model, used.calls, used.input_tokens, used.output_tokens, used.cached_tokens,
        used.nano_usd, used.unpriced, run,
    )  # fmt: skip
