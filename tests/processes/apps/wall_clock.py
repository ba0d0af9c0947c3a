"""A wall clock that is wrong: with ``HOLDFAST_TEST_CLOCK``, the number of seconds in that file is added to it.

The number may change while the process runs, as when NTP sets a clock, or a laptop wakes up.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

real_time = time.time


def arm() -> None:
    """Put it in place of the real one, if this process is to have one."""
    place = os.environ.get("HOLDFAST_TEST_CLOCK")
    if place is not None:
        file = Path(place)
        time.time = lambda: real_time() + float(file.read_text())
