"""The cost of a call at 10 and at 1,000 times the rows: it should not grow with a store's history.

Time says little on a shared machine, so these benchmarks count work: on SQLite, the instructions of its virtual
machine; on PostgreSQL, the round trips and the rows that the server reads. The rows are written to the tables directly.
HOLDFAST_BENCHMARK_FACTOR sets another factor than 1,000.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import secrets
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.drivers import run_server
from benchmarks.sqlite_benchmarks import Measurement
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.stores.approvals import ApprovalFilter
from holdfast.stores.contract import RunFilter, Store
from holdfast.stores.operations import AppendRecord, FinishRun, SendSignal
from holdfast.stores.retention import PRUNE_START, PruneRequest
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.workers import NewWorker

SIZE_FACTORS = (10, int(os.environ.get("HOLDFAST_BENCHMARK_FACTOR", "1000")))
MAX_FLAT_RATIO = 2.0
"""Times as much work as at the smaller size that is still called flat: trees of indexes become a little deeper."""
BASE_TIMESTAMP = 1_700_000_000.0
LISTED_RUN_COUNT = 5
"""Runs in a list on Temporal."""
_PROGRESS_INTERVAL = 20
"""Instructions between two calls of SQLite's progress handler."""
_RUN_COLUMNS = (
    "key", "id", "workflow", "queue", "state", "epoch", "delivery_count", "max_deliveries", "waits_for", "priority",
    "result_claim", "cancel_state", "python_version", "created_at", "clock_started_at", "finished_at", "parent",
    "forked_from", "rewind_points", "digest", "seed", "tags", "inputs", "session", "previous_run", "owner",
    "has_budget", "version",
)  # fmt: skip
_APPROVAL_COLUMNS = (
    "id", "run", "position", "state", "requested_at", "assignee", "reminder_count", "answered_by", "answered_at",
    "withdrawn_epoch", "request", "form_schema", "arguments", "answer",
)  # fmt: skip
_WORKER_COLUMNS = (
    "token",
    "name",
    "host",
    "pid",
    "state",
    "workflows",
    "started_at",
    "lease_expires_at",
    "heartbeat_at",
)


def make_run_row(key: int, **fields: Any) -> tuple[Any, ...]:
    usual: dict[str, Any] = {
        "key": key, "id": f"run-{key}", "workflow": "flow", "queue": "default", "state": "completed", "epoch": 1,
        "delivery_count": 0, "max_deliveries": 3, "waits_for": "", "priority": 0, "result_claim": 0,
        "cancel_state": "", "python_version": "3.12", "created_at": BASE_TIMESTAMP + key,
        "clock_started_at": BASE_TIMESTAMP + key, "finished_at": BASE_TIMESTAMP + key, "parent": "",
        "forked_from": "", "rewind_points": "[]", "digest": b"d" * 16, "seed": b"s" * 16, "tags": "[]",
        "inputs": b"{}", "session": "", "previous_run": "", "owner": None, "has_budget": 0, "version": "",
    }  # fmt: skip
    return tuple({**usual, **fields}[name] for name in _RUN_COLUMNS)


# Stores that count their work


class CountedSqlite:
    """A SQLite file."""

    name = "SQLite"
    unit = "VM instr."

    def __init__(self, folder: Path) -> None:
        self.store: Store = SqliteStore(folder / "runs.db")
        self._instruction_count = 0

    async def open(self) -> None:
        await self.store.open()
        for worker in self._list_workers():
            # A read on the event loop has a progress handler of its own, which would replace this one.
            worker._inline_reads_resume_at = math.inf
            worker._connection.set_progress_handler(self._count_instructions, _PROGRESS_INTERVAL)

    def _list_workers(self) -> Iterator[Any]:
        for name in ("_write_worker", "_read_worker", "_client_read_worker"):
            yield getattr(self.store, name)

    def _count_instructions(self) -> int:
        self._instruction_count += _PROGRESS_INTERVAL
        return 0

    async def insert_rows(self, table: str, columns: Sequence[str], rows: Iterator[tuple[Any, ...]]) -> None:
        marks = ", ".join("?" * len(columns))
        with sqlite3.connect(self.store.path) as connection:  # type: ignore[attr-defined]
            connection.execute("PRAGMA synchronous = OFF")
            connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)
        connection.close()

    async def is_visible(self, table: str) -> bool:
        return True

    async def measure_work(self, call: Callable[[], Awaitable[Any]]) -> dict[str, float]:
        self._instruction_count = 0
        started = time.perf_counter()
        await call()
        assert self._instruction_count, "nothing was counted"
        return {self.unit: self._instruction_count, "ms": (time.perf_counter() - started) * 1000}


