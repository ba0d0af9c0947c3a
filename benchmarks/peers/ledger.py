"""The file outside the database in which each step of the run that is killed leaves a line.

A line holds the step's number, the process and the time.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LedgerEntry:
    """A step that began."""

    number: int
    pid: int
    at: float


def read_entries(path: Path) -> list[LedgerEntry]:
    """The entries so far; a line that is still being written is left for the next read."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text().rpartition("\n")
    fields = [line.split() for line in whole.splitlines()]
    return [LedgerEntry(int(number), int(pid), float(at)) for number, pid, at in fields]


def list_repeated(entries: list[LedgerEntry]) -> list[int]:
    """The steps that began more than once, in order."""
    return sorted(number for number, times in Counter(entry.number for entry in entries).items() if times > 1)


def wait_for_step(path: Path, number: int, timeout_s: float, poll_interval_s: float = 0.001) -> LedgerEntry | None:
    """The first entry of a step; ``None`` if the step does not start in time."""
    until = time.monotonic() + timeout_s
    while True:
        for entry in read_entries(path):
            if entry.number == number:
                return entry
        if time.monotonic() > until:
            return None
        time.sleep(poll_interval_s)
