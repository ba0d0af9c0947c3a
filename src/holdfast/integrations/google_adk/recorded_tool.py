"""Tools and code executors as recorded steps.

A tool of the framework has a result, and it may change the state of the session and the *actions* of its event, such as
a transfer to another agent. If it does, the record of the tool has both. In a replay the tool is not executed, and its
changes are made again.

Some tools of the framework are a part of its control flow, and are executed again: those that set an action and do
nothing else, and those that run an agent or a node in the same session. What they call is recorded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, cast

from google.adk.agents.invocation_context import InvocationContext
from google.adk.code_executors.base_code_executor import BaseCodeExecutor
from google.adk.code_executors.built_in_code_executor import BuiltInCodeExecutor
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionResult
from google.adk.events.event_actions import EventActions
from google.adk.tools.agent_tool import _SingleTurnAgentTool, _TaskAgentTool  # pyright: ignore[reportPrivateUsage]
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.set_model_response_tool import SetModelResponseTool
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.adk.tools.tool_context import ToolContext
from google.adk.tools.transfer_to_agent_tool import TransferToAgentTool, transfer_to_agent
from google.genai import types
from pydantic import BaseModel

from holdfast.authoring.ask import ask
from holdfast.codec import codec_for
from holdfast.core.states import Effect
from holdfast.engine.program_context import find_program
from holdfast.errors import StepOutcomeUnknown
from holdfast.integrations.google_adk.method_override import override_method
from holdfast.integrations.google_adk.recorded_model import make_call_id
from holdfast.integrations.tool_call import describe_failure, record_tool_call, record_tool_call_sync

CODE_STEP = "execute code"
Effects = Mapping[str, Effect | None]
"""By the names of tools; ``None``: the tool is no step, and is executed again."""

_FLOW_TOOL_TYPES = (SetModelResponseTool, TransferToAgentTool, _SingleTurnAgentTool, _TaskAgentTool)
_FLOW_FUNCTIONS = (exit_loop, transfer_to_agent)
FLOW_TOOL_NAMES = frozenset({"finish_task", "adk_request_input", "set_model_response", "transfer_to_agent"})
"""Tools of these names belong to the framework's control flow."""
_MAX_MEDIA_DEPTH = 2
"""The framework looks for media in a result, in its items, and in their items."""
_MARKER = "$adk"
"""The key that distinguishes recorded objects of the framework from data of the tool."""

_NO_ACTIONS = EventActions()
_input_codec = codec_for(CodeExecutionInput)


def make_tool_durable(tool: BaseTool, effects: Effects, *, asks: bool) -> None:
    """Let the calls of this tool be recorded when a program makes them."""
    if "run_async" in vars(tool) and getattr(vars(tool)["run_async"], "func", None) is _run:
        return
    cast(Any, tool).run_async = partial(_run, tool, tool.run_async, effects, asks)


