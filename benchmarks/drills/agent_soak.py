"""Agents for ten minutes: the memory, file descriptors, and threads of their workers stay flat.

Agents are started at a steady rate. Each looks things up, writes in a thread, has a sub-agent, and waits for an
approval, which this process gives. Workers are sampled meanwhile. A worker's first quarter is not counted, because
imports and caches fill memory then; the median of its last quarter is compared with that of its second.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import NamedTuple

from app_processes import World
from soak_reader import Tail

from benchmarks.drills.drill_world import check_completed, get_store_title, start_workers
from benchmarks.drills.process_samples import Growth, ProcessSampler, measure_growth
from benchmarks.sqlite_benchmarks import Measurement
from holdfast import Client

EFFECT_COUNTS = {"look_up": 3, "write_draft": 1, "publish": 1}
"""Effects of the tools of one author and its reviewer."""
RUNS_PER_AUTHOR = 2
SAMPLE_COUNT = 120
MIN_SAMPLE_INTERVAL_S = 0.1
APPROVAL_INTERVAL_S = 0.25
END_TIMEOUT_S = 60.0
UNFINISHED = ("pending", "running", "waiting")
MAX_RSS_GROWTH = 0.05
"""Growth of resident memory that still counts as flat: the share of a worker's memory, and so many megabytes."""
MAX_RSS_GROWTH_MB = 4.0
MAX_COUNT_GROWTH = 2
"""The same for file descriptors and threads: pools vary with the load."""


class WorkerGrowth(NamedTuple):
    """What one worker needed in the second and in the last quarter of the soak."""

    rss_mb: Growth
    fd_count: Growth
    thread_count: Growth


async def run_authors(url: str, seconds: float, interval_s: float) -> int:
    """Start an author every so often, and give the approvals. Returns the number of authors."""
    started_count = 0
    async with Client(url) as client:

        async def approve_forever() -> None:
            while True:
                for approval in await client.approvals():
                    await client.approve(approval.id, by="drill")
                await asyncio.sleep(APPROVAL_INTERVAL_S)

        approvals = asyncio.create_task(approve_forever())
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            await client.start("author", f"Write article {started_count}.")
            started_count += 1
            await asyncio.sleep(max(0.0, began + started_count * interval_s - time.monotonic()))
        async with asyncio.timeout(END_TIMEOUT_S):
            while await client.list(state=UNFINISHED, limit=1):
                await asyncio.sleep(APPROVAL_INTERVAL_S)
        approvals.cancel()
    return started_count


def soak_agents(world: World, *, seconds: float, worker_count: int = 2, interval_s: float = 0.25) -> list[Measurement]:
    """Raises ``AssertionError`` if an effect was lost or happened twice, or if a worker grew."""
    workers = start_workers(world, "soak_agents.py", worker_count)
    pids = [worker.pid for worker in workers]
    with ProcessSampler(lambda: pids, max(MIN_SAMPLE_INTERVAL_S, seconds / SAMPLE_COUNT)) as sampler:
        author_count = asyncio.run(run_authors(world.url, seconds, interval_s))
    assert all(worker.exit_code is None for worker in workers), workers
    check_completed(world, RUNS_PER_AUTHOR * author_count)
    check_effects(world, author_count)
    growths = {
        pid: WorkerGrowth(
            measure_growth([sample.rss_mb for sample in samples]),
            measure_growth([sample.fd_count for sample in samples]),
            measure_growth([sample.thread_count for sample in samples]),
        )
        for pid, samples in sampler.samples.items()
    }
    title = f"{get_store_title(world)}: {seconds:.0f} s of agents"
    measurements = describe(title, author_count, seconds, list(growths.values()))
    for pid, growth in growths.items():
        check_flat(pid, growth)
    return measurements


def check_effects(world: World, author_count: int) -> None:
    """Each tool call had its effect once: no worker died."""
    lines = Tail(world.folder / "ledger").read()
    phases = Counter((step, phase) for step, _, _, phase, *_ in lines)
    expected = {
        (step, phase): count * author_count for step, count in EFFECT_COUNTS.items() for phase in ("start", "finish")
    }
    assert phases == expected, f"effects of {author_count} authors: {phases}"
    keys = Counter((key, phase) for _, _, key, phase, *_ in lines)
    assert set(keys.values()) == {1}, [key for key, count in keys.items() if count > 1]


def check_flat(pid: int, growth: WorkerGrowth) -> None:
    """The last quarter needs no more than the second, within the tolerance."""
    max_mb = MAX_RSS_GROWTH_MB + MAX_RSS_GROWTH * growth.rss_mb.before
    assert growth.rss_mb.is_flat(max_mb), f"worker {pid} grew by more than {max_mb:.1f} MB: {growth.rss_mb}"
    assert growth.fd_count.is_flat(MAX_COUNT_GROWTH), f"worker {pid} leaks file descriptors: {growth.fd_count}"
    assert growth.thread_count.is_flat(MAX_COUNT_GROWTH), f"worker {pid} leaks threads: {growth.thread_count}"


def describe(title: str, author_count: int, seconds: float, growths: list[WorkerGrowth]) -> list[Measurement]:
    """The figures, of the worker that grew most."""
    rss = max((growth.rss_mb for growth in growths), key=lambda one: one.after - one.before)
    fds = max((growth.fd_count for growth in growths), key=lambda one: one.after - one.before)
    threads = max((growth.thread_count for growth in growths), key=lambda one: one.after - one.before)
    run_count = RUNS_PER_AUTHOR * author_count
    return [
        Measurement(f"{title}, runs", run_count, "runs", f"{run_count / seconds:.1f} runs/s, {len(growths)} workers"),
        Measurement(
            f"{title}, memory in the last quarter", rss.after, "MB", f"second quarter {rss.before:.1f} MB",
            f"at most {MAX_RSS_GROWTH:.0%} and {MAX_RSS_GROWTH_MB:.0f} MB more",
        ),
        Measurement(f"{title}, file descriptors", fds.after, "", f"second quarter {fds.before:.0f}", "at most 2 more"),
        Measurement(f"{title}, threads", threads.after, "", f"second quarter {threads.before:.0f}", "at most 2 more"),
    ]  # fmt: skip