class CountedPostgres:
    """A schema of a PostgreSQL database."""

    name = "PostgreSQL"

    def __init__(self, url: str, namespace: str) -> None:
        from holdfast.stores.postgres import PgStore

        self._url = url
        self.store: Store = PgStore(url, namespace=namespace, poll_interval_s=0.0)

    async def open(self) -> None:
        await self.store.open()

    async def insert_rows(self, table: str, columns: Sequence[str], rows: Iterator[tuple[Any, ...]]) -> None:
        import psycopg

        schema = self.store.schema  # type: ignore[attr-defined]
        with psycopg.connect(self._url) as connection:
            with connection.cursor().copy(f"COPY {schema}.{table} ({', '.join(columns)}) FROM STDIN".encode()) as copy:
                for row in rows:
                    copy.write_row(row)
            connection.commit()
            connection.autocommit = True
            connection.execute(f"ANALYZE {schema}.{table}".encode())

    async def is_visible(self, table: str) -> bool:
        """Whether no transaction is open that is older than the rows, anywhere on the server: cursors stop at it."""
        store: Any = self.store
        is_older = f"SELECT max(xid) < pg_snapshot_xmin(pg_current_snapshot()) FROM {store.schema}.{table}"
        return (await store.read_for_client(lambda db: db.query(is_older)))[0][0]

    async def measure_work(self, call: Callable[[], Awaitable[Any]]) -> dict[str, float]:
        await call()  # once for the plans, which are made from statistics
        before = await self._count_rows_read()
        started = time.perf_counter()
        with _count_round_trips() as trips:
            await call()
        seconds = time.perf_counter() - started
        return {"rows read": await self._count_rows_read() - before, "round trips": len(trips), "ms": seconds * 1000}

    async def _count_rows_read(self) -> int:
        """Rows read from the tables of the schema, as reported by every connection."""
        store: Any = self.store
        for _ in range(2):
            for line in (store.write, store.read, store.read_for_client):
                await line(lambda db: db.query("SELECT pg_stat_force_next_flush()"))
        found = await store.read_for_client(
            lambda db: db.query(
                "SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint FROM pg_stat_user_tables "
                "WHERE schemaname = %s",
                (store.schema,),
            )
        )
        return found[0][0]


@contextmanager
def _count_round_trips() -> Iterator[list[int]]:
    """Number of statements in each round trip of this process."""
    from holdfast.stores.postgres.pipeline import Pipeline

    trips: list[int] = []
    real = Pipeline.run_nonblocking

    def steps(self: Pipeline, sent: Sequence[Any]) -> Any:
        trips.append(len(sent))
        return real(self, sent)

    Pipeline.run_nonblocking = steps  # type: ignore[method-assign]
    try:
        yield trips
    finally:
        Pipeline.run_nonblocking = real  # type: ignore[method-assign]


CountedStore = CountedSqlite | CountedPostgres
FillFunction = Callable[[CountedStore, int], Awaitable[None]]
StoreCall = Callable[[Store], Awaitable[Any]]


async def measure_growth(
    folder: Path, title: str, base: int, fill: FillFunction, call: StoreCall, *, is_per_row: bool = False
) -> list[Measurement]:
    """The work of a call at both sizes, on SQLite and on PostgreSQL; ``each``: for one of the rows."""
    lines: list[Measurement] = []
    folder.mkdir(exist_ok=True)
    async with run_server(folder) as url:
        found: dict[str, list[dict[str, float]]] = {}
        for factor in SIZE_FACTORS:
            count = base * factor
            place = folder / str(factor)
            place.mkdir()
            for counted in (CountedSqlite(place), CountedPostgres(url, f"rows_{secrets.token_hex(4)}")):
                await counted.open()
                await fill(counted, count)
                work = await counted.measure_work(lambda counted=counted: call(counted.store))
                share = count if is_per_row else 1
                found.setdefault(counted.name, []).append({unit: value / share for unit, value in work.items()})
                await counted.store.close()
    for name, (few, many) in found.items():
        times = f"{few.pop('ms'):,.2f} and {many.pop('ms'):,.2f} ms"
        for unit, value in many.items():
            ratio = value / (few[unit] or 1.0)
            told = f"at {SIZE_FACTORS[0]} times {few[unit]:,.1f}: {ratio:.1f} times ({times})"
            is_flat = value <= max(few[unit] * MAX_FLAT_RATIO, few[unit] + 10)
            lines.append(Measurement(f"{title}, {name}", value, unit, told, "flat", is_flat))
    return lines


