"""What a program's calls record: steps, runs of workflows, approvals, and what adapters for frameworks record."""

from __future__ import annotations

from asyncio import events
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.codec import compute_content_digest
from holdfast.engine.in_place_call import BeforeCall, InPlaceCall
from holdfast.engine.program_context import ProgramContext, find_program
from holdfast.engine.program_run import CallContent
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.authoring.workflow import Workflow
    from holdfast.engine.definitions import StepDefinition

T = TypeVar("T")


def call_step(program: ProgramContext, step: StepDefinition, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a step in a program.

    The step is executed where it is called, because it may use what belongs to the program's own thread or event loop,
    such as a database connection. What the caller cannot do is left to the engine: a timeout, a transaction, and
    everything on the engine's own event loop, where the call of a plain function must be awaited, too.
    """
    run, thread, _ = program
    if step.is_async or events._get_running_loop() is run.loop:
        return _await_step(step, args, kwargs)
    if _is_executed_by_engine(step):
        return run.call_sync(thread, lambda: _invoke(program, step, args, kwargs), _describe(args, kwargs))
    return open_in_place_call(step, args, kwargs, is_opaque=True).call_sync(partial(step.function, *args, **kwargs))


async def _await_step(step: StepDefinition, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    program = _get_program()  # of the task that awaits the call, which may be another one
    run, thread, _ = program
    if _is_executed_by_engine(step) or events._get_running_loop() is run.loop:
        return await run.call(thread, lambda: _invoke(program, step, args, kwargs), _describe(args, kwargs))
    return await open_in_place_call(step, args, kwargs, is_opaque=True).call(partial(step.function, *args, **kwargs))


def _is_executed_by_engine(step: StepDefinition) -> bool:
    return step.timeout_s is not None or step.is_transactional or step.invoke is not None


def open_in_place_call(
    step: StepDefinition,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    content: CallContent | None = None,
    *,
    before: BeforeCall | None = None,
    is_opaque: bool = False,
) -> InPlaceCall:
    """A call of a step that its caller in the program executes itself: see ``engine.in_place_call``."""
    if step.timeout_s is not None:
        raise UsageError(f"{step.name!r} is executed by the program itself, and so cannot have a timeout")
    program = _get_program()

    def make(function: Callable[..., Any]) -> Coroutine[Any, Any, Any]:
        return _invoke(program, replace(step, function=function, is_async=True), args, kwargs)

    return InPlaceCall(
        program.run, program.thread, content or _describe(args, kwargs), make, before=before, is_opaque=is_opaque
    )


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


def wait_for_signal_sync(name: str) -> Any:
    """Wait for a signal in a thread of a program."""
    from holdfast.authoring.workflow_api import wait_for_signal

    run, thread, _ = _get_program()
    return run.call_sync(thread, lambda: wait_for_signal(name), CallContent(compute_content_digest("signal", name)))


def _invoke(
    program: ProgramContext, step: StepDefinition, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Coroutine[Any, Any, Any]:
    from holdfast.authoring.step import invoke

    return (step.invoke or invoke)(program.run.execution, step, args, dict(kwargs))


def _describe(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallContent:
    return CallContent(compute_content_digest(args, dict(kwargs)))


def _get_program() -> ProgramContext:
    program = find_program()
    if program is None:
        raise UsageError("a call of a program was awaited outside of it: await it in the program's own tasks")
    return program
