"""Known bugs, planted one at a time: a simulator that does not find them is not worth its time.

Each mutant patches the real engine or store in this process, as a plausible mistake would have written it. ``hunt``
runs seeds until one breaks an invariant.

Some bugs show in one seed of hundreds. ``found.json`` says which seed found each when somebody last looked
(``python -m simulation --mutants --remember``), and that one is tried before all others: a hunt is as thorough as
without it, and much shorter as long as the seed still finds the bug. What changes the engine changes the stories, so
that it may not; then all seeds are tried in turn, as if nothing had been remembered.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from simulation import approval_mutants, child_and_request_mutants, engine_mutants, store_mutants
from simulation.mutant_registry import MUTANTS, Mutant
from simulation.world import Broken, run_seed

__all__ = [
    "MUTANTS",
    "Mutant",
    "approval_mutants",
    "child_and_request_mutants",
    "engine_mutants",
    "hunt",
    "hunt_by_name",
    "remember",
    "remembered",
    "store_mutants",
]

FOUND = Path(__file__).parent / "found.json"


def hunt(mutant: Mutant, within: int, first: int = 1) -> Broken | None:
    """The first seed that finds it, or nothing."""
    with mutant.planted():
        for seed in range(first, first + within):
            try:
                run_seed(seed)
            except Broken as broken:
                return broken
    return None


def hunt_by_name(name: str, within: int) -> Broken | None:
    """As ``hunt``, beginning with the seed that is remembered; by name, because a name can be sent to a process."""
    [found] = [mutant for mutant in MUTANTS if mutant.name == name]
    known = remembered().get(name, 0)
    if 1 <= known <= within and (broken := hunt(found, 1, first=known)):
        return broken
    return hunt(found, within)


@cache
def remembered() -> dict[str, int]:
    """The seed that found each bug when somebody last looked."""
    return json.loads(FOUND.read_text())


def remember(seeds: dict[str, int]) -> None:
    """Note which seed finds each bug."""
    FOUND.write_text(json.dumps(seeds, indent=1) + "\n")