async def confirm(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> None:
    """If the tool requires a confirmation, ask a person for it, and wait."""
    if find_program() is None or tool_context.tool_confirmation is not None:
        return
    if await tool.check_require_confirmation(args, tool_context) is True:
        confirmed = await ask(f"May the agent {tool_context.agent_name!r} call {_format_call(tool, args)}?")
        tool_context.tool_confirmation = ToolConfirmation(confirmed=confirmed)


async def _run(
    tool: BaseTool,
    run: Callable[..., Awaitable[Any]],
    effects: Effects,
    asks: bool,
    *,
    args: dict[str, Any],
    tool_context: ToolContext,
) -> Any:
    """The tool's ``run_async``."""
    if find_program() is None or is_flow_tool(tool, effects):
        return await run(args=args, tool_context=tool_context)
    while True:
        result = await _record(tool, run, effects, args, tool_context)
        requested = tool_context.actions.requested_tool_confirmations
        request = requested.pop(tool_context.function_call_id or "", None) if asks else None
        if request is None:
            return result
        question = request.hint or f"May the agent {tool_context.agent_name!r} call {_format_call(tool, args)}?"
        tool_context.tool_confirmation = ToolConfirmation(
            hint=request.hint, confirmed=await ask(question), payload=request.payload
        )
        tool_context.actions.skip_summarization = None


async def _record(
    tool: BaseTool,
    run: Callable[..., Awaitable[Any]],
    effects: Effects,
    args: dict[str, Any],
    tool_context: ToolContext,
) -> Any:
    is_executed = False

    async def execute() -> Any:
        nonlocal is_executed
        is_executed = True
        before = _dump_actions(tool_context)
        result = _encode_media(await run(args=args, tool_context=tool_context))
        after = _dump_actions(tool_context)
        changed = {name: value for name, value in after.items() if before.get(name) != value}
        return {_MARKER: "actions", "actions": changed, "result": result} if changed else result

    arguments = dict(args)
    if (confirmation := tool_context.tool_confirmation) is not None:
        arguments["tool_confirmation"] = {"confirmed": confirmation.confirmed, "payload": confirmation.payload}
    call_id = make_call_id(types.FunctionCall(name=tool.name, args=args))
    effect = effects.get(tool.name) or Effect.IDEMPOTENT
    try:
        result = await record_tool_call(tool.name, arguments, execute, call_id=call_id, effect=effect)
    except StepOutcomeUnknown as unknown:
        return {"error": describe_failure(unknown, tool.name)}
    if isinstance(result, dict) and cast("dict[str, Any]", result).get(_MARKER) == "actions":
        record = cast("dict[str, Any]", result)
        if not is_executed:
            _apply_actions(tool_context, record["actions"])
        result = record["result"]
    return _decode_media(result)


def is_flow_tool(tool: BaseTool, effects: Effects) -> bool:
    """Whether the tool is executed again in a replay."""
    if tool.name in effects:
        return effects[tool.name] is None
    if isinstance(tool, _FLOW_TOOL_TYPES) or tool.name in FLOW_TOOL_NAMES:
        return True
    if isinstance(tool, FunctionTool):
        spec = tool._spec  # pyright: ignore[reportPrivateUsage]
        return tool.func in _FLOW_FUNCTIONS or spec.is_generator
    return type(tool).__name__ == "NodeTool"  # its module is imported only by those who use it


def _format_call(tool: BaseTool, args: dict[str, Any]) -> str:
    return f"{tool.name}({', '.join(f'{name}={value!r}' for name, value in args.items())})"


# What a tool changes


def _dump_actions(tool_context: ToolContext) -> dict[str, Any]:
    actions = tool_context.actions
    return {} if actions == _NO_ACTIONS else actions.model_dump(mode="json", exclude_defaults=True)


def _apply_actions(tool_context: ToolContext, recorded: dict[str, Any]) -> None:
    """Make the changes that the tool made when it was executed."""
    for name, value in recorded.get("state_delta", {}).items():
        tool_context.state[name] = value
    actions = tool_context.actions
    changed = EventActions.model_validate({name: value for name, value in recorded.items() if name != "state_delta"})
    for name in changed.model_fields_set:
        setattr(actions, name, getattr(changed, name))


# Its result


def _encode_media(value: Any, depth: int = 0) -> Any:
    """A result as data: images and other media are objects of the framework in it."""
    if isinstance(value, types.Part | types.FunctionResponse):
        return {_MARKER: type(value).__name__, "value": value.model_dump(mode="json", exclude_none=True)}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if depth < _MAX_MEDIA_DEPTH and isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {name: _encode_media(item, depth + 1) for name, item in items}
    if depth < _MAX_MEDIA_DEPTH and isinstance(value, list | tuple):
        return [_encode_media(item, depth + 1) for item in cast("list[Any]", value)]
    return value


def _decode_media(value: Any) -> Any:
    if isinstance(value, dict):
        data = cast("dict[str, Any]", value)
        if (kind := data.get(_MARKER)) is not None:
            return {"Part": types.Part, "FunctionResponse": types.FunctionResponse}[kind].model_validate(data["value"])
        return {name: _decode_media(item) for name, item in data.items()}
    if isinstance(value, list):
        return [_decode_media(item) for item in cast("list[Any]", value)]
    return value


# Code executors


def make_executor_durable(executor: object) -> None:
    """Let what this executor runs be recorded. Gemini's own executor runs code as a part of the model call."""
    if isinstance(executor, BaseCodeExecutor) and not isinstance(executor, BuiltInCodeExecutor):
        override_method(executor, "execute_code", _make_method)


def _make_method(cls: type[BaseCodeExecutor]) -> Any:
    def execute_code(
        self: BaseCodeExecutor, invocation_context: InvocationContext, code_execution_input: CodeExecutionInput
    ) -> CodeExecutionResult:
        if find_program() is None:
            return cls.execute_code(self, invocation_context, code_execution_input)
        given = _input_codec.round_trip(code_execution_input, "the code")[0].decode()
        return record_tool_call_sync(
            CODE_STEP,
            {"input": given},
            lambda: cls.execute_code(self, invocation_context, code_execution_input),
            codec=codec_for(CodeExecutionResult),
        )

    return execute_code
