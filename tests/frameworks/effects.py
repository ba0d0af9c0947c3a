"""The effects of an app's tools, in a ledger outside any database; and the place where a tool may be killed.

``with effect("charge_card"):`` writes a line when the effect starts and one when it ends. If the test has chosen this
point (``HOLDFAST_TEST_KILL="end:charge_card:1"``), the process dies right after it has written the line.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

LEDGER, KILL = "HOLDFAST_TEST_EFFECTS", "HOLDFAST_TEST_KILL"
START, END = "start", "end"

_seen: Counter[str] = Counter()


@contextmanager
def effect(name: str) -> Iterator[None]:
    """The effect of a tool. What raises in it has no end."""
    _write(START, name)
    yield
    _write(END, name)


def _write(phase: str, name: str) -> None:
    descriptor = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{phase}:{name}\n".encode())
    finally:
        os.close(descriptor)
    _seen[f"{phase}:{name}"] += 1
    if os.environ.get(KILL) == f"{phase}:{name}:{_seen[f'{phase}:{name}']}":
        os.kill(os.getpid(), signal.SIGKILL)
