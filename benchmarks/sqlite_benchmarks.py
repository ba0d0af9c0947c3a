"""Each measurement: a function from a folder and a number of rounds to lines of the table."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import sqlite_baseline, workloads
from holdfast import Client, Runtime
from holdfast.core.states import RunState
from holdfast.errors import RunCancelled

ROOT = Path(__file__).parent.parent
LARGE_RUN_COUNT = int(os.environ.get("HOLDFAST_BENCHMARK_RUNS", "1000000"))
"""Number of runs in the largest measurements."""
WINDOW_S = 1.5
"""For how long the rate of processes that work at the same time is measured."""


@dataclass
class Measurement:
    """One figure of the table."""

    title: str
    value: float
    unit: str
    comparison: str = ""
    """The bare database in the same run, and the ratio."""
    target: str = ""
    is_met: bool | None = None


def median(values: list[float]) -> float:
    return statistics.median(values)


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the ratios of each round to its own baseline, because a shared machine varies over time."""
    return median([one / other for one, other in zip(ours, theirs, strict=True)])


@asynccontextmanager
async def open_runtime(folder: Path, name: str = "runs.db") -> AsyncIterator[Runtime]:
    async with Runtime(f"sqlite:///{folder / name}") as opened:
        yield opened


async def measure_sequential(folder: Path, rounds: int) -> list[Measurement]:
    ours: list[float] = []
    theirs: list[float] = []
    async with open_runtime(folder):
        run = workloads.sequence.options(new=True)
        await run(5)
        for _ in range(rounds):
            theirs.append(sqlite_baseline.measure_commit_rate(folder / "bare.db"))
            started = time.perf_counter()
            await run(200)
            ours.append(200 / (time.perf_counter() - started))
    ratio = median_ratio(ours, theirs)
    return [
        Measurement(
            "200 sequential steps in one run",
            median(ours),
            "steps/s",
            f"bare {median(theirs):,.0f} commits/s: {ratio:.2f}",
            ">= 0.4 of bare",
            ratio >= 0.4,
        )
    ]


async def measure_concurrent(folder: Path, rounds: int) -> list[Measurement]:
    ours: list[float] = []
    theirs: list[float] = []
    async with open_runtime(folder):
        run = workloads.sequence.options(new=True)
        await asyncio.gather(*[run(2) for _ in range(50)])
        for _ in range(rounds):
            theirs.append(sqlite_baseline.measure_commit_rate(folder / "bare.db"))
            started = time.perf_counter()
            await asyncio.gather(*[run(10) for _ in range(200)])
            ours.append(2000 / (time.perf_counter() - started))
    ratio = median_ratio(ours, theirs)
    return [
        Measurement(
            "200 runs x 10 steps together",
            median(ours),
            "steps/s",
            f"bare {median(theirs):,.0f} commits/s: {ratio:.2f}",
            ">= 2.0 times bare",
            ratio >= 2.0,
        )
    ]


async def measure_latency(folder: Path, rounds: int) -> list[Measurement]:
    ours: list[float] = []
    theirs: list[float] = []
    async with open_runtime(folder):
        run = workloads.sequence.options(new=True)
        await run(1)
        for _ in range(rounds):
            theirs.append(1 / sqlite_baseline.measure_commit_rate(folder / "bare.db", 100))
            times: list[float] = []
            for _ in range(50):
                started = time.perf_counter()
                await run(1)
                times.append(time.perf_counter() - started)
            ours.append(median(times))
    commits = median_ratio(ours, theirs)
    beside = f"bare commit {median(theirs) * 1e6:,.0f} us: {commits:.1f} commits"
    return [
        Measurement(
            "one-step run, start to result, p50", median(ours) * 1e3, "ms", beside, "< 8 bare commits", commits < 8
        )
    ]


