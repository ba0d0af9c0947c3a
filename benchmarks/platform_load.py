"""The platform under load: many listeners and many submissions, over HTTP on this machine.

The server is one process (`holdfast serve`), the listeners are another one, and the submissions come from this one.
Each listener writes to a file, outside the database, when it got a delivery and when it executed its one step. So this
measures what a user sees: from the moment before a submission is sent until a listener has it. ``kill_count`` is the
number of times the server is killed (SIGKILL) and restarted meanwhile.

Run as a program, it compares the cost of the server with that of another worktree, under the same load by the same
clients, in turns: ``python -m benchmarks.platform_load compare OTHER [--pairs N]``. With ``listen URL ADDRESS COUNT
LEDGER``, it is the process of the listeners.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import sqlite_baseline
from benchmarks.server_process import ROOT, START_TIMEOUT_S, ServerCounts, ServerProcess
from benchmarks.sqlite_benchmarks import Measurement, median
from holdfast import Client

ADDRESS = "load"


@dataclass
class LoadResult:
    """The result of a load."""

    run_count: int
    completed_count: int
    step_counts: Counter[str]
    """How often each run's step was executed."""
    delivery_delays_s: list[float]
    """Seconds from submission to delivery, of each run."""
    duration_s: float
    kill_count: int
    server_cpu_s: float
    """CPU seconds of the server, without those of servers that were killed."""
    counts: ServerCounts | None = None
    """What a counted server did."""

    @property
    def rate(self) -> float:
        return self.run_count / self.duration_s

    @property
    def server_cpu_ms(self) -> float:
        """Milliseconds of the server's CPU time for each run."""
        return 1000 * self.server_cpu_s / self.run_count

    def get_quantile(self, fraction: float) -> float:
        ordered = sorted(self.delivery_delays_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]


@contextmanager
def run_server(
    folder: Path, listener_count: int, url: str | None = None, tree: Path = ROOT, *, counted: bool = False
) -> Generator[tuple[ServerProcess, Path]]:
    """A server, and listeners in a process of their own; and the file in which they note what they do."""
    server = ServerProcess(url or f"sqlite:///{folder / 'runs.db'}", folder / "server.log", tree, counted=counted)
    server.start()
    ledger = folder / "ledger"
    ledger.touch()
    command = [
        sys.executable,
        "-m",
        "benchmarks.platform_load",
        "listen",
        server.base_url,
        ADDRESS,
        str(listener_count),
        str(ledger),
    ]
    with (folder / "listeners.log").open("wb") as out:
        hands = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)
    try:
        yield server, ledger
    finally:
        hands.send_signal(signal.SIGTERM)
        hands.wait()
        server.stop()


async def run_load(
    folder: Path,
    *,
    listener_count: int,
    run_count: int,
    kill_count: int = 0,
    url: str | None = None,
    tree: Path = ROOT,
    counted: bool = False,
) -> LoadResult:
    """Submit ``run_count`` runs at once to ``listener_count`` listeners, and kill the server ``kill_count`` times."""
    sent: dict[str, float] = {}
    places = asyncio.Semaphore(50)
    counts = None
    folder.mkdir(exist_ok=True)
    with run_server(folder, listener_count, url, tree, counted=counted) as (server, ledger):
        async with Client(server.base_url) as client:
            await _wait_for_listeners(client, listener_count)

            async def submit(number: int) -> str:
                async with places:
                    at = time.time()
                    run_id = (await client.send(ADDRESS, {"number": number}, id=f"load-{number}")).run_id
                    sent[run_id] = at
                    return run_id

            before = await _read_counts(server) if counted else None
            began, cpu_began = time.monotonic(), server.get_cpu_s()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_kill_repeatedly(server, ledger, run_count, kill_count))
                ids = await asyncio.gather(*(submit(number) for number in range(run_count)))
                results = await asyncio.gather(*(client.wait(run_id) for run_id in ids))
            seconds, cpu_s = time.monotonic() - began, server.get_cpu_s() - (0.0 if kill_count else cpu_began)
            if before is not None:
                counts = await _read_counts(server) - before
    completed = sum(result == {"number": number} for number, result in enumerate(results))
    return _read_result(ledger, sent, completed, seconds, kill_count, cpu_s, counts)


async def _read_counts(server: ServerProcess) -> ServerCounts:
    await asyncio.sleep(0.3)  # they are written now and then
    return server.get_counts()


async def run_sequential_load(folder: Path, *, listener_count: int, run_count: int) -> LoadResult:
    """One submission after the other: each is done before the next is sent."""
    sent: dict[str, float] = {}
    with run_server(folder, listener_count) as (server, ledger):
        async with Client(server.base_url) as client:
            await _wait_for_listeners(client, listener_count)
            began, cpu_began = time.monotonic(), server.get_cpu_s()
            for number in range(run_count):
                at = time.time()
                handle = await client.send(ADDRESS, {"number": number})
                sent[handle.run_id] = at
                await handle.result()
            seconds, cpu_s = time.monotonic() - began, server.get_cpu_s() - cpu_began
    return _read_result(ledger, sent, run_count, seconds, 0, cpu_s)


def _read_result(
    ledger: Path,
    sent: dict[str, float],
    completed_count: int,
    duration_s: float,
    kill_count: int,
    server_cpu_s: float,
    counts: ServerCounts | None = None,
) -> LoadResult:
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    first: dict[str, float] = {}
    for line in lines:
        if line["what"] == "delivered":
            first.setdefault(line["run"], line["at"])
    waits = [first[run_id] - at for run_id, at in sent.items() if run_id in first]
    done = Counter(line["run"] for line in lines if line["what"] == "done")
    return LoadResult(len(sent), completed_count, done, waits, duration_s, kill_count, server_cpu_s, counts)


