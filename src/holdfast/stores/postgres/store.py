# ruff: noqa: D102 - what the methods of a store are for is said once, in the contract
"""The PostgreSQL store: which connection does what, and how a fleet of workers learns of each other.

A process has three connections: one that writes, one that reads, and the *keeper*, which lives as long as the store and
does what depends on a session. A fourth one is opened for the lists that people ask for.

**News.** After a commit that may concern others, they are notified (see ``notifier``). Notifying is never part of a
commit, and goes through the keeper. What a process that dies in between has not told is found all the same: by those
that look for dead workers, and by the look that every worker takes now and then (see ``workers``).

**Time.** Machines disagree; the database's clock is the same for all. ``now`` is an estimate of it (see ``clocks``),
which every new connection and every look correct. Renewals of leases are written with the database's own time.

**Cut off.** The server drops the locks of all workers when it loses its connections to them, as when a network is away.
A process that could not connect itself knows that others could not either, and gives them time to come back
(``REJOIN``) before it takes a free lock for a death.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat

import psycopg

from holdfast.core.records import Attempt
from holdfast.core.states import RunState
from holdfast.errors import SchemaTooNew, StoreError, StoreLocked, StoreUnavailable, UsageError
from holdfast.stores.clocks import DatabaseClock, elapsed
from holdfast.stores.contract import DEFAULT_NAMESPACE, NewSignals, NewWorker, Reaped
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.operations import Answer, Op, Run, Verdict
from holdfast.stores.postgres import step_transactions
from holdfast.stores.postgres.connection_worker import Line
from holdfast.stores.postgres.connections import Connection, connect, split_url
from holdfast.stores.postgres.database import PgDatabase
from holdfast.stores.postgres.errors import store_error
from holdfast.stores.postgres.migrations import check_compatible, compatible_from, migrate
from holdfast.stores.postgres.notifier import Notifier
from holdfast.stores.postgres.statements import PgStatements
from holdfast.stores.postgres.step_transactions import PgStepTransaction, Sessions
from holdfast.stores.postgres.worker_session import Keeper
from holdfast.stores.postgres.workers import Doubtful, Looker, Seen, lock_class
from holdfast.stores.queues import NewQueue
from holdfast.stores.schedules import NewSchedule, Schedule
from holdfast.stores.sql.batch import plain_records
from holdfast.stores.sql.claims import Wanted
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.queue_settings import Outcome
from holdfast.stores.sql.rows import Reader
from holdfast.stores.sql.step_transactions import find_out
from holdfast.stores.sql.store import SqlStore, T, Work
from holdfast.stores.sql.workers import Suspect, bury, retire
from holdfast.stores.urls import checked_namespace, in_namespace, shown_url

LOOK_EVERY = 0.66
"""Seconds between two looks of a worker that has nothing to do. With the renewals of its lease, that makes less than
two queries a second."""
SECOND_LOOK = 0.1
"""Seconds after which a suspect is looked at again: by then, a worker that lives has its lock again."""
BURYING_PATIENCE = 0.25
"""Seconds to wait for rows of a worker that seems to be dead. It may be a process that was suspended with these rows
locked, and all who see that would wait for as long as the server lets it be."""
REJOIN = 5.0
"""Seconds after the last failed attempt to connect in which free locks mean nothing. Others pause for up to a second
between two attempts, and an attempt takes its time where packets get lost."""
FOLLOW_EVERY = 0.25
"""Seconds after which whoever follows runs looks again, where news cannot be heard."""
FALLBACK = 5.0
"""Seconds after which whoever follows runs looks again, although there was no news."""
ON_LOOP = 500
"""How many records are sent from the event loop; to make more of them ready would keep it for too long."""
ON_LOOP_BYTES = 1_000_000
"""The same, of their payloads."""
_CALM = 0.02
"""Seconds between two changes that are told to the engine, at most: news comes in bursts."""
_CALM_AFTER = 4
"""So many times as long as it took the engine to see to a change, it is left in peace: it need not look without end,
and a server that is slow is asked less often."""
_HAS_READERS = sys.platform != "win32"
"""Whether the usual event loops can wait for a socket of libpq."""

log = logging.getLogger("holdfast.stores")


def schema_of(namespace: str) -> str:
    """The schema in which a namespace is kept."""
    name = checked_namespace(namespace)
    return "holdfast" if name == DEFAULT_NAMESPACE else f"holdfast_{name}"


class PgStore(SqlStore):
    """Journals in one schema of a PostgreSQL database, shared by all processes that can reach it."""

    def __init__(
        self,
        url: str,
        *,
        namespace: str | None = None,
        clock: Callable[[], float] | None = None,
        look_every: float = LOOK_EVERY,
    ) -> None:
        self._target, in_url = split_url(url)
        self.namespace = checked_namespace(namespace or in_url or "")
        self.url = in_namespace(shown_url(self._target), self.namespace)
        self.schema = schema_of(self.namespace)
        self._given_clock = clock
        self._clock = DatabaseClock(self.url)
        self._reader = Reader(self.url)
        self._looker = Looker(PgStatements(self.schema))
        self._look_every = look_every
        self._writing: Line[PgDatabase] | None = None
        self._reading: Line[PgDatabase] | None = None
        self._browsing: Line[PgDatabase] | None = None
        self._keeping: Keeper[PgDatabase] | None = None
        self._sessions: Sessions | None = None
        """The connections of transactional steps."""
        self._is_migrated = False
        self._refusal: SchemaTooNew | None = None
        """A newer Holdfast has migrated the schema: nothing more is done here."""
        self._mine: set[int] = set()
        """Workers registered through this object that have not retired."""
        self._lost: set[int] = set()
        """Those that were declared dead, and whose locks are still held here."""
        self._wanted = Wanted((), ())
        """What they serve, as far as they have asked for it."""
        self._cursor = 0
        """Where the last look for signals ended."""
        self._switches = ""
        self._doubtful: list[Doubtful] = []
        """Workers that the last look has found to be perhaps dead."""
        self._looked_at = 0.0
        """The database's clock at the last look."""
        self._unreachable_at = float("-inf")
        """When an attempt to connect last failed, in ``elapsed`` time."""
        self._looking: asyncio.Task[None] | None = None
        self._has_looked = False
        self._news = asyncio.Event()
        self._told_at = 0.0
        self._follows = False
        """Whether others know that the end or the progress of runs matters here."""
        self._followed_at = 0.0
        self._notifier = Notifier(self.schema, self._notify)

    # Opening and closing

    async def open(self) -> None:
        if self._writing is not None:
            return
        self._news, self._notifier = asyncio.Event(), Notifier(self.schema, self._notify)  # not those of another loop
        self._follows = self._is_migrated = False
        self._refusal = None
        writing = self._line("writer")
        keeping = Keeper(
            partial(self._connect, durable=False),
            self._wrapped,
            self.url,
            lock_class=lock_class(self.schema),
            channels=(self._notifier.work, self._notifier.runs),
            heard=self._hear,
            retaken=self._note_servers,
        )
        try:
            await writing.do(lambda db: migrate(db.connection, self.schema, is_pooled=db.connection.is_pooled))
            self._is_migrated = True
            await keeping.start()
        except BaseException:
            writing.close()
            keeping.close()
            raise
        self._writing, self._keeping = writing, keeping
        self._reading = self._line("reader")

    def _line(self, name: str) -> Line[PgDatabase]:
        return Line(self._connect, self._wrapped, self.url, name)

    def _connect(self, *, durable: bool = True) -> Connection:
        try:
            return connect(self._target, durable=durable)
        except StoreUnavailable:
            self._unreachable_at = elapsed()
            raise

    def _wrapped(self, connection: Connection) -> PgDatabase:
        self._clock.note(*connection.told_time)
        if self._is_migrated:
            try:
                self._check_schema(compatible_from(connection, self.schema))
            except psycopg.Error as error:
                raise store_error(error, self.url) from error
        return PgDatabase(connection, self.schema)

    def _check_schema(self, needed: int) -> None:
        """Refuse everything from now on if a newer Holdfast has migrated the schema."""
        try:
            check_compatible(self.schema, needed)
        except SchemaTooNew as error:
            self._refusal = error
            raise

    def _notify(self, channel: str) -> None:
        if self._keeping is not None:
            self._keeping.notify(channel)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self._writing is not None:
            self._writing.leave_loop()
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        """Close the connections; with the keeper's go the locks of whoever has not retired."""
        lines = (self._browsing, self._reading, self._writing, self._keeping)
        self._browsing = self._reading = self._writing = self._keeping = None
        for line in lines:
            if line is not None:
                line.close()
        if self._sessions is not None:
            self._sessions.close()
            self._sessions = None
        self._mine.clear()

    def abandon(self) -> None:
        """Retire this object's workers as well: the process lives, so nothing took them down."""
        self._looking = None
        if self._writing is not None:
            for worker in self._mine:
                with suppress(StoreError, UsageError):
                    self._writing.blocking(partial(retire, worker=worker, now=self.now()))
        self._close()

    # Which connection does what

    async def _write(self, work: Work[T], size: int = 1, *, slow: bool = False) -> T:
        return await self._opened(self._writing).do(work)

    async def _read(self, work: Work[T], *, slow: bool = True) -> T:
        return await self._opened(self._reading).do(work)

    async def _browse(self, work: Work[T]) -> T:
        self._opened(self._reading)
        if self._browsing is None:
            self._browsing = self._line("browser")
        return await self._browsing.do(work)

    @property
    def _keeper(self) -> Keeper[PgDatabase]:
        return self._opened(self._keeping)

    def _opened(self, line: T | None) -> T:
        if self._refusal is not None:
            raise SchemaTooNew(*self._refusal.args)
        if line is None:
            raise StoreUnavailable(f"{self.url} is not open: call open() first (or it has been closed)")
        return line

    # Time

    def now(self) -> float:
        return self._clock.now() if self._given_clock is None else self._given_clock()

    def _time_at(self, theirs: float | None) -> float:
        return self.now() if theirs is None or self._given_clock is not None else theirs

    @property
    def _time(self) -> float | None:
        """What leases are measured by: the database's clock, unless a test has its own."""
        return None if self._given_clock is None else self._given_clock()

    # Writing, and telling others

    async def commit(self, ops: Sequence[Op]) -> list[Answer]:
        answers = await self._append_on_loop(ops)
        if answers is None:
            answers = await super().commit(ops)
        self._notifier.tell(ops, answers)
        return answers

    async def _append_on_loop(self, ops: Sequence[Op]) -> list[Answer] | None:
        """Append records if there is nothing else to it; ``None``: there is, and nothing was done."""
        if not _HAS_READERS or not 0 < len(ops) <= ON_LOOP or (rows := plain_records(ops)) is None:
            return None
        if sum(len(row[-1] or b"") for row in rows) > ON_LOOP_BYTES:
            return None
        appended = self._opened(self._writing).on_loop(lambda db: db.appending(rows))
        return [*repeat(Verdict.DONE, len(rows))] if appended is not None and await appended else None

    async def claim(
        self,
        worker: int,
        *,
        workflows: Collection[str],
        queues: Collection[str] | None,
        limit: int,
        suspects_after: float | None = 0.0,
    ) -> list[Run]:
        runs = await super().claim(
            worker, workflows=workflows, queues=queues, limit=limit, suspects_after=suspects_after
        )
        for run in runs:
            if run.limited:
                self._notifier.note_limited(run)
        return runs

    async def get(self, run_id: str) -> Run | None:
        run = await super().get(run_id)
        if run is not None and run.by_delivery and run.limited and run.state is RunState.RUNNING:
            self._notifier.note_limited(run)  # taken through another server, perhaps, and given back through this one
        return run

    async def expire(self, limit: int = 100) -> list[str]:
        ended = await super().expire(limit)
        if ended:
            self._notifier.tell_all()
        return ended

    async def switch_off(self, workflow: str, by: str = "", reason: str = "", *, temporary: bool = False) -> bool:
        done = await super().switch_off(workflow, by, reason, temporary=temporary)
        self._notifier.tell_of_work()
        return done

    async def switch_on(self, workflow: str, *, only_temporary: bool = False) -> bool:
        done = await super().switch_on(workflow, only_temporary=only_temporary)
        self._notifier.tell_of_work()
        return done

    async def put_schedules(
        self, schedules: Sequence[NewSchedule], *, worker: int | None = None, replace: bool = True
    ) -> list[Schedule]:
        kept = await super().put_schedules(schedules, worker=worker, replace=replace)
        self._notifier.tell_of_work()
        return kept

    async def pause_schedule(self, name: str) -> bool:
        done = await super().pause_schedule(name)
        self._notifier.tell_of_work()
        return done

    async def resume_schedule(self, name: str) -> bool:
        done = await super().resume_schedule(name)
        self._notifier.tell_of_work()
        return done

    async def put_queues(self, queues: Sequence[NewQueue]) -> None:
        await super().put_queues(queues)
        self._notifier.tell_of_work()

    async def _change_queue(self, name: str, work: Work[Outcome]) -> bool:
        done = await super()._change_queue(name, work)
        self._notifier.tell_of_work()
        return done

    # Steps

    async def begin_step(
        self, run: Run, attempt: Attempt, *, plain: bool, limit: float | None = None
    ) -> PgStepTransaction | None:
        self._opened(self._writing)
        if self._sessions is None:
            self._sessions = Sessions(self._target, self.schema, self.url)

        def ask() -> Awaitable[Verdict]:
            return self._write(lambda db: find_out(db, run, attempt, self.now()))

        return await step_transactions.begin(
            self._sessions, self.schema, self.url, run, attempt, ask, plain=plain, limit=limit
        )

    # Workers

    async def register_worker(self, worker: NewWorker, lease: float) -> int:
        token = secrets.token_hex(8)
        if worker.by_lease:  # it is none of this process's: there is nothing to lock, and to look for
            return await self._write(lambda db: self._looker.register(db, worker, token, self._time, lease))
        while self._lost:
            await self._keeper.let_go(self._lost.pop())
        number = await self._write(lambda db: self._looker.register(db, worker, token, self._time, lease))
        self._mine.add(number)
        began = await self._keeper.hold(number)
        if began is not None:
            await self._write(lambda db: self._looker.note_server(db, number, began))
        if self._look_every and self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._keep_looking())
        return number

    def _note_servers(self, db: PgDatabase, workers: Collection[int], began: float | None) -> None:
        """The keeper has locks again, or has got them late, or cannot have any."""
        for worker in workers:
            self._looker.note_server(db, worker, began)

    async def keep_worker(self, worker: int, lease: float) -> bool:
        return await self._keeper.do(lambda db: self._looker.keep(db, worker, self._time, lease))

    def renew_lease(self, worker: int, lease: float) -> bool:
        held = self._keeper.run(lambda db: self._looker.renew(db, worker, self._time, lease))
        if not held:
            self._mine.discard(worker)
            self._lost.add(worker)
        return held

    async def retire_worker(self, worker: int) -> None:
        await self._write(lambda db: retire(db, worker, self.now()))
        self._mine.discard(worker)
        self._notifier.tell_of_work()
        with suppress(StoreUnavailable):  # then it is free already
            await self._keeper.let_go(worker)

    async def reap(self, me: int | None = None, window: LeaseWindow | None = None, *, by_lease: bool = False) -> Reaped:
        if self._looking is None or not self._has_looked:
            await self._look(me)
        doubtful, self._doubtful = self._doubtful, []
        # Of two times the earlier one: the database's clock may have been set since the window was made.
        until = self._looked_at if window is None else min(window.until, self._looked_at)
        counted = LeaseWindow(0.0 if window is None else window.since, until)
        suspects = [
            one.suspect
            for one in doubtful
            if (one.has_lost_lock and self._may_trust_locks()) or counted.has_passed(one.beat_at, one.lease_until)
        ]
        if by_lease:
            listeners = await self._read(lambda db: self._looker.listeners_over(db, counted))
            suspects += [one for one in listeners if one.id != me]
        reaped = Reaped()
        for suspect in suspects:
            try:
                one = await self._opened(self._writing).do(partial(self._bury, suspect, counted))
            except StoreLocked:
                continue  # another worker is at it, or it was stopped in the middle of a commit: the next look tells
            reaped = Reaped(reaped.workers + one.workers, reaped.released + one.released, reaped.dead + one.dead)
        if reaped.workers:
            self._notifier.tell_all()  # also what the dead ones have not told any more
        return reaped

    def _may_trust_locks(self) -> bool:
        """Whether a free lock means that a worker is dead, and not that all were cut off a moment ago."""
        return elapsed() - self._unreachable_at > REJOIN

    def _bury(self, suspect: Suspect, counted: LeaseWindow, db: PgDatabase) -> Reaped:
        """Bury a worker, unless somebody holds what that needs: commits must not have to wait for long behind it."""

        def is_dead(suspect: Suspect, beat_at: float, lease_until: float) -> bool:
            if counted.has_passed(beat_at, lease_until):
                return True
            return not suspect.by_lease and self._may_trust_locks() and self._looker.has_lost_its_lock(db, suspect)

        db.patience = BURYING_PATIENCE
        try:
            return bury(db, [suspect], is_dead, self.now())
        finally:
            db.patience = None

    # Looking

    async def _keep_looking(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(self._look_every)
            try:
                await self._look(max(self._mine, default=None))
                failing = False
            except StoreError as error:
                if not failing:
                    log.warning("the store cannot be read; trying again: %s", error)
                failing = True
            except Exception:
                log.exception("looking for what has changed failed; trying again")

    async def _look(self, me: int | None) -> None:
        seen = await self._seen(me)
        if seen.doubtful or me is None or not self._look_every:  # else only the worker's neighbors matter
            seen = seen._replace(doubtful=await self._find_doubtful(me))
        if seen.doubtful and self._look_every:
            await asyncio.sleep(SECOND_LOOK)
            known = {one.suspect for one in seen.doubtful}
            seen = seen._replace(doubtful=[one for one in await self._find_doubtful(me) if one.suspect in known])
        self._has_looked = True
        self._doubtful, self._looked_at = seen.doubtful, seen.at
        self._notifier.is_followed = seen.is_followed
        if seen.doubtful or seen.is_due or seen.has_news or seen.switches != self._switches:
            self._switches = seen.switches
            self._news.set()

    async def _find_doubtful(self, me: int | None) -> list[Doubtful]:
        return await self._read(lambda db: self._looker.doubtful(db, me or 0, self._time))

    async def _seen(self, me: int | None) -> Seen:
        def look(db: Database) -> tuple[Seen, float, float]:
            asked = elapsed()
            seen = self._looker.look(db, me or 0, self._wanted, self._cursor, self.now(), self._time)
            return seen, asked, elapsed()

        seen, asked, answered = await self._read(look)
        self._clock.note(seen.at, asked, answered)
        if self._given_clock is None:
            self._clock.warn_if_wrong()
        self._check_schema(seen.compatible_from)
        return seen

    async def next_wake(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        self._wanted = Wanted(workflows, queues)
        return await super().next_wake(workflows=workflows, queues=queues)

    async def new_signals(self, worker: int, after: int) -> NewSignals:
        found = await super().new_signals(worker, after)
        self._cursor = found.cursor
        return found

    # Change

    async def changed(self, timeout: float, *, follows: bool = True) -> bool:
        loop = asyncio.get_running_loop()
        calm = min(_CALM, _CALM_AFTER * (loop.time() - self._told_at))
        await self._follow(follows)
        deadline = loop.time() + timeout
        if follows and not self._keeper.is_listening:
            timeout = min(timeout, FOLLOW_EVERY)
        if follows:
            timeout = min(timeout, max(0.0, self._told_at + FALLBACK - loop.time()))
        try:
            async with asyncio.timeout(timeout):
                await self._news.wait()
        except TimeoutError:
            if loop.time() >= deadline:
                return False
        await asyncio.sleep(min(self._told_at + calm, deadline) - loop.time())
        self._news.clear()
        self._told_at = loop.time()
        return True

    async def _follow(self, follows: bool) -> None:
        """Let others know whether somebody here follows runs, or has done so a moment ago."""
        now = asyncio.get_running_loop().time()
        if follows:
            self._followed_at = now
        is_right = self._follows == follows or (self._follows and now < self._followed_at + FALLBACK)
        if is_right or not self._keeper.is_listening:
            return
        self._follows = follows
        with suppress(StoreUnavailable):
            await self._keeper.do(lambda db: self._looker.follow(db, follows))

    def _hear(self, channel: str | None) -> None:
        if channel is None:  # the keeper has another session, and no lock in it
            self._follows = False
        if channel != self._notifier.runs or self._follows:
            self._news.set()