async def measure_remote_latency(folder: Path, rounds: int) -> list[Measurement]:
    """A client starts a run of one step and waits for its result; another process executes it."""
    url = f"sqlite:///{folder / 'remote.db'}"
    times: list[float] = []
    theirs: list[float] = []
    with run_worker(url):
        async with Client(url) as client:
            await client.run("sequence", 1)
            for _ in range(rounds):
                theirs.append(1 / sqlite_baseline.measure_commit_rate(folder / "bare.db", 100))
                for _ in range(20):
                    started = time.perf_counter()
                    await client.run("sequence", 1)
                    times.append(time.perf_counter() - started)
    p50 = median(times)
    beside = f"max {max(times) * 1e3:.1f} ms, bare commit {median(theirs) * 1e3:.2f} ms"
    return [Measurement("start to result in another process, p50", p50 * 1e3, "ms", beside, "<= 5 ms", p50 <= 0.005)]


async def measure_two_processes(folder: Path, rounds: int) -> list[Measurement]:
    """200 runs of 10 steps at once: in one process, and 100 in each of two that share the file.

    All processes are warm, and only the time counts in which each has work. Two processes with a file each show what
    the machine has to give: on one with other work, that is less than twice the rate of one process.
    """
    run_count, step_count = 200, 10
    files = {"one": ["one"], "shared": ["shared"] * 2, "separate": ["separate-1", "separate-2"]}
    rates: dict[str, list[float]] = {name: [] for name in files}
    with ExitStack() as stack:
        processes = {
            name: [
                stack.enter_context(
                    start_concurrent_runs(f"sqlite:///{folder / f'{path}.db'}", run_count // len(paths), step_count)
                )
                for path in paths
            ]
            for name, paths in files.items()
        }
        for number in range(rounds + 1):
            for name, started in processes.items():
                rate = measure_rate(started)
                if number:  # the first round warms up
                    rates[name].append(rate)
    one, shared, separate = rates.values()
    ratio = median_ratio(shared, one)
    lowest = min(both / alone for both, alone in zip(shared, one, strict=True))
    return [
        Measurement("200 runs x 10 steps, one process", median(one), "steps/s"),
        Measurement(
            "  100 runs x 10 steps in each of two",
            median(shared),
            "steps/s",
            f"{ratio:.2f} times one, at least {lowest:.2f}",
            ">= 1.0 times one",
            ratio >= 1.0,
        ),
        Measurement(
            "  the same with a file for each",
            median(separate),
            "steps/s",
            f"{median_ratio(separate, one):.2f} times one",
        ),
    ]


@contextmanager
def start_concurrent_runs(url: str, run_count: int, step_count: int) -> Iterator[subprocess.Popen[str]]:
    """A process of ``concurrent_runs``, for as long as the block lasts."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.concurrent_runs", url, str(run_count), str(step_count)],
        cwd=ROOT,
        env=build_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.communicate()  # it ends with its input


def measure_rate(processes: Sequence[subprocess.Popen[str]]) -> float:
    """The steps that processes of ``concurrent_runs`` record in a second, while all of them have work."""
    start = time.monotonic() + 0.3
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{start} {start + WINDOW_S}\n")
        process.stdin.flush()
    recorded_count = 0
    for process in processes:
        assert process.stdout is not None
        recorded_count += int(process.stdout.readline())
    return recorded_count / WINDOW_S


def time_in_processes(module: str, arguments: Sequence[Sequence[str]]) -> float:
    """The seconds until one process for each line of arguments is done. They begin at the same moment."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, *line],
            cwd=ROOT,
            env=build_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for line in arguments
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    times: list[float] = []
    for process in processes:
        assert process.stdout is not None
        times.append(float(process.stdout.readline()))
        process.communicate()
    return max(times)


async def measure_resume(folder: Path, rounds: int) -> list[Measurement]:
    """A process that knows nothing takes up a run with 5,000 recorded steps."""
    length = 5000
    url = f"sqlite:///{folder / 'resume.db'}"
    for number in range(rounds):
        async with Runtime(url):
            handle = await workloads.held.start(str(number), length)
            while (await handle.info()).state != "waiting":
                await asyncio.sleep(0.05)
    times: list[float] = []
    async with Client(url) as client, Runtime(url):
        for number in range(rounds):
            started = time.perf_counter()
            await client.signal(f"held-{number}", "go")
            await client.wait(f"held-{number}")
            times.append(time.perf_counter() - started)
    beside = "signal to result, over another connection"
    return [
        Measurement(
            "resume of a run with 5,000 steps", median(times) * 1e3, "ms", beside, "<= 60 ms", median(times) <= 0.06
        )
    ]


async def measure_fan_out(folder: Path, rounds: int) -> list[Measurement]:
    """``map`` over 50,000 items, with the memory in use meanwhile."""
    del rounds
    process = psutil.Process()
    lines: list[Measurement] = []
    for length in (5_000, 50_000):
        gc.collect()
        before = process.memory_info().rss
        peak = 0

        async with open_runtime(folder, f"map-{length}.db"):
            task = asyncio.ensure_future(workloads.mapped.options(new=True)(length, 100))
            started = time.perf_counter()
            while not task.done():
                await asyncio.wait([task], timeout=0.1)
                peak = max(peak, process.memory_info().rss - before)
            took = time.perf_counter() - started
        lines.append(Measurement(f"map over {length:,} items, 100 at once", took, "s", f"{length / took:,.0f} steps/s"))
        # The list of results itself is the caller's: one 200-character string and a place in a list for each item.
        results = length * (sys.getsizeof("x" * workloads.OUTPUT_CHARS) + 8)
        lines.append(
            Measurement(
                f"  memory above the start, {length:,} items",
                peak / 1e6,
                "MB",
                f"of which results {results / 1e6:.0f} MB",
            )
        )
    return lines


async def measure_size(folder: Path, rounds: int) -> list[Measurement]:
    del rounds
    path = folder / "size.db"
    async with Runtime(f"sqlite:///{path}"):
        run = workloads.sequence.options(new=True)
        await run(1)
    empty = get_database_size(path)
    async with Runtime(f"sqlite:///{path}"):
        await asyncio.gather(*[run(100) for _ in range(100)])
    each = (get_database_size(path) - empty) / 10_000
    return [
        Measurement(
            "bytes a step, 200-byte outputs",
            each,
            "bytes",
            "100 runs x 100 steps, runs' rows included",
            "<= 400",
            each <= 400,
        )
    ]


def get_database_size(path: Path) -> int:
    """Bytes of a database, with all that was written to it."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path.stat().st_size


async def measure_parking(folder: Path, rounds: int) -> list[Measurement]:
    return await _measure_parked_runs(folder, 50_000, rounds)


async def measure_million_parked(folder: Path, rounds: int) -> list[Measurement]:
    return await _measure_parked_runs(folder, LARGE_RUN_COUNT, rounds)


async def _measure_parked_runs(folder: Path, count: int, rounds: int) -> list[Measurement]:
    """Runs parked on a signal: memory, the size of the file, and the time to wake one, to start one, and to count."""
    process = psutil.Process()
    url = f"sqlite:///{folder / 'parked.db'}"
    async with Runtime(url), Client(url) as client:
        await (await workloads.parked.start(-1)).signal("go", "warm")
        gc.collect()
        before = process.memory_info().rss
        started = time.perf_counter()
        for first in range(0, count, 1000):
            await asyncio.gather(*[workloads.parked.start(number) for number in range(first, first + 1000)])
        took = time.perf_counter() - started
        while await client.list(state=["pending", "running"], limit=1):
            await asyncio.sleep(0.1)
        gc.collect()
        grown = (process.memory_info().rss - before) / 1e6
        here: list[float] = []
        for number in range(0, count, count // (50 * rounds)):
            handle = await workloads.parked.start(number)
            started = time.perf_counter()
            await handle.signal("go", "woken")
            await handle.result()
            here.append(time.perf_counter() - started)
        started = time.perf_counter()
        health = await client.health()
        counted = time.perf_counter() - started
        assert sum(one.run_counts.get(RunState.WAITING, 0) for one in health) == count - len(here)
    size = get_database_size(folder / "parked.db")
    lines = [
        Measurement(
            f"{count:,} runs parked: memory",
            grown,
            "MB",
            f"started and parked {count / took:,.0f} a second",
            "< 100 MB",
            grown < 100,
        ),
        Measurement(
            "  waking one, same process, p50",
            median(here) * 1e3,
            "ms",
            f"max {max(here) * 1e3:.1f} ms",
            "< 5 ms",
            median(here) < 0.005,
        ),
        Measurement("  counting them by state", counted * 1e3, "ms", "the health of all workflows"),
        Measurement("  bytes of a parked run", size / count, "bytes", "with indexes, as a file"),
    ]
    with run_worker(url):
        async with Client(url) as client:
            there: list[float] = []
            for number in range(1, count, count // (20 * rounds)):
                started = time.perf_counter()
                await client.signal(f"parked-{number}", "go", "woken")
                await client.wait(f"parked-{number}")
                there.append(time.perf_counter() - started)
    p50 = median(there)
    lines.append(
        Measurement(
            "  waking one from another process, p50",
            p50 * 1e3,
            "ms",
            f"max {max(there) * 1e3:.1f} ms",
            "< 100 ms",
            p50 < 0.1,
        )
    )
    return lines


async def measure_takeover(folder: Path, rounds: int) -> list[Measurement]:
    return await measure_takeover_on(f"sqlite:///{folder / 'takeover.db'}", folder, rounds)


async def measure_takeover_on(url: str, folder: Path, rounds: int) -> list[Measurement]:
    """SIGKILL a worker in the middle of a step; how long until a peer runs that step?"""
    gaps: list[float] = []
    for number in range(rounds):
        ledger = folder / f"ledger-{number}"
        with run_worker(url) as one, run_worker(url) as other:
            async with Client(url) as client:
                await client.start("lingering", number, str(ledger))
                holder, _ = await _wait_for_entry(ledger)
                (one if holder == one.pid else other).send_signal(signal.SIGKILL)
                killed = time.time()
                _, began = await _wait_for_entry(ledger, excluded_pid=holder)
                gaps.append(began - killed)
                # Otherwise the runs of all rounds die with each worker, and are isolated as its possible killers.
                await client.cancel(f"lingering-{number}")
                with suppress(RunCancelled):
                    await client.wait(f"lingering-{number}")
    beside = f"max {max(gaps) * 1e3:.0f} ms"
    is_met = median(gaps) < 0.1 and max(gaps) < 0.3
    return [Measurement("takeover after SIGKILL, p50", median(gaps) * 1e3, "ms", beside, "< 100, max < 300 ms", is_met)]


async def measure_idle(folder: Path, rounds: int) -> list[Measurement]:
    del rounds
    url = f"sqlite:///{folder / 'idle.db'}"
    with run_worker(url) as process:
        watched = psutil.Process(process.pid)
        await asyncio.sleep(1)
        before = sum(watched.cpu_times()[:2])
        await asyncio.sleep(5)
        share = (sum(watched.cpu_times()[:2]) - before) / 5 * 100
    return [Measurement("an idle worker's CPU", share, "%", "", "< 1 %", share < 1)]


def build_environment() -> dict[str, str]:
    """The environment for processes that import these benchmarks and the library.

    They save its bytecode, which an installed package has: without it, each process would compile the library again.
    """
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


@contextmanager
def run_worker(url: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A worker process, for as long as the block lasts."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.worker", url, *options],
        cwd=ROOT,
        env=build_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()


async def _wait_for_entry(ledger: Path, excluded_pid: int | None = None) -> tuple[int, float]:
    """The process that has first noted a step there, and when."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if ledger.exists():
            lines = [line.split() for line in ledger.read_text().splitlines()]
            entries = [(int(pid), float(at)) for pid, at in lines if int(pid) != excluded_pid]
            if entries:
                return entries[0]
        await asyncio.sleep(0.005)
    raise TimeoutError(f"nothing in {ledger}")


BENCHMARKS: dict[str, Callable[[Path, int], Awaitable[list[Measurement]]]] = {
    "sequential": measure_sequential,
    "together": measure_concurrent,
    "together-two": measure_two_processes,
    "latency": measure_latency,
    "latency-remote": measure_remote_latency,
    "resume": measure_resume,
    "map": measure_fan_out,
    "size": measure_size,
    "parking": measure_parking,
    "parking-million": measure_million_parked,
    "takeover": measure_takeover,
    "idle": measure_idle,
}
