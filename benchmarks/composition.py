"""Measurements of what runs are composed of: children, and the class form."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil

from benchmarks import sqlite_baseline, workloads
from benchmarks.sqlite_benchmarks import Measurement, median, median_ratio, open_runtime


async def measure_children(folder: Path, rounds: int) -> list[Measurement]:
    """One run starts ten thousand at once, each with one step, and waits for all of them."""
    size = 10_000
    rounds = min(rounds, 3)
    ours: list[float] = []
    theirs: list[float] = []
    before = psutil.Process().memory_info().rss
    most = 0
    for number in range(rounds):
        async with open_runtime(folder, f"children-{number}.db"):
            theirs.append(sqlite_baseline.measure_commit_rate(folder / "bare.db"))
            started = time.perf_counter()
            handle = await workloads.parent.options(new=True).start(size)
            while not (await handle.info()).state.is_terminal:
                most = max(most, psutil.Process().memory_info().rss)
                await asyncio.sleep(0.1)
            assert await handle.result() == size
            ours.append(size / (time.perf_counter() - started))
    ratio = median_ratio(ours, theirs)
    return [
        Measurement(
            "10,000 children of one run, one step each",
            size / median(ours),
            "s",
            f"{median(ours):,.0f} children/s; bare {median(theirs):,.0f} commits/s: {ratio:.2f}",
        ),
        Measurement("memory above the start, meanwhile", (most - before) / 1e6, "MB"),
    ]


async def measure_class_form(folder: Path, rounds: int) -> list[Measurement]:
    """The same chain of 20 steps as a class and as a function, in turns; alone, and fifty concurrently."""
    lines: list[Measurement] = []
    async with open_runtime(folder):
        declared, function = workloads.Chained.options(new=True), workloads.chained.options(new=True)
        for what, at_once in (("alone", 1), ("fifty together", 50)):
            ratios: list[float] = []
            ours: list[float] = []
            for _ in range(rounds * 3):
                spent: list[float] = []
                for run in (declared, function, function, declared):  # there and back, so that drift cancels out
                    started = time.perf_counter()
                    for _ in range(max(1, 10 // at_once)):
                        await asyncio.gather(*[run(number=1) for _ in range(at_once)])
                    spent.append(time.perf_counter() - started)
                ratios.append((spent[0] + spent[3]) / (spent[1] + spent[2]))
                ours.append((spent[0] + spent[3]) / 2)
            ratio = median(ratios)
            beside = f"{ratio:.2f} times the same function workflow"
            lines.append(
                Measurement(
                    f"class workflow of 20 steps, {what}", median(ours) * 1e3, "ms", beside, "<= 1.3", ratio <= 1.3
                )
            )
    return lines


BENCHMARKS = {"children": measure_children, "class": measure_class_form}
