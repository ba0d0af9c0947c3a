"""Starts a script again when its process dies (``holdfast run --supervise``)."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from holdfast.processes.restart_backoff import RestartBackoff
from holdfast.scripts.script import report

MAX_DEATHS = 20
"""Deaths in a row after which the supervisor gives up. A run that makes no progress is declared dead before that."""


def supervise(command: Sequence[str]) -> int:
    """Run a command until it ends by itself. Returns its exit code.

    A process that was killed by a signal is started again. One that exits, with whatever code, has ended.
    """
    stop_signal = 0
    process: subprocess.Popen[bytes] | None = None

    def forward(number: int, _: FrameType | None) -> None:
        nonlocal stop_signal
        stop_signal = number
        if process is not None and number != signal.SIGINT:  # a terminal sends that to both
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    backoff = RestartBackoff()
    while backoff.death_count < MAX_DEATHS:
        started_at = time.monotonic()
        process = subprocess.Popen([sys.executable, "-m", "holdfast.cli", *command])
        code = process.wait()
        if code >= 0 or stop_signal:
            return code if code >= 0 else 128 - code
        delay_s = backoff.next_delay_s(time.monotonic() - started_at)
        when = f"in {delay_s:g} s" if delay_s else "now"
        report(f"the process died ({signal.Signals(-code).name}); it is started again {when}")
        time.sleep(delay_s)
    report(f"the process died {MAX_DEATHS} times in a row, and is not started again")
    return 1
