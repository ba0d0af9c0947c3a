"""The Postgres store next to the bare driver, on the same server and with the same durability.

The server is the one in HOLDFAST_TEST_POSTGRES, or one in the benchmark's folder, with fsync on.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks import workloads
from benchmarks.drivers import run_server
from benchmarks.sqlite_benchmarks import (
    LARGE_RUN_COUNT,
    Measurement,
    measure_takeover_on,
    median,
    median_ratio,
    run_worker,
)
from holdfast import Client, Runtime

PAYLOAD = b"x" * 200
SMALL_RUN_COUNT = 10_000


class PostgresBaseline:
    """The yardstick: one connection, one row a commit, a prepared statement, and nothing else."""

    def __init__(self, url: str) -> None:
        import psycopg

        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS bare_rows (id bigserial PRIMARY KEY, run bigint, seq bigint, name text, "
            "output bytea, at float8)"
        )

    def measure_commit_rate(self, count: int = 200) -> float:
        started = time.perf_counter()
        for number in range(count):
            self._connection.execute(
                "INSERT INTO bare_rows (run, seq, name, output, at) VALUES (1, %s, 'one', %s, 0.0)", (number, PAYLOAD)
            )
        return count / (time.perf_counter() - started)

    def close(self) -> None:
        self._connection.close()


async def measure_sequential(folder: Path, rounds: int) -> list[Measurement]:
    ours: list[float] = []
    theirs: list[float] = []
    async with run_server(folder) as url, Runtime(url):
        bare = PostgresBaseline(url)
        run = workloads.sequence.options(new=True)
        await run(20)
        for _ in range(rounds):
            theirs.append(bare.measure_commit_rate())
            started = time.perf_counter()
            await run(200)
            ours.append(200 / (time.perf_counter() - started))
        bare.close()
    ratio = median_ratio(ours, theirs)
    beside = f"bare {median(theirs):,.0f} commits/s: {ratio:.2f}"
    return [
        Measurement("Postgres: 200 sequential steps", median(ours), "steps/s", beside, ">= 0.5 of bare", ratio >= 0.5)
    ]


async def measure_concurrent(folder: Path, rounds: int) -> list[Measurement]:
    ours: list[float] = []
    theirs: list[float] = []
    async with run_server(folder) as url, Runtime(url):
        bare = PostgresBaseline(url)
        run = workloads.sequence.options(new=True)
        await asyncio.gather(*[run(2) for _ in range(200)])
        for _ in range(rounds):
            theirs.append(bare.measure_commit_rate())
            started = time.perf_counter()
            await asyncio.gather(*[run(10) for _ in range(200)])
            ours.append(2000 / (time.perf_counter() - started))
        bare.close()
    ratio = median_ratio(ours, theirs)
    beside = f"bare {median(theirs):,.0f} commits/s: {ratio:.1f}"
    return [
        Measurement("Postgres: 200 runs x 10 steps", median(ours), "steps/s", beside, ">= 5 times bare", ratio >= 5)
    ]


async def measure_fleet(folder: Path, rounds: int) -> list[Measurement]:
    """As much work for each of two worker processes, started in bulk by a third one that executes nothing."""
    ours: list[float] = []
    theirs: list[float] = []
    async with run_server(folder) as url:
        bare = PostgresBaseline(url)
        with run_worker(url), run_worker(url):
            async with Client(url) as client:
                await client.run("sequence", 1)
                for _ in range(rounds):
                    theirs.append(bare.measure_commit_rate())
                    started = time.perf_counter()
                    runs = await client.start_many("sequence", [(10,)] * 400)
                    await asyncio.gather(*map(client.wait, runs))
                    ours.append(4000 / (time.perf_counter() - started))
        bare.close()
    ratio = median_ratio(ours, theirs)
    beside = f"bare {median(theirs):,.0f} commits/s: {ratio:.1f}"
    return [Measurement("Postgres: 400 runs x 10 steps, two workers", median(ours), "steps/s", beside)]


class CpuShares(NamedTuple):
    """CPU time in seconds, by who has used it."""

    workers: float
    server: float
    client: float

    @classmethod
    def read(cls, workers: list[psutil.Process]) -> CpuShares:
        """What these processes, all PostgreSQL servers on this machine, and this process have used so far."""
        servers = [process for process in psutil.process_iter(["name"]) if process.info["name"] == "postgres"]
        return cls(_sum_cpu_s(workers), _sum_cpu_s(servers), time.process_time())

    def to_us(self, before: CpuShares, count: int) -> tuple[float, ...]:
        """Microseconds for each of ``count`` things done since ``before``."""
        return tuple((end - start) / count * 1e6 for end, start in zip(self, before, strict=True))


def _sum_cpu_s(processes: list[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        with suppress(psutil.Error):  # a session that has just ended
            total += sum(process.cpu_times()[:2])
    return total


class FleetJob(NamedTuple):
    """Runs for workers that have nothing else to do."""

    title: str
    unit: str
    workflow: str
    call: tuple[Any, ...]
    run_count: int
    unit_count: int
    """Steps or turns of one run."""


class FleetResult(NamedTuple):
    """How fast workers were."""

    rate: float
    """Steps or turns a second."""
    cpu_us: tuple[float, ...]
    """For each of them, by who has used it: see ``CpuShares``."""


async def measure_two_workers(folder: Path, rounds: int) -> list[Measurement]:
    """The same work by one worker process and by two, in turns, and the CPU time that it takes.

    The workers have been running for a while, and all runs become due at the same moment, so nothing but their
    execution is measured. Workers and server share the cores of the machine, so the CPU time limits what a second
    worker can add.
    """
    jobs = (
        FleetJob("2,000 runs x 10 steps", "steps", "sequence", (10,), 2000, 10),
        FleetJob("200 agents x 20 turns", "turns", "measured-20", ("Look",), 200, 20),
    )
    results: dict[FleetJob, dict[int, list[FleetResult]]] = {job: {1: [], 2: []} for job in jobs}
    async with run_server(folder) as url:
        for _ in range(rounds):
            for worker_count in (1, 2):
                with ExitStack() as stack:
                    workers = [
                        psutil.Process(stack.enter_context(run_worker(url, "agents")).pid) for _ in range(worker_count)
                    ]
                    async with Client(url) as client:
                        for job in jobs:
                            results[job][worker_count].append(await _measure_fleet_job(client, workers, job))
    return [_compare_fleets(job, found[1], found[2]) for job, found in results.items()]


async def _measure_fleet_job(client: Client, workers: list[psutil.Process], job: FleetJob) -> FleetResult:
    count, delay_s = job.run_count * job.unit_count, 1.0
    runs = await client.start_many(job.workflow, [job.call] * (job.run_count // 4))  # to warm up
    await asyncio.gather(*map(client.wait, runs))
    due_at = time.perf_counter() + delay_s
    await client.options(delay=delay_s).start_many(job.workflow, [job.call] * job.run_count)
    await asyncio.sleep(due_at - time.perf_counter())
    before, started = CpuShares.read(workers), time.perf_counter()
    while await client.list(state=["pending", "running"], workflow=job.workflow, limit=1):
        await asyncio.sleep(0.02)
    return FleetResult(count / (time.perf_counter() - started), CpuShares.read(workers).to_us(before, count))


def _compare_fleets(job: FleetJob, ones: list[FleetResult], twos: list[FleetResult]) -> Measurement:
    ratio, one = (
        median_ratio([two.rate for two in twos], [one.rate for one in ones]),
        median([one.rate for one in ones]),
    )
    shares = [
        [median(list(share)) for share in zip(*(result.cpu_us for result in found), strict=True)]
        for found in (ones, twos)
    ]
    cores = os.cpu_count() or 1
    limit, elsewhere = (min(2.0, cores * 1e6 / cost / one) for cost in (sum(shares[0]), shares[0][0]))
    cpu = "; ".join(", ".join(f"{share:.0f}" for share in split) for split in shares)
    beside = (
        f"one worker {one:,.0f}: {ratio:.2f} times; CPU us of workers, server, client with one and with two: {cpu}; "
        f"{cores} cores allow {limit:.2f} times, {elsewhere:.2f} with the server elsewhere"
    )
    title, rate = f"Postgres: {job.title}, two workers", median([two.rate for two in twos])
    return Measurement(title, rate, f"{job.unit}/s", beside, ">= 1.7 times one", ratio >= 1.7)


async def measure_latency(folder: Path, rounds: int) -> list[Measurement]:
    """Latencies that a user waits for: a run from start to result, and the answer to a signal from another process."""
    starts: list[float] = []
    wakes: list[float] = []
    first = time.time_ns()  # the server may have the runs of an earlier measurement
    async with run_server(folder) as url:
        bare = PostgresBaseline(url)
        commit_ms = 1e3 / bare.measure_commit_rate()
        bare.close()
        with run_worker(url):
            async with Client(url) as client:
                await client.run("sequence", 1)
                for number in range(first, first + 20 * rounds):
                    started = time.perf_counter()
                    await client.run("sequence", 1)
                    starts.append(time.perf_counter() - started)
                    await client.start("parked", number)
                for number in range(first, first + 20 * rounds):
                    while (await client.get(f"parked-{number}")).state != "waiting":
                        await asyncio.sleep(0.05)
                    started = time.perf_counter()
                    await client.signal(f"parked-{number}", "go", "woken")
                    await client.wait(f"parked-{number}")
                    wakes.append(time.perf_counter() - started)
    start_ms, beside = median(starts) * 1e3, f"max {max(starts) * 1e3:.0f}, four commits; a bare one {commit_ms:.2f} ms"
    return [
        Measurement("Postgres: one-step run in another process, p50", start_ms, "ms", beside, "<= 5 ms", start_ms <= 5),
        Measurement(
            "Postgres: waking a parked run there, p50", median(wakes) * 1e3, "ms", f"max {max(wakes) * 1e3:.0f}"
        ),
    ]


async def measure_takeover(folder: Path, rounds: int) -> list[Measurement]:
    async with run_server(folder) as url:
        [line] = await measure_takeover_on(url, folder, rounds)
    line.title = f"Postgres: {line.title}"
    return [line]


async def measure_idle(folder: Path, rounds: int) -> list[Measurement]:
    """Statements that an idle worker sends, counted in the server's log (so it must be a server of our own)."""
    del rounds
    import psycopg

    async with run_server(folder) as url:
        with psycopg.connect(url, autocommit=True) as watcher:
            [place] = watcher.execute("SHOW data_directory").fetchone() or ()
            watcher.execute("ALTER SYSTEM SET log_min_duration_statement = 0")
            watcher.execute("SELECT pg_reload_conf()")
        log = Path(place) / "log"
        with run_worker(url):
            await asyncio.sleep(3)
            before, began = log.stat().st_size, time.perf_counter()
            await asyncio.sleep(20)
            told, took = log.read_bytes()[before:].decode(), time.perf_counter() - began
    rate = len(re.findall(r"duration: [0-9.]+ ms  (?:execute|statement)", told)) / took
    return [Measurement("Postgres: an idle worker's queries", rate, "a second", "", "<= 2", rate <= 2)]


