"""The heartbeat: a thread that prolongs the worker's lease, and notices workflow code that blocks the process.

It is a thread of its own because a tool that blocks the event loop must not cost the worker its lease. It does two
things: every third of the lease it renews it, and every half second it looks whether one and the same turn of workflow
code has occupied the loop since the last look.

**Blocked workflow code.** A turn of a run takes microseconds; one that takes seconds is `time.sleep` or an endless
loop in workflow code, and everything else in the process stands still. After ``WARN_AFTER`` seconds the place is
logged. After ``INTERRUPT_AFTER`` an exception is raised in the blocked thread (CPython can do that between two
bytecodes), so that the run fails with an error that names the line, and the worker lives on.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from holdfast.core.where import user_frame
from holdfast.errors import StoreError

log = logging.getLogger("holdfast.engine")

LOOK_EVERY = 0.5
WARN_AFTER = 1.0
INTERRUPT_AFTER = 10.0


class Blocked(BaseException):
    """Raised in workflow code that has kept the process for too long."""


class Turn(NamedTuple):
    """Workflow code of a run that is occupying the loop right now."""

    run_id: str
    since: float


class Pulse:
    """Keeps the lease alive from a thread of its own."""

    def __init__(
        self,
        *,
        lease: float,
        renew: Callable[[], bool],
        on_lost: Callable[[], None],
        on_blocked: Callable[[str, str], None],
        interrupt_after: float = INTERRUPT_AFTER,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._interval = lease / 3
        self._renew = renew
        self._on_lost = on_lost
        self._on_blocked = on_blocked
        self._interrupt_after = interrupt_after
        self._loop_thread = threading.get_ident()
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self._turn: Turn | None = None
        self._interrupted: Turn | None = None
        self._warned: Turn | None = None
        self._failing = False
        self._next_renewal = now() + self._interval
        self._thread = threading.Thread(target=self._run, name="holdfast-pulse", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Stop beating, and wait for a beat under way."""
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    # Called on the loop's thread, around every turn of workflow code

    def turn_begins(self, run_id: str) -> None:
        """Workflow code starts to occupy the loop."""
        self._turn = Turn(run_id, self._now())

    def turn_ends(self) -> None:
        """It is done. An interruption that came too late to reach it is caught here."""
        if self._interrupted is None:
            self._turn = None
            if self._interrupted is None:
                return
        try:
            with self._guard:
                self._turn = self._interrupted = None
            for _ in range(100_000):
                pass  # a pending interruption is raised at one of these bytecodes
        except Blocked:
            pass

    # In the thread

    def _run(self) -> None:
        while not self._stop.wait(self.until_next()):
            self.beat()

    def until_next(self) -> float:
        """Seconds until the next beat."""
        return max(0.01, min(LOOK_EVERY, self._next_renewal - self._now()))

    def beat(self) -> None:
        """Look whether workflow code blocks the process, and renew the lease if it is time to."""
        self._look()
        if self._now() < self._next_renewal:
            return
        self._next_renewal = self._now() + self._interval
        try:
            if not self._renew():
                self._on_lost()
            self._failing = False
        except StoreError as error:
            if not self._failing:
                log.warning("the lease could not be renewed; another worker may take over: %s", error)
            self._failing = True
            self._next_renewal = self._now() + min(1.0, self._interval)
        except Exception:
            log.exception("renewing the lease failed")

    def _look(self) -> None:
        turn = self._turn
        if turn is None:
            return
        lasted = self._now() - turn.since
        if lasted > WARN_AFTER and self._warned is not turn:
            self._warned = turn
            place = self._place()
            log.warning(
                "workflow code of run %r has blocked this process for %.1f s (%s): blocking work belongs in a step",
                turn.run_id,
                lasted,
                place or "in no Python code",
            )
        if lasted > self._interrupt_after:
            self._interrupt(turn)

    def _interrupt(self, turn: Turn) -> None:
        with self._guard:
            if self._turn is not turn or self._interrupted is turn:
                return
            self._on_blocked(turn.run_id, self._place())
            self._interrupted = turn
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._loop_thread), ctypes.py_object(Blocked))

    def _place(self) -> str:
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        return user_frame(frames.get(self._loop_thread))
