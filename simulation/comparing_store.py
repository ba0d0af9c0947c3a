# ruff: noqa: D102 - the contract documents the methods of a store
"""A database of two stores: the memory store, which the checker inspects, and a SQL store next to it.

Every request of a world goes to both stores at the same virtual time, and both must give the same answer. The world
continues with the answer of the memory store, so a seed runs the same way with every store. Where a SQL store differs,
the seed fails at that request. After every write, all rows of runs are compared; everything else that can be read is
compared at intervals (``COMPARE_EVERY``) and at the end.

The memory store executes the operations of a commit one by one, because the checker needs to know what each of them
changed. The SQL store gets all of them in one commit, as from a real process.

What the contract leaves to a store is not compared:

- **Keys and ids.** Databases number runs, signals, and live events in their own ways, with gaps. Each store is asked
  with its own numbers: a run's key is known from the answer that created it, and a signal is known by its place in its
  mailbox, where the order is the same in every store.
- **The cursor of ``get_new_signals``** is the store's own, and a store may return a signal more than once. So it must
  return everything that has arrived since, and nothing that is not in a mailbox.
- **``get_next_wake_at``** is compared only if it is in the future. For a limited queue it may be too early, but never
  too late.
- **The order** in which dead workers are reaped, and in which runs are returned that are requested by id.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.core.records import Record, Signal
from holdfast.core.states import RunState
from holdfast.stores.approvals import Approval, ApprovalFilter
from holdfast.stores.claims import NewSignals, RunRequests
from holdfast.stores.contract import History, RunFilter, RunSearchPage, RunUsage, WorkflowSpec
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.live_events import RunUpdates
from holdfast.stores.memory import MemoryStore
from holdfast.stores.memory.workers import MemoryClaims, MemoryWorkers
from holdfast.stores.operations import AppendRecord, AwaitRun, Op, OpResult, Run, StartResult, StartRun
from holdfast.stores.workers import NewWorker, ReapResult, Worker
from simulation.sql_stores import StoreFactory

if TYPE_CHECKING:
    from simulation.world import World

COMPARE_EVERY = 40
"""Writes after which everything is compared."""
_LIST_LIMIT = 10_000
_ALL_DAYS = ("0001-01-01", "9999-12-31")
_UNKNOWN_KEY = -1
"""The number of nothing."""


class ComparingStore(MemoryStore):
    """A store in memory that is held against another one at every step."""

    def __init__(self, world: World, clock: Callable[[], float], store_factory: StoreFactory) -> None:
        super().__init__(clock=clock)
        self._world = world
        self._other = store_factory.create_store(clock)
        self._other_keys: dict[int, int] = {}
        """The keys that runs have in the other store."""
        self._local_keys: dict[int, int] = {}
        self._other_cursors: dict[tuple[int, int], tuple[int, int]] = {}
        """By worker and cursor: the cursor of the other store, and the last signal that there was then."""
        self._commit_answers: list[OpResult] | None = None
        """The answers to the operations of a commit so far."""
        self._write_count = 0
        self.workers = ComparingWorkers(self)
        self.claims = ComparingClaims(self)
        for name in ("disabled_workflows", "queues", "daily_usage"):
            setattr(self, name, ComparingCapability(self, name))

    def dispose(self) -> None:
        """Close the world."""
        self._other.dispose()

    # Asking, and comparing

    def _call_other(self, operation: str, coro: Coroutine[Any, Any, Any]) -> Any:
        """The answer of the SQL store."""
        if self._world.failure is not None:
            coro.close()
            return None
        try:
            coro.send(None)
        except StopIteration as done:
            return done.value
        except Exception as error:  # whatever it is, the store in memory has carried it out
            self._world.fail("every store carries out what it is asked", f"{operation}: {error!r}")
            return None
        raise RuntimeError(f"{operation} waited for something")

    def _compare(self, operation: str, ours: Any, theirs: Any) -> None:
        self._world.counts["answers compared"] += 1
        if self._world.failure is None and ours != theirs:
            self._world.fail("all stores give the same answers", f"{operation}: {describe_difference(ours, theirs)}")

    def _compare_answer(self, operation: str, ours: Any, coro: Coroutine[Any, Any, Any]) -> Any:
        """An answer of the memory store, which the SQL store must give, too."""
        self._compare(operation, ours, self._call_other(operation, coro))
        return ours

    def _to_local_run(self, run: Run | None) -> Run | None:
        """A row of the other store, with the key that it has here."""
        return run and replace(run, key=self._local_keys.get(run.key, _UNKNOWN_KEY))

    def _to_local_runs(self, runs: Sequence[Run] | None) -> list[Run | None]:
        return [self._to_local_run(run) for run in runs or ()]

    def _to_other_key(self, key: int) -> int:
        return self._other_keys.get(key, _UNKNOWN_KEY)

    # Writing

    @contextmanager
    def single_commit(self, ops: Sequence[Op]) -> Iterator[None]:
        """These operations are one commit, though they are handed in one by one."""
        theirs = [self._to_other_op(op) for op in ops]
        self._commit_answers = answers = []
        try:
            yield
        finally:
            self._commit_answers = None
        self._commit_other(answers, theirs)

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        if self._commit_answers is None:
            with self.single_commit(ops):
                return await self.commit(ops)
        answers = await super().commit(ops)
        self._commit_answers += answers
        return answers

    def _to_other_op(self, op: Op) -> Op:
        """An operation with the numbers of the other store."""
        if isinstance(op, AppendRecord) and op.consumed_signal_id is not None:
            op = op._replace(consumed_signal_id=self._to_other_signal(op.key, op.consumed_signal_id))
        if isinstance(op, StartRun | AwaitRun):
            link = op.link
            return (
                op if link is None else op._replace(link=link._replace(parent_key=self._to_other_key(link.parent_key)))
            )
        key = getattr(op, "key", None)
        return op if key is None else op._replace(key=self._to_other_key(key))  # type: ignore[call-arg]

    def _to_other_signal(self, key: int, signal: int) -> int:
        mailbox = list(self._mailboxes.get(key, ()))
        theirs = self._other.list_mailbox_ids(self._to_other_key(key))
        if signal not in mailbox:
            return _UNKNOWN_KEY
        self._compare(f"how much is in the mailbox of run {key}", len(mailbox), len(theirs))
        return theirs[mailbox.index(signal)] if len(mailbox) == len(theirs) else _UNKNOWN_KEY

    def _commit_other(self, answers: list[OpResult], ops: Sequence[Op]) -> None:
        theirs = self._call_other("commit", self._other.commit(ops)) or []
        told: list[Any] = []
        for here, there in zip(answers, theirs, strict=False):
            if isinstance(here, StartResult) and isinstance(there, StartResult) and here.run.id == there.run.id:
                self._other_keys.setdefault(here.run.key, there.run.key)
                self._local_keys.setdefault(there.run.key, here.run.key)
            told.append(there._replace(run=self._to_local_run(there.run)) if isinstance(there, StartResult) else there)
        kinds = ", ".join(type(op).__name__ for op in ops)
        self._compare(f"the answer to {kinds}", answers, told)
        self._after_write()

    def _after_write(self) -> None:
        """Something was written: compare the rows, and sometimes everything."""
        self._write_count += 1
        if self._write_count % COMPARE_EVERY:
            self._compare_rows()
        else:
            self.compare_all()

    # Workers

    def simulate_worker_death(self, worker: int) -> None:
        super().simulate_worker_death(worker)
        self._other.kill_worker(worker)

    async def list_workers(self, extra_ids: Collection[int] = ()) -> list[Worker]:
        return self._compare_answer(
            "list_workers", await super().list_workers(extra_ids), self._other.list_workers(extra_ids)
        )

    async def get_histories(self, keys: Sequence[int]) -> list[History]:
        here = await super().get_histories(keys)
        there = self._call_other("get_histories", self._other.get_histories([self._to_other_key(key) for key in keys]))
        self._compare(
            "get_histories", [_normalize_history(one) for one in here], [_normalize_history(one) for one in there or ()]
        )
        return here

    # Reading

    async def get_run(self, run_id: str) -> Run | None:
        here, there = await super().get_run(run_id), self._call_other("get_run", self._other.get_run(run_id))
        self._compare(f"get_run {run_id}", here, self._to_local_run(there))
        return here

    async def get_runs(self, run_ids: Sequence[str]) -> list[Run]:
        here, there = await super().get_runs(run_ids), self._call_other("get_runs", self._other.get_runs(run_ids))
        self._compare("get_runs", sorted(here, key=_get_run_key), sorted(self._to_local_runs(there), key=_get_run_key))
        return here

    async def list_runs(self, where: RunFilter, *, limit: int = 50, before_key: int | None = None) -> list[Run]:
        here = await super().list_runs(where, limit=limit, before_key=before_key)
        theirs = None if before_key is None else self._to_other_key(before_key)
        there = self._call_other("list_runs", self._other.list_runs(where, limit=limit, before_key=theirs))
        self._compare("list_runs", here, self._to_local_runs(there))
        return here

    async def search_runs(
        self, where: RunFilter, *, limit: int = 50, before_key: int | None = None, max_scanned: int = 10_000
    ) -> RunSearchPage:
        here = await super().search_runs(where, limit=limit, before_key=before_key, max_scanned=max_scanned)
        theirs = None if before_key is None else self._to_other_key(before_key)
        there = self._call_other(
            "search_runs", self._other.search_runs(where, limit=limit, before_key=theirs, max_scanned=max_scanned)
        )
        # Each store reads as far as it likes; the part that both have read must be equal.
        number = min(len(here.runs), len(there.runs))
        self._compare("search_runs", here.runs[:number], self._to_local_runs(there.runs)[:number])
        return here

    async def get_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        return self._compare_answer("get_usages", await super().get_usages(run_ids), self._other.get_usages(run_ids))

    async def count_runs(self, max_ended: int | None = None) -> Mapping[tuple[str, RunState], int]:
        return self._compare_answer(
            "count_runs", await super().count_runs(max_ended), self._other.count_runs(max_ended)
        )

    async def count_unfinished_runs(self, workflows: Collection[str] | None = None) -> Mapping[tuple[str, str], int]:
        there = self._other.count_unfinished_runs(workflows)
        return self._compare_answer("count_unfinished_runs", await super().count_unfinished_runs(workflows), there)

    async def get_last_record(self, run_id: str, name: str) -> Record | None:
        here = await super().get_last_record(run_id, name)
        return self._compare_answer("get_last_record", here, self._other.get_last_record(run_id, name))

    async def get_run_updates(
        self, run_id: str, after_seq: int, after_event_id: int, limit: int = 1000
    ) -> RunUpdates | None:
        here = await super().get_run_updates(run_id, after_seq, after_event_id, limit)
        there = self._call_other("get_run_updates", self._other.get_run_updates(run_id, after_seq, 0, _LIST_LIMIT))
        if here is None or there is None:
            self._compare(f"get_run_updates {run_id}", here, there)
            return here
        skipped = sum(number <= after_event_id for number in self._live_events.get(here.run.key, ()))
        told = [notice for _, notice in there.live_events][skipped:]
        self._compare(
            f"get_run_updates {run_id}",
            (here.run, list(here.records), [notice for _, notice in here.live_events]),
            (self._to_local_run(there.run), list(there.records)[:limit], told[:limit]),
        )
        return here

    async def list_approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        return self._compare_answer(
            "list_approvals", await super().list_approvals(where, limit), self._other.list_approvals(where, limit)
        )

    # Workflows

    async def announce_workflows(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        self._compare_answer(
            "announce_workflows",
            await super().announce_workflows(specs, worker),
            self._other.announce_workflows(specs, worker),
        )

    async def get_workflow_specs(self, workflow: str | None = None) -> Mapping[str, WorkflowSpec]:
        return self._compare_answer(
            "get_workflow_specs",
            await super().get_workflow_specs(workflow),
            self._other.get_workflow_specs(workflow),
        )

    # Looking

    def _compare_rows(self) -> None:
        _run_sync(self.list_runs(RunFilter(), limit=_LIST_LIMIT))

    def compare_all(self) -> None:
        """Compare everything that can be read."""
        _run_sync(self._compare_all())

    async def _compare_all(self) -> None:
        runs = await self.list_runs(RunFilter(), limit=_LIST_LIMIT)
        ids = [run.id for run in runs]
        await self.get_runs(ids)
        await self.get_histories([run.key for run in runs])
        for run_id in ids:
            await self.get_run_updates(run_id, -1, 0)
        await self.get_usages(ids)
        await self.daily_usage.get(*_ALL_DAYS)
        await self.daily_usage.get_run_counts(*_ALL_DAYS)
        await self.count_runs()
        await self.count_unfinished_runs()
        await self.list_approvals(ApprovalFilter())
        await self.list_approvals(ApprovalFilter(only_open=False))
        await self.disabled_workflows.get_all()
        await self.queues.list()
        for worker in await self.list_workers():
            await self.claims.get_run_requests(worker.id)
        served = [*await self.get_workflow_specs()]
        await self.claims.get_next_wake_at(workflows=served, queues=None)


class ComparingWorkers(MemoryWorkers):
    """Workers, on both stores."""

    def __init__(self, store: ComparingStore) -> None:
        super().__init__(store)
        self._store = store

    async def register(self, worker: NewWorker, lease_s: float) -> int:
        # Both are new, and number workers from 1.
        here = await super().register(worker, lease_s)
        return self._store._compare_answer(
            "workers.register", here, self._store._other.workers.register(worker, lease_s)
        )

    def renew_lease(self, worker: int, lease_s: float) -> bool:
        here = super().renew_lease(worker, lease_s)

        async def renew() -> bool:
            return self._store._other.workers.renew_lease(worker, lease_s)

        return self._store._compare_answer("workers.renew_lease", here, renew())

    async def retire(self, worker: int) -> None:
        self._store._compare_answer(
            "workers.retire", await super().retire(worker), self._store._other.workers.retire(worker)
        )
        self._store._after_write()

    async def renew_listener_lease(self, worker: int, lease_s: float) -> bool:
        return self._store._compare_answer(
            "workers.renew_listener_lease",
            await super().renew_listener_lease(worker, lease_s),
            self._store._other.workers.renew_listener_lease(worker, lease_s),
        )

    async def reap_dead(
        self, except_worker: int | None = None, window: LeaseWindow | None = None, *, include_listeners: bool = False
    ) -> ReapResult:
        here = await super().reap_dead(except_worker, window, include_listeners=include_listeners)
        there = self._store._call_other(
            "workers.reap_dead",
            self._store._other.workers.reap_dead(except_worker, window, include_listeners=include_listeners),
        )
        self._store._compare("workers.reap_dead", _sort_reaped(here), there and _sort_reaped(there))
        if here.worker_ids:
            self._store._after_write()
        return here


class ComparingClaims(MemoryClaims):
    """Claims, on both stores."""

    def __init__(self, store: ComparingStore) -> None:
        super().__init__(store)
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
        wanted: Any = {"workflows": workflows, "queues": queues, "limit": limit, "suspect_delay_s": suspect_delay_s}
        here = await super().claim(worker, **wanted)
        there = self._store._call_other("claims.claim", self._store._other.claims.claim(worker, **wanted))
        self._store._compare("claims.claim", here, self._store._to_local_runs(there))
        if here:
            self._store._after_write()
        return here

    async def get_next_wake_at(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        here = await super().get_next_wake_at(workflows=workflows, queues=queues)
        there = self._store._call_other(
            "claims.get_next_wake_at", self._store._other.claims.get_next_wake_at(workflows=workflows, queues=queues)
        )
        now = self._tables._clock()
        ours, theirs = (None if time is None else max(time, now) for time in (here, there))
        if self._tables._queues and theirs is not None and (ours is None or theirs < ours):
            theirs = ours
        self._store._compare("claims.get_next_wake_at", ours, theirs)
        return here

    async def get_new_signals(self, worker: int, after: int) -> NewSignals:
        here = await super().get_new_signals(worker, after)
        cursor, last = self._store._other_cursors.get((worker, after), (0, 0))
        there = self._store._call_other(
            "claims.get_new_signals", self._store._other.claims.get_new_signals(worker, cursor)
        )
        if there is None:
            return here
        self._store._other_cursors[worker, here.cursor] = (there.cursor, self._tables._last_signal_id)
        all_here = await super().get_new_signals(worker, 0)
        if not all_here.signals:
            self._store._compare("claims.get_new_signals", [], list(there.signals))
            return here
        everything = self._store._call_other(
            "claims.get_new_signals from the beginning", self._store._other.claims.get_new_signals(worker, 0)
        )
        self._store._compare(
            "claims.get_new_signals from the beginning",
            _normalize_mail(all_here.signals),
            self._to_local_mail(everything),
        )
        if self._store._world.failure is None:
            # The order in a mailbox is the same in both.
            pairs = zip(
                _group_by_run(all_here.signals), _group_by_run(everything.signals, self._store._local_keys), strict=True
            )
            known = {theirs.id: ours.id for (_, ours), (_, theirs) in pairs}
            told = [known.get(signal.id, _UNKNOWN_KEY) for _, signal in there.signals]
            missed = [signal.id for _, signal in all_here.signals if signal.id > last and signal.id not in told]
            self._store._compare(
                "claims.get_new_signals, of which none may be missing or made up", [], [*missed, *_keep_unknown(told)]
            )
        return here

    def _to_local_mail(self, found: NewSignals | None) -> Any:
        return (
            None
            if found is None
            else _normalize_mail([(self._store._local_keys.get(key, _UNKNOWN_KEY), one) for key, one in found.signals])
        )

    async def get_run_requests(self, worker: int) -> list[RunRequests]:
        here, there = (
            await super().get_run_requests(worker),
            self._store._call_other("claims.get_run_requests", self._store._other.claims.get_run_requests(worker)),
        )
        theirs = [one._replace(key=self._store._local_keys.get(one.key, _UNKNOWN_KEY)) for one in there or ()]
        self._store._compare("claims.get_run_requests", here, theirs)
        return here

    async def expire_runs(self, limit: int = 100) -> list[str]:
        return self._store._compare_answer(
            "claims.expire_runs", await super().expire_runs(limit), self._store._other.claims.expire_runs(limit)
        )


class ComparingCapability:
    """A capability of both stores, which must give the same answers."""

    def __init__(self, store: ComparingStore, name: str) -> None:
        self._store, self._name = store, name
        self._ours, self._theirs = getattr(store, name), getattr(store._other, name)

    def __getattr__(self, method: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            ours = await getattr(self._ours, method)(*args, **kwargs)
            theirs = getattr(self._theirs, method)(*args, **kwargs)
            return self._store._compare_answer(f"{self._name}.{method}", ours, theirs)

        return call


def _run_sync(coro: Coroutine[Any, Any, Any]) -> None:
    try:
        coro.send(None)
    except StopIteration:
        return
    raise RuntimeError("the database waited for something")


# The parts of an answer that are compared


def _get_run_key(run: Run | None) -> int:
    return _UNKNOWN_KEY if run is None else run.key


def _sort_reaped(reaped: ReapResult) -> ReapResult:
    return replace(reaped, worker_ids=tuple(sorted(reaped.worker_ids)), dead_run_ids=tuple(sorted(reaped.dead_run_ids)))


def _normalize_history(history: History) -> History:
    """A history, with all signals numbered by their places."""
    ids = [signal.id for signal in history.signals]
    return History(
        list(history.records),
        dict(history.attempts),
        [signal._replace(id=place) for place, signal in enumerate(history.signals)] if ids == sorted(ids) else ids,
        dict(history.links),
    )


def _group_by_run(
    signals: Sequence[tuple[int, Signal]], keys: Mapping[int, int] | None = None
) -> list[tuple[int, Signal]]:
    """Signals grouped by run, oldest run first, with the keys of this store."""
    named = [(key if keys is None else keys.get(key, _UNKNOWN_KEY), signal) for key, signal in signals]
    return sorted(named, key=lambda pair: pair[0])


def _normalize_mail(signals: Sequence[tuple[int, Signal]]) -> list[tuple[int, Signal]]:
    """The contents of the mailboxes, without ids."""
    return [(key, signal._replace(id=0)) for key, signal in _group_by_run(signals)]


def _keep_unknown(signal_ids: Sequence[int]) -> list[int]:
    return [signal for signal in signal_ids if signal == _UNKNOWN_KEY]


# Messages


def describe_difference(ours: Any, theirs: Any) -> str:
    """In which part two answers differ: in memory, and in the other store."""
    if type(ours) is type(theirs):
        if is_dataclass(ours) and not isinstance(ours, type):
            return _describe_first_difference(
                (f".{f.name}", getattr(ours, f.name), getattr(theirs, f.name)) for f in fields(ours)
            )
        if isinstance(ours, tuple) and hasattr(ours, "_fields"):
            return _describe_first_difference(
                (f".{name}", getattr(ours, name), getattr(theirs, name)) for name in ours._fields
            )
        if isinstance(ours, list | tuple) and len(ours) == len(theirs):
            return _describe_first_difference(
                (f"[{at}]", *pair) for at, pair in enumerate(zip(ours, theirs, strict=True))
            )
        if isinstance(ours, dict) and ours.keys() == theirs.keys():
            return _describe_first_difference((f"[{key!r}]", value, theirs[key]) for key, value in ours.items())
    return f" is {_shorten(ours)} in memory, and {_shorten(theirs)} in the other store"


def _describe_first_difference(parts: Iterator[tuple[str, Any, Any]]) -> str:
    return next(name + describe_difference(ours, theirs) for name, ours, theirs in parts if ours != theirs)


def _shorten(value: Any) -> str:
    words = repr(value)
    return words if len(words) < 300 else f"{words[:300]}…"
