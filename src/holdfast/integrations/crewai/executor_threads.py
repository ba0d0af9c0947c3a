"""The logical thread in which an agent makes its model calls.

CrewAI runs each part of an agent's loop in another thread of a pool, so each model call would be the first call of a
logical thread of its own (see ``core.program_calls``). Nobody could tell then that an agent sends something else when
its program runs again. But an agent makes one model call after the other, so they belong to the thread that has
started the agent.

Tools that run in parallel, and the steps of a plan, have logical threads of their own.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from crewai.agents.agent_executor import AgentExecutor
from crewai.agents.step_executor import StepExecutor

from holdfast.engine.program_context import ProgramContext, current_program, find_program, get_owner
from holdfast.integrations.crewai.method_wrappers import Method, wrap_method

_starter: ContextVar[ProgramContext | None] = ContextVar("holdfast_crewai_starter", default=None)
"""The logical thread that has started the agent of the calling code."""


def replace_methods() -> None:
    """Note who starts an agent."""
    wrap_method(AgentExecutor, "invoke", _wrap_invoke)
    wrap_method(AgentExecutor, "invoke_async", _wrap_invoke_async)
    wrap_method(StepExecutor, "execute", _wrap_step)


@contextmanager
def in_starter_thread() -> Generator[None]:
    """The block makes its calls in the logical thread that has started the agent, if the code belongs to one."""
    starter, program = _starter.get(), find_program()
    if starter is None or program is None or program.thread.container != starter.thread.container:
        yield  # the code of a tool belongs to the tool
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


def _wrap_invoke(original: Method) -> Method:
    def invoke(executor: AgentExecutor, *args: object, **kwargs: object) -> object:
        with _started_by(find_program()):
            return original(executor, *args, **kwargs)

    return invoke


def _wrap_invoke_async(original: Method) -> Method:
    async def invoke_async(executor: AgentExecutor, *args: object, **kwargs: object) -> object:
        with _started_by(find_program()):
            return await original(executor, *args, **kwargs)

    return invoke_async


def _wrap_step(original: Method) -> Method:
    def execute(executor: StepExecutor, *args: object, **kwargs: object) -> object:
        with _started_by(None):
            return original(executor, *args, **kwargs)

    return execute
