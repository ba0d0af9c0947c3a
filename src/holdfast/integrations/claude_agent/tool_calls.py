"""Calls of in-process tools as recorded steps of a turn.

When a turn is resumed, the model decides again which tools it calls, and a call with the same arguments as before may
be a repetition or a new one. The id that the model gives to each call decides it: a call is identified by its tool, its
arguments, and this id. Some calls were recorded whose results are not in the transcript that the model continues. If
the transcript has the call, its result is sent to the model (``take_undelivered``). If it does not, the model makes the
call again, with another id, and the call is matched with the recorded one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple
from weakref import WeakSet

from mcp.server import Server
from mcp.types import CallToolRequestParams, CallToolResult

from holdfast.authoring.program_calls import get_program, open_in_place_call
from holdfast.codec import codec_for, compute_content_digest
from holdfast.core.program_calls import LoggedCall
from holdfast.core.states import Effect
from holdfast.engine.definitions import StepDefinition
from holdfast.engine.in_place_call import StepFunction
from holdfast.engine.program_context import ProgramContext, find_program
from holdfast.engine.program_run import CallContent
from holdfast.errors import StepOutcomeUnknown, UnrecordableValue, UsageError
from holdfast.integrations import ToolFailed, describe_failure

CALL_METHOD = "tools/call"
CALL_ID = "claudecode/toolUseId"
"""Where the executable says which call of the model a request is."""
_EXTRA = "claude_agent tool calls"
_ANY_CODEC = codec_for(Any)
_recorded_servers: WeakSet[Any] = WeakSet()


class ToolUse(NamedTuple):
    """A call of an in-process tool by the model."""

    id: str
    server: str
    tool: str
    arguments: Mapping[str, Any]

    @property
    def full_name(self) -> str:
        """The name that the model knows it by."""
        return f"mcp__{self.server}__{self.tool}"

    @property
    def digest(self) -> str:
        """Of what is called, whichever call it is."""
        return compute_content_digest(self.server, self.tool, dict(self.arguments))


class ToolCalls:
    """The tool calls of one turn."""

    def __init__(self, program: ProgramContext, effects: Mapping[str, Effect]) -> None:
        self._effects = effects
        self._undelivered: dict[str, tuple[str, LoggedCall]] = {}
        """The digest and the record of calls that earlier processes made in this turn, by their ids."""
        for call in program.run.execution.calls.list_calls():
            if call.identity.container == program.thread.container:
                details = json.loads(call.identity.details or "{}")
                if "tool_call" in details and "digest" in details:
                    self._undelivered[details["tool_call"]] = (details["digest"], call)
        # The servers' tasks find it by the call that they belong to.
        program.run.extras[f"{_EXTRA} {program.thread.container}"] = self

    def note_delivered(self, id: str, *, is_error: bool) -> None:
        """The transcript has a result for this call. If the call succeeded, an error only says it was interrupted."""
        _, call = self._undelivered.get(id, ("", None))
        if call is not None and (not is_error or (call.outcome is not None and _is_failure(call))):
            del self._undelivered[id]

    async def take_undelivered(self, use: ToolUse) -> str | None:
        """What the model has not learned about a call that it knows of; ``None``: nothing is recorded of it."""
        digest, call = self._undelivered.get(use.id, ("", None))
        if call is None or digest != use.digest or not call.must_match:
            return None
        del self._undelivered[use.id]
        return describe_result(await self._record(use, use.id, _refuse))

    async def call(self, use: ToolUse, execute: Callable[[], Awaitable[Any]]) -> CallToolResult:
        """The result of a call: the recorded one, or that of ``execute``."""
        same = [id for id, (digest, _) in self._undelivered.items() if digest == use.digest]
        id = use.id if use.id in same or not same else same[0]
        self._undelivered.pop(id, None)
        return await self._record(use, id, execute)

    async def _record(self, use: ToolUse, id: str, execute: Callable[[], Awaitable[Any]]) -> CallToolResult:
        async def execute_plain() -> Any:
            result = await execute()
            plain = to_plain(result, use.full_name)
            if result.is_error:
                raise ToolFailed(_join_texts(result), plain)
            return plain

        async def record() -> Any:
            effect = self._effects.get(use.full_name) or self._effects.get(use.tool) or Effect.IDEMPOTENT

            def make_step(function: StepFunction) -> StepDefinition:
                return StepDefinition(
                    use.tool, function, True, _ANY_CODEC, tuple(use.arguments), {}, effect=effect, is_tool=True
                )

            details = json.dumps({"tool_call": id, "digest": use.digest})

            def describe(position: int) -> str:
                return details

            content = CallContent(compute_content_digest(use.digest, id), describe)
            call = open_in_place_call(get_program(), make_step, (), dict(use.arguments), content)
            return await call.call(execute_plain)

        try:
            # Each call is a logical thread of its own, whichever task of the server makes it.
            return CallToolResult.model_validate(await asyncio.create_task(record()))
        except ToolFailed as failed:
            return CallToolResult.model_validate(failed.output)
        except StepOutcomeUnknown as error:
            text = {"type": "text", "text": describe_failure(error, use.tool)}
            return CallToolResult.model_validate({"content": [text], "isError": True})


def record_tools(name: str, server: Server[Any]) -> None:
    """Let the calls of a server's tools be recorded, where they are made in a turn of a program."""
    entry = server.get_request_handler(CALL_METHOD)
    if entry is None or server in _recorded_servers:
        return
    _recorded_servers.add(server)

    async def call_tool(context: Any, params: CallToolRequestParams) -> Any:
        program = find_program()
        calls = None if program is None else program.run.extras.get(f"{_EXTRA} {program.thread.container}")
        if not isinstance(calls, ToolCalls):
            return await entry.handler(context, params)
        id = str((params.meta or {}).get(CALL_ID, ""))
        use = ToolUse(id, name, params.name, params.arguments or {})
        return await calls.call(use, lambda: entry.handler(context, params))

    server.add_request_handler(CALL_METHOD, CallToolRequestParams, call_tool)


