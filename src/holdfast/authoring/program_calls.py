"""What a program's calls record: steps, runs of workflows, approvals, and what adapters for frameworks record."""

from __future__ import annotations

from asyncio import events
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.codec import compute_content_digest
from holdfast.engine.in_place_call import BeforeCall, InPlaceCall, StepFunction
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
    return open_step(program, step, args, kwargs).call_sync(partial(step.function, *args, **kwargs))


async def _await_step(step: StepDefinition, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    program = get_program()  # of the task that awaits the call, which may be another one
    run, thread, _ = program
    if _is_executed_by_engine(step) or events._get_running_loop() is run.loop:
        return await run.call(thread, lambda: _invoke(program, step, args, kwargs), _describe(args, kwargs))
    return await open_step(program, step, args, kwargs).call(partial(step.function, *args, **kwargs))


def _is_executed_by_engine(step: StepDefinition) -> bool:
    return step.timeout_s is not None or step.is_transactional or step.invoke is not None


def open_step(
    program: ProgramContext, step: StepDefinition, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> InPlaceCall:
    """A call of a step of the user, which is executed in place."""

    def make_step(function: StepFunction) -> StepDefinition:
        return replace(step, function=function, is_async=True)

    return open_in_place_call(program, make_step, args, kwargs, _describe(args, kwargs), is_opaque=True)


def open_in_place_call(
    program: ProgramContext,
    make_step: Callable[[StepFunction], StepDefinition],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    content: CallContent,
    *,
    before: BeforeCall | None = None,
    is_opaque: bool = False,
) -> InPlaceCall:
    """A call of a step that its caller in the program executes itself: see ``engine.in_place_call``.

    ``make_step`` makes the step of a function that waits for the caller.
    """

    def make(function: StepFunction) -> Coroutine[Any, Any, Any]:
        return _invoke(program, make_step(function), args, kwargs)

    return InPlaceCall(program.run, program.thread, content, make, before=before, is_opaque=is_opaque)


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

    run, thread, _ = get_program()
    return run.call_sync(thread, lambda: wait_for_signal(name), CallContent(compute_content_digest("signal", name)))


def _invoke(
    program: ProgramContext, step: StepDefinition, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Coroutine[Any, Any, Any]:
    from holdfast.authoring.step import invoke

    return (step.invoke or invoke)(program.run.execution, step, args, dict(kwargs))


def _describe(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallContent:
    return CallContent(compute_content_digest(args, dict(kwargs)))


def get_program() -> ProgramContext:
    """The program that awaits a call."""
    program = find_program()
    if program is None:
        raise UsageError("a call of a program was awaited outside of it: await it in the program's own tasks")
    return program
