"""One attempt of a step, in any engine: its timeout, and the call of a plain function in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.engine.definitions import StepDefinition
from holdfast.engine.forked_child import ForkGuard
from holdfast.errors import StepFailed, StepTimedOut


async def run_with_timeout(
    step: StepDefinition, run_id: str, attempt: int, call: Callable[[], Coroutine[Any, Any, Any]]
) -> Any:
    """Await the call; raise ``StepTimedOut`` if it takes longer than the timeout of the step."""
    if step.timeout_s is None:
        with ForkGuard(step.name):
            return await call()
    scope = asyncio.timeout(step.timeout_s)
    try:
        async with scope:
            with ForkGuard(step.name):
                return await call()
    except (TimeoutError, asyncio.CancelledError):
        # It is no `TimeoutError` if the code has left a cancel request for its task behind.
        if scope.expired():
            raise StepTimedOut(
                f"step {step.name!r} of run {run_id!r} took longer than its time-out of "
                f"{step.timeout_s:g} s (attempt {attempt})",
                step.name,
            ) from None
        raise


def make_self_cancelled_error(step: StepDefinition, run_id: str) -> StepFailed:
    """The error of an attempt that ended because something other than Holdfast cancelled its task."""
    return StepFailed(
        f"step {step.name!r} of run {run_id!r} ended without an outcome: its own code, or a library that it calls, "
        f"cancelled its task or raised CancelledError. Cancel only tasks that the step itself has created",
        step.name,
    )


def call_sync_step(step: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a step's plain function in a thread; a future can carry every exception that this raises."""
    try:
        with ForkGuard(step.name):
            return step.function(*args, **kwargs)
    except StopIteration as stop:
        # A future cannot carry it: the coroutine that awaits the future would end as if it had returned.
        raise RuntimeError("the step raised StopIteration") from stop
