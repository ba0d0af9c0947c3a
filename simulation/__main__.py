# ruff: noqa: T201 - a command prints
"""Run seeds: ``python -m simulation --seed 17``, ``--seeds 100000 [--first N] [--jobs 2]``, or ``--mutants``.

With ``--store postgres`` or ``--store sqlite``, such a store gets every request, too, and must give the same answers.
"""

from __future__ import annotations

import argparse
import sys
import time

from simulation.mutants import MUTANTS, find_seed, write_found_seeds
from simulation.seed_runner import SeedTotals, run_parallel
from simulation.sql_stores import locate_store, open_store_factory
from simulation.world import InvariantBroken, run_seed

REPORTED_COUNTS = (
    "runs",
    "writes checked",
    "answers compared",
    "requests",
    "callbacks",
    "replays",
    "crashes",
    "pauses",
    "closes",
    "outages",
    "cuts",
    "clock changes",
    "stalls",
    "ambushes",
    "kills by a step",
    "isolated claims",
    "overlapping commits",
    "looked at again",
    "children",
    "questions",
    "answers",
    "forks",
    "retries",
    "steps undone",
    "people: cancel",
    "people: pause",
    "people: retry",
    "people: settle",
    "people: fork",
    "people: switch",
    "unknown outcomes",
    "late requests",
    "runs completed",
    "runs failed",
    "runs cancelled",
    "runs dead",
    "virtual seconds",
)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run one seed and tell its story")
    parser.add_argument("--seeds", type=int, help="run so many seeds and print what they add up to")
    parser.add_argument("--first", type=int, default=1, help="the first of them (1 unless given)")
    parser.add_argument("--jobs", type=int, default=1, help="in so many processes (1 unless given)")
    parser.add_argument("--mutants", action="store_true", help="plant known bugs and see which seed finds each")
    parser.add_argument("--remember", action="store_true", help="note those seeds, to be tried first by the tests")
    parser.add_argument("--within", type=int, default=1000, help="seeds that a mutant may take to be found")
    parser.add_argument("--store", choices=("memory", "sqlite", "postgres"), default="memory", help="on what they run")
    options = parser.parse_args()
    if options.mutants:
        return show_mutants(options.within, should_remember=options.remember)
    with locate_store(options.store) as where:
        if options.seed is not None:
            return show_seed(options.seed, where)
        return show_seeds(options.first, options.seeds or 1000, options.jobs, where)


def show_seed(seed: int, location: str | None) -> int:
    """One seed, and its story."""
    try:
        with open_store_factory(location) as place:
            counts = run_seed(seed, print, place)
    except InvariantBroken as broken:
        print(f"\n{broken}")
        return 1
    print(f"\nseed {seed} holds: " + ", ".join(f"{counts[name]} {name}" for name in REPORTED_COUNTS if counts[name]))
    return 0


def show_seeds(first: int, seed_count: int, jobs: int, location: str | None) -> int:
    """Many seeds, and what they add up to."""
    tally, told, shown = SeedTotals(), 0, time.monotonic()
    for tally in run_parallel(first, seed_count, jobs, location):
        for broken in tally.failures[told:]:
            print(broken, flush=True)
        told = len(tally.failures)
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            print(
                f"{tally.counts['seeds']:,} seeds, {told} broken, {tally.duration_s:.0f} s", file=sys.stderr, flush=True
            )
    done = tally.counts["seeds"]
    print(f"seeds {first} to {first + done - 1}: {done:,}, of which {len(tally.failures)} break an invariant")
    for name in REPORTED_COUNTS:
        print(f"  {name:<17} {tally.counts[name]:>14,}")
    print(f"  {'wall time':<17} {tally.duration_s:>12,.1f} s, {done / max(tally.duration_s, 1e-9):,.1f} seeds a second")
    return 1 if tally.failures else 0


def show_mutants(max_seeds: int, *, should_remember: bool) -> int:
    """Which seed finds which planted bug, as a Markdown table."""
    seeds: dict[str, int] = {}
    print("| planted bug | found at seed | by the invariant |\n|---|---|---|")
    for mutant in MUTANTS:
        found = find_seed(mutant, max_seeds)
        if found is None:
            print(f"| {mutant.description} | not within {max_seeds} seeds | |", flush=True)
        else:
            seeds[mutant.name] = found.seed
            print(f"| {mutant.description} | {found.seed} | {found.invariant} |", flush=True)
    if should_remember:
        write_found_seeds(seeds)
    return 0 if len(seeds) == len(MUTANTS) else 1


if __name__ == "__main__":
    sys.exit(main())
