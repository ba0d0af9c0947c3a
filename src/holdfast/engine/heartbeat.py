"""The heartbeat: a thread that renews the worker's lease, and detects workflow code that blocks the process.

It is a thread of its own because a tool that blocks the event loop for a while must not cost the worker its lease. It
renews the lease every third of its duration, unless the loop is stuck for good (``loop_watchdog``). Every half second
it checks whether the loop answers, and whether the same turn of workflow code still occupies it.

**Blocked workflow code.** A turn of a run takes microseconds. If one takes seconds, workflow code has called
`time.sleep` or is in an endless loop, and blocks everything else in the process. After ``WARN_AFTER_S`` seconds the
location is logged. After ``INTERRUPT_AFTER_S`` an exception is raised in the workflow's code (``core.interruption``):
the run fails with an error that names the line, and the worker continues.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from holdfast.core.records import make_constructor
from holdfast.core.source_location import locate_user_code
from holdfast.engine.loop_watchdog import LoopWatchdog
from holdfast.errors import StoreError

log = logging.getLogger("holdfast.engine")

CHECK_INTERVAL_S = 0.5
WARN_AFTER_S = 1.0
INTERRUPT_AFTER_S = 10.0


class Turn(NamedTuple):
    """Workflow code of a run that is occupying the loop right now."""

    run_id: str
    started_at: float


make_turn = make_constructor(Turn)


class Heartbeat:
    """Keeps the lease alive from a thread of its own."""

    def __init__(
        self,
        *,
        lease_s: float,
        renew: Callable[[], bool],
        on_lost: Callable[[], None],
        interrupt: Callable[[Turn, str], bool],
        interrupt_after_s: float = INTERRUPT_AFTER_S,
        watchdog: LoopWatchdog,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._watchdog = watchdog
        self._renew_interval_s = lease_s / 3
        self._renew = renew
        self._on_lost = on_lost
        self._interrupt = interrupt
        self._interrupt_after_s = interrupt_after_s
        self.loop_thread_id = threading.get_ident()
        self._stop_event = threading.Event()
        self.current_turn: Turn | None = None
        """Set on the loop's thread, around every turn of workflow code."""
        self._interrupted_turn: Turn | None = None
        self._warned_turn: Turn | None = None
        self._is_failing = False
        self._next_renewal_at = now() + self._renew_interval_s
        self._thread = threading.Thread(target=self._run, name="holdfast-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for a running beat."""
        self._stop_event.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    # In the thread

    def _run(self) -> None:
        while not self._stop_event.wait(self.get_wait_s()):
            self.beat()

    def get_wait_s(self) -> float:
        """Seconds until the next beat."""
        return max(0.01, min(CHECK_INTERVAL_S, self._next_renewal_at - self._now()))

    def beat(self) -> None:
        """Check whether anything blocks the process, and renew the lease if it is time to."""
        try:
            self._check_turn()
            if self._watchdog.poll(is_workflow=self.current_turn is not None):  # let other workers take over
                self._next_renewal_at = self._now() + min(CHECK_INTERVAL_S, self._renew_interval_s)
        except Exception:  # reading the stack of a running thread may fail; the lease is renewed all the same
            log.exception("looking for what blocks this process failed")
        if self._now() < self._next_renewal_at:
            return
        self._next_renewal_at = self._now() + self._renew_interval_s
        try:
            if not self._renew():
                self._on_lost()
            self._is_failing = False
        except StoreError as error:
            if not self._is_failing:
                log.warning("the lease could not be renewed; workers that reach the store may take over: %s", error)
            self._is_failing = True
            self._next_renewal_at = self._now() + min(1.0, self._renew_interval_s)
        except Exception:
            log.exception("renewing the lease failed")

    def _check_turn(self) -> None:
        turn = self.current_turn
        if turn is None:
            return
        lasted = self._now() - turn.started_at
        if lasted > WARN_AFTER_S and self._warned_turn is not turn:
            self._warned_turn = turn
            place = self._locate_user_code()
            log.warning(
                "workflow code of run %r has blocked this process for %.1f s (%s): blocking work belongs in a step",
                turn.run_id,
                lasted,
                place or "in no Python code",
            )
        if (
            lasted > self._interrupt_after_s
            and self._interrupted_turn is not turn
            and self._interrupt(turn, self._locate_user_code())
        ):
            self._interrupted_turn = turn

    def _locate_user_code(self) -> str:
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        return locate_user_code(frames.get(self.loop_thread_id))
