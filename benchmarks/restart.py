"""From the start of a process to the first step of a run that a killed process left behind.

A worker process is killed (SIGKILL) in the middle of a step, and another one is started after it. The time from its
start to the moment when the step runs again includes the interpreter, the imports, opening the store, and the replay.
The process notes when it reached each stage (``benchmarks.restarted``), on SQLite and on Postgres. The floor is a
process that only imports what the library cannot do without.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.drivers import run_server
from benchmarks.sqlite_benchmarks import ROOT, Measurement, build_environment, median
from holdfast import Client

STEPS_BEFORE_DEATH = 10
STAGES = ("main", "imported", "open", "step")
TARGETS_S = {"sqlite": 0.25, "postgres": 0.35}
FLOORS = {"sqlite": "pydantic, asyncio, sqlite3", "postgres": "pydantic, asyncio, psycopg"}


async def measure_restart(folder: Path, rounds: int) -> list[Measurement]:
    return await measure_on(f"sqlite:///{folder / 'restart.db'}", "sqlite", folder, rounds)


async def measure_restart_postgres(folder: Path, rounds: int) -> list[Measurement]:
    async with run_server(folder) as url:
        return await measure_on(url, "postgres", folder, rounds)


async def measure_on(url: str, store: str, folder: Path, rounds: int) -> list[Measurement]:
    floors: list[tuple[float, float]] = []
    stages: list[list[tuple[float, float]]] = []
    for number in range(rounds):
        ledger = folder / f"restart-{number}"
        with start_process(url, ledger, str(number)) as first:
            await wait_for_lines(ledger, STEPS_BEFORE_DEATH)
            first.send_signal(signal.SIGKILL)
            first.wait()
        line_count = len(ledger.read_text().splitlines())
        floors.append(measure_floor(FLOORS[store]))
        started = time.time()
        with start_process(url, ledger) as second:
            lines = await wait_for_lines(ledger, line_count + len(STAGES))
            async with Client(url) as client:  # let it end, so that the next round has nothing else to take over
                await client.wait(f"restarted-{number}")
            second.kill()
            second.wait()
        reached = {
            stage: (float(at) - started, float(cpu))
            for stage, at, cpu in map(str.split, lines[line_count : line_count + len(STAGES)])
        }
        stages.append([reached[stage] for stage in STAGES])
    lines_of_table: list[Measurement] = []
    for index, clock in enumerate(("", ", CPU")):
        medians = [median([times[index] for times in stage]) for stage in zip(*stages, strict=True)]
        spent = zip(STAGES, medians, [0.0, *medians], strict=False)
        shares = ", ".join(f"{stage} {(at - before) * 1e3:.0f}" for stage, at, before in spent)
        floor = f"floor {median([floor[index] for floor in floors]) * 1e3:.0f}; {shares}"
        title = f"restart to the first step, {store}{clock}"
        target_s, total_s = TARGETS_S[store], medians[-1]
        lines_of_table.append(
            Measurement(title, total_s * 1e3, "ms", floor, f"<= {target_s * 1e3:.0f} ms", total_s <= target_s)
        )
    return lines_of_table


def start_process(url: str, ledger: Path, *number: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.restarted", url, str(ledger), *number]
    return subprocess.Popen(command, cwd=ROOT, env=build_environment())


def measure_floor(modules: str) -> tuple[float, float]:
    """The time of a process that only imports these, and its CPU time."""
    started = time.time()
    code = f"import time, {modules}; print(time.time(), time.process_time())"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=build_environment(), stdout=subprocess.PIPE, text=True, check=True)
    ended, cpu = map(float, done.stdout.split())
    return ended - started, cpu


async def wait_for_lines(ledger: Path, count: int) -> list[str]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        if len(lines) >= count:
            return lines
        await asyncio.sleep(0.005)
    raise TimeoutError(f"not {count} lines in {ledger}")


BENCHMARKS: dict[str, Callable[[Path, int], Awaitable[list[Measurement]]]] = {
    "restart": measure_restart,
    "restart-postgres": measure_restart_postgres,
}
