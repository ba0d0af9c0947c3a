"""Toolsets: tools that are known only when a run begins, such as those of an MCP server.

A recorded step lists the tools of a toolset before the first model call. So a run has the same tools after each
takeover, and a replay makes no requests. Each of them becomes a ``Tool``, and a call of it is a step like any other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.admission.retry_policy import NO_RETRIES, RetryPolicy
from holdfast.authoring.step import read_outcome
from holdfast.codec import codec_for
from holdfast.core.execution import Execution
from holdfast.core.records import RecordKind
from holdfast.core.states import Effect
from holdfast.engine.definitions import StepCall, StepDefinition

if TYPE_CHECKING:
    from holdfast.agents.tools import Tool


@dataclass(frozen=True, slots=True)
class ListedTool:
    """The recorded form of a tool in a toolset."""

    name: str
    """Its name for the model."""
    description: str
    schema: dict[str, Any]
    """The JSON schema of its arguments."""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further data that the toolset needs to call it."""


class Toolset(ABC):
    """Tools that are known only when a run begins."""

    name: str
    """Its name in the journal."""
    retry: RetryPolicy = NO_RETRIES
    """When to repeat a failed listing, before the run fails."""

    @abstractmethod
    async def list_tools(self) -> list[ListedTool]:
        """List its tools. Called in a step."""

    @abstractmethod
    def make_tool(self, listed: ListedTool) -> Tool:
        """The tool itself, in any process that calls it."""


async def list_toolset_tools(execution: Execution, toolsets: Sequence[Toolset]) -> list[Tool]:
    """The tools of all toolsets, in workflow code: one recorded step for each, all at the same time."""
    steps = [_make_listing_step(toolset) for toolset in toolsets]
    issued = [execution.issue(RecordKind.STEP, step.name, StepCall(step, (), {})) for step in steps]
    outcomes = [await future for future in issued]
    return [
        toolset.make_tool(listed)
        for toolset, step, outcome in zip(toolsets, steps, outcomes, strict=True)
        for listed in read_outcome(execution, step, outcome)
    ]


def _make_listing_step(toolset: Toolset) -> StepDefinition:
    return StepDefinition(
        name=f"tools of {toolset.name}",
        function=toolset.list_tools,
        is_async=True,
        output_codec=codec_for(list[ListedTool]),
        parameters=(),
        namespace={},
        retry=toolset.retry,
        effect=Effect.READ,
    )
