"""One attempt of a step, whoever makes it: within its time-out, and a plain function as a thread may call it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.engine.definitions import StepDefinition
from holdfast.errors import StepTimedOut


async def in_time(step: StepDefinition, run_id: str, attempt: int, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Await the call for as long as an attempt of this step may take; then raise ``StepTimedOut``."""
    if step.timeout is None:
        return await call()
    scope = asyncio.timeout(step.timeout)
    try:
        async with scope:
            return await call()
    except TimeoutError:
        if scope.expired():
            raise StepTimedOut(
                f"step {step.name!r} of run {run_id!r} took longer than its time-out of "
                f"{step.timeout:g} s (attempt {attempt})",
                step.name,
            ) from None
        raise


def call_plain(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a plain function in a thread, so that whatever it raises can be carried by a future."""
    try:
        return function(*args, **kwargs)
    except StopIteration as stop:
        # A future cannot carry it: it would end the coroutine that awaits it as if that had returned.
        raise RuntimeError("the step raised StopIteration") from stop
