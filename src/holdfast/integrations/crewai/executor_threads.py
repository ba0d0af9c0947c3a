"""The logical thread in which a crew makes its model calls.

CrewAI runs each part of an agent's loop in another thread of a pool, so each model call would be the first call of a
logical thread of its own (see ``core.program_calls``). Then it would go unnoticed that a crew sends something else when
its program runs again. But a crew makes one model call after the other, so they belong to the thread that has started
it.

Async tasks, tools that run in parallel, and the steps of a plan have logical threads of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from crewai import Crew, Task
from crewai.agents.agent_executor import AgentExecutor
from crewai.agents.step_executor import StepExecutor

from holdfast.engine.program_context import ProgramContext, current_program, find_program, get_owner
from holdfast.integrations.crewai.method_wrappers import Method, wrap_method

_starter: ContextVar[ProgramContext | None] = ContextVar("holdfast_crewai_starter", default=None)
"""The logical thread that has started the crew, or else the agent, of the calling code."""
_started_crew: ContextVar[Crew | None] = ContextVar("holdfast_crewai_started_crew", default=None)


def replace_methods() -> None:
    """Note who starts an agent."""
    wrap_method(AgentExecutor, "invoke", lambda original: _wrap(original, _get_agent_starter))
    wrap_method(AgentExecutor, "invoke_async", lambda original: _wrap_async(original, _get_agent_starter))
    wrap_method(StepExecutor, "execute", lambda original: _wrap(original, lambda _: None))
    wrap_method(Task, "_execute_task_async", lambda original: _wrap(original, lambda _: None))
    wrap_method(Task, "aexecute_sync", lambda original: _wrap_async(original, _get_task_starter))


@contextmanager
def started_crew(crew: Crew) -> Generator[None]:
    """The block runs the crew, which the calling code has started."""
    if _started_crew.get() is crew and _is_starter_valid(find_program()):
        yield  # the methods of a crew call each other, in other threads
        return
    token = _started_crew.set(crew)
    try:
        with _started_by(find_program()):
            yield
    finally:
        _started_crew.reset(token)


@contextmanager
def in_starter_thread() -> Generator[None]:
    """The block makes its calls in the logical thread that has started the agent, if the code belongs to one."""
    starter = _starter.get()
    if starter is None or not _is_starter_valid(find_program()):
        yield
        return
    token = current_program.set(starter._replace(owner=get_owner()))
    try:
        yield
    finally:
        current_program.reset(token)


@contextmanager
def _started_by(starter: ProgramContext | None) -> Generator[None]:
    token = _starter.set(starter)
    try:
        yield
    finally:
        _starter.reset(token)


def _is_starter_valid(program: ProgramContext | None) -> bool:
    """Whether the calling code belongs to the starter; the code of a tool belongs to the tool."""
    starter = _starter.get()
    return starter is not None and program is not None and program.thread.container == starter.thread.container


def _get_agent_starter(_: object) -> ProgramContext | None:
    program = find_program()
    return _starter.get() if _is_starter_valid(program) else program


def _get_task_starter(task: Task) -> ProgramContext | None:
    return None if task.async_execution else _starter.get()


def _wrap(original: Method, get_starter: Callable[[Any], ProgramContext | None]) -> Method:
    def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
        with _started_by(get_starter(owner)):
            return original(owner, *args, **kwargs)

    return call


def _wrap_async(original: Method, get_starter: Callable[[Any], ProgramContext | None]) -> Method:
    async def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
        with _started_by(get_starter(owner)):
            return await original(owner, *args, **kwargs)

    return call
