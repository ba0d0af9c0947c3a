"""Holdfast on Temporal next to Temporal's own SDK, on the same development server in the same run.

The bare workflow is what a user of the SDK would write: the same number of activities with the same outputs, with
default settings, and without Holdfast. Holdfast adds its driver in the workflow task, and the lookup of the command.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from temporalio import activity
from temporalio import workflow as temporal_workflow
from temporalio.client import Client
from temporalio.worker import Worker

from benchmarks.sqlite_benchmarks import Measurement, median
from holdfast import Runtime, step, workflow

LONG_RUN_STEPS = 50
RUN_COUNT, STEPS_EACH = 40, 10
OUTPUT = "x" * 200


@step
async def bench_step(n: int) -> str:
    return OUTPUT


@workflow
async def bench_temporal(steps: int) -> int:
    for n in range(steps):
        await bench_step(n)
    return steps


@activity.defn
async def bare_activity(n: int) -> str:
    return OUTPUT


@temporal_workflow.defn(sandboxed=False)
class BareTemporal:
    @temporal_workflow.run
    async def run(self, steps: int) -> int:
        for n in range(steps):
            await temporal_workflow.execute_activity(bare_activity, n, start_to_close_timeout=timedelta(seconds=60))
        return steps


async def measure_temporal(folder: Path, rounds: int) -> list[Measurement]:
    lines: list[Measurement] = []
    async with run_server(folder) as address:
        ours = Runtime(f"temporal://{address}/default")
        client = await Client.connect(address)
        bare = Worker(client, task_queue="bare", workflows=[BareTemporal], activities=[bare_activity])
        async with ours, bare:
            await bench_temporal(1)
            await _run_bare(client, 1)
            ours_one, bare_one, ours_many, bare_many = [], [], [], []
            for _ in range(rounds):
                ours_one.append(
                    LONG_RUN_STEPS / await _measure_duration(bench_temporal.options(new=True)(LONG_RUN_STEPS))
                )
                bare_one.append(LONG_RUN_STEPS / await _measure_duration(_run_bare(client, LONG_RUN_STEPS)))
                many = RUN_COUNT * STEPS_EACH
                ours_many.append(
                    many
                    / await _measure_duration(
                        _gather(bench_temporal.options(new=True)(STEPS_EACH) for _ in range(RUN_COUNT))
                    )
                )
                bare_many.append(
                    many / await _measure_duration(_gather(_run_bare(client, STEPS_EACH) for _ in range(RUN_COUNT)))
                )
            one, bare_rate = median(ours_one), median(bare_one)
            lines.append(Measurement("temporal: one run, steps a second", one, "1/s", f"bare SDK {bare_rate:,.1f}"))
            some, bare_some = median(ours_many), median(bare_many)
            lines.append(
                Measurement(
                    f"temporal: {RUN_COUNT} runs x {STEPS_EACH}, steps", some, "1/s", f"bare SDK {bare_some:,.1f}"
                )
            )
            size, bare_size = await _measure_history(client, bench_temporal), await _measure_bare_history(client)
            lines.append(Measurement("temporal: history of a step, bytes", size, "B", f"bare SDK {bare_size:,.0f}"))
    return lines


async def _run_bare(client: Client, steps: int) -> int:
    return await client.execute_workflow(BareTemporal.run, steps, id=f"bare-{uuid.uuid4()}", task_queue="bare")


async def _gather(calls) -> None:
    await asyncio.gather(*calls)


async def _measure_duration(call) -> float:
    begun = time.perf_counter()
    await call
    return time.perf_counter() - begun


async def _measure_history(client: Client, one) -> float:
    handle = await one.options(new=True).start(LONG_RUN_STEPS)
    await handle.result()
    return await _read_history_size(client, handle.run_id) / LONG_RUN_STEPS


async def _measure_bare_history(client: Client) -> float:
    run_id = f"bare-{uuid.uuid4()}"
    await client.execute_workflow(BareTemporal.run, LONG_RUN_STEPS, id=run_id, task_queue="bare")
    return await _read_history_size(client, run_id) / LONG_RUN_STEPS


async def _read_history_size(client: Client, run_id: str) -> int:
    told = await client.get_workflow_handle(run_id).describe()
    return told.raw_description.workflow_execution_info.history_size_bytes


def _start_server(folder: Path, program: str | None) -> tuple[str, subprocess.Popen[bytes]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = program or shutil.which("temporal", path=str(Path(sys.executable).parent)) or "temporal"
    command = [program, "server", "start-dev", "--headless", "--port", str(port), "--log-level", "never"]
    server = subprocess.Popen([*command, "--db-filename", str(folder / "temporal.db")], stdout=subprocess.DEVNULL)
    return f"127.0.0.1:{port}", server


@asynccontextmanager
async def run_server(folder: Path, program: str | None = None) -> AsyncGenerator[str]:
    """A development server on a file in that folder; the command is ours unless another is given."""
    address, process = _start_server(folder, program)
    try:
        for _ in range(300):
            try:
                await Client.connect(address)
                break
            except RuntimeError:
                await asyncio.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()


BENCHMARKS = {"temporal": measure_temporal}
