# ruff: noqa: D102 - what the methods of a store are for is said once, in the contract
"""A process's connection to the database of its world.

Every call is a request that travels, is carried out at one moment, and whose answer travels back. Each of the three
may go wrong: the database cannot be reached, the answer is lost although the request was carried out, the caller dies
while either is on its way. The database itself is one ``MemoryStore`` for the whole world (perhaps with a
``twin`` on SQL); the checker looks at it after every operation, so nothing can slip through between two of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.admission.queue_limits import QueueLimits
from holdfast.core.records import Record
from holdfast.core.states import RunState
from holdfast.errors import StoreUnavailable
from holdfast.stores.approvals import Approval, ApprovalFilter
from holdfast.stores.archives import ArchivedRun, RunExtras
from holdfast.stores.audit_log import AuditEvent, AuditRow
from holdfast.stores.contract import (
    History,
    NewSignals,
    NewWorker,
    ReapResult,
    RunFilter,
    RunSearchPage,
    RunUsage,
    Store,
    Worker,
    WorkflowSpec,
)
from holdfast.stores.contract import RunRequests as Asked
from holdfast.stores.daily_usage import DailyRunCount, DailyUsage
from holdfast.stores.documents import Document
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.live_events import RunUpdates
from holdfast.stores.memories import Memory
from holdfast.stores.operations import Op, OpResult, Run, StartRun
from holdfast.stores.queues import NewQueue, QueueStatus
from holdfast.stores.retention import PRUNE_START, PruneCursor, PruneRequest, PruneResult, SweepResult
from holdfast.stores.schedules import Schedule, ScheduleDefinition

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.world import World


def run_sync(coro: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing, as those of ``MemoryStore`` are."""
    try:
        coro.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("the database waited for something")


class StoreRequest:
    """Something that a process asked of the database."""

    __slots__ = ("call", "future", "name", "ops", "process")

    def __init__(
        self,
        process: Process,
        name: str,
        call: Callable[[], Any],
        future: asyncio.Future[Any],
        ops: Sequence[Op] = (),
    ) -> None:
        self.process = process
        self.name = name
        self.call = call
        self.future = future
        self.ops = ops

    def deliver_answer(self, result: Any) -> None:
        """The answer has arrived at the process."""
        if not self.process.is_dead:
            self.process.loop.call_soon(_resolve_future, self.future, result)