async def _wait_for_listeners(client: Client, listener_count: int) -> None:
    until = time.monotonic() + START_TIMEOUT_S + listener_count * 0.2
    while time.monotonic() < until:
        known = {one.name: one for one in await client.health()}
        if ADDRESS in known and known[ADDRESS].worker_count >= listener_count:
            return
        await asyncio.sleep(0.2)
    raise RuntimeError("the listeners did not start")


async def _kill_repeatedly(server: ServerProcess, ledger: Path, run_count: int, kill_count: int) -> None:
    """Kill the server each time when another part of the work is done, and start it again."""
    for number in range(1, kill_count + 1):
        while ledger.read_text().count('"done"') < run_count * number // (kill_count + 1):
            await asyncio.sleep(0.02)
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(server.start)


# The listeners


async def run_listeners(url: str, address: str, count: int, ledger: Path) -> None:
    """Run this many listeners, each with its own connection."""
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND)

    def note(what: str, run: str) -> None:
        os.write(file, json.dumps({"what": what, "run": run, "at": time.time()}).encode() + b"\n")

    async with Client(url) as client:

        async def one(number: int) -> None:
            async for delivery in client.listen(address, name=f"listener-{number}"):
                note("delivered", delivery.run_id)
                async with delivery:

                    async def work(run: str = delivery.run_id) -> bool:
                        note("done", run)
                        return True

                    await delivery.step("work", work)
                    await delivery.complete(delivery.payload)

        await asyncio.gather(*(one(number) for number in range(count)))


# The measure


async def measure_platform(folder: Path, rounds: int) -> list[Measurement]:
    """Submit-to-delivery with 200 listeners, idle and in a burst, next to one commit of the bare database."""
    commit = 1 / sqlite_baseline.measure_commit_rate(folder / "bare.db")
    (folder / "calm").mkdir()
    calm = await run_sequential_load(folder / "calm", listener_count=200, run_count=100)
    loads: list[LoadResult] = []
    singles: list[LoadResult] = []
    for number in range(rounds):
        loads.append(await run_load(folder / f"burst-{number}", listener_count=200, run_count=1000))
        singles.append(await run_load(folder / f"single-{number}", listener_count=1, run_count=500))
    counted = await run_load(folder / "counted", listener_count=200, run_count=500, counted=True)
    beside = f"one commit of SQLite {commit * 1000:.1f} ms"
    p50, p99 = (median([load.get_quantile(share) for load in loads]) * 1000 for share in (0.5, 0.99))
    server_ms, single = median([load.server_cpu_ms for load in loads]), median([load.rate for load in singles])
    return [
        Measurement("submit to delivery, one at a time, p50", calm.get_quantile(0.5) * 1000, "ms", beside),
        Measurement("submit to delivery, one at a time, p99", calm.get_quantile(0.99) * 1000, "ms"),
        Measurement("1,000 submissions at once, 200 listeners", median([load.rate for load in loads]), "runs/s"),
        Measurement("the same, submit to delivery, p50", p50, "ms"),
        Measurement("the same, submit to delivery, p99", p99, "ms"),
        Measurement("the same, CPU of the server", server_ms, "ms a run", "", "<= 0.8 ms", server_ms <= 0.8),
        Measurement("500 submissions at once, one listener", single, "runs/s", "", ">= 400", single >= 400),
        *_describe_counts(counted),
    ]


def _describe_counts(load: LoadResult) -> list[Measurement]:
    assert load.counts is not None
    counts = {
        "SQL statements": load.counts.statement_count,
        "transactions": load.counts.transaction_count,
        "fsyncs": load.counts.fsync_count,
    }
    return [Measurement(f"200 listeners, {name}", count / load.run_count, "a run") for name, count in counts.items()]


def compare_servers(other: Path, pair_count: int) -> None:
    """Print the cost of this tree's server and of another one's, in turns, and then the counts of each."""
    for listener_count, run_count in ((200, 1000), (1, 500)):
        for number in range(pair_count):
            for tree in (ROOT, other) if number % 2 else (other, ROOT):
                load = _run_once(listener_count, run_count, tree)
                print(
                    f"{tree.name:<12} {listener_count:>3} listeners: {load.rate:6.0f} runs/s, "
                    f"{load.server_cpu_ms:6.2f} ms of the server a run",
                    flush=True,
                )
    for tree in (other, ROOT):
        for figure in _describe_counts(_run_once(200, 500, tree, counted=True)):
            print(f"{tree.name:<12} {figure.title}: {figure.value:.1f} {figure.unit}", flush=True)


def _run_once(listener_count: int, run_count: int, tree: Path, *, counted: bool = False) -> LoadResult:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(
            run_load(Path(folder), listener_count=listener_count, run_count=run_count, tree=tree, counted=counted)
        )


BENCHMARKS = {"platform": measure_platform}


def _exit(number: int, frame: object) -> None:
    os._exit(0)


def main() -> None:
    if sys.argv[1] == "listen":
        signal.signal(signal.SIGTERM, _exit)
        asyncio.run(run_listeners(sys.argv[2], sys.argv[3], int(sys.argv[4]), Path(sys.argv[5])))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.platform_load", description=__doc__)
    parser.add_argument("command", choices=["compare"])
    parser.add_argument("other", type=Path, help="a worktree of the commit to compare with")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    compare_servers(options.other.resolve(), options.pairs)


if __name__ == "__main__":
    main()
