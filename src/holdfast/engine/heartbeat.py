"""The heartbeat: a thread that prolongs the worker's lease, and notices workflow code that blocks the process.

It is a thread of its own because a tool that blocks the event loop for a while must not cost the worker its lease. It
does two things. Every third of the lease it renews it, unless the loop is stuck for good (``loop_watchdog``). Every
half second it looks whether the loop answers, and whether one and the same turn of workflow code has occupied it since
the last look.

**Blocked workflow code.** A turn of a run takes microseconds; one that takes seconds is `time.sleep` or an endless
loop in workflow code, and everything else in the process stands still. After ``WARN_AFTER`` seconds the place is
logged. After ``INTERRUPT_AFTER`` an exception is raised in the workflow's code (``core.interruption``), so that the run
fails with an error that names the line, and the worker lives on.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from holdfast.core.source_location import user_frame
from holdfast.engine.loop_watchdog import LoopWatch
from holdfast.errors import StoreError

log = logging.getLogger("holdfast.engine")

LOOK_EVERY = 0.5
WARN_AFTER = 1.0
INTERRUPT_AFTER = 10.0


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
        interrupt: Callable[[Turn, str], bool],
        interrupt_after: float = INTERRUPT_AFTER,
        watch: LoopWatch,
        on_stuck: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._watch = watch
        self._on_stuck = on_stuck
        self._interval = lease / 3
        self._renew = renew
        self._on_lost = on_lost
        self._interrupt = interrupt
        self._interrupt_after = interrupt_after
        self.loop_thread = threading.get_ident()
        self._stop = threading.Event()
        self.turn: Turn | None = None
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
        self.turn = Turn(run_id, self._now())

    def turn_ends(self) -> None:
        """It is done."""
        self.turn = None

    # In the thread

    def _run(self) -> None:
        while not self._stop.wait(self.until_next()):
            self.beat()

    def until_next(self) -> float:
        """Seconds until the next beat."""
        return max(0.01, min(LOOK_EVERY, self._next_renewal - self._now()))

    def beat(self) -> None:
        """Look whether anything blocks the process, and renew the lease if it is time to."""
        try:
            self._look()
            if self._is_stuck():
                self._next_renewal = self._now() + min(LOOK_EVERY, self._interval)
        except Exception:  # the stack of another thread is read while it changes; the lease is renewed all the same
            log.exception("looking for what blocks this process failed")
        if self._now() < self._next_renewal:
            return
        self._next_renewal = self._now() + self._interval
        try:
            if not self._renew():
                self._on_lost()
            self._failing = False
        except StoreError as error:
            if not self._failing:
                log.warning("the lease could not be renewed; workers that reach the store may take over: %s", error)
            self._failing = True
            self._next_renewal = self._now() + min(1.0, self._interval)
        except Exception:
            log.exception("renewing the lease failed")

    def _is_stuck(self) -> bool:
        """Whether the loop has been blocked for so long that others are to take over."""
        was_stuck = self._watch.is_stuck
        self._watch.look(is_workflow=self.turn is not None)
        if self._watch.is_stuck and not was_stuck:
            self._on_stuck()
        return self._watch.is_stuck

    def _look(self) -> None:
        turn = self.turn
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
        if lasted > self._interrupt_after and self._interrupted is not turn and self._interrupt(turn, self._place()):
            self._interrupted = turn

    def _place(self) -> str:
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        return user_frame(frames.get(self.loop_thread))
