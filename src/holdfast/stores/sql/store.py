# ruff: noqa: D102 - what the methods of a store are for is said once, in the contract
"""The contract, spelled out over a database: what is done in which transaction.

A store brings along three ways to do work on a database. ``_write`` and ``_read`` are the engine's; the work of
``_read_for_client`` is done for people, and a slow list must not hold up the engine. Work that takes its time (hashing,
compressing, finding words) is never done on the event loop: it is ``slow``.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

from holdfast.admission.queue_limits import QueueLimits
from holdfast.core.records import Record
from holdfast.core.states import RunState
from holdfast.errors import StoreCorrupt
from holdfast.stores.approvals import Approval, ApprovalFilter
from holdfast.stores.archives import ArchivedRun, RunExtras, list_payloads
from holdfast.stores.audit_log import AuditEvent, AuditRow
from holdfast.stores.contract import (
    DisabledWorkflow,
    History,
    NewSignals,
    RunFilter,
    RunRequests,
    RunSearchPage,
    RunUsage,
    Store,
    Worker,
    WorkflowSpec,
)
from holdfast.stores.daily_usage import DailyRunCount, DailyUsage
from holdfast.stores.documents import Document, check_document_name
from holdfast.stores.journal_pages import JournalPage
from holdfast.stores.live_events import RunUpdates
from holdfast.stores.memories import DeleteMemory, Memory, PutMemory
from holdfast.stores.operations import AppendRecord, Op, OpResult, Run, StartResult
from holdfast.stores.queues import NewQueue, QueueStatus
from holdfast.stores.retention import PRUNE_START, PruneCursor, PruneRequest, PruneResult, SweepResult
from holdfast.stores.schedules import Schedule, ScheduleDefinition
from holdfast.stores.sql import (
    approval_operations,
    archives,
    blobs,
    claims,
    delivery_expiry,
    journal_pages,
    payloads,
    queries,
    retention,
    run_lists,
    run_updates,
    server_data,
    workers,
)
from holdfast.stores.sql import queue_settings as limiting
from holdfast.stores.sql import schedules as scheduling
from holdfast.stores.sql.batch import apply_ops
from holdfast.stores.sql.claims import ClaimScope
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.rows import RowReader
from holdfast.stores.text_search import tokenize_query
from holdfast.stores.utf8 import is_encodable

T = TypeVar("T")
DatabaseWork = Callable[[Database], T]


class SqlStore(Store):
    """Journals in a SQL database."""

    _reader: RowReader

    @abstractmethod
    async def _write(self, work: DatabaseWork[T], op_count: int = 1, *, is_slow: bool = False) -> T:
        """Do work that may commit ``op_count`` operations."""

    @abstractmethod
    async def _read(self, work: DatabaseWork[T], *, is_slow: bool = True) -> T:
        """Do work that only reads."""

    @abstractmethod
    async def _read_for_client(self, work: DatabaseWork[T]) -> T:
        """Do work that only reads, and that somebody is waiting for who is no engine."""

    # Writing

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        return await self._commit(ops) if ops else []

    async def _commit(self, ops: Sequence[Op]) -> list[OpResult]:
        large = blobs.list_large_payloads(ops)
        if large:
            parcel = await asyncio.to_thread(blobs.pack_blobs, large)
            answers = await self._write(
                lambda db: apply_ops(db, ops, self.now(), self._reader, parcel), len(ops), is_slow=True
            )
        else:
            answers = await self._write(
                lambda db: apply_ops(db, ops, self.now(), self._reader),
                len(ops),
                is_slow=any(map(_is_memory_change, ops)),
            )
        for answer in answers:
            if isinstance(answer, StartResult) and payloads.has_references(answer.run):
                return await self._read(lambda db: queries.fill_results(db, self._reader, answers))
        return answers

    async def claim_runs(
        self,
        worker: int,
        *,
        workflows: Collection[str],
        queues: Collection[str] | None,
        limit: int,
        suspect_delay_s: float | None = 0.0,
    ) -> list[Run]:
        if limit <= 0 or not workflows:
            return []
        wanted = ClaimScope(workflows, queues)
        if not await self._read(lambda db: claims.has_due_runs(db, wanted, self.now()), is_slow=False):
            return []
        runs = await self._write(
            lambda db: claims.claim_runs(
                db, self._reader, worker, wanted, limit, self.now(), self._resolve_time, suspect_delay_s
            ),
            limit,
        )
        if not any(map(payloads.has_references, runs)):
            return runs
        read = await self._read(lambda db: payloads.fill_runs(db, self._reader, runs))
        broken = [(run.key, got) for run, got in zip(runs, read, strict=True) if isinstance(got, StoreCorrupt)]
        if broken:
            await self._write(lambda db: claims.fail_unreadable(db, broken, self.now()))
        return [run for run in read if isinstance(run, Run)]

    def _resolve_time(self, server_time: float | None) -> float:
        """What time it is, if this is what the database has just said."""
        return self.now()

    async def expire_runs(self, limit: int = 100) -> list[str]:
        if not await self._read(lambda db: db.query(db.sql.OVERDUE, (self.now(), 1)), is_slow=False):
            return []
        return await self._write(lambda db: delivery_expiry.expire_runs(db, self.now(), limit), limit)

    async def publish_workflows(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        if specs:
            await self._write(
                lambda db: workers.publish_workflows(db, self._reader, specs, worker, self.now()), len(specs)
            )

    async def disable_workflow(
        self, workflow: str, actor: str = "", reason: str = "", *, is_temporary: bool = False
    ) -> bool:
        row = (workflow, self.now(), actor, reason, int(is_temporary))
        return await self._write(lambda db: db.execute(db.sql.DISABLE_WORKFLOW, row) == 1)

    async def enable_workflow(self, workflow: str, *, only_temporary: bool = False) -> bool:
        return await self._write(lambda db: db.execute(db.sql.ENABLE_WORKFLOW, (workflow, int(only_temporary))) == 1)

    # The engine's reading

    async def get_next_wake_at(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        wanted = ClaimScope(workflows, queues)
        return await self._read(lambda db: claims.get_next_wake_at(db, wanted, self.now()), is_slow=False)

    async def get_histories(self, keys: Sequence[int]) -> list[History]:
        return await self._read(lambda db: queries.read_histories(db, self._reader, keys))

    async def get_new_signals(self, worker: int, after: int) -> NewSignals:
        found = await self._read(lambda db: queries.read_new_signals(db, worker, after), is_slow=False)
        if any(blobs.is_reference(signal.payload) for _, signal in found.signals):
            signals = await self._read(lambda db: queries.fill_new_signals(db, self._reader, found.signals))
            return found._replace(signals=signals)
        return found

    async def get_run_requests(self, worker: int) -> list[RunRequests]:
        return await self._read(lambda db: queries.read_run_requests(db, worker), is_slow=False)

    async def get_disabled_workflows(self) -> Mapping[str, DisabledWorkflow]:
        return await self._read(queries.get_disabled_workflows, is_slow=False)

    async def get_run(self, run_id: str) -> Run | None:
        run = await self._read(lambda db: queries.get_run(db, self._reader, run_id), is_slow=False)
        if run is None or not payloads.has_references(run):
            return run
        return (await self._read(lambda db: queries.fill_runs_or_raise(db, self._reader, [run])))[0]

    async def get_runs(self, run_ids: Sequence[str]) -> list[Run]:
        return await self._read(lambda db: queries.get_runs(db, self._reader, run_ids))

    async def get_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        return await self._read(lambda db: queries.get_usages(db, self._reader, run_ids))

    async def get_last_record(self, run_id: str, name: str) -> Record | None:
        return await self._read(lambda db: run_updates.read_last_record(db, self._reader, run_id, name))

    async def get_run_updates(
        self, run_id: str, after_seq: int, after_event_id: int, limit: int = 1000
    ) -> RunUpdates | None:
        return await self._read(
            lambda db: run_updates.read_run_updates(db, self._reader, run_id, after_seq, after_event_id, limit)
        )

    async def get_journal_page(
        self, run_id: str, after_seq: int = -1, limit: int | None = None, *, include_large_payloads: bool = True
    ) -> JournalPage | None:
        return await self._read_for_client(
            lambda db: journal_pages.read_journal_page(
                db, self._reader, run_id, after_seq, limit, include_large_payloads=include_large_payloads
            )
        )

    async def get_memory(self, namespace: str, key: str) -> Memory | None:
        if not (is_encodable(namespace) and is_encodable(key)):
            return None
        row = await self._read(lambda db: db.query_one(db.sql.GET_MEMORY, namespace, key))
        return None if row is None else Memory(*row)

    async def get_workflow_specs(self) -> Mapping[str, WorkflowSpec]:
        return await self._read(lambda db: queries.get_workflow_specs(db, self._reader))

    # Other reading

    async def list_workers(self, extra_ids: Collection[int] = ()) -> list[Worker]:
        return await self._read_for_client(lambda db: queries.list_workers(db, self._reader, extra_ids))

    async def list_runs(self, where: RunFilter, *, limit: int = 50, before_key: int | None = None) -> list[Run]:
        return await self._read_for_client(lambda db: run_lists.list_runs(db, self._reader, where, limit, before_key))

    async def search_runs(
        self, where: RunFilter, *, limit: int = 50, before_key: int | None = None, max_scanned: int = 10_000
    ) -> RunSearchPage:
        return await self._read_for_client(
            lambda db: run_lists.search_runs(db, self._reader, where, limit, before_key, max_scanned)
        )

    async def count_runs(self, max_ended: int | None = None) -> Mapping[tuple[str, RunState], int]:
        return await self._read_for_client(lambda db: queries.count_runs(db, self._reader, max_ended))

    async def count_unfinished_runs(self, workflows: Collection[str] | None = None) -> Mapping[tuple[str, str], int]:
        return await self._read_for_client(lambda db: queries.count_unfinished_runs(db, workflows))

    async def list_approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        return await self._read_for_client(
            lambda db: approval_operations.list_approvals(db, self._reader, where, limit)
        )

    async def list_memories(self, namespace: str, *, after: str = "", limit: int = 100) -> list[Memory]:
        if not (is_encodable(namespace) and is_encodable(after)):
            return []
        rows = await self._read_for_client(lambda db: db.query(db.sql.LIST_MEMORIES, (namespace, after, limit)))
        return [Memory(*row) for row in rows]

    async def search_memories(self, namespace: str, words: str, *, limit: int = 10) -> list[Memory]:
        wanted = tokenize_query(words)
        if not wanted or not is_encodable(namespace):
            return []
        return await self._read_for_client(lambda db: db.search_memories(namespace, wanted, limit))

    # Queues

    async def declare_queues(self, queues: Sequence[NewQueue]) -> None:
        for name in await self._write(lambda db: limiting.declare_queues(db, self._reader, queues), len(queues)):
            await self._finish_queue_change(name)

    async def set_queue_limits(self, name: str, limits: QueueLimits | None) -> bool:
        return await self._change_queue(name, lambda db: limiting.override_limits(db, self._reader, name, limits))

    async def pause_queue(self, name: str) -> bool:
        return await self._change_queue(name, lambda db: limiting.pause_queue(db, self._reader, name, self.now()))

    async def resume_queue(self, name: str) -> bool:
        return await self._change_queue(name, lambda db: limiting.resume_queue(db, self._reader, name))

    async def _change_queue(self, name: str, work: DatabaseWork[limiting.QueueChange]) -> bool:
        outcome = await self._write(work)
        if not outcome.is_complete:
            await self._finish_queue_change(name)
        return outcome.has_changed

    async def _finish_queue_change(self, name: str) -> None:
        """Make the runs of a queue limited, or limited no more, a few at a time."""
        for _ in range(2):  # once more, for those that have come back from a worker meanwhile
            keys = await self._read_for_client(lambda db: limiting.find_runs_to_limit(db, self._reader, name))
            for at in range(0, len(keys), limiting.BATCH_SIZE):
                piece = keys[at : at + limiting.BATCH_SIZE]
                await self._write(
                    partial(limiting.limit_runs, name=name, keys=piece, now=self.now()), len(piece), is_slow=True
                )
        while not await self._write(lambda db: limiting.finish_change(db, self._reader, name), is_slow=True):
            pass

    async def list_queues(self, names: Collection[str] | None = None) -> list[QueueStatus]:
        return await self._read_for_client(lambda db: limiting.read_queues(db, self._reader, names, self.now()))

    # Schedules

    async def put_schedules(
        self, schedules: Sequence[ScheduleDefinition], *, worker: int | None = None, replace: bool = True
    ) -> list[Schedule]:
        if not schedules:
            return []
        return await self._write(
            lambda db: scheduling.put_schedules(db, self._reader, schedules, worker, replace, self.now()),
            len(schedules),
        )

    async def list_schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        return await self._read(
            lambda db: scheduling.read_schedules(db, self._reader, names, self.now()), is_slow=False
        )

    async def advance_schedule(
        self,
        name: str,
        expected_fired_up_to: float,
        fired_up_to: float,
        *,
        run_id: str = "",
        skipped_at: float | None = None,
    ) -> bool:
        return await self._write(
            lambda db: scheduling.advance_schedule(db, name, expected_fired_up_to, fired_up_to, run_id, skipped_at)
        )

    async def pause_schedule(self, name: str) -> bool:
        return await self._write(lambda db: db.execute(db.sql.PAUSE_SCHEDULE, (self.now(), name)) == 1)

    async def resume_schedule(self, name: str) -> bool:
        return await self._write(lambda db: db.execute(db.sql.RESUME_SCHEDULE, (name,)) == 1)

    async def delete_schedule(self, name: str) -> bool:
        return await self._write(lambda db: scheduling.delete_schedule(db, name))

    # Documents

    async def put_document(
        self, kind: str, name: str, data: bytes, *, if_version: int | None = None
    ) -> Document | None:
        check_document_name(kind, name)
        return await self._write(lambda db: server_data.put_document(db, kind, name, data, if_version, self.now()))

    async def list_documents(
        self, kind: str, names: Collection[str] | None = None, *, after: str = "", limit: int = 1000
    ) -> list[Document]:
        work = partial(server_data.list_documents, kind=kind, names=names, after=after, limit=limit)
        return await self._read(work, is_slow=names is None)

    async def delete_document(self, kind: str, name: str) -> bool:
        return await self._write(lambda db: server_data.delete_document(db, kind, name))

    # The audit log

    async def append_audit(self, events: Sequence[AuditEvent]) -> None:
        if events:
            await self._write(lambda db: server_data.append_audit(db, events), len(events))

    async def list_audit(self, *, before_id: int | None = None, limit: int = 100) -> list[AuditRow]:
        return await self._read_for_client(lambda db: server_data.list_audit(db, before_id, limit))

    async def trim_audit(self, before: float, limit: int = 10_000) -> int:
        return await self._write(lambda db: db.execute(db.sql.TRIM_AUDIT, (before, limit)), is_slow=True)

    # Spending

    async def get_daily_usage(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyUsage]:
        return await self._read_for_client(lambda db: server_data.get_daily_usage(db, since, until, workflow))

    async def get_daily_run_counts(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyRunCount]:
        return await self._read_for_client(lambda db: server_data.get_daily_run_counts(db, since, until, workflow))

    # Pruning

    async def prune_runs(
        self, request: PruneRequest, cursor: PruneCursor = PRUNE_START, limit: int = 100
    ) -> PruneResult:
        planned = await self._read_for_client(
            partial(retention.plan_prune, request=request, cursor=cursor, limit=limit)
        )
        if not planned.groups:
            return planned.result
        return await self._write(partial(retention.delete_planned, request=request, plan=planned), limit, is_slow=True)

    async def sweep_pruned(self, limit: int = 2000) -> SweepResult:
        return await self._write(lambda db: retention.sweep_pruned(db, limit, self.now()), limit, is_slow=True)

    # Archives

    async def get_run_extras(self, key: int) -> RunExtras:
        return await self._read_for_client(lambda db: archives.read_extras(db, key))

    async def restore_run(self, archived: ArchivedRun) -> bool:
        large = [payload for payload in list_payloads(archived) if blobs.is_large(payload)]
        parcel = await asyncio.to_thread(blobs.pack_blobs, large) if large else blobs.NO_BLOBS
        return await self._write(lambda db: archives.restore_run(db, archived, self.now(), parcel), is_slow=True)

    async def activate_run(self, archived: ArchivedRun) -> None:
        await self._write(lambda db: archives.activate_run(db, self._reader, archived, self.now()), is_slow=True)


def _is_memory_change(op: Op) -> bool:
    """Whether an operation changes a memory, so that the words of a text must be found."""
    return (type(op) is AppendRecord and op.memory is not None) or type(op) is PutMemory or type(op) is DeleteMemory
