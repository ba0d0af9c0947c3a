"""Many seeds, spread over a few processes of this machine, and what they add up to."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from simulation.sql_stores import open_store_factory
from simulation.world import InvariantBroken, run_seed

CHUNK_SIZE = 50
"""Seeds that are handed to a process at a time."""


@dataclass
class SeedTotals:
    """What some seeds add up to."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[InvariantBroken] = field(default_factory=list)
    duration_s: float = 0.0


def run_range(first: int, count: int, location: str | None = None) -> SeedTotals:
    """Run seeds one after the other in this process."""
    tally = SeedTotals()
    with open_store_factory(location) as place:
        for seed in range(first, first + count):
            try:
                tally.counts += run_seed(seed, store_factory=place)
            except InvariantBroken as broken:
                tally.counts["seeds"] += 1
                tally.failures.append(broken)
    gc.collect()
    return tally


def run_parallel(first: int, count: int, process_count: int, location: str | None = None) -> Iterator[SeedTotals]:
    """Run seeds in ``jobs`` processes; yields what they add up to so far, after every chunk.

    ``where`` the worlds have twins, if they have: see ``sql_stores.opened``.
    """
    began = time.perf_counter()
    total = SeedTotals()
    chunks = [(at, min(CHUNK_SIZE, first + count - at)) for at in range(first, first + count, CHUNK_SIZE)]
    if process_count == 1:
        parts = (run_range(*chunk, location) for chunk in chunks)
        yield from _accumulate(total, parts, began)
        return
    # Spawned, not forked: whatever threads and locks this process has are not copied half-way.
    with ProcessPoolExecutor(process_count, mp_context=multiprocessing.get_context("spawn")) as pool:
        parts = pool.map(run_range, [at for at, _ in chunks], [size for _, size in chunks], [location] * len(chunks))
        yield from _accumulate(total, parts, began)


def _accumulate(total: SeedTotals, parts: Iterator[SeedTotals], started_at: float) -> Iterator[SeedTotals]:
    for part in parts:
        total.counts += part.counts
        total.failures += part.failures
        total.duration_s = time.perf_counter() - started_at
        yield total
