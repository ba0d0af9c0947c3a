"""Watches an event loop from another thread: it logs a step that blocks the loop, and gives up after a limit.

An async step that never awaits (an endless loop, a blocking call in place of an async one) keeps the event loop to
itself. Meanwhile nothing else in the process happens: no other step, no timeout, no commit, no answer to SIGTERM. A
step cannot be interrupted from outside without breaking the library that it is in, so:

- after ``WARN_AFTER_S`` seconds the location is logged, and again after four times as long, and so on;
- after ``max_blocked_s`` the loop is *stuck*: the worker no longer renews its lease, and others take its runs over as
  after a death. If the loop runs again after that, the worker finds that it was declared dead, and registers again.

A loop that does not run at all, as between two calls of ``run_until_complete``, is not blocked, so no location is
logged. But its runs do not continue either, so others take them over after the same time.

Every poll asks the loop to answer. A process that is suspended as a whole (SIGSTOP, a sleeping machine) is not blocked
by a step, so a poll counts as at most ``MAX_POLL_GAP_S`` seconds, however long ago the last one was.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from holdfast.core.source_location import format_user_stack
from holdfast.engine.attempts import run_with_timeout
from holdfast.engine.step_context import StepContext, current_context
from holdfast.engine.step_run import StepRun

log = logging.getLogger("holdfast.engine")

WARN_AFTER_S = 1.0
MAX_BLOCKED_S = 60.0
MAX_POLL_GAP_S = 2.0


class LoopWatchdog:
    """Watches the event loop that it is created on; another thread calls ``poll`` again and again."""

    def __init__(
        self,
        *,
        max_blocked_s: float = MAX_BLOCKED_S,
        on_stuck: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_stuck = False
        """The loop has been blocked for too long."""
        self._on_stuck = on_stuck
        self._max_blocked_s = max_blocked_s
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._is_probe_pending = False
        """The loop has not answered the last probe."""
        self._blocked_s = 0.0
        self._warn_after_s = WARN_AFTER_S
        self._has_warned = False
        self._last_poll_at = now()

    def poll(self, *, is_workflow: bool = False) -> bool:
        """Whether the loop is stuck. Calls ``on_stuck`` when it becomes stuck.

        ``is_workflow``: workflow code occupies the loop (see ``heartbeat``).
        """
        now = self._now()
        passed, self._last_poll_at = now - self._last_poll_at, now
        if not self._is_probe_pending:
            self._reset()
            self._send_probe()
            return False
        self._blocked_s += min(passed, MAX_POLL_GAP_S)
        if self._blocked_s >= self._warn_after_s:
            self._warn_after_s = max(self._warn_after_s, self._blocked_s) * 4
            if not is_workflow and self._loop.is_running():
                self._warn()
        if self._blocked_s >= self._max_blocked_s and not self.is_stuck:
            self.is_stuck = self._has_warned = True
            log.warning(
                "the event loop has not run for %.0f s: this worker no longer renews its lease, so that other "
                "workers take its runs over",
                self._blocked_s,
            )
            self._on_stuck()
        return self.is_stuck

    def _reset(self) -> None:
        if self._has_warned:
            log.warning("the event loop runs again, after %.0f s", self._blocked_s)
        self._blocked_s, self._warn_after_s, self._has_warned, self.is_stuck = 0.0, WARN_AFTER_S, False, False

    def _send_probe(self) -> None:
        self._is_probe_pending = True
        try:
            self._loop.call_soon_threadsafe(self._on_probe)
        except RuntimeError:
            self._is_probe_pending = False  # the loop has closed

    def _on_probe(self) -> None:
        self._is_probe_pending = False

    def _warn(self) -> None:
        self._has_warned = True
        frame = sys._current_frames().get(self._thread_id)  # pyright: ignore[reportPrivateUsage]
        log.warning(
            "%s has blocked the event loop of this process for %.0f s, and nothing else in it continues. Run blocking "
            "code in a thread: make it async with `asyncio.to_thread(...)`, or, in a workflow, make it a step that is "
            "a plain function (`def`). It is here:\n%s",
            _find_step(frame) or _describe_task(asyncio.current_task(self._loop)),
            self._blocked_s,
            format_user_stack(frame),
        )


def _find_step(frame: FrameType | None) -> str:
    """The step that is running, from the stack of the loop's thread."""
    while frame is not None:
        if frame.f_code is run_with_timeout.__code__:
            return _describe_step(frame.f_locals["step"].name, frame.f_locals["run_id"])
        if frame.f_code is StepRun.execute.__code__:
            step_run: StepRun = frame.f_locals["self"]
            return _describe_step(step_run.step.name, step_run.run.id)
        frame = frame.f_back
    return ""


def _describe_task(task: asyncio.Task[Any] | None) -> str:
    """The step that created the running task, or the task itself: tasks of Python 3.11 have no ``get_context``."""
    if task is None:
        return "a callback"
    context = getattr(task, "get_context", contextvars.Context)()
    creator: StepContext | None = context.get(current_context)
    return f"task {task.get_name()!r}" if creator is None else _describe_step(creator.name, creator.run_id)


def _describe_step(step: str, run_id: str) -> str:
    return f"step {step!r} of run {run_id!r}"
