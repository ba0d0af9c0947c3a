"""The file outside the database in which each step of the run that is killed leaves a line.

A line holds the step's number, the process and the time.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """A step that began."""

    number: int
    pid: int
    at: float


def read(path: Path) -> list[Entry]:
    """What there is so far; a line that is still being written is left for the next look."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text().rpartition("\n")
    fields = [line.split() for line in whole.splitlines()]
    return [Entry(int(number), int(pid), float(at)) for number, pid, at in fields]


def again(entries: list[Entry]) -> list[int]:
    """The steps that began more than once, in order."""
    return sorted(number for number, times in Counter(entry.number for entry in entries).items() if times > 1)


def wait(path: Path, number: int, patience: float, look: float = 0.001) -> Entry | None:
    """The first entry of a step; nothing if it does not begin in so many seconds."""
    until = time.monotonic() + patience
    while True:
        for entry in read(path):
            if entry.number == number:
                return entry
        if time.monotonic() > until:
            return None
        time.sleep(look)