def parse_effects(effects: Mapping[str, Effect | str]) -> dict[str, Effect]:
    """Effects by the names of tools. Raises ``UsageError`` for an effect that is none."""
    try:
        return {name: Effect(effect) for name, effect in effects.items()}
    except ValueError as error:
        known = ", ".join(repr(one.value) for one in Effect)
        raise UsageError(f"query(effects=...): {error}. An effect is one of {known}") from None


def check_effects(effects: Mapping[str, Effect], tools: Collection[str]) -> None:
    """Raise ``UsageError`` for an effect of what is not one of these in-process tools, given by their full names."""
    for name in effects:
        found = [tool for tool in tools if name in (tool, _get_short_name(tool))]
        if len(found) != 1:
            known = ", ".join(map(repr, sorted(tools))) or "none"
            raise UsageError(f"query(effects=...): {name!r} is not the name of one in-process tool. There are: {known}")


def _get_short_name(full_name: str) -> str:
    return full_name.split("__", 2)[-1]


def to_plain(result: Any, name: str) -> dict[str, Any]:
    """A result as JSON data."""
    if not isinstance(result, CallToolResult):
        raise UnrecordableValue(f"{name} returned {type(result).__name__}, which is not the result of a tool")
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


def describe_result(result: CallToolResult) -> str:
    """A result as text for the model."""
    return ("failed: " if result.is_error else "returned: ") + _join_texts(result)


def _join_texts(result: CallToolResult) -> str:
    return "\n".join(str(getattr(block, "text", f"[{block.type}]")) for block in result.content)


def _is_failure(call: LoggedCall) -> bool:
    record = call.outcome.record if call.outcome is not None else None
    return record is None or not record.ok


async def _refuse() -> CallToolResult:
    raise AssertionError("the call has an outcome")
