"""Known bugs, planted one at a time: a simulator that does not find them is not worth its time.

Each mutant patches the real engine or store in this process, as a plausible mistake would have written it.
``find_seed`` runs seeds until one breaks an invariant.

Some bugs show in one seed of hundreds. ``found.json`` has the seed that last found each bug
(``python -m simulation --mutants --remember``), and that seed is tried first. As long as it still finds the bug, the
hunt is much shorter. A change to the engine changes what seeds do, so a remembered seed may stop finding its bug; then
all seeds are tried in turn.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from simulation import approval_mutants, child_and_request_mutants, engine_mutants, store_mutants
from simulation.mutant_registry import MUTANTS, Mutant
from simulation.world import InvariantBroken, run_seed

__all__ = [
    "MUTANTS",
    "Mutant",
    "approval_mutants",
    "child_and_request_mutants",
    "engine_mutants",
    "find_seed",
    "find_seed_by_name",
    "read_found_seeds",
    "store_mutants",
    "write_found_seeds",
]

FOUND_SEEDS_FILE = Path(__file__).parent / "found.json"


def find_seed(mutant: Mutant, max_seeds: int, first: int = 1) -> InvariantBroken | None:
    """The first seed that finds it, or nothing."""
    with mutant.plant():
        for seed in range(first, first + max_seeds):
            try:
                run_seed(seed)
            except InvariantBroken as broken:
                return broken
    return None


def find_seed_by_name(name: str, max_seeds: int) -> InvariantBroken | None:
    """As ``find_seed``, beginning with the seed that is remembered.

    By name, because a name can be sent to a process.
    """
    [found] = [mutant for mutant in MUTANTS if mutant.name == name]
    known = read_found_seeds().get(name, 0)
    if 1 <= known <= max_seeds and (broken := find_seed(found, 1, first=known)):
        return broken
    return find_seed(found, max_seeds)


@cache
def read_found_seeds() -> dict[str, int]:
    """The seeds that last found each bug."""
    return json.loads(FOUND_SEEDS_FILE.read_text())


def write_found_seeds(seeds: dict[str, int]) -> None:
    """Note which seed finds each bug."""
    FOUND_SEEDS_FILE.write_text(json.dumps(seeds, indent=1) + "\n")
