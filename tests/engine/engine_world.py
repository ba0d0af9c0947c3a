"""Engines for tests: on any store, with a clock that the test controls, and with simulated crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import testing
from holdfast.authoring import runtime as runtimes
from holdfast.authoring.registry import definitions
from holdfast.authoring.runtime import Runtime
from holdfast.client.handle import Handle
from holdfast.core.records import Attempt, Record
from holdfast.engine.clock import Clock
from holdfast.engine.journal_engine import JournalEngine
from holdfast.engine.phase import Phase
from holdfast.errors import StoreError
from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import Op, Run
from holdfast.stores.postgres import PgStore
from holdfast.stores.postgres.workers import compute_lock_class
from holdfast.stores.sqlite import SqliteStore
from waits import wait_until

TIMEOUT_S = 20.0
"""Real seconds after which a wait fails."""
ENDLESS_LEASE_S = 1e9
"""A lease that does not expire when the clock jumps."""


class VirtualClock(testing.VirtualClock):
    """The clock of the testing kit, but a sleep advances the time at once."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        super().__init__(now)
        self.slept: list[float] = []
        self.chance = 0.0
        """What ``draw_random`` returns."""

    def set_time(self, timestamp: float) -> None:
        """Set the clock, back or forward."""
        self._now = min(self._now, timestamp)
        self.advance_to(timestamp)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)
        await asyncio.sleep(0)

    def draw_random(self) -> float:
        return self.chance


class ManualClock(VirtualClock):
    """Like ``VirtualClock``, but a sleep lasts until the test advances the time."""

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await testing.VirtualClock.sleep(self, seconds)


class Replaced:
    """A wrapper that replaces some methods of an object."""

    def __init__(self, inner: Any, **methods: Any) -> None:
        self.inner = inner
        vars(self).update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


async def take_no_histories(keys: Sequence[int]) -> None:
    """``Claims.take_histories`` of a store whose ``get_histories`` a test replaces."""


class FlakyStore:
    """A store with commits that can be counted, delayed, and made to fail. Claims leave histories to
    ``get_histories``."""

    def __init__(
        self,
        inner: Store,
        *,
        before_commit: Callable[[Sequence[Op]], Any] | None = None,
        fail_before: Callable[[Sequence[Op]], BaseException | None] = lambda _: None,
        fail_after: Callable[[Sequence[Op]], BaseException | None] = lambda _: None,
    ) -> None:
        self.inner = inner
        self.claims: Any = Replaced(inner.claims, take_histories=take_no_histories)
        self.commits: list[Sequence[Op]] = []
        self.fail_before = fail_before
        """What a commit raises instead of being performed."""
        self.fail_after = fail_after
        """What a commit raises although it was performed."""
        self.before_commit = before_commit
        """Awaited before a commit."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def commit(self, ops: Sequence[Op]) -> list[Any]:
        if self.before_commit is not None:
            await self.before_commit(ops)
        if (error := self.fail_before(ops)) is not None:
            raise error
        answers = await self.inner.commit(ops)
        if (error := self.fail_after(ops)) is not None:
            raise error
        self.commits.append(list(ops))
        return answers


class HeldCommits(FlakyStore):
    """A store that holds the commits of some operations: those of a type, or those for which a function returns true.

    ``reached`` is set when the first of them arrives; ``release`` lets them continue.
    """

    def __init__(self, inner: Store, held: type[Op] | Callable[[Any], bool]) -> None:
        super().__init__(inner, before_commit=self._hold)
        self.reached, self.release = asyncio.Event(), asyncio.Event()
        self._is_held = (lambda op: isinstance(op, held)) if isinstance(held, type) else held

    async def _hold(self, ops: Sequence[Op]) -> None:
        if any(map(self._is_held, ops)):
            self.reached.set()
            await self.release.wait()


class World:
    """A store that outlives the engines on it."""

    def __init__(self, kind: str, place: Path | str) -> None:
        """``place`` is a folder, or the URL of a database."""
        self.kind = kind
        self.clock = VirtualClock()
        self._place = place
        self._memory = MemoryStore(clock=self.clock.now)
        self._open: list[Runtime] = []
        self._outside: list[Any] = []

    @property
    def url(self) -> str:
        """The URL for other processes; a store in memory has none."""
        return str(self._place) if self.kind == "postgres" else f"sqlite:///{self._place}/runs.db"

    async def open_store(self) -> Any:
        """An open store of a process that executes nothing."""
        store = self.store()
        await store.open()
        self._outside.append(store)
        return store

    def store(self, clock: Clock | None = None) -> Any:
        """The store, as another process would open it."""
        if self.kind == "memory":
            if clock is not None:
                self._memory._clock = clock.now
            return self._memory
        now = (clock or self.clock).now
        if self.kind == "postgres":
            return PgStore(str(self._place), clock=now, poll_interval_s=0.0)
        return SqliteStore(Path(self._place, "runs.db"), clock=now)

    async def open(self, *, store: Any = None, clock: Clock | None = None, **options: Any) -> Runtime:
        """A runtime on this store that knows every workflow of the test; ``options`` are the engine's."""
        runtime = Runtime("memory://")
        # The public runtime makes its own store and clock; everything else of it is as users have it.
        runtime._engine.thread_pool.stop()
        runtime._engine = JournalEngine(
            store if store is not None else self.store(clock),
            options.pop("definitions", definitions),
            **{"lease_s": ENDLESS_LEASE_S, "clock": clock or self.clock, **options},
        )
        await runtime.open()
        self._open.append(runtime)
        return runtime

    async def crash(self, runtime: Runtime) -> None:
        """Simulate a crash of this runtime's process: it does nothing more, and others notice."""
        engine = runtime._engine
        runtimes._remove_open(runtime)
        engine.is_closed = engine.is_draining = True
        engine._heartbeat.stop()
        for task in (engine._poller.task, *engine._poller.background_tasks):
            if task is not None:
                task.cancel()
        engine.writer.stop()
        for driver in list(engine.held_runs.drivers.values()):
            driver.phase = Phase.GONE
            driver.steps.cancel_all()
            driver.abandon()
        engine.thread_pool.stop()
        await self.kill(runtime)
        self._open.remove(runtime)
        if self.kind != "memory":
            await asyncio.sleep(0)
            await engine.store.close()

    async def kill(self, runtime: Runtime) -> None:
        """Make others believe that this runtime's process is gone; it does not know, and continues."""
        store = runtime._engine.store
        store = getattr(store, "inner", store)
        if isinstance(store, MemoryStore):
            store.simulate_worker_death(runtime.worker_id)
        elif isinstance(store, PgStore):
            store.session._wanted_locks.discard(runtime.worker_id)  # else it would take the lock again
            await store.session.run(partial(_unlock, store, runtime.worker_id))
            await store.writer.run_in_thread(partial(store.workers.unlock_from_writer, runtime.worker_id))
        else:
            store.workers._locks.release(store.workers._own_workers[runtime.worker_id])

    async def close(self) -> None:
        for runtime in self._open:
            await runtime.close()
        for store in self._outside:
            await store.close()