# Pruning a session


async def _fill_session(counted: CountedStore, count: int) -> None:
    rows = (
        make_run_row(key, session="s", previous_run=f"run-{key - 1}" if key > 1 else "") for key in range(1, count + 1)
    )
    await counted.insert_rows("runs", _RUN_COLUMNS, rows)


async def _fill_open_session(counted: CountedStore, count: int) -> None:
    await _fill_session(counted, count)
    last = make_run_row(count + 1, session="s", state="waiting", finished_at=None)
    await counted.insert_rows("runs", _RUN_COLUMNS, iter([last]))


async def _prune_all(store: Store, *, dry_run: bool = False) -> None:
    place = PRUNE_START
    while place is not None:
        place = (await store.retention.prune(PruneRequest(BASE_TIMESTAMP * 2, dry_run=dry_run), place, 100)).cursor


async def measure_prune(folder: Path, rounds: int) -> list[Measurement]:
    async def dry(store: Store) -> None:
        await _prune_all(store, dry_run=True)

    return [
        *await measure_growth(
            folder / "dry", "pruning a session (dry), a run", 10, _fill_session, dry, is_per_row=True
        ),
        *await measure_growth(
            folder / "stays", "a session that stays, a run", 10, _fill_open_session, _prune_all, is_per_row=True
        ),
    ]


async def measure_prune_lock(folder: Path, rounds: int) -> list[Measurement]:
    """How long other writers wait for SQLite's write lock while a session is pruned."""
    lines: list[Measurement] = []
    for factor in SIZE_FACTORS:
        place = folder / str(factor)
        place.mkdir()
        counted = CountedSqlite(place)
        await counted.open()
        await _fill_session(counted, 10 * factor)
        other = SqliteStore(place / "runs.db")
        await other.open()
        longest = 0.0
        pruning = asyncio.create_task(_prune_all(counted.store))
        while not pruning.done():
            started = time.perf_counter()
            try:
                await other.disabled_workflows.disable("x")
                await other.disabled_workflows.enable("x")
            except Exception:
                pass
            longest = max(longest, time.perf_counter() - started)
            await asyncio.sleep(0.001)
        await pruning
        lines.append(
            Measurement(f"pruning a session of {10 * factor:,} runs", longest * 1000, "ms", "longest wait to write")
        )
        await other.close()
        await counted.store.close()
    per_run = [line.value / (10 * factor) for line, factor in zip(lines, SIZE_FACTORS, strict=True)]
    lines[-1].target, lines[-1].is_met = "a run: flat", per_run[1] <= max(per_run[0] * MAX_FLAT_RATIO, 0.2)
    return lines


# Workers that have ended


async def _fill_workers(counted: CountedStore, count: int) -> None:
    def rows() -> Iterator[tuple[Any, ...]]:
        for number in range(count):
            yield (
                f"t{number}",
                "w",
                "host",
                1,
                "retired" if number % 2 else "dead",
                "[]",
                BASE_TIMESTAMP,
                BASE_TIMESTAMP,
                BASE_TIMESTAMP,
            )

    await counted.insert_rows("runs", _RUN_COLUMNS, iter([make_run_row(1)]))
    await counted.insert_rows("workers", _WORKER_COLUMNS, rows())


async def measure_workers(folder: Path, rounds: int) -> list[Measurement]:
    async def seen(store: Store) -> None:
        await store.list_workers([1])

    return await measure_growth(folder, "workers of a run, many are gone", 20, _fill_workers, seen)


# Closed approvals


async def _fill_approvals(counted: CountedStore, count: int) -> None:
    def rows() -> Iterator[tuple[Any, ...]]:
        question = json.dumps(["Refund it?", "", [], "", ""])
        for number in range(count):
            at = BASE_TIMESTAMP + number
            yield (
                f"a{number}", 1, number, "answered", at, "", 0, "ada", at, 0, question, b"", b"", b'{"approved": true}'
            )  # fmt: skip

    await counted.insert_rows("runs", _RUN_COLUMNS, iter([make_run_row(1)]))
    await counted.insert_rows("approvals", _APPROVAL_COLUMNS, rows())


