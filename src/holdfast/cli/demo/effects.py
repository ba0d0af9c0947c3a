"""The file that stands for the world outside the database: one line for each start and each end of a step's effect.

It is only ever appended to, and every line is on disk before the step goes on. So after a crash it tells what really
happened, whatever the journal says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

FOLDER = "HOLDFAST_DEMO_FOLDER"
"""The environment variable that tells a worker of the demo where the file is."""
PACE = "HOLDFAST_DEMO_PACE"
"""And how many seconds a step takes."""
FILE = "effects.log"


class Trace(NamedTuple):
    """One line of the file."""

    at: float
    pid: int
    what: str
    """``started`` or ``finished``"""
    number: int
    step: str


@contextmanager
def effect(number: int, step: str) -> Generator[None, None, None]:
    """Leave a trace before and after."""
    path = Path(os.environ[FOLDER]) / FILE
    _append(path, "started", number, step)
    yield
    _append(path, "finished", number, step)


def _append(path: Path, what: str, number: int, step: str) -> None:
    line = f"{time.time():.6f} pid={os.getpid()} {what} {number} {step}\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_traces(folder: Path) -> list[Trace]:
    """All that has happened so far."""
    try:
        text = (folder / FILE).read_text()
    except FileNotFoundError:
        return []
    whole = text[: text.rfind("\n") + 1]
    return [_trace(line) for line in whole.splitlines()]


def _trace(line: str) -> Trace:
    at, pid, what, number, step = line.split(" ")
    return Trace(float(at), int(pid.removeprefix("pid=")), what, int(number), step)
