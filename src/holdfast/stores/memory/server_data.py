# pyright: reportPrivateUsage=false
"""Documents, the audit log, and daily usage, in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from holdfast.stores.audit_log import AuditEvent, AuditLog, AuditRow
from holdfast.stores.daily_usage import DailyRunCount, DailyUsage, DailyUsageCounters, get_utc_day
from holdfast.stores.documents import Document, Documents, check_document_name
from holdfast.stores.memory.queue_operations import MemoryCapability


class MemoryDocuments(MemoryCapability, Documents):
    """The documents of servers."""

    async def put(self, kind: str, name: str, data: bytes, *, if_version: int | None = None) -> Document | None:
        tables = self._tables
        check_document_name(kind, name)
        with tables._lock:
            known, now = tables._documents.get((kind, name)), tables._clock()
            if if_version not in (None, 0 if known is None else known.version):
                return None
            if known is None:
                document = Document(kind, name, data, 1, now, now)
            else:
                document = replace(known, data=data, version=known.version + 1, updated_at=now)
            tables._documents[kind, name] = document
            return document

    async def delete(self, kind: str, name: str) -> bool:
        with self._tables._lock:
            return self._tables._documents.pop((kind, name), None) is not None

    async def list(
        self, kind: str, names: Collection[str] | None = None, *, after: str = "", limit: int = 1000
    ) -> list[Document]:
        with self._tables._lock:
            found = [
                document
                for document in self._tables._documents.values()
                if document.kind == kind and document.name > after and (names is None or document.name in names)
            ]
        return sorted(found, key=lambda document: document.name)[:limit]


class MemoryAuditLog(MemoryCapability, AuditLog):
    """The audit log of servers."""

    async def append(self, events: Sequence[AuditEvent]) -> None:
        tables = self._tables
        with tables._lock:
            for event in events:
                tables._last_audit_id += 1
                tables._audit_events[tables._last_audit_id] = event

    async def trim(self, before: float, limit: int = 10_000) -> int:
        tables = self._tables
        with tables._lock:
            old = sorted((event.at, id) for id, event in tables._audit_events.items() if event.at < before)[:limit]
            for _, id in old:
                del tables._audit_events[id]
        return len(old)

    async def list(self, *, before_id: int | None = None, limit: int = 100) -> list[AuditRow]:
        with self._tables._lock:
            found = [
                AuditRow(id, event)
                for id, event in self._tables._audit_events.items()
                if before_id is None or id < before_id
            ]
        return found[::-1][:limit]


class MemoryDailyUsage(MemoryCapability, DailyUsageCounters):
    """Usage and run counts, by day."""

    async def get(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyUsage]:
        with self._tables._lock:
            return [
                DailyUsage(day, name, model, used)
                for (day, name, model), used in sorted(self._tables._daily_usage.items())
                if since <= day <= until and workflow in (None, name)
            ]

    async def get_run_counts(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyRunCount]:
        with self._tables._lock:
            counts = Counter((get_utc_day(run.created_at), run.workflow) for run in self._tables._runs.values())
        return [
            DailyRunCount(day, name, count)
            for (day, name), count in sorted(counts.items())
            if since <= day <= until and workflow in (None, name)
        ]