async def measure_approvals(folder: Path, rounds: int) -> list[Measurement]:
    async def closed(store: Store) -> None:
        assert len(await store.list_approvals(ApprovalFilter(only_open=False, only_closed=True), limit=20)) == 20

    async def all_of_them(store: Store) -> None:
        assert len(await store.list_approvals(ApprovalFilter(only_open=False), limit=20)) == 20

    return [
        *await measure_growth(folder / "closed", "a page of closed approvals", 100, _fill_approvals, closed),
        *await measure_growth(folder / "all", "a page of all approvals", 100, _fill_approvals, all_of_them),
    ]


# Lists by state


async def _fill_workflows(counted: CountedStore, count: int) -> None:
    states = ("completed", "failed", "waiting")
    rows = (make_run_row(key, workflow=f"flow-{key // 3}", state=states[key % 3]) for key in range(1, 3 * count + 1))
    await counted.insert_rows("runs", _RUN_COLUMNS, rows)


async def measure_listing(folder: Path, rounds: int) -> list[Measurement]:
    async def failed(store: Store) -> None:
        states = (RunState.FAILED, RunState.DEAD, RunState.CANCELLED)
        assert len(await store.list_runs(RunFilter(states=states), limit=10)) == 10

    return await measure_growth(folder, "a page by state, many workflows", 2, _fill_workflows, failed)


# Runs by day


async def _fill_one_day(counted: CountedStore, count: int) -> None:
    rows = (make_run_row(key, created_at=BASE_TIMESTAMP) for key in range(1, count + 1))
    await counted.insert_rows("runs", _RUN_COLUMNS, rows)


async def measure_daily_runs(folder: Path, rounds: int) -> list[Measurement]:
    async def counted(store: Store) -> None:
        [line] = await store.daily_usage.get_run_counts("2023-11-01", "2023-11-30")
        assert line.run_count >= 10

    return await measure_growth(folder, "the runs of a day, counted", 10, _fill_one_day, counted)


# Signals to other runs


async def _fill_signals(counted: CountedStore, count: int) -> None:
    store = counted.store
    for name in ("a", "b"):
        await store.workers.register(NewWorker(name, "host", 1), 1e9)
    mine, theirs = (make_run_row(key, state="running", finished_at=None, owner=key) for key in (1, 2))
    await counted.insert_rows("runs", _RUN_COLUMNS, iter([mine, theirs]))
    columns = ("run", "name", "sent_at", "payload")
    await counted.insert_rows("signals", columns, ((2, "go", BASE_TIMESTAMP, b"1") for _ in range(count)))


async def measure_signals(folder: Path, rounds: int) -> list[Measurement]:
    cursors: dict[int, int] = {}

    async def look(store: Store) -> None:
        found = await store.claims.get_new_signals(1, cursors.get(id(store), 0))
        assert not found.signals
        cursors[id(store)] = found.cursor

    async def fill(counted: CountedStore, count: int) -> None:
        await _fill_signals(counted, count)
        while not await counted.is_visible("signals"):
            await asyncio.sleep(0.05)
        await look(counted.store)  # the existing rows are passed once

    return await measure_growth(folder, "a look for signals, others have many", 10, fill, look)


# Waking one of many parked runs


async def _fill_parked(counted: CountedStore, count: int) -> None:
    await counted.store.workers.register(NewWorker("a", "host", 1), 1e9)
    rows = (make_run_row(key, state="waiting", finished_at=None, waits_for="signal go") for key in range(1, count + 1))
    await counted.insert_rows("runs", _RUN_COLUMNS, rows)


async def measure_parked(folder: Path, rounds: int) -> list[Measurement]:
    """Everything that a store does from a signal to the end of a parked run."""
    numbers = itertools.count(7)

    async def wake(store: Store) -> None:
        now, claims, workflows = store.now(), store.claims, ("flow",)
        await store.commit([SendSignal(f"run-{next(numbers)}", "go", b"1", None, now)])
        await claims.get_next_wake_at(workflows=workflows, queues=None)
        [run] = await claims.claim(1, workflows=workflows, queues=None, limit=64)
        [history] = await store.get_histories([run.key])
        await claims.get_next_wake_at(workflows=workflows, queues=None)
        await claims.get_new_signals(1, 0)
        await claims.get_run_requests(1)
        record = Record(0, RecordKind.SIGNAL, 0, "go", True, b"1", now, worker=1, epoch=run.epoch)
        await store.commit([AppendRecord(run.key, record, history.signals[0].id, reset_delivery_count=True)])
        await store.commit([FinishRun(run.key, run.epoch, RunState.COMPLETED, b"1", None, now)])

    return await measure_growth(folder, "waking a parked run", 100, _fill_parked, wake)


