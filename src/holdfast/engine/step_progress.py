"""Saving the progress of a step: what an attempt passes to ``heartbeat`` and ``save_progress``."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from holdfast.codec import codec_for
from holdfast.engine.step_context import StepContext
from holdfast.errors import FenceLost, UsageError

if TYPE_CHECKING:
    from holdfast.engine.step_run import StepRun

HEARTBEAT_INTERVAL_S = 0.1
"""Progress is written at most this often; the latest wins."""

_progress_codec = codec_for(Any)


def decode_progress(data: bytes) -> Any:
    """The progress of an earlier attempt."""
    return _progress_codec.decode(data, "heartbeat progress")


class StepProgress:
    """The progress of one step; made when its code first reports some."""

    def __init__(self, step_run: StepRun, thread_id: int) -> None:
        self._step_run = step_run
        self._loop = step_run.host.loop
        self._thread_id = thread_id
        self._is_heartbeat_due = False
        self._last_heartbeat_at = 0.0

    def heartbeat(self, context: StepContext, progress: Any) -> None:
        """Save progress, from any thread; raises if the step should stop."""
        step_run = self._step_run
        # A run that was cancelled may have ended, so its driver may be closed as well.
        if step_run.driver.is_closed and (step_run.is_detached or not step_run.is_withdrawn):
            raise FenceLost(f"run {context.run_id!r} is held by another worker now; step {context.name!r} must stop")
        if step_run.is_withdrawn:
            raise asyncio.CancelledError(f"the workflow no longer waits for step {context.name!r}")
        if context is not step_run.current_context:
            raise asyncio.CancelledError(f"attempt {context.attempt} of step {context.name!r} is over")
        if progress is None:
            return
        self._set_progress(progress)
        if self._is_heartbeat_due:
            return
        self._is_heartbeat_due = True
        if threading.get_ident() == self._thread_id:
            self._schedule_heartbeat()
        else:
            self._loop.call_soon_threadsafe(self._schedule_heartbeat)

    async def save(self, context: StepContext, progress: Any) -> None:
        """Save progress, and wait until it is durable. Losing the run meanwhile cancels the step, and so the wait."""
        self.heartbeat(context, None)
        self._set_progress(progress)
        durable: asyncio.Future[None] = self._loop.create_future()

        def on_durable() -> None:
            if not durable.done():
                durable.set_result(None)
            self._step_run.driver.finish_turn()

        self._step_run.save_attempt(on_durable)
        await durable

    def _set_progress(self, progress: Any) -> None:
        step = self._step_run.step
        if step.is_transactional:
            raise UsageError(
                f"step {step.name!r} has transaction=True, so nothing of an attempt that fails stays, and there "
                "is nothing that the next one could go on from: call heartbeat() without progress, or make two steps "
                "of it"
            )
        self._step_run.progress = _progress_codec.encode(progress, f"the progress of step {step.name!r}")

    def _schedule_heartbeat(self) -> None:
        wait = self._last_heartbeat_at + HEARTBEAT_INTERVAL_S - self._loop.time()
        self._loop.call_later(max(0.0, wait), self._write_heartbeat)

    def _write_heartbeat(self) -> None:
        self._is_heartbeat_due = False
        self._last_heartbeat_at = self._loop.time()
        task = self._step_run.task
        # Between two attempts, the state is saved already, with the end of the first one.
        if self._step_run.current_context is not None and task is not None and not task.done():
            self._step_run.save_attempt()
