"""The instructions of an agent: a text, or a function that returns one and is called in each run, as a step."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from holdfast.agents.deps import get_deps, get_deps_async
from holdfast.agents.run_context import make_run_context
from holdfast.authoring.introspection import is_async
from holdfast.codec import codec_for
from holdfast.engine.definitions import StepDefinition
from holdfast.errors import DefinitionError
from holdfast.reports.recorded_reply import INSTRUCTIONS_STEP


def define_instructions(value: Any, agent: str, deps_type: Any) -> str | StepDefinition | None:
    """The text, or the step that generates it."""
    if value is None or isinstance(value, str):
        return value
    if not callable(value):
        raise DefinitionError(f"agent {agent!r}: instructions is a text, or a function that returns one, not {value!r}")
    function: Callable[..., Any] = value
    takes_context = bool(inspect.signature(function).parameters)

    async def generate() -> str:
        if not takes_context:
            return await function()
        return await function(make_run_context(await get_deps_async(agent, deps_type), agent, INSTRUCTIONS_STEP))

    def generate_sync() -> str:
        if not takes_context:
            return function()
        return function(make_run_context(get_deps(agent, deps_type), agent, INSTRUCTIONS_STEP))

    namespace = getattr(function, "__globals__", {})
    if is_async(function):
        return StepDefinition(INSTRUCTIONS_STEP, generate, True, codec_for(str), (), namespace)
    return StepDefinition(INSTRUCTIONS_STEP, generate_sync, False, codec_for(str), (), namespace)
