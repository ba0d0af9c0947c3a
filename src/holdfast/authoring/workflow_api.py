"""What workflow code may call: recorded time and random numbers, signals, fan-out, and the current run."""

from __future__ import annotations

import asyncio
import builtins
import random as _random
import uuid
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar, overload

from holdfast.admission.durations import Duration, duration_to_seconds
from holdfast.authoring import program_calls
from holdfast.codec import codec_for
from holdfast.core.execution import Execution, get_current_execution
from holdfast.core.failure_origin import find_origins, mark_origin
from holdfast.core.records import RecordKind
from holdfast.engine import step_context
from holdfast.engine.program_context import find_program
from holdfast.engine.step_context import StepContext
from holdfast.errors import UndecryptableValue, UnreadableRecord, UsageError

T = TypeVar("T")
R = TypeVar("R")


def now() -> datetime:
    """The time, the same on every replay: in workflow code, the time of the last outcome that it has seen."""
    execution = get_current_execution()
    return datetime.now(UTC) if execution is None else datetime.fromtimestamp(execution.loop.time(), UTC)


def uuid4() -> uuid.UUID:
    """A random UUID, in workflow code the same on every replay."""
    execution = get_current_execution()
    return uuid.uuid4() if execution is None else uuid.UUID(bytes=execution.draw_bytes("uuid4")[:16], version=4)


def random() -> float:
    """A random number in [0, 1), in workflow code the same on every replay."""
    execution = get_current_execution()
    if execution is None:
        return _random.random()
    # The 53 bits that a float can hold, as in `random.random`.
    return (int.from_bytes(execution.draw_bytes("random")[:7]) >> 3) / (1 << 53)


def patched(name: str) -> bool:
    """Whether this run takes the new branch of a change: ``if patched("charge-in-cents"): new code, else: old code``.

    True in a run that has not been past this call before. False in a run that has, with code that did not have the
    call: what it did there is in its journal, and only the old code fits that. A run keeps its answer in every process,
    and every call with this name gets it. So a name belongs to one change: give the next change another name.

    The first true answer of a run is recorded, and nothing that the code issues after it starts before the record is
    durable. When the last run on the old branch has ended, remove the call and the old code: the records of the patch
    are ignored.
    """
    execution = _require_workflow("patched")
    if not name:
        raise UsageError("patched: a change needs a name, such as 'charge-in-cents'")
    return execution.is_patched(name)


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """The run that the calling code belongs to."""

    id: str
    workflow: str
    is_replaying: bool
    """Whether workflow code is replaying; false in steps."""


def current_run() -> CurrentRun:
    """The run that the calling workflow or step code belongs to."""
    execution = get_current_execution()
    if execution is not None:
        return CurrentRun(execution.run_id, execution.workflow, execution.loop.is_logging_suppressed)
    if (program := find_program()) is not None:
        return CurrentRun(program.run.execution.run_id, program.run.execution.workflow, False)
    step = step_context.current_context.get(None)
    if step is None:
        raise UsageError("current_run() is for code that runs inside a workflow, a program, or a step")
    return CurrentRun(step.run_id, step.workflow, False)


def current_step() -> StepContext:
    """The running step: ``idempotency_key``, ``attempt``, ``progress``, ``heartbeat()``, ``save_progress()``.

    A transactional one also has its ``connection``.
    """
    step = step_context.current_context.get(None)
    if step is None or get_current_execution() is not None:
        raise UsageError("current_step() is for code that runs inside a step of a run")
    return step


@overload
async def wait_for_signal(name: str, *, timeout: Duration | None = None) -> Any: ...
@overload
async def wait_for_signal(name: str, *, type: type[T], timeout: Duration | None = None) -> T: ...
async def wait_for_signal(name: str, *, type: Any = Any, timeout: Duration | None = None) -> Any:
    """The next signal with this name, whether it was sent before or comes later.

    Signals with one name arrive in the order in which they were sent, each at one wait. Raises ``TimeoutError`` after
    ``timeout`` seconds. With a ``type``, the value is validated: ``UnreadableRecord`` if the sender sent something
    else.
    """
    if get_current_execution() is None and (program := find_program()) is not None:
        waiting = partial(wait_for_signal, name, type=type, timeout=timeout)
        return await program_calls.call_workflow_api(program, waiting, "signal", name)
    execution = _require_workflow("wait_for_signal")
    limit = None if timeout is None else duration_to_seconds(timeout, "wait_for_signal: timeout", may_be_zero=True)
    subject = f"signal {name!r} (#{execution.next_position + 1})"
    async with asyncio.timeout(limit):
        outcome = await execution.issue(RecordKind.SIGNAL, name, None)
    try:
        return codec_for(type).decode(outcome.record.payload or b"null", subject)
    except UnreadableRecord as unreadable:
        # Anyone may send anything, so code may catch this. But if the signal fitted when the run first went past here,
        # the type has changed since. Recording that it did not fit distinguishes the two.
        if isinstance(unreadable, UndecryptableValue) or not execution.is_patched(f"{subject} does not fit its type"):
            execution.fatal_error = execution.fatal_error or unreadable
        mark_origin(unreadable, outcome.origin)
        raise


async def map(step: Callable[[T], Coroutine[Any, Any, R]], items: Iterable[T], *, max_concurrency: int = 10) -> list[R]:
    """Call ``step`` on every item, at most ``max_concurrency`` at once, and return the outcomes in order.

    Each item is recorded as it finishes. The first failure is raised, after the calls in flight were cancelled.
    """
    _require_workflow("map")
    if max_concurrency < 1:
        raise UsageError(f"map: max_concurrency={max_concurrency} must be at least 1")
    results: list[Any] = []
    source = iter(items)

    async def work() -> None:
        for item in source:
            index = len(results)
            results.append(None)
            results[index] = await step(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(max_concurrency):
                group.create_task(work())
    except builtins.ExceptionGroup as failures:
        failure = failures.exceptions[0]
    else:
        return results
    # A retry rewinds to the record that caused the failure. Python replaces an implicit `__context__` if the caller is
    # handling another exception, so the failure itself carries the origin.
    if origins := find_origins(failure):
        mark_origin(failure, *origins)
    try:
        raise failure
    finally:
        del failure  # its traceback holds this frame


def _require_workflow(name: str) -> Execution:
    execution = get_current_execution()
    if execution is None:
        raise UsageError(f"{name}() can be called only in workflow code, not in a step and not outside a run")
    return execution