async def measure_parked_runs(folder: Path, rounds: int) -> list[Measurement]:
    """Runs parked on a signal: whether their number matters for a claim and for a wake-up."""
    lines: list[Measurement] = []
    claims: dict[int, float] = {}
    wakes: dict[int, float] = {}
    done = 0
    async with run_server(folder) as url, Client(url) as client:
        async with Runtime(url):
            pass  # the workflows are known now
        for count in (SMALL_RUN_COUNT, LARGE_RUN_COUNT):
            began = time.perf_counter()
            await client.start_many("parked", ((number,) for number in range(done, count)))
            started = time.perf_counter()
            with run_worker(url), run_worker(url):
                while await _has_unparked(client):
                    await asyncio.sleep(0.5)
            parked = time.perf_counter()
            rate, pace = (count - done) / (started - began), (count - done) / (parked - started)
            beside = f"bulk start {rate:,.0f} a second, then parked {pace:,.0f} a second by two workers"
            lines.append(Measurement(f"Postgres: {count:,} runs parked", parked - began, "s", beside))
            done = count
            claims[count], wakes[count] = await _measure_latencies(url, count, 40 * rounds)
    for what, times in (("claim", claims), ("wake-up", wakes)):
        ratio = times[LARGE_RUN_COUNT] / times[SMALL_RUN_COUNT]
        beside = f"at {SMALL_RUN_COUNT:,}: {times[SMALL_RUN_COUNT] * 1e3:.1f} ms, {ratio:.2f} times"
        lines.append(
            Measurement(
                f"Postgres: {what} among {LARGE_RUN_COUNT:,}, p50",
                times[LARGE_RUN_COUNT] * 1e3,
                "ms",
                beside,
                "< 2 times",
                ratio < 2,
            )
        )
    return lines


