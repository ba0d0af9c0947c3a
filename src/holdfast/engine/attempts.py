"""One attempt of a step, whoever makes it: within its time-out, and a plain function as a thread may call it."""

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
    """Await the call for as long as an attempt of this step may take; then raise ``StepTimedOut``."""
    if step.timeout_s is None:
        with ForkGuard(step.name):
            return await call()
    scope = asyncio.timeout(step.timeout_s)
    try:
        async with scope:
            with ForkGuard(step.name):
                return await call()
    except (TimeoutError, asyncio.CancelledError):
        # Not a `TimeoutError` if the code has left a request to cancel its task behind.
        if scope.expired():
            raise StepTimedOut(
                f"step {step.name!r} of run {run_id!r} took longer than its time-out of "
                f"{step.timeout_s:g} s (attempt {attempt})",
                step.name,
            ) from None
        raise


def make_self_cancelled_error(step: StepDefinition, run_id: str) -> StepFailed:
    """The error of an attempt that ended because its task was cancelled, and not by Holdfast."""
    return StepFailed(
        f"step {step.name!r} of run {run_id!r} ended without an outcome: its own code, or a library that it calls, "
        f"cancelled its task or raised CancelledError. Cancel only tasks that the step itself has created",
        step.name,
    )


def call_sync_step(step: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a step's plain function in a thread, so that whatever it raises can be carried by a future."""
    try:
        with ForkGuard(step.name):
            return step.function(*args, **kwargs)
    except StopIteration as stop:
        # A future cannot carry it: it would end the coroutine that awaits it as if that had returned.
        raise RuntimeError("the step raised StopIteration") from stop
