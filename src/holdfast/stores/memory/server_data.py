# ruff: noqa: D102 - what the methods of a store are for is said once, in the contract
"""What servers keep, in memory: documents, the audit log, and what was used on which day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from holdfast.stores.audit_log import AuditEvent, AuditRow
from holdfast.stores.daily_usage import DailyRunCount, DailyUsage, get_utc_day
from holdfast.stores.documents import Document, check_document_name
from holdfast.stores.memory.tables import Tables


class ServerDataOperations(Tables):
    """What the store keeps for servers."""

    async def put_document(
        self, kind: str, name: str, data: bytes, *, if_version: int | None = None
    ) -> Document | None:
        check_document_name(kind, name)
        with self._lock:
            known, now = self._documents.get((kind, name)), self._clock()
            if if_version not in (None, 0 if known is None else known.version):
                return None
            if known is None:
                document = Document(kind, name, data, 1, now, now)
            else:
                document = replace(known, data=data, version=known.version + 1, updated_at=now)
            self._documents[kind, name] = document
            return document

    async def list_documents(
        self, kind: str, names: Collection[str] | None = None, *, after: str = "", limit: int = 1000
    ) -> list[Document]:
        with self._lock:
            found = [
                document
                for document in self._documents.values()
                if document.kind == kind and document.name > after and (names is None or document.name in names)
            ]
        return sorted(found, key=lambda document: document.name)[:limit]

    async def delete_document(self, kind: str, name: str) -> bool:
        with self._lock:
            return self._documents.pop((kind, name), None) is not None

    async def append_audit(self, events: Sequence[AuditEvent]) -> None:
        with self._lock:
            for entry in events:
                self._last_audit_id += 1
                self._audit_events[self._last_audit_id] = entry

    async def list_audit(self, *, before_id: int | None = None, limit: int = 100) -> list[AuditRow]:
        with self._lock:
            found = [
                AuditRow(id, what) for id, what in self._audit_events.items() if before_id is None or id < before_id
            ]
        return found[::-1][:limit]

    async def trim_audit(self, before: float, limit: int = 10_000) -> int:
        with self._lock:
            old = sorted((what.at, id) for id, what in self._audit_events.items() if what.at < before)[:limit]
            for _, id in old:
                del self._audit_events[id]
        return len(old)

    async def get_daily_usage(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyUsage]:
        with self._lock:
            return [
                DailyUsage(day, name, model, used)
                for (day, name, model), used in sorted(self._daily_usage.items())
                if since <= day <= until and workflow in (None, name)
            ]

    async def get_daily_run_counts(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyRunCount]:
        with self._lock:
            counts = Counter((get_utc_day(run.created_at), run.workflow) for run in self._runs.values())
        return [
            DailyRunCount(day, name, count)
            for (day, name), count in sorted(counts.items())
            if since <= day <= until and workflow in (None, name)
        ]
