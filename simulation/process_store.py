# ruff: noqa: D102 - the contract documents the methods of a store
"""A process's connection to the database of its world.

Every call is a request that travels, is executed at one moment, and whose answer travels back. Each part can fail: the
database is unreachable, the answer is lost although the request was executed, or the caller dies while either is on
its way. The database is one ``MemoryStore`` for the whole world, perhaps compared with a SQL store
(``comparing_store``). The checker inspects it after every operation, so nothing can happen unseen between two of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.core.records import Record
from holdfast.core.states import RunState
from holdfast.errors import StoreUnavailable
from holdfast.stores.approvals import Approval, ApprovalFilter
from holdfast.stores.claims import Claims, NewSignals
from holdfast.stores.claims import RunRequests as Asked
from holdfast.stores.contract import History, RunFilter, RunSearchPage, RunUsage, Store, WorkflowSpec
from holdfast.stores.disabled_workflows import DisabledWorkflow, DisabledWorkflows
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.live_events import RunUpdates
from holdfast.stores.operations import Op, OpResult, Run, StartRun
from holdfast.stores.workers import NewWorker, ReapResult, Worker, Workers

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.world import World


def run_sync(coro: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never waits, like those of ``MemoryStore``."""
    try:
        coro.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("the database waited for something")


class StoreRequest:
    """A process's request to the database."""

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
        self.world = world
        self.process = process
        self.database = world.database
        self.checker = world.checker
        self._seen_write_count = 0
        self._change_waiter: asyncio.Future[bool] | None = None
        self.foreign_write_count = 0
        self.workers = ProcessWorkers(self)
        self.claims = ProcessClaims(self)
        self.disabled_workflows = ProcessDisabledWorkflows(self)
        self.schedules = world.database.schedules  # there are none
        if world.plan.overlaps_commits:
            self.min_overlap_count = 2

    async def send_request(self, name: str, call: Callable[[], Any], ops: Sequence[Op] = ()) -> Any:
        request = StoreRequest(self.process, name, call, self.process.loop.create_future(), ops)
        self.world.send(request)
        return await request.future

    async def _ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The database's answer to a call that only reads."""
        return await self.send_request(name, lambda: run_sync(getattr(self.database, name)(*args, **kwargs)))

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def abandon(self) -> None:
        pass

    def now(self) -> float:
        return self.database.now()

    # Writing

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        self.world.counts["overlapping commits"] += self.process.engine.writer.holds_answers
        ops = [self._apply_plan(op) for op in ops]  # a copy, because a request that is on its way cannot change
        return await self.send_request("commit", lambda: self._commit_checked(ops), ops)

    def _apply_plan(self, op: Op) -> Op:
        """Some worlds allow children fewer deaths than the three that they have."""
        if not isinstance(op, StartRun) or op.link is None:
            return op
        return op._replace(run=replace(op.run, max_deliveries=self.world.plan.child_max_deliveries))

    def _commit_checked(self, ops: Sequence[Op]) -> list[OpResult]:
        answers: list[OpResult] = []
        with self.world.single_commit(ops):
            for op in ops:  # one moment for all of them; the checker wants to know which of them changed what
                [answer] = run_sync(self.database.commit([op]))
                self.world.log_write(self.process, "commit", op, answer)
                self.checker.check_operation(self.process, op, answer)
                answers.append(answer)
        self.world.on_write(self.process)
        return answers

    async def list_workers(self, extra_ids: Collection[int] = ()) -> list[Worker]:
        return await self._ask("list_workers", extra_ids)

    async def get_histories(self, keys: Sequence[int]) -> list[History]:
        return await self._ask("get_histories", keys)

    # Reading

    async def get_run(self, run_id: str) -> Run | None:
        return await self._ask("get_run", run_id)

    async def get_runs(self, run_ids: Sequence[str]) -> list[Run]:
        return await self._ask("get_runs", run_ids)

    async def list_runs(self, where: RunFilter, *, limit: int = 50, before_key: int | None = None) -> list[Run]:
        return await self._ask("list_runs", where, limit=limit, before_key=before_key)

    async def search_runs(
        self, where: RunFilter, *, limit: int = 50, before_key: int | None = None, max_scanned: int = 10_000
    ) -> RunSearchPage:
        return await self._ask("search_runs", where, limit=limit, before_key=before_key, max_scanned=max_scanned)

    async def get_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        return await self._ask("get_usages", run_ids)

    async def count_runs(self, max_ended: int | None = None) -> Mapping[tuple[str, RunState], int]:
        return await self._ask("count_runs", max_ended)

    async def count_unfinished_runs(self, workflows: Collection[str] | None = None) -> Mapping[tuple[str, str], int]:
        return await self._ask("count_unfinished_runs", workflows)

    async def get_last_record(self, run_id: str, name: str) -> Record | None:
        return await self._ask("get_last_record", run_id, name)

    async def get_run_updates(
        self, run_id: str, after_seq: int, after_event_id: int, limit: int = 1000
    ) -> RunUpdates | None:
        return await self._ask("get_run_updates", run_id, after_seq, after_event_id, limit)

    async def list_approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        return await self._ask("list_approvals", where, limit)

    # Workflows

    async def announce_workflows(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        def call() -> None:
            run_sync(self.database.announce_workflows(specs, worker))
            self.world.on_write(self.process)

        await self.send_request("announce_workflows", call)

    async def get_workflow_specs(self, workflow: str | None = None) -> Mapping[str, WorkflowSpec]:
        return await self._ask("get_workflow_specs", workflow)

    # Change

    async def wait_for_change(self, timeout_s: float, *, follow_runs: bool = True) -> bool:
        if not self.world.is_reachable(self.process):
            raise StoreUnavailable("the database cannot be reached")
        if self.foreign_write_count == self._seen_write_count:
            self._change_waiter = waiter = self.process.loop.create_future()
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
        """Another process has written: wake the callers that wait for a change."""
        waiter = self._change_waiter
        if waiter is not None and not self.process.is_dead:
            self.process.loop.call_soon(_resolve_future, waiter, True)


class ProcessWorkers(Workers):
    """The worker that a process is."""

    def __init__(self, store: ProcessStore) -> None:
        self._store = store

    async def register(self, worker: NewWorker, lease_s: float) -> int:
        def call() -> int:
            number = run_sync(self._store.database.workers.register(worker, lease_s))
            self._store.world.on_worker_registered(self._store.process, number)
            self._store.world.reach_fault_point("registered", self._store.process)
            self._store.world.on_write(self._store.process)
            return number

        return await self._store.send_request("workers.register", call)

    def renew_lease(self, worker: int, lease_s: float) -> bool:
        if not self._store.world.is_reachable(self._store.process):
            if self._store.world.is_partitioned(self._store.process):
                self._store.process.can_be_declared_dead = True  # except in an outage, when no worker can renew
            raise StoreUnavailable("the database cannot be reached")
        return self._store.database.workers.renew_lease(worker, lease_s)

    async def retire(self, worker: int) -> None:
        def call() -> None:
            run_sync(self._store.database.workers.retire(worker))
            self._store.world.log_write(self._store.process, "retire", worker, None)
            self._store.checker.check_retire(self._store.process, worker)
            self._store.world.on_write(self._store.process)

        await self._store.send_request("workers.retire", call)

    async def reap_dead(
        self, except_worker: int | None = None, window: LeaseWindow | None = None, *, include_listeners: bool = False
    ) -> ReapResult:
        def call() -> ReapResult:
            answer = run_sync(
                self._store.database.workers.reap_dead(except_worker, window, include_listeners=include_listeners)
            )
            if answer.worker_ids:
                self._store.world.log_write(self._store.process, "reap", answer.worker_ids, answer.dead_run_ids)
                self._store.checker.check_reap(self._store.process, answer)
                self._store.world.on_write(self._store.process)
            return answer

        return await self._store.send_request("workers.reap_dead", call)

    async def renew_listener_lease(self, worker: int, lease_s: float) -> bool:
        raise NotImplementedError("there is no server here that speaks for others")


class ProcessClaims(Claims):
    """The runs that a process takes."""

    def __init__(self, store: ProcessStore) -> None:
        self._store = store

    async def claim(
        self,
        worker: int,
        *,
        workflows: Collection[str],
        queues: Collection[str] | None,
        limit: int,
        suspect_delay_s: float | None = 0.0,
    ) -> list[Run]:
        def call() -> list[Run]:
            claim = self._store.database.claims.claim(
                worker, workflows=workflows, queues=queues, limit=limit, suspect_delay_s=suspect_delay_s
            )
            runs = run_sync(claim)
            if runs:
                self._store.world.log_write(
                    self._store.process, "claim", [run.id for run in runs], [run.epoch for run in runs]
                )
                self._store.checker.check_claim(self._store.process, worker, runs)
                self._store.world.reach_fault_point("claimed", self._store.process)
                self._store.world.on_write(self._store.process)
            return runs

        return await self._store.send_request("claims.claim", call)

    async def get_next_wake_at(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        return await self._store.send_request(
            "claims.get_next_wake_at",
            lambda: run_sync(self._store.database.claims.get_next_wake_at(workflows=workflows, queues=queues)),
        )

    async def get_new_signals(self, worker: int, after: int) -> NewSignals:
        return await self._store.send_request(
            "claims.get_new_signals", lambda: run_sync(self._store.database.claims.get_new_signals(worker, after))
        )

    async def get_run_requests(self, worker: int) -> list[Asked]:
        return await self._store.send_request(
            "claims.get_run_requests", lambda: run_sync(self._store.database.claims.get_run_requests(worker))
        )

    async def expire_runs(self, limit: int = 100) -> list[str]:
        raise NotImplementedError("there is no server here that delivers runs")


class ProcessDisabledWorkflows(DisabledWorkflows):
    """What a process knows about disabled workflows."""

    def __init__(self, store: ProcessStore) -> None:
        self._store = store

    async def disable(self, workflow: str, actor: str = "", reason: str = "", *, is_temporary: bool = False) -> bool:
        raise NotImplementedError("people switch, from outside")

    async def enable(self, workflow: str, *, only_temporary: bool = False) -> bool:
        raise NotImplementedError("people switch, from outside")

    async def get_all(self) -> Mapping[str, DisabledWorkflow]:
        off = await self._store.send_request(
            "disabled_workflows.get_all", lambda: run_sync(self._store.database.disabled_workflows.get_all())
        )
        # From now on, no run of these workflows starts here until this process learns that they are enabled.
        still = self._store.process.disabled_claims
        for driver in self._store.process.engine.held_runs.list_drivers():
            (still.add if driver.run.workflow in off else still.discard)((driver.run.key, driver.run.epoch))
        return off
