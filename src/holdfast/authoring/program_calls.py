"""What a program's calls record: steps, runs of workflows, approvals, and what adapters for frameworks record."""

from __future__ import annotations

from asyncio import events
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.codec import compute_content_digest
from holdfast.engine.program_context import ProgramContext, find_program
from holdfast.engine.program_run import CallContent, InPlaceCall
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.authoring.workflow import Workflow
    from holdfast.engine.definitions import StepDefinition

T = TypeVar("T")


def call_step(program: ProgramContext, step: StepDefinition, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a step in a program.

    An async step must be awaited, and so must any step where an event loop is running. Elsewhere the call blocks, and
    returns the output.
    """
    if step.is_async or events._get_running_loop() is not None:
        return _await_step(step, args, kwargs)
    run, thread, _ = program
    return run.call_sync(thread, lambda: _invoke(program, step, args, kwargs), _describe(step, args, kwargs))


async def _await_step(step: StepDefinition, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    program = _get_program()  # of the task that awaits the call, which may be another one
    run, thread, _ = program
    return await run.call(thread, lambda: _invoke(program, step, args, kwargs), _describe(step, args, kwargs))


async def call_in_place(
    step: StepDefinition, function: Callable[[], Awaitable[T]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> T:
    """Call a step in async code of a program, with a function that is executed there instead of the step's own."""
    program = _get_program()
    call = _make_in_place_call(program, step, args, kwargs)
    return await program.run.call_in_place(program.thread, call, function, _describe(step, args, kwargs))


def call_in_place_sync(
    step: StepDefinition, function: Callable[[], T], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> T:
    """Call a step in other code of a program, with a function that is executed there instead of the step's own."""
    program = _get_program()
    call = _make_in_place_call(program, step, args, kwargs)
    return program.run.call_in_place_sync(program.thread, call, function, _describe(step, args, kwargs))


async def call_workflow(program: ProgramContext, workflow: Workflow[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a workflow as a child of the program's run, and return its result."""
    from holdfast.authoring.children import call_child

    content = CallContent(compute_content_digest(workflow.name, args, kwargs))
    run, thread, _ = program
    return await run.call(thread, lambda: call_child(run.execution, workflow, args, kwargs), content)


async def start_workflow(program: ProgramContext, workflow: Workflow[..., Any], args: Any, kwargs: Any) -> str:
    """Start an independent run, and return its id."""
    from holdfast.authoring.children import start_child

    async def start() -> str:
        return (await start_child(run.execution, workflow, args, kwargs)).run_id

    run, thread, _ = program
    content = CallContent(compute_content_digest("start", workflow.name, args, kwargs))
    return await run.call(thread, start, content)


async def call_workflow_api(program: ProgramContext, make: Callable[[], Coroutine[Any, Any, T]], *content: object) -> T:
    """Call something that workflow code may call, such as ``ask``."""
    return await program.run.call(program.thread, make, CallContent(compute_content_digest(*content)))


def _invoke(
    program: ProgramContext, step: StepDefinition, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Coroutine[Any, Any, Any]:
    from holdfast.authoring.step import invoke

    return (step.invoke or invoke)(program.run.execution, step, args, dict(kwargs))


def _make_in_place_call(
    program: ProgramContext, step: StepDefinition, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> InPlaceCall:
    if step.retry.retries != 0 or step.timeout_s is not None:
        raise UsageError(f"{step.name!r} is executed by the program itself, and so can have no retries and no timeout")

    def make(function: Callable[..., Any]) -> Coroutine[Any, Any, Any]:
        return _invoke(program, replace(step, function=function, is_async=True), args, kwargs)

    return InPlaceCall(program.run, make)


def _describe(step: StepDefinition, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallContent:
    return CallContent(compute_content_digest(args, dict(kwargs)))


def _get_program() -> ProgramContext:
    program = find_program()
    if program is None:
        raise UsageError("a call of a program was awaited outside of it: await it in the program's own tasks")
    return program