# A fleet, and the locks of everything else on the server


async def measure_fleet(folder: Path, rounds: int) -> list[Measurement]:
    """What a worker's regular poll reads, in a fleet and next to other users of the server."""
    import psycopg

    found: list[dict[str, float]] = []
    async with run_server(folder) as url:
        for factor in SIZE_FACTORS:
            counted = CountedPostgres(url, f"rows_{secrets.token_hex(4)}")
            await counted.open()
            store: Any = counted.store
            me = await store.workers.register(NewWorker("me", "host", 1), 1e9)
            live = (
                (f"t{n}", "w", "host", 1, "live", "[]", BASE_TIMESTAMP, BASE_TIMESTAMP * 2, BASE_TIMESTAMP * 2)
                for n in range(2 * factor)
            )
            await counted.insert_rows("workers", _WORKER_COLUMNS, live)
            with psycopg.connect(url, autocommit=True) as others:
                others.execute("SELECT count(pg_advisory_lock(7, n)) FROM generate_series(1, %s) n", (2 * factor,))
                found.append(await counted.measure_work(lambda store=store, me=me: store.workers._run_poll_query(me)))
            await store.close()
    few, many = found
    times = f"{few.pop('ms'):,.2f} and {many.pop('ms'):,.2f} ms"
    what = f"a worker's look, fleet of {2 * SIZE_FACTORS[1]:,}"
    return [
        Measurement(
            what,
            many[unit],
            unit,
            f"at {2 * SIZE_FACTORS[0]} {few[unit]:,.0f} ({times})",
            "flat",
            many[unit] <= few[unit] * MAX_FLAT_RATIO,
        )
        for unit in many
    ]


# Lists on Temporal


async def measure_temporal(folder: Path, rounds: int) -> list[Measurement]:
    """What a list reads for runs with short and with long histories."""
    from temporalio.service import ServiceClient

    from benchmarks import temporal_benchmarks as server_of
    from benchmarks.temporal_benchmarks import bench_temporal
    from holdfast import Client, Runtime

    answers: list[int] = []

    def counted(real: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            answer = await real(*args, **kwargs)
            answers.append(answer.ByteSize())
            return answer

        return call

    found: list[tuple[float, float]] = []
    async with server_of.run_server(folder) as address, Runtime(f"temporal://{address}/default"):
        for factor in SIZE_FACTORS:
            handles = [
                await bench_temporal.options(new=True, id=f"{factor}-{n}").start(factor)
                for n in range(LISTED_RUN_COUNT)
            ]
            for handle in handles:
                await handle.result()
            client = Client(f"temporal://{address}/default")

            async def listed(client: Client = client, factor: int = factor) -> int:
                return len(await client.list(id_prefix=f"{factor}-", state=RunState.COMPLETED, limit=LISTED_RUN_COUNT))

            while await listed() < LISTED_RUN_COUNT:  # the visibility store lags behind
                await asyncio.sleep(0.1)
            await client.close()  # it caches what it has read
            store: Any = await client.connections.store()
            service: ServiceClient = store.client.service_client
            real = service._rpc_call
            service._rpc_call = counted(real)  # type: ignore[method-assign]
            answers.clear()
            await listed()
            found.append((sum(answers) / LISTED_RUN_COUNT, len(answers) / LISTED_RUN_COUNT))
            service._rpc_call = real  # type: ignore[method-assign]
            await client.close()
    lines: list[Measurement] = []
    for unit, few, many in zip(("bytes", "requests"), *found, strict=True):
        told = f"at {SIZE_FACTORS[0]} steps {few:,.1f}: {many / few:.1f} times"
        lines.append(
            Measurement(
                f"Temporal: a listed run of {SIZE_FACTORS[1]:,} steps",
                many,
                unit,
                told,
                "flat",
                many <= few * MAX_FLAT_RATIO,
            )
        )
    return lines


BENCHMARKS = {
    "growth-prune": measure_prune,
    "growth-prune-lock": measure_prune_lock,
    "growth-workers": measure_workers,
    "growth-approvals": measure_approvals,
    "growth-listing": measure_listing,
    "growth-daily-runs": measure_daily_runs,
    "growth-signals": measure_signals,
    "growth-parked": measure_parked,
    "growth-fleet": measure_fleet,
    "growth-temporal": measure_temporal,
}
SLOW_BENCHMARKS = ("growth-prune-lock", "growth-temporal")
"""Benchmarks that are not for a test: they measure time, or need another server."""
