# ruff: noqa: D102 - what the methods of a store are for is said once, in the contract
"""The contract, spelled out over a database: what is done in which transaction.

A store brings along three ways to do work on a database. ``_write`` and ``_read`` are the engine's; the work of
``_browse`` is done for people, and a slow list must not hold up the engine. Work that takes its time (hashing,
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
from holdfast.stores.archives import Archived, Belongings, payloads_of
from holdfast.stores.audit_log import Audit, NewAudit
from holdfast.stores.contract import (
    Found,
    History,
    NewSignals,
    Request,
    RunFilter,
    RunUsage,
    Store,
    SwitchedOff,
    Worker,
    WorkflowSpec,
)
from holdfast.stores.daily_usage import DayRuns, DayUsage
from holdfast.stores.documents import Document, check_place
from holdfast.stores.journal_pages import Outline
from holdfast.stores.live_events import Feed
from holdfast.stores.memories import DeleteMemory, Memory, PutMemory
from holdfast.stores.operations import Answer, AppendRecord, Op, Run, Started
from holdfast.stores.queues import KeptQueue, NewQueue
from holdfast.stores.retention import START, Place, Pruned, Pruning, Swept
from holdfast.stores.schedules import NewSchedule, Schedule
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
from holdfast.stores.sql.batch import carry_out
from holdfast.stores.sql.claims import Wanted
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.rows import Reader
from holdfast.stores.text_search import asked
from holdfast.stores.utf8 import is_proper

T = TypeVar("T")
Work = Callable[[Database], T]


class SqlStore(Store):
    """Journals in a SQL database."""

    _reader: Reader

    @abstractmethod
    async def _write(self, work: Work[T], size: int = 1, *, slow: bool = False) -> T:
        """Do work that may commit ``size`` operations."""

    @abstractmethod
    async def _read(self, work: Work[T], *, slow: bool = True) -> T:
        """Do work that only reads."""

    @abstractmethod
    async def _browse(self, work: Work[T]) -> T:
        """Do work that only reads, and that somebody is waiting for who is no engine."""

    # Writing

    async def commit(self, ops: Sequence[Op]) -> list[Answer]:
        return await self._commit(ops) if ops else []

    async def _commit(self, ops: Sequence[Op]) -> list[Answer]:
        large = blobs.large_payloads(ops)
        if large:
            parcel = await asyncio.to_thread(blobs.pack, large)
            answers = await self._write(
                lambda db: carry_out(db, ops, self.now(), self._reader, parcel), len(ops), slow=True
            )
        else:
            answers = await self._write(
                lambda db: carry_out(db, ops, self.now(), self._reader), len(ops), slow=any(map(_finds_words, ops))
            )
        for answer in answers:
            if isinstance(answer, Started) and payloads.lacks(answer.run):
                return await self._read(lambda db: queries.whole_answers(db, self._reader, answers))
        return answers

    async def claim(
        self,
        worker: int,
        *,
        workflows: Collection[str],
        queues: Collection[str] | None,
        limit: int,
        suspects_after: float | None = 0.0,
    ) -> list[Run]:
        if limit <= 0 or not workflows:
            return []
        wanted = Wanted(workflows, queues)
        if not await self._read(lambda db: claims.has_due(db, wanted, self.now()), slow=False):
            return []
        runs = await self._write(
            lambda db: claims.claim(db, self._reader, worker, wanted, limit, self.now(), self._time_at, suspects_after),
            limit,
        )
        if not any(map(payloads.lacks, runs)):
            return runs
        read = await self._read(lambda db: payloads.fill_runs(db, self._reader, runs))
        broken = [(run.key, got) for run, got in zip(runs, read, strict=True) if isinstance(got, StoreCorrupt)]
        if broken:
            await self._write(lambda db: claims.fail(db, broken, self.now()))
        return [run for run in read if isinstance(run, Run)]

    def _time_at(self, theirs: float | None) -> float:
        """What time it is, if this is what the database has just said."""
        return self.now()

    async def expire(self, limit: int = 100) -> list[str]:
        if not await self._read(lambda db: db.ask(db.sql.OVERDUE, (self.now(), 1)), slow=False):
            return []
        return await self._write(lambda db: delivery_expiry.expire(db, self.now(), limit), limit)

    async def publish(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        if specs:
            await self._write(lambda db: workers.publish(db, self._reader, specs, worker, self.now()), len(specs))

    async def switch_off(self, workflow: str, by: str = "", reason: str = "", *, temporary: bool = False) -> bool:
        row = (workflow, self.now(), by, reason, int(temporary))
        return await self._write(lambda db: db.change(db.sql.SWITCH_OFF, row) == 1)

    async def switch_on(self, workflow: str, *, only_temporary: bool = False) -> bool:
        return await self._write(lambda db: db.change(db.sql.SWITCH_ON, (workflow, int(only_temporary))) == 1)

    # The engine's reading

    async def next_wake(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        wanted = Wanted(workflows, queues)
        return await self._read(lambda db: claims.next_wake(db, wanted, self.now()), slow=False)

    async def histories(self, keys: Sequence[int]) -> list[History]:
        return await self._read(lambda db: queries.histories(db, self._reader, keys))

    async def new_signals(self, worker: int, after: int) -> NewSignals:
        found = await self._read(lambda db: queries.new_signals(db, worker, after), slow=False)
        if any(blobs.is_reference(signal.payload) for _, signal in found.signals):
            signals = await self._read(lambda db: queries.whole_signals(db, self._reader, found.signals))
            return found._replace(signals=signals)
        return found

    async def requests(self, worker: int) -> list[Request]:
        return await self._read(lambda db: queries.requests(db, worker), slow=False)

    async def switched_off(self) -> Mapping[str, SwitchedOff]:
        return await self._read(queries.switched_off, slow=False)

    async def get(self, run_id: str) -> Run | None:
        run = await self._read(lambda db: queries.get(db, self._reader, run_id), slow=False)
        if run is None or not payloads.lacks(run):
            return run
        return (await self._read(lambda db: queries.whole(db, self._reader, [run])))[0]

    async def get_many(self, run_ids: Sequence[str]) -> list[Run]:
        return await self._read(lambda db: queries.get_many(db, self._reader, run_ids))

    async def usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        return await self._read(lambda db: queries.usages(db, self._reader, run_ids))

    async def last_record(self, run_id: str, name: str) -> Record | None:
        return await self._read(lambda db: run_updates.last_record(db, self._reader, run_id, name))

    async def feed(self, run_id: str, after_seq: int, after_notice: int, limit: int = 1000) -> Feed | None:
        return await self._read(lambda db: run_updates.feed(db, self._reader, run_id, after_seq, after_notice, limit))

    async def outline(
        self, run_id: str, after_seq: int = -1, limit: int | None = None, *, whole: bool = True
    ) -> Outline | None:
        return await self._browse(
            lambda db: journal_pages.outline(db, self._reader, run_id, after_seq, limit, whole=whole)
        )

    async def get_memory(self, namespace: str, key: str) -> Memory | None:
        if not (is_proper(namespace) and is_proper(key)):
            return None
        row = await self._read(lambda db: db.one(db.sql.GET_MEMORY, namespace, key))
        return None if row is None else Memory(*row)

    async def specs(self) -> Mapping[str, WorkflowSpec]:
        return await self._read(lambda db: queries.specs(db, self._reader))

    # Other reading

    async def workers(self, also: Collection[int] = ()) -> list[Worker]:
        return await self._browse(lambda db: queries.workers(db, self._reader, also))

    async def list_runs(self, where: RunFilter, *, limit: int = 50, before: int | None = None) -> list[Run]:
        return await self._browse(lambda db: run_lists.list_runs(db, self._reader, where, limit, before))

    async def search_runs(
        self, where: RunFilter, *, limit: int = 50, before: int | None = None, most: int = 10_000
    ) -> Found:
        return await self._browse(lambda db: run_lists.search_runs(db, self._reader, where, limit, before, most))

    async def count_runs(self, most: int | None = None) -> Mapping[tuple[str, RunState], int]:
        return await self._browse(lambda db: queries.count_runs(db, self._reader, most))

    async def count_unfinished(self, workflows: Collection[str] | None = None) -> Mapping[tuple[str, str], int]:
        return await self._browse(lambda db: queries.count_unfinished(db, workflows))

    async def approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        return await self._browse(lambda db: approval_operations.approvals(db, self._reader, where, limit))

    async def list_memories(self, namespace: str, *, after: str = "", limit: int = 100) -> list[Memory]:
        if not (is_proper(namespace) and is_proper(after)):
            return []
        rows = await self._browse(lambda db: db.ask(db.sql.LIST_MEMORIES, (namespace, after, limit)))
        return [Memory(*row) for row in rows]

    async def search_memories(self, namespace: str, words: str, *, limit: int = 10) -> list[Memory]:
        wanted = asked(words)
        if not wanted or not is_proper(namespace):
            return []
        return await self._browse(lambda db: db.find_memories(namespace, wanted, limit))

    # Queues

    async def put_queues(self, queues: Sequence[NewQueue]) -> None:
        for name in await self._write(lambda db: limiting.put(db, self._reader, queues), len(queues)):
            await self._settle_queue(name)

    async def set_queue(self, name: str, limits: QueueLimits | None) -> bool:
        return await self._change_queue(name, lambda db: limiting.set_by_hand(db, self._reader, name, limits))

    async def pause_queue(self, name: str) -> bool:
        return await self._change_queue(name, lambda db: limiting.pause(db, self._reader, name, self.now()))

    async def resume_queue(self, name: str) -> bool:
        return await self._change_queue(name, lambda db: limiting.resume(db, self._reader, name))

    async def _change_queue(self, name: str, work: Work[limiting.Outcome]) -> bool:
        outcome = await self._write(work)
        if not outcome.is_settled:
            await self._settle_queue(name)
        return outcome.has_changed

    async def _settle_queue(self, name: str) -> None:
        """Make the runs of a queue limited, or limited no more, a few at a time."""
        for _ in range(2):  # once more, for those that have come back from a worker meanwhile
            keys = await self._browse(lambda db: limiting.to_be_limited(db, self._reader, name))
            for at in range(0, len(keys), limiting.AT_A_TIME):
                piece = keys[at : at + limiting.AT_A_TIME]
                await self._write(partial(limiting.limit, name=name, keys=piece, now=self.now()), len(piece), slow=True)
        while not await self._write(lambda db: limiting.settle(db, self._reader, name), slow=True):
            pass

    async def queues(self, names: Collection[str] | None = None) -> list[KeptQueue]:
        return await self._browse(lambda db: limiting.read(db, self._reader, names, self.now()))

    # Schedules

    async def put_schedules(
        self, schedules: Sequence[NewSchedule], *, worker: int | None = None, replace: bool = True
    ) -> list[Schedule]:
        if not schedules:
            return []
        return await self._write(
            lambda db: scheduling.put(db, self._reader, schedules, worker, replace, self.now()), len(schedules)
        )

    async def schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        return await self._read(lambda db: scheduling.read(db, self._reader, names, self.now()), slow=False)

    async def settle_schedule(
        self, name: str, if_was: float, fired_up_to: float, *, run: str = "", skipped: float | None = None
    ) -> bool:
        return await self._write(lambda db: scheduling.settle(db, name, if_was, fired_up_to, run, skipped))

    async def pause_schedule(self, name: str) -> bool:
        return await self._write(lambda db: db.change(db.sql.PAUSE_SCHEDULE, (self.now(), name)) == 1)

    async def resume_schedule(self, name: str) -> bool:
        return await self._write(lambda db: db.change(db.sql.RESUME_SCHEDULE, (name,)) == 1)

    async def delete_schedule(self, name: str) -> bool:
        return await self._write(lambda db: scheduling.delete(db, name))

    # Documents

    async def put_document(
        self, kind: str, name: str, data: bytes, *, if_version: int | None = None
    ) -> Document | None:
        check_place(kind, name)
        return await self._write(lambda db: server_data.put_document(db, kind, name, data, if_version, self.now()))

    async def documents(
        self, kind: str, names: Collection[str] | None = None, *, after: str = "", limit: int = 1000
    ) -> list[Document]:
        work = partial(server_data.documents, kind=kind, names=names, after=after, limit=limit)
        return await self._read(work, slow=names is None)

    async def delete_document(self, kind: str, name: str) -> bool:
        return await self._write(lambda db: server_data.delete_document(db, kind, name))

    # The audit log

    async def note_audit(self, entries: Sequence[NewAudit]) -> None:
        if entries:
            await self._write(lambda db: server_data.note_audit(db, entries), len(entries))

    async def audit(self, *, before: int | None = None, limit: int = 100) -> list[Audit]:
        return await self._browse(lambda db: server_data.audit(db, before, limit))

    async def trim_audit(self, before: float, limit: int = 10_000) -> int:
        return await self._write(lambda db: db.change(db.sql.TRIM_AUDIT, (before, limit)), slow=True)

    # Spending

    async def usage_by_day(self, since: str, until: str, *, workflow: str | None = None) -> list[DayUsage]:
        return await self._browse(lambda db: server_data.usage_by_day(db, since, until, workflow))

    async def runs_by_day(self, since: str, until: str, *, workflow: str | None = None) -> list[DayRuns]:
        return await self._browse(lambda db: server_data.runs_by_day(db, since, until, workflow))

    # Pruning

    async def prune(self, what: Pruning, after: Place = START, limit: int = 100) -> Pruned:
        planned = await self._browse(partial(retention.plan, what=what, after=after, limit=limit))
        if not planned.going:
            return planned.pruned
        return await self._write(partial(retention.delete, what=what, planned=planned), limit, slow=True)

    async def sweep(self, limit: int = 2000) -> Swept:
        return await self._write(lambda db: retention.sweep(db, limit, self.now()), limit, slow=True)

    # Archives

    async def belongings(self, key: int) -> Belongings:
        return await self._browse(lambda db: archives.belongings(db, key))

    async def restore(self, archived: Archived) -> bool:
        large = [payload for payload in payloads_of(archived) if blobs.is_large(payload)]
        parcel = await asyncio.to_thread(blobs.pack, large) if large else blobs.NOTHING
        return await self._write(lambda db: archives.restore(db, archived, self.now(), parcel), slow=True)

    async def set_going(self, archived: Archived) -> None:
        await self._write(lambda db: archives.set_going(db, self._reader, archived, self.now()), slow=True)


def _finds_words(op: Op) -> bool:
    """Whether an operation changes a memory, so that the words of a text must be found."""
    return (type(op) is AppendRecord and op.memory is not None) or type(op) is PutMemory or type(op) is DeleteMemory
