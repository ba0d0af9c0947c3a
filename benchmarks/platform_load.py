"""The platform under load: many listeners, many submissions, over HTTP on this machine.

The server is a process of its own (`holdfast serve`), the listeners are another one, and the submissions come from this
one. Each listener notes in a file, outside the database, when a delivery reached it and when it did its one step; so
what is measured is what a user sees: from the moment before a submission is sent until a listener has it. ``kills``
says how often the server is killed (SIGKILL) and started again meanwhile.

Run by itself it is the process of the listeners: ``python -m benchmarks.platform_load URL ADDRESS COUNT LEDGER``.
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
from benchmarks.sqlite_benchmarks import ROOT, Line, median
from holdfast import Client

ADDRESS = "load"
STARTS = 30.0
"""Seconds that a process has to be there."""


@dataclass
class Load:
    """What came of it."""

    runs: int
    completed: int
    handled: Counter[str]
    """How often each run's step was done."""
    waits: list[float]
    """Seconds from submission to delivery, of each run."""
    seconds: float
    kills: int

    def quantile(self, part: float) -> float:
        ordered = sorted(self.waits)
        return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


class Server:
    """`holdfast serve` as a process."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "holdfast.cli", "serve", "--url", self.url, "--port", str(self.port)]
        with self._log.open("ab") as out:
            self._process = subprocess.Popen([*command, "--rate", "100000"], stdout=out, stderr=out)
        until = time.monotonic() + STARTS
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
def serving(folder: Path, listeners: int, url: str | None = None) -> Generator[tuple[Server, Path]]:
    """A server, and listeners in a process of their own; and the file in which they note what they do."""
    server = Server(url or f"sqlite:///{folder / 'runs.db'}", folder / "server.log")
    server.start()
    ledger = folder / "ledger"
    ledger.touch()
    command = [sys.executable, "-m", "benchmarks.platform_load", server.address, ADDRESS, str(listeners), str(ledger)]
    with (folder / "listeners.log").open("wb") as out:
        hands = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)
    try:
        yield server, ledger
    finally:
        hands.send_signal(signal.SIGTERM)
        hands.wait()
        server.stop()


async def run_load(folder: Path, *, listeners: int, runs: int, kills: int, url: str | None = None) -> Load:
    """Submit ``runs`` at once, let so many listeners take them, and kill the server so often on the way."""
    sent: dict[str, float] = {}
    places = asyncio.Semaphore(50)
    with serving(folder, listeners, url) as (server, ledger):
        async with Client(server.address) as client:
            await _wait_for_listeners(client, listeners)

            async def submit(number: int) -> str:
                async with places:
                    at = time.time()
                    run_id = (await client.send(ADDRESS, {"number": number}, id=f"load-{number}")).run_id
                    sent[run_id] = at
                    return run_id

            began = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_kill(server, ledger, runs, kills))
                ids = await asyncio.gather(*(submit(number) for number in range(runs)))
                results = await asyncio.gather(*(client.wait(run_id) for run_id in ids))
            seconds = time.monotonic() - began
    completed = sum(result == {"number": number} for number, result in enumerate(results))
    return _told(ledger, sent, completed, seconds, kills)


async def run_load_calmly(folder: Path, *, listeners: int, runs: int) -> Load:
    """One submission after the other: each is done before the next is sent."""
    sent: dict[str, float] = {}
    with serving(folder, listeners) as (server, ledger):
        async with Client(server.address) as client:
            await _wait_for_listeners(client, listeners)
            began = time.monotonic()
            for number in range(runs):
                at = time.time()
                handle = await client.send(ADDRESS, {"number": number})
                sent[handle.run_id] = at
                await handle.result()
            seconds = time.monotonic() - began
    return _told(ledger, sent, runs, seconds, 0)


def _told(ledger: Path, sent: dict[str, float], completed: int, seconds: float, kills: int) -> Load:
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    first: dict[str, float] = {}
    for line in lines:
        if line["what"] == "delivered":
            first.setdefault(line["run"], line["at"])
    waits = [first[run_id] - at for run_id, at in sent.items() if run_id in first]
    done = Counter(line["run"] for line in lines if line["what"] == "done")
    return Load(len(sent), completed, done, waits, seconds, kills)


async def _wait_for_listeners(client: Client, listeners: int) -> None:
    until = time.monotonic() + STARTS + listeners * 0.2
    while time.monotonic() < until:
        known = {one.name: one for one in await client.health()}
        if ADDRESS in known and known[ADDRESS].workers >= listeners:
            return
        await asyncio.sleep(0.2)
    raise RuntimeError("the listeners did not start")


async def _kill(server: Server, ledger: Path, runs: int, kills: int) -> None:
    """Kill the server each time when another part of the work is done, and start it again."""
    for number in range(1, kills + 1):
        while ledger.read_text().count('"done"') < runs * number // (kills + 1):
            await asyncio.sleep(0.02)
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(server.start)


# The listeners


async def listen(url: str, address: str, count: int, ledger: Path) -> None:
    """So many listeners, each with a connection of its own."""
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


async def platform(folder: Path, rounds: int) -> list[Line]:
    """Submit-to-delivery with 200 listeners, idle and in a rush; beside one commit of the bare database."""
    commit = 1 / sqlite_baseline.commits_per_second(folder / "bare.db")
    (folder / "calm").mkdir()
    calm = await run_load_calmly(folder / "calm", listeners=200, runs=100)
    loads: list[Load] = []
    for number in range(max(1, rounds // 2)):
        (folder / str(number)).mkdir()
        loads.append(await run_load(folder / str(number), listeners=200, runs=1000, kills=0))
    rate = median([load.runs / load.seconds for load in loads])
    beside = f"one commit of SQLite {commit * 1000:.1f} ms"
    return [
        Line("submit to delivery, one at a time, p50", calm.quantile(0.5) * 1000, "ms", beside),
        Line("submit to delivery, one at a time, p99", calm.quantile(0.99) * 1000, "ms"),
        Line("1,000 submissions at once, 200 listeners", rate, "runs/s"),
        Line("the same, submit to delivery, p50", median([load.quantile(0.5) for load in loads]) * 1000, "ms"),
        Line("the same, submit to delivery, p99", median([load.quantile(0.99) for load in loads]) * 1000, "ms"),
    ]


MEASURES = {"platform": platform}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    asyncio.run(listen(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))
