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
from holdfast.stores.archives import Archived, Belongings
from holdfast.stores.audit_log import Audit, NewAudit
from holdfast.stores.contract import (
    Found,
    History,
    NewSignals,
    NewWorker,
    Reaped,
    RunFilter,
    RunUsage,
    Store,
    Worker,
    WorkflowSpec,
)
from holdfast.stores.contract import Request as Asked
from holdfast.stores.daily_usage import DayRuns, DayUsage
from holdfast.stores.documents import Document
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.live_events import Feed
from holdfast.stores.memories import Memory
from holdfast.stores.operations import Answer, Op, Run, StartRun
from holdfast.stores.queues import KeptQueue, NewQueue
from holdfast.stores.retention import START, Place, Pruned, Pruning, Swept
from holdfast.stores.schedules import NewSchedule, Schedule

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.world import World


def at_once(coro: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing, as those of ``MemoryStore`` are."""
    try:
        coro.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("the database waited for something")


class Request:
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

    def answer(self, result: Any) -> None:
        """The answer has arrived at the process."""
        if not self.process.is_gone:
            self.process.loop.call_soon(_settle, self.future, result)


def _settle(future: asyncio.Future[Any], result: Any) -> None:
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
        self._seen = 0
        self._waiter: asyncio.Future[bool] | None = None
        self.written_by_others = 0

    async def _ask(self, name: str, call: Callable[[], Any], ops: Sequence[Op] = ()) -> Any:
        request = Request(self._process, name, call, self._process.loop.create_future(), ops)
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

    async def commit(self, ops: Sequence[Op]) -> list[Answer]:
        ops = [self._as_configured(op) for op in ops]  # as it is now: what is on its way cannot be changed any more
        return await self._ask("commit", lambda: self._commit(ops), ops)

    def _as_configured(self, op: Op) -> Op:
        """Some worlds allow children fewer deaths than the three that they have."""
        if not isinstance(op, StartRun) or op.link is None:
            return op
        return op._replace(run=replace(op.run, max_deliveries=self._world.plan.child_deliveries))

    def _commit(self, ops: Sequence[Op]) -> list[Answer]:
        answers: list[Answer] = []
        with self._world.together(ops):
            for op in ops:  # one moment for all of them; the checker wants to know which of them changed what
                [answer] = at_once(self._database.commit([op]))
                self._world.story(self._process, "commit", op, answer)
                self._checker.operation(self._process, op, answer)
                answers.append(answer)
        self._world.written(self._process)
        return answers

    # Workers

    async def register_worker(self, worker: NewWorker, lease: float) -> int:
        def call() -> int:
            number = at_once(self._database.register_worker(worker, lease))
            self._world.registered(self._process, number)
            self._world.moment("registered", self._process)
            self._world.written(self._process)
            return number

        return await self._ask("register", call)

    def renew_lease(self, worker: int, lease: float) -> bool:
        if not self._world.reachable(self._process):
            if self._world.is_cut_off(self._process):
                self._process.disturbed = True  # but not by an outage, in which nobody can renew
            raise StoreUnavailable("the database cannot be reached")
        return self._database.renew_lease(worker, lease)

    async def retire_worker(self, worker: int) -> None:
        def call() -> None:
            at_once(self._database.retire_worker(worker))
            self._world.story(self._process, "retire", worker, None)
            self._checker.retired(self._process, worker)
            self._world.written(self._process)

        await self._ask("retire", call)

    async def keep_worker(self, worker: int, lease: float) -> bool:
        raise NotImplementedError("there is no server here that speaks for others")

    async def expire(self, limit: int = 100) -> list[str]:
        raise NotImplementedError("there is no server here that delivers runs")

    async def reap(self, me: int | None = None, window: LeaseWindow | None = None, *, by_lease: bool = False) -> Reaped:
        def call() -> Reaped:
            answer = at_once(self._database.reap(me, window, by_lease=by_lease))
            if answer.workers:
                self._world.story(self._process, "reap", answer.workers, answer.dead)
                self._checker.reaped(self._process, answer)
                self._world.written(self._process)
            return answer

        return await self._ask("reap", call)

    async def workers(self, also: Collection[int] = ()) -> list[Worker]:
        return await self._ask("workers", lambda: at_once(self._database.workers(also)))

    # Claims

    async def claim(
        self,
        worker: int,
        *,
        workflows: Collection[str],
        queues: Collection[str] | None,
        limit: int,
        suspects_after: float | None = 0.0,
    ) -> list[Run]:
        def call() -> list[Run]:
            claim = self._database.claim(
                worker, workflows=workflows, queues=queues, limit=limit, suspects_after=suspects_after
            )
            runs = at_once(claim)
            if runs:
                self._world.story(self._process, "claim", [run.id for run in runs], [run.epoch for run in runs])
                self._checker.claimed(self._process, worker, runs)
                self._world.moment("claimed", self._process)
                self._world.written(self._process)
            return runs

        return await self._ask("claim", call)

    async def next_wake(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        return await self._ask(
            "next_wake", lambda: at_once(self._database.next_wake(workflows=workflows, queues=queues))
        )

    async def histories(self, keys: Sequence[int]) -> list[History]:
        return await self._ask("histories", lambda: at_once(self._database.histories(keys)))

    async def new_signals(self, worker: int, after: int) -> NewSignals:
        return await self._ask("new_signals", lambda: at_once(self._database.new_signals(worker, after)))

    async def requests(self, worker: int) -> list[Asked]:
        return await self._ask("requests", lambda: at_once(self._database.requests(worker)))

    # The switch

    async def switch_off(self, workflow: str) -> bool:
        raise NotImplementedError("people switch, from outside")

    async def switch_on(self, workflow: str) -> bool:
        raise NotImplementedError("people switch, from outside")

    async def switched_off(self) -> Mapping[str, float]:
        off = await self._ask("switched_off", lambda: at_once(self._database.switched_off()))
        # From here on nothing of these begins here, until this process hears that they are switched on again.
        still = self._process.to_stand_still
        for driver in self._process.engine.drivers():
            (still.add if driver.run.workflow in off else still.discard)((driver.run.key, driver.run.epoch))
        return off

    # Reading

    async def get(self, run_id: str) -> Run | None:
        return await self._ask("get", lambda: at_once(self._database.get(run_id)))

    async def get_many(self, run_ids: Sequence[str]) -> list[Run]:
        return await self._ask("get_many", lambda: at_once(self._database.get_many(run_ids)))

    async def list_runs(self, where: RunFilter, *, limit: int = 50, before: int | None = None) -> list[Run]:
        return await self._ask(
            "list_runs", lambda: at_once(self._database.list_runs(where, limit=limit, before=before))
        )

    async def search_runs(
        self, where: RunFilter, *, limit: int = 50, before: int | None = None, most: int = 10_000
    ) -> Found:
        return await self._ask(
            "search_runs",
            lambda: at_once(self._database.search_runs(where, limit=limit, before=before, most=most)),
        )

    async def usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        return await self._ask("usages", lambda: at_once(self._database.usages(run_ids)))

    async def count_runs(self, most: int | None = None) -> Mapping[tuple[str, RunState], int]:
        return await self._ask("count_runs", lambda: at_once(self._database.count_runs(most)))

    async def count_unfinished(self, workflows: Collection[str] | None = None) -> Mapping[tuple[str, str], int]:
        return await self._ask("count_unfinished", lambda: at_once(self._database.count_unfinished(workflows)))

    async def last_record(self, run_id: str, name: str) -> Record | None:
        return await self._ask("last_record", lambda: at_once(self._database.last_record(run_id, name)))

    async def feed(self, run_id: str, after_seq: int, after_notice: int, limit: int = 1000) -> Feed | None:
        return await self._ask("feed", lambda: at_once(self._database.feed(run_id, after_seq, after_notice, limit)))

    async def approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        return await self._ask("approvals", lambda: at_once(self._database.approvals(where, limit)))

    # Memories

    async def get_memory(self, namespace: str, key: str) -> Memory | None:
        return await self._ask("get_memory", lambda: at_once(self._database.get_memory(namespace, key)))

    async def list_memories(self, namespace: str, *, after: str = "", limit: int = 100) -> list[Memory]:
        return await self._ask(
            "list_memories", lambda: at_once(self._database.list_memories(namespace, after=after, limit=limit))
        )

    async def search_memories(self, namespace: str, words: str, *, limit: int = 10) -> list[Memory]:
        return await self._ask(
            "search_memories", lambda: at_once(self._database.search_memories(namespace, words, limit=limit))
        )

    # Workflows

    async def publish(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        def call() -> None:
            at_once(self._database.publish(specs, worker))
            self._world.written(self._process)

        await self._ask("publish", call)

    async def specs(self) -> Mapping[str, WorkflowSpec]:
        return await self._ask("specs", lambda: at_once(self._database.specs()))

    # Queues

    async def put_queues(self, queues: Sequence[NewQueue]) -> None:
        raise NotImplementedError("the queue has its limits before the world begins")

    async def set_queue(self, name: str, limits: QueueLimits | None) -> bool:
        raise NotImplementedError("the queue keeps its limits")

    async def pause_queue(self, name: str) -> bool:
        raise NotImplementedError("the queue is never paused")

    async def resume_queue(self, name: str) -> bool:
        raise NotImplementedError("the queue is never paused")

    async def queues(self, names: Collection[str] | None = None) -> list[KeptQueue]:
        raise NotImplementedError("people look at queues, from outside")

    # Schedules

    async def put_schedules(
        self, schedules: Sequence[NewSchedule], *, worker: int | None = None, replace: bool = True
    ) -> list[Schedule]:
        raise NotImplementedError("nothing is scheduled here")

    async def schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        return []

    async def settle_schedule(
        self, name: str, if_was: float, fired_up_to: float, *, run: str = "", skipped: float | None = None
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

    async def documents(
        self, kind: str, names: Collection[str] | None = None, *, after: str = "", limit: int = 1000
    ) -> list[Document]:
        raise NotImplementedError("there is no server here")

    async def delete_document(self, kind: str, name: str) -> bool:
        raise NotImplementedError("there is no server here")

    async def note_audit(self, entries: Sequence[NewAudit]) -> None:
        raise NotImplementedError("there is no server here")

    async def audit(self, *, before: int | None = None, limit: int = 100) -> list[Audit]:
        raise NotImplementedError("there is no server here")

    async def trim_audit(self, before: float, limit: int = 10_000) -> int:
        raise NotImplementedError("there is no server here")

    async def usage_by_day(self, since: str, until: str, *, workflow: str | None = None) -> list[DayUsage]:
        raise NotImplementedError("people ask what was spent, from outside")

    async def runs_by_day(self, since: str, until: str, *, workflow: str | None = None) -> list[DayRuns]:
        raise NotImplementedError("people ask what was spent, from outside")

    # Pruning

    async def prune(self, what: Pruning, after: Place = START, limit: int = 100) -> Pruned:
        raise NotImplementedError("people prune, from outside")

    async def sweep(self, limit: int = 2000) -> Swept:
        raise NotImplementedError("people prune, from outside")

    # Archives

    async def belongings(self, key: int) -> Belongings:
        raise NotImplementedError("people export runs, from outside")

    async def restore(self, archived: Archived) -> bool:
        raise NotImplementedError("people import runs, from outside")

    async def set_going(self, archived: Archived) -> None:
        raise NotImplementedError("people import runs, from outside")

    # Change

    async def changed(self, timeout: float, *, follows: bool = True) -> bool:
        if not self._world.reachable(self._process):
            raise StoreUnavailable("the database cannot be reached")
        if self.written_by_others == self._seen:
            self._waiter = waiter = self._process.loop.create_future()
            try:
                async with asyncio.timeout(timeout):
                    await waiter
            except TimeoutError:
                pass
            finally:
                self._waiter = None
        changed, self._seen = self.written_by_others != self._seen, self.written_by_others
        return changed

    def somebody_wrote(self) -> None:
        """Another process has written: whoever waits for that is told."""
        waiter = self._waiter
        if waiter is not None and not self._process.is_gone:
            self._process.loop.call_soon(_settle, waiter, True)