def _unlock(store: PgStore, worker: int, db: Any) -> None:
    store.session._held_locks.discard(worker)
    assert db.query("SELECT pg_advisory_unlock(%s::int4, %s::int4)", (compute_lock_class(store.schema), worker)) == [
        (True,)
    ]


# Reading what is recorded


async def read_run(runtime: Runtime, handle: Handle[Any] | str) -> Run:
    run = await runtime._engine.store.get_run(handle if isinstance(handle, str) else handle.run_id)
    assert run is not None
    return run


async def read_journal(runtime: Runtime, handle: Handle[Any] | str) -> Sequence[Record]:
    [history] = await runtime._engine.store.get_histories([(await read_run(runtime, handle)).key])
    return history.records


async def read_attempts(runtime: Runtime, handle: Handle[Any] | str) -> dict[int, Attempt]:
    [history] = await runtime._engine.store.get_histories([(await read_run(runtime, handle)).key])
    return dict(history.attempts)


async def get_state(runtime: Runtime, handle: Handle[Any] | str) -> str:
    return (await read_run(runtime, handle)).state.value


async def wait_for_state(runtime: Runtime, handle: Handle[Any] | str, *states: str) -> None:
    async def there() -> bool:
        return await get_state(runtime, handle) in states

    await wait_until(there)


async def wait_for_records(runtime: Runtime, handle: Handle[Any] | str, record_count: int) -> None:
    """Wait until the journal has this many records. A step that has run may not be recorded yet."""

    async def recorded() -> bool:
        return len(await read_journal(runtime, handle)) >= record_count

    await wait_until(recorded)


async def wait_until_parked(runtime: Runtime, clock: VirtualClock, handle: Handle[Any] | str, records: int = 0) -> None:
    """Let enough time pass for an idle run, with at least this many records, to leave memory, and wait for that."""
    engine = runtime._engine
    run_id = handle if isinstance(handle, str) else handle.run_id
    driver = await wait_until(lambda: engine.held_runs.drivers_by_run_id.get(run_id))
    await wait_until(lambda: driver in engine._idle_runs and driver.recorder.next_seq >= records)
    clock.advance(1.1)
    engine._idle_runs.sweep(min_count=0)  # instead of waiting for the next one
    await wait_for_state(runtime, handle, "waiting")
    await wait_until(lambda: driver.is_closed)


async def wait_until_ended(runtime: Runtime, handle: Handle[Any] | str) -> Run:
    """The run's row, once it has ended."""

    async def ended() -> Run | None:
        run = await read_run(runtime, handle)
        return run if run.state.is_terminal else None

    return await wait_until(ended)


async def describe_journal(runtime: Runtime, handle: Handle[Any] | str) -> list[str]:
    """The journal as text: kind and name of each record, and whether it is a failure."""
    return [
        f"{record.kind.label} {record.name}{'' if record.ok else ' failed'}"
        for record in await read_journal(runtime, handle)
    ]


async def wait_until_quiet(runtime: Runtime) -> None:
    """Wait until nothing is in flight in this runtime that only needs time."""
    quiet = 0
    async with asyncio.timeout(TIMEOUT_S):
        while quiet < 5:
            await asyncio.sleep(0.002)
            quiet = 0 if runtime._engine.in_flight_count else quiet + 1


def make_unavailable_error(message: str = "the disk is gone") -> StoreError:
    from holdfast.errors import StoreUnavailable

    return StoreUnavailable(message)


def select_definitions(*names: str) -> dict[str, Any]:
    """The definitions of these workflows, for a runtime that knows no others."""
    return {name: definitions[name] for name in names}
