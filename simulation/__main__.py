# ruff: noqa: T201 - a command prints
"""Run seeds: ``python -m simulation --seed 17``, ``--seeds 100000 [--first N] [--jobs 2]``, or ``--mutants``.

With ``--store postgres`` or ``--store sqlite``, all that is asked of the database is asked of such a store as well.
"""

from __future__ import annotations

import argparse
import sys
import time

from simulation.mutants import MUTANTS, hunt, remember
from simulation.seed_runner import Tally, run_many
from simulation.sql_stores import opened, where_of
from simulation.world import Broken, run_seed

SHOWN = (
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
        return show_mutants(options.within, keep=options.remember)
    with where_of(options.store) as where:
        if options.seed is not None:
            return show_seed(options.seed, where)
        return show_many(options.first, options.seeds or 1000, options.jobs, where)


def show_seed(seed: int, where: str | None) -> int:
    """One seed, and its story."""
    try:
        with opened(where) as place:
            counts = run_seed(seed, print, place)
    except Broken as broken:
        print(f"\n{broken}")
        return 1
    print(f"\nseed {seed} holds: " + ", ".join(f"{counts[name]} {name}" for name in SHOWN if counts[name]))
    return 0


def show_many(first: int, seeds: int, jobs: int, where: str | None) -> int:
    """Many seeds, and what they add up to."""
    tally, told, shown = Tally(), 0, time.monotonic()
    for tally in run_many(first, seeds, jobs, where):
        for broken in tally.broken[told:]:
            print(broken, flush=True)
        told = len(tally.broken)
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            print(f"{tally.counts['seeds']:,} seeds, {told} broken, {tally.seconds:.0f} s", file=sys.stderr, flush=True)
    done = tally.counts["seeds"]
    print(f"seeds {first} to {first + done - 1}: {done:,}, of which {len(tally.broken)} break an invariant")
    for name in SHOWN:
        print(f"  {name:<17} {tally.counts[name]:>14,}")
    print(f"  {'wall time':<17} {tally.seconds:>12,.1f} s, {done / max(tally.seconds, 1e-9):,.1f} seeds a second")
    return 1 if tally.broken else 0


def show_mutants(within: int, *, keep: bool) -> int:
    """Which seed finds which planted bug, as a Markdown table."""
    seeds: dict[str, int] = {}
    print("| planted bug | found at seed | by the invariant |\n|---|---|---|")
    for mutant in MUTANTS:
        found = hunt(mutant, within)
        if found is None:
            print(f"| {mutant.what} | not within {within} seeds | |", flush=True)
        else:
            seeds[mutant.name] = found.seed
            print(f"| {mutant.what} | {found.seed} | {found.invariant} |", flush=True)
    if keep:
        remember(seeds)
    return 0 if len(seeds) == len(MUTANTS) else 1


if __name__ == "__main__":
    sys.exit(main())
