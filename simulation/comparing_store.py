# ruff: noqa: D102 - what the methods of a store are for is said once, in the contract
"""A database that is two: the store in memory, which the checker looks into, and a store on SQL beside it.

Whatever a world asks of its database is asked of both, at the same moment of its time, and both must say the same.
The world goes on with what the memory said; so one seed is the same story on every store, and where a store on SQL
departs from it, the seed is broken, with the moment and the request at which it happened. After every write all rows of
runs are compared, and now and then (``LOOK_EVERY``), as well as at the end, everything else that can be read.

A commit of several operations is carried out one by one in memory, since the checker wants to know which of them has
changed what; the other store gets all of them in one commit, as from a real process.

What the contract leaves to a store is not compared:

- **Keys and ids.** Databases number runs, signals and notices in their own ways, with gaps. What is asked is asked with
  the numbers of the store that is asked: a run's key is known from the answer that created it, a signal by its place in
  its mailbox, which has the same order everywhere.
- **The cursor of ``new_signals``** means what the store wants it to mean, and signals may be told again. So what has
  come since must be told, and nothing may be told that is not in a mailbox.
- **``next_wake``** is compared as far as it is in the future; of a limited queue it may be too early, never too late.
- **The order** in which workers are buried, and runs given that are asked for by id.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.admission.queue_limits import QueueLimits
from holdfast.core.records import Record, Signal
from holdfast.core.states import RunState
from holdfast.stores.approvals import Approval, ApprovalFilter
from holdfast.stores.contract import (
    Found,
    History,
    NewSignals,
    NewWorker,
    Reaped,
    Request,
    RunFilter,
    RunUsage,
    Worker,
    WorkflowSpec,
)
from holdfast.stores.daily_usage import DayRuns, DayUsage
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.live_events import Feed
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import Answer, AppendRecord, AwaitRun, Op, Run, Started, StartRun
from holdfast.stores.queues import KeptQueue, NewQueue
from simulation.sql_stores import Place

if TYPE_CHECKING:
    from simulation.world import World

LOOK_EVERY = 40
"""Writes after which everything is compared."""
_MANY = 10_000
_EVER = ("0001-01-01", "9999-12-31")
_NOWHERE = -1
"""The number of nothing."""


class Twin(MemoryStore):
    """A store in memory that is held against another one at every step."""

    def __init__(self, world: World, clock: Callable[[], float], place: Place) -> None:
        super().__init__(clock=clock)
        self._world = world
        self._other = place.fresh(clock)
        self._keys_there: dict[int, int] = {}
        """The keys that runs have in the other store."""
        self._keys_here: dict[int, int] = {}
        self._cursors: dict[tuple[int, int], tuple[int, int]] = {}
        """By worker and cursor: the cursor of the other store, and the last signal that there was then."""
        self._gathered: list[Answer] | None = None
        """What was answered to the operations of a commit so far."""
        self._writes = 0

    def end(self) -> None:
        """The world is over."""
        self._other.end()

    # Asking, and comparing

    def _says(self, what: str, coro: Coroutine[Any, Any, Any]) -> Any:
        """What the other store answers."""
        if self._world.failure is not None:
            coro.close()
            return None
        try:
            coro.send(None)
        except StopIteration as done:
            return done.value
        except Exception as error:  # whatever it is, the store in memory has carried it out
            self._world.fail("every store carries out what it is asked", f"{what}: {error!r}")
            return None
        raise RuntimeError(f"{what} waited for something")

    def _compare(self, what: str, here: Any, there: Any) -> None:
        self._world.counts["answers compared"] += 1
        if self._world.failure is None and here != there:
            self._world.fail("all stores give the same answers", f"{what}: {difference(here, there)}")

    def _same(self, what: str, here: Any, coro: Coroutine[Any, Any, Any]) -> Any:
        """What was answered here, which the other store must answer, too."""
        self._compare(what, here, self._says(what, coro))
        return here

    def _run(self, run: Run | None) -> Run | None:
        """A row of the other store, with the key that it has here."""
        return run and replace(run, key=self._keys_here.get(run.key, _NOWHERE))

    def _runs_there(self, runs: Sequence[Run] | None) -> list[Run | None]:
        return [self._run(run) for run in runs or ()]

    def _key(self, key: int) -> int:
        return self._keys_there.get(key, _NOWHERE)

    # Writing

    @contextmanager
    def together(self, ops: Sequence[Op]) -> Iterator[None]:
        """These operations are one commit, though they are handed in one by one."""
        theirs = [self._for_them(op) for op in ops]
        self._gathered = answers = []
        try:
            yield
        finally:
            self._gathered = None
        self._commit_there(answers, theirs)

    async def commit(self, ops: Sequence[Op]) -> list[Answer]:
        if self._gathered is None:
            with self.together(ops):
                return await self.commit(ops)
        answers = await super().commit(ops)
        self._gathered += answers
        return answers

    def _for_them(self, op: Op) -> Op:
        """An operation with the numbers of the other store."""
        if isinstance(op, AppendRecord) and op.consume is not None:
            op = op._replace(consume=self._signal(op.key, op.consume))
        if isinstance(op, StartRun | AwaitRun):
            link = op.link
            return op if link is None else op._replace(link=link._replace(parent=self._key(link.parent)))
        key = getattr(op, "key", None)
        return op if key is None else op._replace(key=self._key(key))  # type: ignore[call-arg]

    def _signal(self, key: int, signal: int) -> int:
        mailbox = list(self._mailboxes.get(key, ()))
        theirs = self._other.mailbox(self._key(key))
        if signal not in mailbox:
            return _NOWHERE
        self._compare(f"how much is in the mailbox of run {key}", len(mailbox), len(theirs))
        return theirs[mailbox.index(signal)] if len(mailbox) == len(theirs) else _NOWHERE

    def _commit_there(self, answers: list[Answer], ops: Sequence[Op]) -> None:
        theirs = self._says("commit", self._other.commit(ops)) or []
        told: list[Any] = []
        for here, there in zip(answers, theirs, strict=False):
            if isinstance(here, Started) and isinstance(there, Started) and here.run.id == there.run.id:
                self._keys_there.setdefault(here.run.key, there.run.key)
                self._keys_here.setdefault(there.run.key, here.run.key)
            told.append(there._replace(run=self._run(there.run)) if isinstance(there, Started) else there)
        kinds = ", ".join(type(op).__name__ for op in ops)
        self._compare(f"the answer to {kinds}", answers, told)
        self._written()

    def _written(self) -> None:
        """Something was written: compare the rows, and sometimes everything."""
        self._writes += 1
        if self._writes % LOOK_EVERY:
            self._look_at_rows()
        else:
            self.look()

    # Workers

    async def register_worker(self, worker: NewWorker, lease: float) -> int:
        # Both are new, and number workers from 1.
        here = await super().register_worker(worker, lease)
        return self._same("register_worker", here, self._other.register_worker(worker, lease))

    def renew_lease(self, worker: int, lease: float) -> bool:
        here = super().renew_lease(worker, lease)

        async def renew() -> bool:
            return self._other.renew_lease(worker, lease)

        return self._same("renew_lease", here, renew())

    async def retire_worker(self, worker: int) -> None:
        self._same("retire_worker", await super().retire_worker(worker), self._other.retire_worker(worker))
        self._written()

    def kill_worker(self, worker: int) -> None:
        super().kill_worker(worker)
        self._other.kill_worker(worker)

    async def keep_worker(self, worker: int, lease: float) -> bool:
        return self._same(
            "keep_worker", await super().keep_worker(worker, lease), self._other.keep_worker(worker, lease)
        )

    async def expire(self, limit: int = 100) -> list[str]:
        return self._same("expire", await super().expire(limit), self._other.expire(limit))

    async def reap(self, me: int | None = None, window: LeaseWindow | None = None, *, by_lease: bool = False) -> Reaped:
        here = await super().reap(me, window, by_lease=by_lease)
        there = self._says("reap", self._other.reap(me, window, by_lease=by_lease))
        self._compare("reap", _sorted(here), there and _sorted(there))
        if here.workers:
            self._written()
        return here

    async def workers(self, also: Collection[int] = ()) -> list[Worker]:
        return self._same("workers", await super().workers(also), self._other.workers(also))

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
        wanted: Any = {"workflows": workflows, "queues": queues, "limit": limit, "suspects_after": suspects_after}
        here = await super().claim(worker, **wanted)
        there = self._says("claim", self._other.claim(worker, **wanted))
        self._compare("claim", here, self._runs_there(there))
        if here:
            self._written()
        return here

    async def next_wake(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        here = await super().next_wake(workflows=workflows, queues=queues)
        there = self._says("next_wake", self._other.next_wake(workflows=workflows, queues=queues))
        now = self.now()
        ours, theirs = (None if time is None else max(time, now) for time in (here, there))
        if self._queues and theirs is not None and (ours is None or theirs < ours):
            theirs = ours
        self._compare("next_wake", ours, theirs)
        return here

    async def histories(self, keys: Sequence[int]) -> list[History]:
        here = await super().histories(keys)
        there = self._says("histories", self._other.histories([self._key(key) for key in keys]))
        self._compare("histories", [_history(one) for one in here], [_history(one) for one in there or ()])
        return here

    async def new_signals(self, worker: int, after: int) -> NewSignals:
        here = await super().new_signals(worker, after)
        cursor, last = self._cursors.get((worker, after), (0, 0))
        there = self._says("new_signals", self._other.new_signals(worker, cursor))
        if there is None:
            return here
        self._cursors[worker, here.cursor] = (there.cursor, self._last_signal)
        all_here = await super().new_signals(worker, 0)
        if not all_here.signals:
            self._compare("new_signals", [], list(there.signals))
            return here
        everything = self._says("new_signals from the beginning", self._other.new_signals(worker, 0))
        self._compare("new_signals from the beginning", _mail(all_here.signals), self._mail_there(everything))
        if self._world.failure is None:
            # In a mailbox they have the same order in both.
            pairs = zip(_by_run(all_here.signals), _by_run(everything.signals, self._keys_here), strict=True)
            known = {theirs.id: ours.id for (_, ours), (_, theirs) in pairs}
            told = [known.get(signal.id, _NOWHERE) for _, signal in there.signals]
            missed = [signal.id for _, signal in all_here.signals if signal.id > last and signal.id not in told]
            self._compare("new_signals, of which none may be missing or made up", [], [*missed, *_unknown(told)])
        return here

    def _mail_there(self, found: NewSignals | None) -> Any:
        return (
            None if found is None else _mail([(self._keys_here.get(key, _NOWHERE), one) for key, one in found.signals])
        )

    async def requests(self, worker: int) -> list[Request]:
        here, there = await super().requests(worker), self._says("requests", self._other.requests(worker))
        theirs = [one._replace(key=self._keys_here.get(one.key, _NOWHERE)) for one in there or ()]
        self._compare("requests", here, theirs)
        return here

    # The switch

    async def switch_off(self, workflow: str) -> bool:
        return self._same("switch_off", await super().switch_off(workflow), self._other.switch_off(workflow))

    async def switch_on(self, workflow: str) -> bool:
        return self._same("switch_on", await super().switch_on(workflow), self._other.switch_on(workflow))

    async def switched_off(self) -> Mapping[str, float]:
        return self._same("switched_off", await super().switched_off(), self._other.switched_off())

    # Reading

    async def get(self, run_id: str) -> Run | None:
        here, there = await super().get(run_id), self._says("get", self._other.get(run_id))
        self._compare(f"get {run_id}", here, self._run(there))
        return here

    async def get_many(self, run_ids: Sequence[str]) -> list[Run]:
        here, there = await super().get_many(run_ids), self._says("get_many", self._other.get_many(run_ids))
        self._compare("get_many", sorted(here, key=_age), sorted(self._runs_there(there), key=_age))
        return here

    async def list_runs(self, where: RunFilter, *, limit: int = 50, before: int | None = None) -> list[Run]:
        here = await super().list_runs(where, limit=limit, before=before)
        theirs = None if before is None else self._key(before)
        there = self._says("list_runs", self._other.list_runs(where, limit=limit, before=theirs))
        self._compare("list_runs", here, self._runs_there(there))
        return here

    async def search_runs(
        self, where: RunFilter, *, limit: int = 50, before: int | None = None, most: int = 10_000
    ) -> Found:
        here = await super().search_runs(where, limit=limit, before=before, most=most)
        theirs = None if before is None else self._key(before)
        there = self._says("search_runs", self._other.search_runs(where, limit=limit, before=theirs, most=most))
        # How far each has come in one piece is its own affair; what is within both must be the same.
        number = min(len(here.runs), len(there.runs))
        self._compare("search_runs", here.runs[:number], self._runs_there(there.runs)[:number])
        return here

    async def usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        return self._same("usages", await super().usages(run_ids), self._other.usages(run_ids))

    async def count_runs(self, most: int | None = None) -> Mapping[tuple[str, RunState], int]:
        return self._same("count_runs", await super().count_runs(most), self._other.count_runs(most))

    async def count_unfinished(self, workflows: Collection[str] | None = None) -> Mapping[tuple[str, str], int]:
        there = self._other.count_unfinished(workflows)
        return self._same("count_unfinished", await super().count_unfinished(workflows), there)

    async def last_record(self, run_id: str, name: str) -> Record | None:
        here = await super().last_record(run_id, name)
        return self._same("last_record", here, self._other.last_record(run_id, name))

    async def feed(self, run_id: str, after_seq: int, after_notice: int, limit: int = 1000) -> Feed | None:
        here = await super().feed(run_id, after_seq, after_notice, limit)
        there = self._says("feed", self._other.feed(run_id, after_seq, 0, _MANY))
        if here is None or there is None:
            self._compare(f"feed {run_id}", here, there)
            return here
        skipped = sum(number <= after_notice for number in self._notices.get(here.run.key, ()))
        told = [notice for _, notice in there.notices][skipped:]
        self._compare(
            f"feed {run_id}",
            (here.run, list(here.records), [notice for _, notice in here.notices]),
            (self._run(there.run), list(there.records)[:limit], told[:limit]),
        )
        return here

    async def approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        return self._same("approvals", await super().approvals(where, limit), self._other.approvals(where, limit))

    # Workflows and queues

    async def publish(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        self._same("publish", await super().publish(specs, worker), self._other.publish(specs, worker))

    async def specs(self) -> Mapping[str, WorkflowSpec]:
        return self._same("specs", await super().specs(), self._other.specs())

    async def put_queues(self, queues: Sequence[NewQueue]) -> None:
        self._same("put_queues", await super().put_queues(queues), self._other.put_queues(queues))

    async def set_queue(self, name: str, limits: QueueLimits | None) -> bool:
        return self._same("set_queue", await super().set_queue(name, limits), self._other.set_queue(name, limits))

    async def queues(self, names: Collection[str] | None = None) -> list[KeptQueue]:
        return self._same("queues", await super().queues(names), self._other.queues(names))

    # Spending

    async def usage_by_day(self, since: str, until: str, *, workflow: str | None = None) -> list[DayUsage]:
        here = await super().usage_by_day(since, until, workflow=workflow)
        return self._same("usage_by_day", here, self._other.usage_by_day(since, until, workflow=workflow))

    async def runs_by_day(self, since: str, until: str, *, workflow: str | None = None) -> list[DayRuns]:
        here = await super().runs_by_day(since, until, workflow=workflow)
        return self._same("runs_by_day", here, self._other.runs_by_day(since, until, workflow=workflow))

    # Looking

    def _look_at_rows(self) -> None:
        _at_once(self.list_runs(RunFilter(), limit=_MANY))

    def look(self) -> None:
        """Compare everything that can be read."""
        _at_once(self._look())

    async def _look(self) -> None:
        runs = await self.list_runs(RunFilter(), limit=_MANY)
        ids = [run.id for run in runs]
        await self.get_many(ids)
        await self.histories([run.key for run in runs])
        for run_id in ids:
            await self.feed(run_id, -1, 0)
        await self.usages(ids)
        await self.usage_by_day(*_EVER)
        await self.runs_by_day(*_EVER)
        await self.count_runs()
        await self.count_unfinished()
        await self.approvals(ApprovalFilter())
        await self.approvals(ApprovalFilter(only_open=False))
        await self.switched_off()
        await self.queues()
        for worker in await self.workers():
            await self.requests(worker.id)
        served = [*await self.specs()]
        await self.next_wake(workflows=served, queues=None)


def _at_once(coro: Coroutine[Any, Any, Any]) -> None:
    try:
        coro.send(None)
    except StopIteration:
        return
    raise RuntimeError("the database waited for something")


# What is compared of an answer


def _age(run: Run | None) -> int:
    return _NOWHERE if run is None else run.key


def _sorted(reaped: Reaped) -> Reaped:
    return replace(reaped, workers=tuple(sorted(reaped.workers)), dead=tuple(sorted(reaped.dead)))


def _history(history: History) -> History:
    """A history, with all signals numbered by their places."""
    ids = [signal.id for signal in history.signals]
    return History(
        list(history.records),
        dict(history.attempts),
        [signal._replace(id=place) for place, signal in enumerate(history.signals)] if ids == sorted(ids) else ids,
        dict(history.links),
    )


def _by_run(signals: Sequence[tuple[int, Signal]], keys: Mapping[int, int] | None = None) -> list[tuple[int, Signal]]:
    """Signals of the same run together, the oldest run first, with the keys that these stand for."""
    named = [(key if keys is None else keys.get(key, _NOWHERE), signal) for key, signal in signals]
    return sorted(named, key=lambda pair: pair[0])


def _mail(signals: Sequence[tuple[int, Signal]]) -> list[tuple[int, Signal]]:
    """What is in the mailboxes, without ids."""
    return [(key, signal._replace(id=0)) for key, signal in _by_run(signals)]


def _unknown(told: Sequence[int]) -> list[int]:
    return [signal for signal in told if signal == _NOWHERE]


# What to say of it


def difference(here: Any, there: Any) -> str:
    """In which part two answers differ: in memory, and in the other store."""
    if type(here) is type(there):
        if is_dataclass(here) and not isinstance(here, type):
            return _first((f".{f.name}", getattr(here, f.name), getattr(there, f.name)) for f in fields(here))
        if isinstance(here, tuple) and hasattr(here, "_fields"):
            return _first((f".{name}", getattr(here, name), getattr(there, name)) for name in here._fields)
        if isinstance(here, list | tuple) and len(here) == len(there):
            return _first((f"[{at}]", *pair) for at, pair in enumerate(zip(here, there, strict=True)))
        if isinstance(here, dict) and here.keys() == there.keys():
            return _first((f"[{key!r}]", value, there[key]) for key, value in here.items())
    return f" is {_short(here)} in memory, and {_short(there)} in the other store"


def _first(parts: Iterator[tuple[str, Any, Any]]) -> str:
    return next(name + difference(ours, theirs) for name, ours, theirs in parts if ours != theirs)


def _short(value: Any) -> str:
    words = repr(value)
    return words if len(words) < 300 else f"{words[:300]}…"
