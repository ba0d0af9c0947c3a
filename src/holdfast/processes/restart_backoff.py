"""How long to wait before a process that has died is started again."""

from __future__ import annotations

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 30.0
STABLE_AFTER_S = 60.0
"""Seconds that a process has to live for its death to count as the first again."""


class RestartBackoff:
    """The delays of one process: none after the first death, then twice as long after each death that follows soon."""

    def __init__(self) -> None:
        self.death_count = 0
        """Deaths in a row, each soon after the start."""

    def next_delay_s(self, lived_s: float) -> float:
        """The delay after a death of a process that lived this long."""
        if lived_s >= STABLE_AFTER_S:
            self.death_count = 0
        self.death_count += 1
        return 0.0 if self.death_count == 1 else min(MAX_DELAY_S, FIRST_DELAY_S * 2 ** (self.death_count - 2))
