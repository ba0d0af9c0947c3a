"""Known bugs, planted one at a time: a simulator that does not find them is not worth its time.

Each mutant patches the real engine or store in this process, as a plausible mistake would have written it. ``hunt``
runs seeds until one breaks an invariant.
"""

from __future__ import annotations

from simulation import engine_mutants, family_mutants, question_mutants, store_mutants
from simulation.planting import MUTANTS, Mutant
from simulation.world import Broken, run_seed

__all__ = [
    "MUTANTS",
    "Mutant",
    "engine_mutants",
    "family_mutants",
    "hunt",
    "hunt_by_name",
    "question_mutants",
    "store_mutants",
]


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
    """As ``hunt``, for another process: a context manager cannot be sent there, a name can."""
    [found] = [mutant for mutant in MUTANTS if mutant.name == name]
    return hunt(found, within)
