"""Calls of tools as a model makes them, on engines in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from engine_world import World, read_journal
from pydantic_ai.messages import ToolCallPart

from holdfast import Runtime, workflow
from holdfast.agents import deps as handing
from holdfast.agents.tools import Tool
from holdfast.authoring.registry import definitions
from holdfast.client.handle import Handle
from holdfast.core.execution import get_current_execution
from holdfast.core.records import Record, RecordKind
from holdfast.engine.definitions import StepCall


@pytest.fixture(autouse=True)
def own_workflows() -> Iterator[None]:
    """Workflows are known by name, and tests like to name theirs alike; so are the deps of an agent."""
    before = dict(definitions)
    definitions.clear()
    yield
    definitions.clear()
    definitions.update(before)
    handing._deps_by_agent.clear()


def make_step_call(tool: Tool, args: Any = None, deps: Any = None) -> StepCall:
    """The step that a model's call is."""
    if deps is not None:
        handing.set_agent_deps(["the-agent"], deps)
    return tool.make_call(ToolCallPart(tool.name, args, "call_1"), "the-agent", None if deps is None else object)


async def execute_call(tool: Tool, args: Any = None) -> Any:
    """What the step of a call returns or raises, without an engine."""
    call = make_step_call(tool, args)
    result = call.step.function(*call.args, **call.kwargs)
    return await result if call.step.is_async else result


async def start_calls(runtime: Runtime, make: Callable[[], list[tuple[str, StepCall]]]) -> Handle[Any]:
    """A run that makes these calls, one after the other, and does not mind how they end."""

    @workflow(name="tool_calls")
    async def flow() -> str:
        execution = get_current_execution()
        assert execution is not None
        for name, call in make():
            await execution.issue(RecordKind.STEP, name, call)
        return "done"

    return await runtime.start(flow)


async def record_call(world: World, tool: Tool, args: Any = None, deps: Any = None) -> Record:
    """What is recorded of one call."""
    runtime = await world.open()
    handle = await start_calls(runtime, lambda: [(tool.name, make_step_call(tool, args, deps))])
    assert await handle.result() == "done"
    [record] = await read_journal(runtime, handle)
    return record
