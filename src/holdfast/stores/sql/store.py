"""The contract, implemented over a database: what is done in which transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from holdfast.core.records import Record
from holdfast.core.states import RunState
from holdfast.stores.approvals import Approval, ApprovalFilter
from holdfast.stores.contract import History, RunFilter, RunSearchPage, RunUsage, Store, WorkflowSpec
from holdfast.stores.journal_pages import JournalPage
from holdfast.stores.live_events import RunUpdates
from holdfast.stores.memories import DeleteMemory, PutMemory
from holdfast.stores.operations import AppendRecord, Op, OpResult, Run, StartResult
from holdfast.stores.served_versions import get_versions_range
from holdfast.stores.sql import (
    approval_operations,
    blobs,
    journal_pages,
    payloads,
    queries,
    run_lists,
    run_updates,
    workers,
)
from holdfast.stores.sql.archives import SqlArchives
from holdfast.stores.sql.batch import BeforeCommit, apply_ops
from holdfast.stores.sql.claims import SqlClaims, SqlDisabledWorkflows
from holdfast.stores.sql.database_access import DatabaseAccess
from holdfast.stores.sql.memories import SqlMemories
from holdfast.stores.sql.queue_settings import SqlQueues
from holdfast.stores.sql.retention import SqlRetention
from holdfast.stores.sql.schedules import SqlSchedules
from holdfast.stores.sql.server_data import SqlAuditLog, SqlDailyUsage, SqlDocuments
from holdfast.stores.workers import Worker


class SqlStore(DatabaseAccess, Store):
    """Journals in a SQL database."""

    def __init__(self) -> None:
        self.claims = SqlClaims(self)
        self.disabled_workflows = SqlDisabledWorkflows(self)
        self.queues = SqlQueues(self)
        self.schedules = SqlSchedules(self)
        self.memories = SqlMemories(self)
        self.documents = SqlDocuments(self)
        self.audit_log = SqlAuditLog(self)
        self.daily_usage = SqlDailyUsage(self)
        self.retention = SqlRetention(self)
        self.archives = SqlArchives(self)

    # Writing

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        return await self._commit(ops) if ops else []

    async def _commit(self, ops: Sequence[Op], before_commit: BeforeCommit | None = None) -> list[OpResult]:
        large = blobs.list_large_payloads(ops)
        blob_batch = await asyncio.to_thread(blobs.pack_blobs, large) if large else blobs.NO_BLOBS
        answers = await self.write(
            lambda db: apply_ops(db, ops, self.now(), self.reader, blob_batch, before_commit),
            len(ops),
            is_slow=bool(large) or any(map(_is_memory_change, ops)),
        )
        for answer in answers:
            if isinstance(answer, StartResult) and payloads.has_references(answer.run):
                return await self.read(lambda db: queries.fill_results(db, self.reader, answers))
        return answers

    async def announce_workflows(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        if specs:
            await self.write(
                lambda db: workers.announce_workflows(db, self.reader, specs, worker, self.now()), len(specs)
            )

    # Reads of the engine

    async def get_histories(self, keys: Sequence[int]) -> list[History]:
        return await self.read(lambda db: queries.read_histories(db, self.reader, keys))

    async def get_run(self, run_id: str) -> Run | None:
        run = await self.read(lambda db: queries.get_run(db, self.reader, run_id), is_slow=False)
        if run is None or not payloads.has_references(run):
            return run
        [filled] = payloads.raise_unreadable(await self.read(lambda db: payloads.fill_runs(db, self.reader, [run])))
        return filled

    async def get_runs(self, run_ids: Sequence[str]) -> list[Run]:
        return await self.read(lambda db: queries.get_runs(db, self.reader, run_ids))

    async def get_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        return await self.read(lambda db: queries.get_usages(db, self.reader, run_ids))

    async def get_last_record(self, run_id: str, name: str) -> Record | None:
        return await self.read(lambda db: run_updates.read_last_record(db, self.reader, run_id, name))

    async def get_run_updates(
        self, run_id: str, after_seq: int, after_event_id: int, limit: int = 1000
    ) -> RunUpdates | None:
        return await self.read(
            lambda db: run_updates.read_run_updates(db, self.reader, run_id, after_seq, after_event_id, limit)
        )

    async def get_journal_page(
        self, run_id: str, after_seq: int = -1, limit: int | None = None, *, include_large_payloads: bool = True
    ) -> JournalPage | None:
        return await self.read_for_client(
            lambda db: journal_pages.read_journal_page(
                db, self.reader, run_id, after_seq, limit, include_large_payloads=include_large_payloads
            )
        )

    async def get_workflow_specs(self, workflow: str | None = None) -> Mapping[str, WorkflowSpec]:
        if workflow is None:
            return queries.make_workflow_specs(await self.query(lambda db: (db.sql.SPECS, ())), self.reader)
        names = (workflow, *get_versions_range(workflow))
        rows = await self.query(lambda db: (db.sql.SPECS_OF_WORKFLOW, names))
        specs = queries.make_workflow_specs(rows, self.reader)
        return {name: spec for name, spec in specs.items() if spec.name == workflow}

    # Reads of clients

    async def list_workers(self, extra_ids: Collection[int] = ()) -> list[Worker]:
        return await self.read_for_client(lambda db: queries.list_workers(db, self.reader, extra_ids))

    async def list_runs(self, where: RunFilter, *, limit: int = 50, before_key: int | None = None) -> list[Run]:
        return await self.read_for_client(lambda db: run_lists.list_runs(db, self.reader, where, limit, before_key))

    async def search_runs(
        self, where: RunFilter, *, limit: int = 50, before_key: int | None = None, max_scanned: int = 10_000
    ) -> RunSearchPage:
        return await self.read_for_client(
            lambda db: run_lists.search_runs(db, self.reader, where, limit, before_key, max_scanned)
        )

    async def count_runs(self, max_ended: int | None = None) -> Mapping[tuple[str, RunState], int]:
        return await self.read_for_client(lambda db: queries.count_runs(db, self.reader, max_ended))

    async def count_unfinished_runs(self, workflows: Collection[str] | None = None) -> Mapping[tuple[str, str], int]:
        return await self.read_for_client(lambda db: queries.count_unfinished_runs(db, workflows))

    async def list_approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        return await self.read_for_client(lambda db: approval_operations.list_approvals(db, self.reader, where, limit))


def _is_memory_change(op: Op) -> bool:
    """Whether an operation changes a memory: finding its words is slow."""
    return (type(op) is AppendRecord and op.memory is not None) or type(op) is PutMemory or type(op) is DeleteMemory
