"""Many seeds, spread over a few processes of this machine, and what they add up to."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from simulation.sql_stores import opened
from simulation.world import Broken, run_seed

CHUNK = 50
"""Seeds that are handed to a process at a time."""


@dataclass
class Tally:
    """What some seeds add up to."""

    counts: Counter[str] = field(default_factory=Counter)
    broken: list[Broken] = field(default_factory=list)
    seconds: float = 0.0


def run_range(first: int, count: int, where: str | None = None) -> Tally:
    """Run seeds one after the other in this process."""
    tally = Tally()
    with opened(where) as place:
        for seed in range(first, first + count):
            try:
                tally.counts += run_seed(seed, place=place)
            except Broken as broken:
                tally.counts["seeds"] += 1
                tally.broken.append(broken)
    gc.collect()
    return tally


def run_many(first: int, count: int, jobs: int, where: str | None = None) -> Iterator[Tally]:
    """Run seeds in ``jobs`` processes; yields what they add up to so far, after every chunk.

    ``where`` the worlds have twins, if they have: see ``sql_stores.opened``.
    """
    began = time.perf_counter()
    total = Tally()
    chunks = [(at, min(CHUNK, first + count - at)) for at in range(first, first + count, CHUNK)]
    if jobs == 1:
        parts = (run_range(*chunk, where) for chunk in chunks)
        yield from _add_up(total, parts, began)
        return
    # Spawned, not forked: whatever threads and locks this process has are not copied half-way.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        parts = pool.map(run_range, [at for at, _ in chunks], [size for _, size in chunks], [where] * len(chunks))
        yield from _add_up(total, parts, began)


def _add_up(total: Tally, parts: Iterator[Tally], began: float) -> Iterator[Tally]:
    for part in parts:
        total.counts += part.counts
        total.broken += part.broken
        total.seconds = time.perf_counter() - began
        yield total