async def _has_unparked(client: Client) -> bool:
    return bool(await client.list(state=["pending", "running"], workflow="parked", limit=1))


async def _measure_latencies(url: str, count: int, times: int) -> tuple[float, float]:
    """From a start by a client, and from a signal by a client, to the end of the run in a worker."""
    claims: list[float] = []
    wakes: list[float] = []
    with run_worker(url):
        async with Client(url) as client:
            await client.run("sequence", 1)
            for number in range(times):
                started = time.perf_counter()
                await client.run("sequence", 1)
                claims.append(time.perf_counter() - started)
                chosen = f"parked-{number * (count // times) + (count > SMALL_RUN_COUNT)}"  # not the ones among the few
                started = time.perf_counter()
                await client.signal(chosen, "go", "woken")
                await client.wait(chosen)
                wakes.append(time.perf_counter() - started)
    return median(claims), median(wakes)


async def measure_size(folder: Path, rounds: int) -> list[Measurement]:
    """What the journal takes on disk, next to a table that has only a key and the output."""
    del rounds
    import psycopg

    run_count, step_count = 200, 100
    count = run_count * step_count
    async with run_server(folder) as url, Runtime(url):
        run = workloads.sequence.options(new=True)
        await asyncio.gather(*[run(step_count) for _ in range(run_count)])
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE bare_journal (run int8, seq int4, output bytea, PRIMARY KEY (run, seq))")
            for seq in range(step_count):
                connection.execute(
                    "INSERT INTO bare_journal SELECT run, %s, %s FROM generate_series(1, %s) run",
                    (seq, PAYLOAD, run_count),
                )
            sizes = connection.execute(
                "SELECT pg_relation_size(oid), pg_indexes_size(oid), pg_total_relation_size('bare_journal') "
                "FROM pg_class WHERE relname = 'records' AND relkind = 'r'"
            ).fetchone()
    assert sizes is not None
    heap, index, bare = (size / count for size in sizes)
    beside = f"rows {heap:.0f}, indexes {index:.0f}; a bare table with the same key and output {bare:.0f}"
    return [
        Measurement("Postgres: bytes a step", heap + index, "bytes", beside, "<= 320 bytes", heap + index <= 320),
    ]


BENCHMARKS = {
    "postgres-sequential": measure_sequential,
    "postgres-together": measure_concurrent,
    "postgres-fleet": measure_fleet,
    "postgres-two-workers": measure_two_workers,
    "postgres-size": measure_size,
    "postgres-latency": measure_latency,
    "postgres-takeover": measure_takeover,
    "postgres-idle": measure_idle,
    "postgres-million": measure_parked_runs,
}
