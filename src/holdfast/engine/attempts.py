"""One attempt of a step: its timeout, its transaction, and the call of a plain function in a thread.

``run_with_timeout`` and ``call_sync_step`` are the same for all engines; the rest is for the steps of the journal
engine.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.engine.definitions import StepDefinition
from holdfast.engine.forked_child import ForkGuard
from holdfast.engine.step_context import StepContext
from holdfast.engine.step_transactions import run_in_transaction
from holdfast.errors import FenceLost, StepFailed, StepTimedOut

if TYPE_CHECKING:
    from holdfast.engine.step_run import StepRun

LEASE_POLL_INTERVAL_S = 0.02
"""How often a step checks again that may not start because its worker's lease is in doubt."""


async def make_attempt(step_run: StepRun, context: StepContext) -> Any:
    """Call the function once, with everything that a step may have around it."""
    step, args, kwargs = step_run.call
    thread_pool, interceptor = step_run.host.thread_pool, step_run.host.step_interceptor
    if step.is_async:
        call = partial(step.function, *args, **kwargs)
    else:
        call = partial(_call_in_thread, step_run)
        if interceptor is None:
            await thread_pool.reserve()
    if interceptor is not None:
        call = call if step.is_async else partial(_reserve_thread_and_call, step_run, call)
        if step.is_transactional:  # an interceptor that replaces the step needs no database
            call = partial(_run_in_transaction, step_run, context, call)
        call = partial(interceptor, step_run, call)
    elif step.is_transactional:
        call = partial(run_with_timeout, step, step_run.run.id, context.attempt, call)
        return await _run_in_transaction(step_run, context, call, has_reserved_thread=not step.is_async)
    return await run_with_timeout(step, step_run.run.id, context.attempt, call)


async def _run_in_transaction(
    step_run: StepRun,
    context: StepContext,
    call: Callable[[], Coroutine[Any, Any, Any]],
    *,
    has_reserved_thread: bool = False,
) -> Any:
    is_called = False

    async def mark_and_call() -> Any:
        nonlocal is_called
        is_called = True
        return await call()

    try:
        step_run.committed_output = await run_in_transaction(step_run, context, context.attempt, mark_and_call)
    finally:
        if has_reserved_thread and not is_called:
            step_run.host.thread_pool.release()
    step_run.has_attempt_row = True
    return step_run.committed_output[1]


async def _reserve_thread_and_call(step_run: StepRun, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    await step_run.host.thread_pool.reserve()
    return await call()


async def _call_in_thread(step_run: StepRun) -> Any:
    # A copy: the thread may begin before this task has left its own context.
    context = contextvars.copy_context()
    attempt = step_run.current_context
    return await step_run.host.thread_pool.run(lambda: context.run(_call_if_claimed, step_run, attempt))


def _call_if_claimed(step_run: StepRun, attempt: StepContext | None) -> Any:
    """In the thread: the lease may have expired while the step waited for the thread."""
    step, args, kwargs = step_run.call
    while True:
        has_lease = step_run.host.membership.has_lease()
        # Checked after the lease: a worker that registered again has a new lease, and dropped its runs before.
        if step_run.driver.is_closed or step_run.is_withdrawn or attempt is not step_run.current_context:
            raise FenceLost(f"step {step.name!r} had not begun when its worker let go of it")
        if has_lease:
            return call_sync_step(step, args, kwargs)
        time.sleep(LEASE_POLL_INTERVAL_S)


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
