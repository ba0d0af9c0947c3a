"""The platform under load: many listeners and many submissions, over HTTP on this machine.

The server is one process (`holdfast serve`), the listeners are another one, and the submissions come from this one.
Each listener writes to a file, outside the database, when it got a delivery and when it executed its one step. So this
measures what a user sees: from the moment before a submission is sent until a listener has it. ``kill_count`` is the
number of times the server is killed (SIGKILL) and restarted meanwhile.

Run as a program, it is the process of the listeners: ``python -m benchmarks.platform_load URL ADDRESS COUNT LEDGER``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import sqlite_baseline
from benchmarks.sqlite_benchmarks import ROOT, Measurement, median
from holdfast import Client

ADDRESS = "load"
START_TIMEOUT_S = 30.0
"""Seconds that a process has to be there."""


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

    def get_quantile(self, fraction: float) -> float:
        ordered = sorted(self.delivery_delays_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]


class ServerProcess:
    """`holdfast serve` as a process."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "holdfast.cli", "serve", "--url", self.url, "--port", str(self.port)]
        with self._log.open("ab") as out:
            self._process = subprocess.Popen([*command, "--rate", "100000"], stdout=out, stderr=out)
        until = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1):
                    return
            except OSError:
                if self._process.poll() is not None:
                    break
                time.sleep(0.02)
        raise RuntimeError(f"the server did not start: {self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


@contextmanager
def run_server(folder: Path, listener_count: int, url: str | None = None) -> Generator[tuple[ServerProcess, Path]]:
    """A server, and listeners in a process of their own; and the file in which they note what they do."""
    server = ServerProcess(url or f"sqlite:///{folder / 'runs.db'}", folder / "server.log")
    server.start()
    ledger = folder / "ledger"
    ledger.touch()
    command = [
        sys.executable,
        "-m",
        "benchmarks.platform_load",
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
    folder: Path, *, listener_count: int, run_count: int, kill_count: int, url: str | None = None
) -> LoadResult:
    """Submit ``run_count`` runs at once to ``listener_count`` listeners, and kill the server ``kill_count`` times."""
    sent: dict[str, float] = {}
    places = asyncio.Semaphore(50)
    with run_server(folder, listener_count, url) as (server, ledger):
        async with Client(server.base_url) as client:
            await _wait_for_listeners(client, listener_count)

            async def submit(number: int) -> str:
                async with places:
                    at = time.time()
                    run_id = (await client.send(ADDRESS, {"number": number}, id=f"load-{number}")).run_id
                    sent[run_id] = at
                    return run_id

            began = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_kill_repeatedly(server, ledger, run_count, kill_count))
                ids = await asyncio.gather(*(submit(number) for number in range(run_count)))
                results = await asyncio.gather(*(client.wait(run_id) for run_id in ids))
            seconds = time.monotonic() - began
    completed = sum(result == {"number": number} for number, result in enumerate(results))
    return _read_result(ledger, sent, completed, seconds, kill_count)


async def run_sequential_load(folder: Path, *, listener_count: int, run_count: int) -> LoadResult:
    """One submission after the other: each is done before the next is sent."""
    sent: dict[str, float] = {}
    with run_server(folder, listener_count) as (server, ledger):
        async with Client(server.base_url) as client:
            await _wait_for_listeners(client, listener_count)
            began = time.monotonic()
            for number in range(run_count):
                at = time.time()
                handle = await client.send(ADDRESS, {"number": number})
                sent[handle.run_id] = at
                await handle.result()
            seconds = time.monotonic() - began
    return _read_result(ledger, sent, run_count, seconds, 0)


def _read_result(
    ledger: Path, sent: dict[str, float], completed_count: int, duration_s: float, kill_count: int
) -> LoadResult:
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    first: dict[str, float] = {}
    for line in lines:
        if line["what"] == "delivered":
            first.setdefault(line["run"], line["at"])
    waits = [first[run_id] - at for run_id, at in sent.items() if run_id in first]
    done = Counter(line["run"] for line in lines if line["what"] == "done")
    return LoadResult(len(sent), completed_count, done, waits, duration_s, kill_count)


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
    for number in range(max(1, rounds // 2)):
        (folder / str(number)).mkdir()
        loads.append(await run_load(folder / str(number), listener_count=200, run_count=1000, kill_count=0))
    rate = median([load.run_count / load.duration_s for load in loads])
    beside = f"one commit of SQLite {commit * 1000:.1f} ms"
    return [
        Measurement("submit to delivery, one at a time, p50", calm.get_quantile(0.5) * 1000, "ms", beside),
        Measurement("submit to delivery, one at a time, p99", calm.get_quantile(0.99) * 1000, "ms"),
        Measurement("1,000 submissions at once, 200 listeners", rate, "runs/s"),
        Measurement(
            "the same, submit to delivery, p50", median([load.get_quantile(0.5) for load in loads]) * 1000, "ms"
        ),
        Measurement(
            "the same, submit to delivery, p99", median([load.get_quantile(0.99) for load in loads]) * 1000, "ms"
        ),
    ]


BENCHMARKS = {"platform": measure_platform}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    asyncio.run(run_listeners(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))
