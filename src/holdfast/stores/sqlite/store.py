# ruff: noqa: D102 - what the methods of a store are for is said once, in the contract
"""The SQLite store: the contract, spelled out over lines, batches, claims and worker locks."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from holdfast.core.records import Record, Signal
from holdfast.core.states import RunState
from holdfast.errors import StoreCorrupt, StoreError, StoreReadOnly, StoreUnavailable, UsageError
from holdfast.stores.approvals import Approval, ApprovalFilter
from holdfast.stores.contract import (
    History,
    NewWorker,
    Reaped,
    Request,
    RunFilter,
    RunUsage,
    Store,
    Worker,
    WorkflowSpec,
)
from holdfast.stores.memories import Memory
from holdfast.stores.notices import Feed
from holdfast.stores.operations import Answer, Op, Run, Started
from holdfast.stores.sqlite import asking, blobs, connections, feeds, listing, memories, payloads, queries
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite import workers as registry
from holdfast.stores.sqlite.batch import carry_out
from holdfast.stores.sqlite.claims import Wanted, claim, fail, has_due, next_wake
from holdfast.stores.sqlite.faults import store_error
from holdfast.stores.sqlite.lines import Line
from holdfast.stores.sqlite.locks import WorkerLocks
from holdfast.stores.sqlite.rows import Reader

TICK, QUIET_TICK, QUIET_AFTER = 0.02, 0.05, 1.0
"""How often ``changed`` looks, in seconds: less often when nothing has changed for a while, to idle cheaply."""
RENEWAL_PATIENCE = 2.0
"""How long a lease renewal waits for the lock: well below a lease, since the renewer has to try again."""
ABANDON_PATIENCE = 1.0
"""How long ``abandon`` waits for the lock: it holds up whoever calls it, and leases end by themselves."""
_LIVE_LIST_AGE = 1.0


class SqliteStore(Store):
    """Journals in one SQLite file, shared by the processes of one machine."""

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = Path(path).expanduser().resolve()
        self.url = f"sqlite:///{self.path}"
        self._clock = clock
        self._reader = Reader(self.path)
        self._locks = WorkerLocks(self.path)
        self._writing: Line | None = None
        self._reading: Line | None = None
        self._browsing: Line | None = None
        self._renewing: Line | None = None
        self._renewer_guard = threading.Lock()
        self._mine: dict[int, str] = {}
        """Workers registered through this object that have not retired: id -> token."""
        self._seen_version: int | None = None
        self._changed_at = 0.0
        self._live: list[registry.LiveWorker] | None = None
        self._live_version: int | None = None
        self._live_read_at = 0.0

    # Opening and closing

    async def open(self) -> None:
        if self._writing is None:
            await asyncio.get_running_loop().run_in_executor(None, self._open)

    def _open(self) -> None:
        connections.prepare_folder(self.path)
        try:
            writer = connections.open_writer(self.path)  # first: it makes sure that there is something to read
            reader, browser = connections.open_reader(self.path), connections.open_reader(self.path)
        except sqlite3.DatabaseError as error:
            raise store_error(error, self.path) from error
        listing.add_search(browser)
        self._writing = Line(writer, self.path, "writer")
        self._reading = Line(reader, self.path, "reader")
        self._browsing = Line(browser, self.path, "browser")
        self._seen_version = self._writing.data_version()

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        """Close the lines; whoever has not retired lets go of its lock, so that others need not wait for its lease."""
        lines = (self._renewing, self._browsing, self._reading, self._writing)
        self._renewing = self._browsing = self._reading = self._writing = None
        for line in lines:
            if line is not None:
                line.close()
        for token in self._mine.values():
            self._locks.drop(token)
        self._mine.clear()
        self._live = None

    def abandon(self) -> None:
        """Retire this object's workers as well: the process lives, so nothing took them down."""
        if self._writing is not None:
            for worker, token in list(self._mine.items()):
                with suppress(StoreError, UsageError):
                    retire = partial(registry.retire, worker=worker, now=self._clock())
                    self._writing.blocking(retire, ABANDON_PATIENCE)
                    self._locks.remove(token)
        self._close()

    @property
    def _writer(self) -> Line:
        return self._opened(self._writing)

    @property
    def _readers(self) -> Line:
        return self._opened(self._reading)

    @property
    def _browsers(self) -> Line:
        return self._opened(self._browsing)

    def _opened(self, line: Line | None) -> Line:
        if line is None:
            raise StoreUnavailable(f"{self.path} is not open: call open() first (or it has been closed)")
        return line

    # Writing

    async def commit(self, ops: Sequence[Op]) -> list[Answer]:
        if not ops:
            return []
        large = blobs.large_payloads(ops)
        if not large and any(map(memories.is_changed_by, ops)):  # to find the words of a text may take a while
            answers = await self._writer.in_thread(
                lambda c: carry_out(c, ops, self._clock(), self._reader), sample=False
            )
        elif not large:
            answers = await self._writer.write(lambda c: carry_out(c, ops, self._clock(), self._reader), len(ops))
        else:
            parcel = await asyncio.to_thread(blobs.pack, large)
            answers = await self._writer.in_thread(
                lambda c: carry_out(c, ops, self._clock(), self._reader, parcel), sample=False
            )
        for answer in answers:
            if isinstance(answer, Started) and payloads.lacks(answer.run):
                return await self._readers.in_thread(lambda c: queries.whole_answers(c, self._reader, answers))
        return answers

    async def claim(
        self, worker: int, *, workflows: Collection[str], queues: Collection[str] | None, limit: int
    ) -> list[Run]:
        if limit <= 0 or not workflows:
            return []
        wanted = Wanted(workflows, queues)
        if not await self._readers.prefer_inline(lambda c: has_due(c, wanted, self._clock())):
            return []
        runs = await self._writer.write(lambda c: claim(c, self._reader, worker, wanted, limit, self._clock()), limit)
        if not any(map(payloads.lacks, runs)):
            return runs
        read = await self._readers.in_thread(lambda c: payloads.fill_runs(c, self._reader, runs))
        broken = [(run.key, got) for run, got in zip(runs, read, strict=True) if isinstance(got, StoreCorrupt)]
        if broken:
            await self._writer.write(lambda c: fail(c, broken, self._clock()))
        return [run for run in read if isinstance(run, Run)]

    async def publish(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        if specs:
            await self._writer.write(lambda c: registry.publish(c, self._reader, specs, worker), len(specs))

    # Workers

    async def register_worker(self, worker: NewWorker, lease: float) -> int:
        token = secrets.token_hex(8)
        try:
            self._locks.take(token)
        except OSError as error:
            raise StoreReadOnly(
                f"the lock file of this worker cannot be made in {self._locks.folder} ({error.strerror}). Give this "
                f"process write access to the folder of {self.path.name}."
            ) from error
        try:
            now = self._clock()
            number = await self._writer.write(lambda c: registry.register(c, worker, token, now, lease))
        except BaseException:
            self._locks.remove(token)
            raise
        self._mine[number] = token
        self._live = None
        return number

    def renew_lease(self, worker: int, lease: float) -> bool:
        def renew(connection: sqlite3.Connection) -> bool:
            now = self._clock()
            return connection.execute(sql.RENEW_LEASE, (now + lease, now, worker)).rowcount == 1

        return self._renewer().blocking(renew, RENEWAL_PATIENCE)

    def _renewer(self) -> Line:
        """The heartbeat's own connection, opened by its thread when it first needs it."""
        with self._renewer_guard:
            if self._renewing is None:
                self._opened(self._writing)
                try:
                    self._renewing = Line(connections.open_renewer(self.path), self.path, "renewer")
                except sqlite3.DatabaseError as error:
                    raise store_error(error, self.path) from error
            return self._renewing

    async def retire_worker(self, worker: int) -> None:
        await self._writer.write(lambda c: registry.retire(c, worker, self._clock()))
        self._live = None
        token = self._mine.pop(worker, None)
        if token is not None:
            self._locks.remove(token)

    async def reap(self, me: int | None = None) -> Reaped:
        now = self._clock()
        suspects = registry.suspects(await self._live_workers(), self._locks, me, now)
        if not suspects:
            return Reaped()
        reaped, tokens = await self._writer.write(lambda c: registry.bury(c, suspects, now))
        self._live = None
        for token in tokens:
            self._locks.remove(token)
        return reaped

    async def _live_workers(self) -> list[registry.LiveWorker]:
        version = self._writer.data_version()
        stale = time.monotonic() - self._live_read_at > _LIVE_LIST_AGE
        if self._live is None or version != self._live_version or stale:
            self._live = await self._readers.prefer_inline(registry.live_workers)
            self._live_version = version
            self._live_read_at = time.monotonic()
        return self._live

    async def workers(self, also: Collection[int] = ()) -> list[Worker]:
        return await self._browsers.in_thread(lambda c: queries.workers(c, self._reader, also))

    # Reading

    async def next_wake(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        wanted = Wanted(workflows, queues)
        return await self._readers.prefer_inline(lambda c: next_wake(c, wanted))

    async def histories(self, keys: Sequence[int]) -> list[History]:
        return await self._readers.in_thread(lambda c: queries.histories(c, self._reader, keys))

    async def new_signals(self, worker: int, after: int) -> list[tuple[int, Signal]]:
        found = await self._readers.prefer_inline(lambda c: queries.new_signals(c, worker, after))
        if any(blobs.is_reference(signal.payload) for _, signal in found):
            return await self._readers.in_thread(lambda c: queries.whole_signals(c, self._reader, found))
        return found

    async def requests(self, worker: int) -> list[Request]:
        return await self._readers.prefer_inline(lambda c: queries.requests(c, worker))

    async def get(self, run_id: str) -> Run | None:
        run = await self._readers.prefer_inline(lambda c: queries.get(c, self._reader, run_id))
        if run is None or not payloads.lacks(run):
            return run
        return (await self._readers.in_thread(lambda c: queries.whole(c, self._reader, [run])))[0]

    async def get_many(self, run_ids: Sequence[str]) -> list[Run]:
        return await self._readers.in_thread(lambda c: queries.get_many(c, self._reader, run_ids))

    async def list_runs(self, where: RunFilter, *, limit: int = 50, before: int | None = None) -> list[Run]:
        return await self._browsers.in_thread(lambda c: listing.list_runs(c, self._reader, where, limit, before))

    async def usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        return await self._readers.in_thread(lambda c: queries.usages(c, self._reader, run_ids))

    async def count_runs(self) -> Mapping[tuple[str, RunState], int]:
        return await self._browsers.in_thread(lambda c: queries.count_runs(c, self._reader))

    async def last_record(self, run_id: str, name: str) -> Record | None:
        return await self._readers.in_thread(lambda c: feeds.last_record(c, self._reader, run_id, name))

    async def feed(self, run_id: str, after_seq: int, after_notice: int, limit: int = 1000) -> Feed | None:
        return await self._readers.in_thread(
            lambda c: feeds.feed(c, self._reader, run_id, after_seq, after_notice, limit)
        )

    async def approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        return await self._browsers.in_thread(lambda c: asking.approvals(c, self._reader, where, limit))

    async def get_memory(self, namespace: str, key: str) -> Memory | None:
        return await self._readers.in_thread(lambda c: memories.get(c, namespace, key))

    async def list_memories(self, namespace: str, *, after: str = "", limit: int = 100) -> list[Memory]:
        return await self._browsers.in_thread(lambda c: memories.list_all(c, namespace, after, limit))

    async def search_memories(self, namespace: str, words: str, *, limit: int = 10) -> list[Memory]:
        return await self._browsers.in_thread(lambda c: memories.search(c, namespace, words, limit))

    async def specs(self) -> Mapping[str, WorkflowSpec]:
        return await self._readers.in_thread(lambda c: queries.specs(c, self._reader))

    # The switch

    async def switch_off(self, workflow: str) -> bool:
        return await self._writer.write(lambda c: c.execute(sql.SWITCH_OFF, (workflow, self._clock())).rowcount == 1)

    async def switch_on(self, workflow: str) -> bool:
        return await self._writer.write(lambda c: c.execute(sql.SWITCH_ON, (workflow,)).rowcount == 1)

    async def switched_off(self) -> Mapping[str, float]:
        return await self._readers.prefer_inline(queries.switched_off)

    # Change

    async def changed(self, timeout: float) -> bool:
        """Poll ``data_version`` on the writing line, where it does not move with this object's own commits."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            version, now = self._writer.data_version(), loop.time()
            if version is not None and version != self._seen_version:
                self._seen_version = version
                self._changed_at = now
                return True
            if now >= deadline:
                return False
            tick = TICK if now - self._changed_at < QUIET_AFTER else QUIET_TICK
            await asyncio.sleep(min(tick, deadline - now))

    def now(self) -> float:
        return self._clock()
