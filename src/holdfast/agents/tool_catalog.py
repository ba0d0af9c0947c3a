"""The tools that a run offers its model: tools, sub-agents, the tools of toolsets, and those of loaded skills.

Only recorded outcomes change the catalog during a run, so it is the same on every replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from holdfast.agents.deps import set_parent
from holdfast.agents.skills.skill_tools import LOAD_SKILL
from holdfast.agents.tools import Tool, make_rejected_call, make_unknown_tool_call
from holdfast.authoring.children import make_child_call
from holdfast.core.execution import Execution
from holdfast.core.records import RecordKind
from holdfast.engine.definitions import StepCall
from holdfast.errors import DefinitionError

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ToolCallPart
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    from holdfast.agents.agent import Agent
    from holdfast.agents.tool_parameters import RawArguments
    from holdfast.reports.tool_calls import ToolCallStatus


class ToolCatalog:
    """The tools of one run.

    The model can call all of them at any time, by name. It sees the tools of a skill only after it has loaded the
    skill, in this run or earlier in the same conversation.
    """

    def __init__(self, agent: Agent[Any], toolset_tools: Sequence[Tool], instructions: str | None) -> None:
        self._agent = agent
        self._instructions = instructions
        self.callables: dict[str, Tool | Agent[Any]] = {**agent.callables, **agent.skill_tools}
        for tool in toolset_tools:
            if tool.name in self.callables:
                raise DefinitionError(
                    f"agent {agent.name!r} has two tools that are called {tool.name!r}, one of them from a toolset: "
                    f"give the toolset a prefix"
                )
            self.callables[tool.name] = tool
        self._hidden_names = set(agent.skill_tools)
        """The tools that the model does not see yet."""
        visible = (*agent.callables.values(), *toolset_tools)
        self._visible_definitions = [member.tool_definition for member in visible]
        self._parameters: ModelRequestParameters | None = None

    @property
    def parameters(self) -> ModelRequestParameters:
        """The current request parameters for the model library."""
        if self._parameters is None:
            self._parameters = self._agent.output_spec.make_parameters(self._visible_definitions, self._instructions)
        return self._parameters

    def reveal_loaded_tools(self, calls: Sequence[ToolCallPart], outcomes: Sequence[ToolCallStatus]) -> None:
        """Show the model the tools of skills that these calls have loaded."""
        if not self._hidden_names:
            return
        loaded = [call for call, outcome in zip(calls, outcomes, strict=True) if outcome.record.ok]
        shown = [definition for call in loaded for definition in self._reveal_skill_tools(call)]
        if shown:
            self._visible_definitions = [*self._visible_definitions, *shown]
            self._parameters = None

    def reveal_earlier_tools(self, messages: Sequence[ModelMessage]) -> None:
        """Show the model the tools of skills that were loaded in messages before this run.

        The step of a model call reads earlier runs of a session when it already has the parameters. So their tools are
        added to the same list in place. Nothing but the model's view depends on it.
        """
        if not self._hidden_names:
            return
        calls: dict[str, ToolCallPart] = {}
        for message in messages:
            for part in message.parts:
                if part.part_kind == "tool-call" and part.tool_name == LOAD_SKILL:
                    calls[part.tool_call_id] = part
                elif part.part_kind == "tool-return" and part.tool_call_id in calls and part.outcome == "success":
                    self._visible_definitions += self._reveal_skill_tools(calls[part.tool_call_id])

    def _reveal_skill_tools(self, call: ToolCallPart) -> list[ToolDefinition]:
        """The tools of the skill that this call has loaded, without those that the model already sees."""
        if call.tool_name != LOAD_SKILL:
            return []
        skill = self._agent.skills.get(_get_only_argument(call, "name") or "")
        names = [] if skill is None else [tool.name for tool in skill.tools if tool.name in self._hidden_names]
        self._hidden_names.difference_update(names)
        return [self._agent.skill_tools[name].tool_definition for name in names]

    def make_command(self, execution: Execution, call: ToolCallPart) -> tuple[RecordKind, str, Any]:
        """The command that executes a call of the model, in workflow code."""
        name = call.tool_name[:100] or "?"
        member = self.callables.get(name)
        if member is None:
            return self._make_unknown_command(name)
        agent = self._agent
        if isinstance(member, Tool):
            return RecordKind.STEP, name, member.make_call(call, agent.name, agent.deps_type, agent.approvals)
        task = _get_task(call)
        if task is None:
            return RecordKind.STEP, name, make_rejected_call(name, 'Send the whole task as one text: {"task": "..."}')
        child = make_child_call(execution, member, (task,), {})
        set_parent(child.run_id, execution.run_id)
        return RecordKind.CHILD, member.name, child

    def make_approved_command(
        self, name: str, call: ToolCallPart, arguments: RawArguments
    ) -> tuple[RecordKind, str, StepCall]:
        """The command that executes a call with these arguments, after a person approved it or none is needed."""
        member, agent = self.callables.get(name), self._agent
        if not isinstance(member, Tool):  # a deploy removed it since the model called it
            return self._make_unknown_command(name)
        return RecordKind.STEP, name, member.make_approved_call(call, agent.name, agent.deps_type, arguments)

    def _make_unknown_command(self, name: str) -> tuple[RecordKind, str, StepCall]:
        known = [known_name for known_name in self.callables if known_name not in self._hidden_names]
        return RecordKind.STEP, name, make_unknown_tool_call(name, known)

    def get_argument_schema(self, name: str) -> bytes:
        """The JSON schema of a tool's arguments, for people who edit them; ``b""`` if the tool was removed."""
        member = self.callables.get(name)
        return to_json(member.schema) if isinstance(member, Tool) else b""


def _get_task(call: ToolCallPart) -> str | None:
    task = _get_only_argument(call, "task")
    return task if task is not None and task.strip() else None


def _get_only_argument(call: ToolCallPart, name: str) -> str | None:
    """The only argument of a call, if it is a text with this name."""
    try:
        arguments = call.args_as_dict(raise_if_invalid=True)
    except (ValueError, AssertionError):
        return None
    value = arguments.get(name)
    return value if isinstance(value, str) and len(arguments) == 1 else None
