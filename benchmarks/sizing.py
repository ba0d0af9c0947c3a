"""What runs, steps, and turns of agents take of a machine: the figures of docs/sizing.md.

For each load: CPU time of the worker and of the database server, transactions, bytes of write-ahead log, and bytes that
stay in the tables. For each process: its connections, what it sends while idle, and its memory. The server is the one
in HOLDFAST_TEST_POSTGRES, or one in a new folder, with fsync on::

    python -m benchmarks.sizing [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks import agent_workloads, workloads
from benchmarks.drivers import run_server
from benchmarks.postgres_benchmarks import CpuShares
from benchmarks.sqlite_benchmarks import run_worker
from holdfast import Client, Runtime, step, workflow

IDLE_S = 20.0
PARKED_COUNT = 10_000


@step
async def make_output(size: int) -> str:
    return "x" * size


@workflow
async def sized(length: int, size: int) -> None:
    for _ in range(length):
        await make_output(size)


@dataclass(frozen=True)
class Load:
    """Runs that begin at once."""

    title: str
    start: Callable[[], Awaitable[Any]]
    run_count: int
    unit_count: int
    """Steps or turns of one run."""


def make_loads() -> list[Load]:
    agent = agent_workloads.make_agent(20)
    return [
        Load("one run x 500 steps, 200 bytes", lambda: sized.options(new=True)(500, 200), 1, 500),
        Load("200 runs x 10 steps, 200 bytes", lambda: sized.options(new=True)(10, 200), 200, 10),
        Load("200 runs x 10 steps, 10 KB", lambda: sized.options(new=True)(10, 10_000), 200, 10),
        Load("2,000 runs x 1 step, 200 bytes", lambda: sized.options(new=True)(1, 200), 2000, 1),
        Load("100 agents x 20 turns, a tool in each", lambda: agent.run("Look"), 100, 20),
    ]


@dataclass(frozen=True)
class Counters:
    """What a database did so far."""

    transactions: float
    log_bytes: float
    table_bytes: float

    def to_unit(self, before: Counters, count: int) -> tuple[float, ...]:
        """What one of ``count`` units took."""
        pairs = zip(astuple(self), astuple(before), strict=True)
        return tuple((after - earlier) / count for after, earlier in pairs)


class PostgresCounters:
    """Reads the counters of a Postgres server."""

    def __init__(self, url: str) -> None:
        import psycopg

        self._connection = psycopg.connect(url, autocommit=True)

    report_delay_s = 11.0
    """Seconds until an idle session has reported its transactions."""

    def read(self) -> Counters:
        row = self._connection.execute(
            "SELECT pg_stat_force_next_flush(), (SELECT xact_commit FROM pg_stat_database "
            "WHERE datname = current_database()), pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0'), (SELECT "
            "coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class WHERE relkind = 'r' "
            "AND relnamespace = 'holdfast'::regnamespace)"
        ).fetchone()
        assert row is not None
        return Counters(*map(float, row[1:]))

    def count_connections(self) -> int:
        """Those of other processes."""
        row = self._connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        self._connection.close()


class SqliteCounters:
    """Reads what this process has written to an SQLite file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    report_delay_s = 0.0

    def read(self) -> Counters:
        process = psutil.Process()
        written = process.io_counters().write_bytes if hasattr(process, "io_counters") else 0
        return Counters(0.0, float(written), float(self._file.stat().st_size))


async def measure_loads(url: str, counters: PostgresCounters | SqliteCounters, rounds: int) -> None:
    print("| load | a second | worker CPU | server CPU | transactions | log bytes | table bytes |")
    print("|---|---|---|---|---|---|---|")
    async with Runtime(url):
        for load in make_loads():
            unit_count = load.run_count * load.unit_count
            await load.start()
            await asyncio.sleep(counters.report_delay_s)
            before, times = counters.read(), list[tuple[float, ...]]()
            for _ in range(rounds):
                cpu, started = CpuShares.read([]), time.perf_counter()
                await asyncio.gather(*[load.start() for _ in range(load.run_count)])
                rate = unit_count / (time.perf_counter() - started)
                times.append((rate, *CpuShares.read([]).to_us(cpu, unit_count)))
            await asyncio.sleep(counters.report_delay_s)
            transactions, log, table = counters.read().to_unit(before, unit_count * rounds)
            rate, _, server, worker = map(median, zip(*times, strict=True))
            print(
                f"| {load.title} | {rate:,.0f} | {worker:,.0f} µs | {server:,.0f} µs | {transactions:.2f} "
                f"| {log:,.0f} | {table:,.0f} |",
                flush=True,
            )


@contextmanager
def _worker_process(url: str) -> Iterator[psutil.Process]:
    with run_worker(url) as worker:
        yield psutil.Process(worker.pid)


async def measure_processes(url: str, counters: PostgresCounters) -> None:
    bare = counters.count_connections()
    with _worker_process(url) as worker:
        await asyncio.sleep(counters.report_delay_s)
        before, cpu = counters.read(), sum(worker.cpu_times()[:2])
        await asyncio.sleep(IDLE_S)
        after = counters.read()
        idle_cpu = (sum(worker.cpu_times()[:2]) - cpu) / IDLE_S
        queries = (after.transactions - before.transactions) / IDLE_S
        memory = worker.memory_info().rss
        print(
            f"a worker: {counters.count_connections() - bare} connections, idle {queries:.1f} transactions/s, "
            f"{idle_cpu:.2%} of a core, {memory / 2**20:.0f} MB"
        )
        connected = counters.count_connections()
        async with Client(url) as client:
            await client.list(limit=1)
            print(f"a client: {counters.count_connections() - connected} connections")
            size = counters.read().table_bytes
            for _ in range(PARKED_COUNT // 1000):
                await client.start_many("parked", [(time.time_ns() + number,) for number in range(1000)])
            while await client.list(state=["pending", "running"], workflow="parked", limit=1):
                await asyncio.sleep(0.2)
            table = (counters.read().table_bytes - size) / PARKED_COUNT
            held = worker.memory_info().rss - memory
            print(f"{PARKED_COUNT:,} runs that wait for a signal: {held / 2**20:.0f} MB more, {table:,.0f} bytes each")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each load is measured")
    rounds = parser.parse_args().rounds
    assert workloads.parked
    with tempfile.TemporaryDirectory() as folder:
        print("SQLite, a worker in this process, for each step or turn")
        file = Path(folder) / "runs.db"
        await measure_loads(f"sqlite:///{file}", SqliteCounters(file), rounds)
        async with run_server(Path(folder)) as url:
            async with Runtime(url):
                pass  # makes the tables
            counters = PostgresCounters(url)
            print("\nPostgres, a worker in this process, for each step or turn")
            await measure_loads(url, counters, rounds)
            await measure_processes(url, counters)
            counters.close()


if __name__ == "__main__":
    asyncio.run(main())
