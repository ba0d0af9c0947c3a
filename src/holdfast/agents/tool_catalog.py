"""What a run offers its model: tools, sub-agents, the tools of toolsets, and those of skills that it has loaded.

It changes during a run only by what is recorded, so it is the same again on every replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from holdfast.agents import deps as handing
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

_TASK_SCHEMA = {
    "type": "object",
    "properties": {
        "task": {
            "type": "string",
            "description": "The whole task. The agent sees nothing of this conversation: tell it all that it needs.",
        }
    },
    "required": ["task"],
    "additionalProperties": False,
}


class ToolCatalog:
    """The tools of one run.

    All of them can be called at any time, by name. The tools of a skill are only shown to the model once it has loaded
    the skill: in this run, or earlier in the same conversation.
    """

    def __init__(self, agent: Agent[Any], toolset_tools: Sequence[Tool], instructions: str | None) -> None:
        self._agent = agent
        self._instructions = instructions
        self.callables: dict[str, Tool | Agent[Any]] = {**agent.callables, **agent.skill_tools}
        """All that can be called, by name."""
        for tool in toolset_tools:
            if tool.name in self.callables:
                raise DefinitionError(
                    f"agent {agent.name!r} has two tools that are called {tool.name!r}, one of them from a toolset: "
                    f"give the toolset a prefix"
                )
            self.callables[tool.name] = tool
        self._hidden_names = set(agent.skill_tools)
        """The names of those that the model is not shown."""
        self._visible_definitions = [
            *agent.get_tool_definitions(),
            *(make_tool_definition(tool.name, tool) for tool in toolset_tools),
        ]
        self._parameters: ModelRequestParameters | None = None

    @property
    def parameters(self) -> ModelRequestParameters:
        """What the model is offered now, as the model library wants it."""
        if self._parameters is None:
            self._parameters = self._agent.output_spec.make_parameters(self._visible_definitions, self._instructions)
        return self._parameters

    def reveal_loaded_tools(self, calls: Sequence[ToolCallPart], outcomes: Sequence[ToolCallStatus]) -> None:
        """Calls have their outcomes: there may be more to offer from now on."""
        if not self._hidden_names:
            return
        loaded = [call for call, outcome in zip(calls, outcomes, strict=True) if outcome.record.ok]
        shown = [definition for call in loaded for definition in self._reveal_skill_tools(call)]
        if shown:
            self._visible_definitions = [*self._visible_definitions, *shown]
            self._parameters = None

    def reveal_earlier_tools(self, messages: Sequence[ModelMessage]) -> None:
        """What was said before the run: skills that were loaded there are loaded.

        Earlier runs of a session are read by the step that asks the model, and for what it was handed already. So
        their tools are added to that very list. Nothing but the model's view depends on it.
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
        """The tools of the skill that this call has loaded, as far as the model was not shown them yet."""
        if call.tool_name != LOAD_SKILL:
            return []
        skill = self._agent.skills.get(_get_only_argument(call, "name") or "")
        names = [] if skill is None else [one.name for one in skill.tools if one.name in self._hidden_names]
        self._hidden_names.difference_update(names)
        return [self._agent.get_tool_definition(name, self._agent.skill_tools[name]) for name in names]

    def make_command(self, execution: Execution, call: ToolCallPart) -> tuple[RecordKind, str, Any]:
        """The command that carries out a call that the model asks for, in workflow code."""
        name = call.tool_name[:100] or "?"
        member = self.callables.get(name)
        if member is None:
            return (
                RecordKind.STEP,
                name,
                make_unknown_tool_call(name, [one for one in self.callables if one not in self._hidden_names]),
            )
        if isinstance(member, Tool):
            return RecordKind.STEP, name, self.make_tool_call(member, call)
        task = _get_task(call)
        if task is None:
            return RecordKind.STEP, name, make_rejected_call(name, 'Send the whole task as one text: {"task": "..."}')
        child = make_child_call(execution, member, (task,), {})
        handing.set_parent(child.run_id, execution.run_id)
        return RecordKind.CHILD, member.name, child

    def make_tool_call(self, tool: Tool, call: ToolCallPart) -> StepCall:
        """The call of a tool, as a step."""
        return tool.make_call(call, self._agent.name, self._agent.deps_type, self._agent.approvals)

    def make_approved_command(
        self, name: str, call: ToolCallPart, arguments: RawArguments
    ) -> tuple[RecordKind, str, StepCall]:
        """The command that carries out a call once nobody has to be asked any more, with these arguments."""
        member = self.callables.get(name)
        if not isinstance(member, Tool):  # it was there when the call was made
            return (
                RecordKind.STEP,
                name,
                make_unknown_tool_call(name, [one for one in self.callables if one not in self._hidden_names]),
            )
        return (
            RecordKind.STEP,
            name,
            member.make_approved_call(call, self._agent.name, self._agent.deps_type, arguments),
        )

    def get_argument_schema(self, name: str) -> bytes:
        """The JSON schema of a tool's arguments, for people who edit them; nothing if the tool is gone."""
        member = self.callables.get(name)
        return to_json(member.schema) if isinstance(member, Tool) else b""


def make_tool_definition(name: str, target: Tool | Agent[Any]) -> ToolDefinition:
    """What the model is shown of a tool or a sub-agent."""
    from pydantic_ai.tools import ToolDefinition

    if isinstance(target, Tool):
        return target.make_tool_definition()
    return ToolDefinition(name=name, parameters_json_schema=_TASK_SCHEMA, description=target.description or None)


def _get_task(call: ToolCallPart) -> str | None:
    task = _get_only_argument(call, "task")
    return task if task is not None and task.strip() else None


def _get_only_argument(call: ToolCallPart, name: str) -> str | None:
    """The one argument of a call, if that is a text of this name."""
    try:
        given = call.args_as_dict(raise_if_invalid=True)
    except (ValueError, AssertionError):
        return None
    value = given.get(name)
    return value if isinstance(value, str) and len(given) == 1 else None
