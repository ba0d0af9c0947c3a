"""The heartbeat of simulated processes, on one thread for all of them.

``crash_everywhere`` starts thousands of processes, most of which live for milliseconds, and starting and joining a
thread for each took a good part of its time. Their leases do not expire; the thread is there to report and interrupt
workflow code that blocks the process.
"""

from __future__ import annotations

import threading
import time

from holdfast.engine.heartbeat import CHECK_INTERVAL_S, Heartbeat


class SharedThreadHeartbeat(Heartbeat):
    """A heartbeat without a thread of its own."""

    def start(self) -> None:
        """Start to beat."""
        global _thread
        with _lock:
            _started.append(self)
            if _thread is None or not _thread.is_alive():  # it is not in a forked process
                _thread = threading.Thread(target=_beat_while_needed, name="holdfast-test-heartbeat", daemon=True)
                _thread.start()

    def stop(self) -> None:
        """Stop, and wait for a running beat."""
        with _lock:
            if self in _started:
                _started.remove(self)


_lock = threading.RLock()
"""Held during the beats, so that nothing beats after its ``stop``."""
_started: list[SharedThreadHeartbeat] = []
_thread: threading.Thread | None = None


def _beat_while_needed() -> None:
    global _thread
    while True:
        time.sleep(CHECK_INTERVAL_S)
        with _lock:
            if not _started:
                _thread = None
                return
            for heartbeat in list(_started):
                heartbeat.beat()
