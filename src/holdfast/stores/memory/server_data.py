# ruff: noqa: D102 - what the methods of a store are for is said once, in the contract
"""What servers keep, in memory: documents, the audit log, and what was used on which day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from holdfast.stores.audit_log import Audit, NewAudit
from holdfast.stores.daily_usage import DayRuns, DayUsage, day_of
from holdfast.stores.documents import Document, check_place
from holdfast.stores.memory.tables import Tables


class Keeping(Tables):
    """What the store keeps for servers."""

    async def put_document(
        self, kind: str, name: str, data: bytes, *, if_version: int | None = None
    ) -> Document | None:
        check_place(kind, name)
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

    async def documents(
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

    async def note_audit(self, entries: Sequence[NewAudit]) -> None:
        with self._lock:
            for entry in entries:
                self._last_audit += 1
                self._audit[self._last_audit] = entry

    async def audit(self, *, before: int | None = None, limit: int = 100) -> list[Audit]:
        with self._lock:
            found = [Audit(id, what) for id, what in self._audit.items() if before is None or id < before]
        return found[::-1][:limit]

    async def trim_audit(self, before: float, limit: int = 10_000) -> int:
        with self._lock:
            old = sorted((what.at, id) for id, what in self._audit.items() if what.at < before)[:limit]
            for _, id in old:
                del self._audit[id]
        return len(old)

    async def usage_by_day(self, since: str, until: str, *, workflow: str | None = None) -> list[DayUsage]:
        with self._lock:
            return [
                DayUsage(day, name, model, used)
                for (day, name, model), used in sorted(self._spent.items())
                if since <= day <= until and workflow in (None, name)
            ]

    async def runs_by_day(self, since: str, until: str, *, workflow: str | None = None) -> list[DayRuns]:
        with self._lock:
            counts = Counter((day_of(run.created_at), run.workflow) for run in self._runs.values())
        return [
            DayRuns(day, name, count)
            for (day, name), count in sorted(counts.items())
            if since <= day <= until and workflow in (None, name)
        ]