def _resolve_future(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


class ProcessStore(Store):
    """What an engine takes for its store."""

    url = "memory://simulated"

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._database = world.database
        self._checker = world.checker
        self._seen_write_count = 0
        self._change_waiter: asyncio.Future[bool] | None = None
        self.foreign_write_count = 0

    async def _send_request(self, name: str, call: Callable[[], Any], ops: Sequence[Op] = ()) -> Any:
        request = StoreRequest(self._process, name, call, self._process.loop.create_future(), ops)
        self._world.send(request)
        return await request.future

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def abandon(self) -> None:
        pass

    def now(self) -> float:
        return self._database.now()

    # Writing

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        ops = [self._apply_plan(op) for op in ops]  # as it is now: what is on its way cannot be changed any more
        return await self._send_request("commit", lambda: self._commit_checked(ops), ops)

    def _apply_plan(self, op: Op) -> Op:
        """Some worlds allow children fewer deaths than the three that they have."""
        if not isinstance(op, StartRun) or op.link is None:
            return op
        return op._replace(run=replace(op.run, max_deliveries=self._world.plan.child_max_deliveries))

    def _commit_checked(self, ops: Sequence[Op]) -> list[OpResult]:
        answers: list[OpResult] = []
        with self._world.single_commit(ops):
            for op in ops:  # one moment for all of them; the checker wants to know which of them changed what
                [answer] = run_sync(self._database.commit([op]))
                self._world.log_write(self._process, "commit", op, answer)
                self._checker.check_operation(self._process, op, answer)
                answers.append(answer)
        self._world.on_write(self._process)
        return answers

    # Workers

    async def register_worker(self, worker: NewWorker, lease_s: float) -> int:
        def call() -> int:
            number = run_sync(self._database.register_worker(worker, lease_s))
            self._world.on_worker_registered(self._process, number)
            self._world.reach_fault_point("registered", self._process)
            self._world.on_write(self._process)
            return number

        return await self._send_request("register_worker", call)

    def renew_lease(self, worker: int, lease_s: float) -> bool:
        if not self._world.is_reachable(self._process):
            if self._world.is_partitioned(self._process):
                self._process.can_be_declared_dead = True  # but not by an outage, in which nobody can renew
            raise StoreUnavailable("the database cannot be reached")
        return self._database.renew_lease(worker, lease_s)

    async def retire_worker(self, worker: int) -> None:
        def call() -> None:
            run_sync(self._database.retire_worker(worker))
            self._world.log_write(self._process, "retire", worker, None)
            self._checker.check_retire(self._process, worker)
            self._world.on_write(self._process)

        await self._send_request("retire_worker", call)

    async def renew_listener_lease(self, worker: int, lease_s: float) -> bool:
        raise NotImplementedError("there is no server here that speaks for others")

    async def expire_runs(self, limit: int = 100) -> list[str]:
        raise NotImplementedError("there is no server here that delivers runs")

    async def reap_dead_workers(
        self, except_worker: int | None = None, window: LeaseWindow | None = None, *, include_listeners: bool = False
    ) -> ReapResult:
        def call() -> ReapResult:
            answer = run_sync(
                self._database.reap_dead_workers(except_worker, window, include_listeners=include_listeners)
            )
            if answer.worker_ids:
                self._world.log_write(self._process, "reap", answer.worker_ids, answer.dead_run_ids)
                self._checker.check_reap(self._process, answer)
                self._world.on_write(self._process)
            return answer

        return await self._send_request("reap_dead_workers", call)

    async def list_workers(self, extra_ids: Collection[int] = ()) -> list[Worker]:
        return await self._send_request("list_workers", lambda: run_sync(self._database.list_workers(extra_ids)))

    # Claims

    async def claim_runs(
        self,
        worker: int,
        *,
        workflows: Collection[str],
        queues: Collection[str] | None,
        limit: int,
        suspect_delay_s: float | None = 0.0,
    ) -> list[Run]:
        def call() -> list[Run]:
            claim = self._database.claim_runs(
                worker, workflows=workflows, queues=queues, limit=limit, suspect_delay_s=suspect_delay_s
            )
            runs = run_sync(claim)
            if runs:
                self._world.log_write(self._process, "claim", [run.id for run in runs], [run.epoch for run in runs])
                self._checker.check_claim(self._process, worker, runs)
                self._world.reach_fault_point("claimed", self._process)
                self._world.on_write(self._process)
            return runs

        return await self._send_request("claim_runs", call)

    async def get_next_wake_at(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        return await self._send_request(
            "get_next_wake_at", lambda: run_sync(self._database.get_next_wake_at(workflows=workflows, queues=queues))
        )

    async def get_histories(self, keys: Sequence[int]) -> list[History]:
        return await self._send_request("get_histories", lambda: run_sync(self._database.get_histories(keys)))

    async def get_new_signals(self, worker: int, after: int) -> NewSignals:
        return await self._send_request(
            "get_new_signals", lambda: run_sync(self._database.get_new_signals(worker, after))
        )

    async def get_run_requests(self, worker: int) -> list[Asked]:
        return await self._send_request("get_run_requests", lambda: run_sync(self._database.get_run_requests(worker)))

    # The switch

    async def disable_workflow(self, workflow: str) -> bool:
        raise NotImplementedError("people switch, from outside")

    async def enable_workflow(self, workflow: str) -> bool:
        raise NotImplementedError("people switch, from outside")

    async def get_disabled_workflows(self) -> Mapping[str, float]:
        off = await self._send_request(
            "get_disabled_workflows", lambda: run_sync(self._database.get_disabled_workflows())
        )
        # From here on nothing of these begins here, until this process hears that they are switched on again.
        still = self._process.disabled_claims
        for driver in self._process.engine.held_runs.list_drivers():
            (still.add if driver.run.workflow in off else still.discard)((driver.run.key, driver.run.epoch))
        return off

    # Reading

    async def get_run(self, run_id: str) -> Run | None:
        return await self._send_request("get_run", lambda: run_sync(self._database.get_run(run_id)))

    async def get_runs(self, run_ids: Sequence[str]) -> list[Run]:
        return await self._send_request("get_runs", lambda: run_sync(self._database.get_runs(run_ids)))

    async def list_runs(self, where: RunFilter, *, limit: int = 50, before_key: int | None = None) -> list[Run]:
        return await self._send_request(
            "list_runs", lambda: run_sync(self._database.list_runs(where, limit=limit, before_key=before_key))
        )

    async def search_runs(
        self, where: RunFilter, *, limit: int = 50, before_key: int | None = None, max_scanned: int = 10_000
    ) -> RunSearchPage:
        return await self._send_request(
            "search_runs",
            lambda: run_sync(
                self._database.search_runs(where, limit=limit, before_key=before_key, max_scanned=max_scanned)
            ),
        )

    async def get_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        return await self._send_request("get_usages", lambda: run_sync(self._database.get_usages(run_ids)))

    async def count_runs(self, max_ended: int | None = None) -> Mapping[tuple[str, RunState], int]:
        return await self._send_request("count_runs", lambda: run_sync(self._database.count_runs(max_ended)))

    async def count_unfinished_runs(self, workflows: Collection[str] | None = None) -> Mapping[tuple[str, str], int]:
        return await self._send_request(
            "count_unfinished_runs", lambda: run_sync(self._database.count_unfinished_runs(workflows))
        )

    async def get_last_record(self, run_id: str, name: str) -> Record | None:
        return await self._send_request(
            "get_last_record", lambda: run_sync(self._database.get_last_record(run_id, name))
        )

    async def get_run_updates(
        self, run_id: str, after_seq: int, after_event_id: int, limit: int = 1000
    ) -> RunUpdates | None:
        return await self._send_request(
            "get_run_updates",
            lambda: run_sync(self._database.get_run_updates(run_id, after_seq, after_event_id, limit)),
        )

    async def list_approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        return await self._send_request("list_approvals", lambda: run_sync(self._database.list_approvals(where, limit)))

    # Memories

    async def get_memory(self, namespace: str, key: str) -> Memory | None:
        return await self._send_request("get_memory", lambda: run_sync(self._database.get_memory(namespace, key)))

    async def list_memories(self, namespace: str, *, after: str = "", limit: int = 100) -> list[Memory]:
        return await self._send_request(
            "list_memories", lambda: run_sync(self._database.list_memories(namespace, after=after, limit=limit))
        )

    async def search_memories(self, namespace: str, words: str, *, limit: int = 10) -> list[Memory]:
        return await self._send_request(
            "search_memories", lambda: run_sync(self._database.search_memories(namespace, words, limit=limit))
        )

    # Workflows

    async def publish_workflows(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        def call() -> None:
            run_sync(self._database.publish_workflows(specs, worker))
            self._world.on_write(self._process)

        await self._send_request("publish_workflows", call)

    async def get_workflow_specs(self) -> Mapping[str, WorkflowSpec]:
        return await self._send_request("get_workflow_specs", lambda: run_sync(self._database.get_workflow_specs()))

    # Queues

    async def declare_queues(self, queues: Sequence[NewQueue]) -> None:
        raise NotImplementedError("the queue has its limits before the world begins")

    async def set_queue_limits(self, name: str, limits: QueueLimits | None) -> bool:
        raise NotImplementedError("the queue keeps its limits")

    async def pause_queue(self, name: str) -> bool:
        raise NotImplementedError("the queue is never paused")

    async def resume_queue(self, name: str) -> bool:
        raise NotImplementedError("the queue is never paused")

    async def list_queues(self, names: Collection[str] | None = None) -> list[QueueStatus]:
        raise NotImplementedError("people look at queues, from outside")

    # Schedules

    async def put_schedules(
        self, schedules: Sequence[ScheduleDefinition], *, worker: int | None = None, replace: bool = True
    ) -> list[Schedule]:
        raise NotImplementedError("nothing is scheduled here")

    async def list_schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        return []

    async def advance_schedule(
        self,
        name: str,
        expected_fired_up_to: float,
        fired_up_to: float,
        *,
        run_id: str = "",
        skipped_at: float | None = None,
    ) -> bool:
        raise NotImplementedError("nothing is scheduled here")

    async def pause_schedule(self, name: str) -> bool:
        raise NotImplementedError("nothing is scheduled here")

    async def resume_schedule(self, name: str) -> bool:
        raise NotImplementedError("nothing is scheduled here")

    async def delete_schedule(self, name: str) -> bool:
        raise NotImplementedError("nothing is scheduled here")

    # What servers keep

    async def put_document(
        self, kind: str, name: str, data: bytes, *, if_version: int | None = None
    ) -> Document | None:
        raise NotImplementedError("there is no server here")

    async def list_documents(
        self, kind: str, names: Collection[str] | None = None, *, after: str = "", limit: int = 1000
    ) -> list[Document]:
        raise NotImplementedError("there is no server here")

    async def delete_document(self, kind: str, name: str) -> bool:
        raise NotImplementedError("there is no server here")

    async def append_audit(self, events: Sequence[AuditEvent]) -> None:
        raise NotImplementedError("there is no server here")

    async def list_audit(self, *, before_id: int | None = None, limit: int = 100) -> list[AuditRow]:
        raise NotImplementedError("there is no server here")

    async def trim_audit(self, before: float, limit: int = 10_000) -> int:
        raise NotImplementedError("there is no server here")

    async def get_daily_usage(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyUsage]:
        raise NotImplementedError("people ask what was spent, from outside")

    async def get_daily_run_counts(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyRunCount]:
        raise NotImplementedError("people ask what was spent, from outside")

    # Pruning

    async def prune_runs(
        self, request: PruneRequest, cursor: PruneCursor = PRUNE_START, limit: int = 100
    ) -> PruneResult:
        raise NotImplementedError("people prune, from outside")

    async def sweep_pruned(self, limit: int = 2000) -> SweepResult:
        raise NotImplementedError("people prune, from outside")

    # Archives

    async def get_run_extras(self, key: int) -> RunExtras:
        raise NotImplementedError("people export runs, from outside")

    async def restore_run(self, archived: ArchivedRun) -> bool:
        raise NotImplementedError("people import runs, from outside")

    async def activate_run(self, archived: ArchivedRun) -> None:
        raise NotImplementedError("people import runs, from outside")

    # Change

    async def wait_for_change(self, timeout_s: float, *, follow_runs: bool = True) -> bool:
        if not self._world.is_reachable(self._process):
            raise StoreUnavailable("the database cannot be reached")
        if self.foreign_write_count == self._seen_write_count:
            self._change_waiter = waiter = self._process.loop.create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    await waiter
            except TimeoutError:
                pass
            finally:
                self._change_waiter = None
        changed, self._seen_write_count = self.foreign_write_count != self._seen_write_count, self.foreign_write_count
        return changed

    def notify_write(self) -> None:
        """Another process has written: whoever waits for that is told."""
        waiter = self._change_waiter
        if waiter is not None and not self._process.is_dead:
            self._process.loop.call_soon(_resolve_future, waiter, True)
