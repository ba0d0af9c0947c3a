"""Streamed runs: ``Runner.run_streamed`` in a program, and of a run of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

from agents import Agent, RunContextWrapper, RunItemStreamEvent, RunResult, RunResultStreaming
from agents.stream_events import StreamEvent

from holdfast.errors import RunCancelled
from holdfast.integrations.openai_agents.agent_run import AgentRun, AgentSettings, get_resume_arguments, sdk_runner
from holdfast.integrations.openai_agents.sdk_hooks import current_agent_run
from holdfast.integrations.openai_agents.sessions import record_session

if TYPE_CHECKING:
    from holdfast.integrations.openai_agents.agent_program import AgentCall, AgentProgram

_END = object()


class ProgramStream(RunResultStreaming):
    """The streamed result of an agent's run in a program, which asks for approvals and then continues.

    Each continuation is a streamed result of the SDK. This one has the attributes of the current one: both objects
    share their ``__dict__``.
    """

    __slots__ = ("_agent", "_agent_run", "_arguments", "_current")

    def __init__(
        self,
        settings: AgentSettings,
        agent: Agent[Any],
        input: Any,
        arguments: Mapping[str, Any],
        *,
        is_awaited: bool = False,
    ) -> None:
        self._agent = agent
        self._agent_run = AgentRun.start(settings, agent, input, arguments, is_awaited=is_awaited)
        arguments = record_session(arguments, agent.name)
        self._arguments = get_resume_arguments(arguments)
        self._start(input, arguments)

    def _start(self, input: Any, arguments: Mapping[str, Any]) -> None:
        token = current_agent_run.set(self._agent_run)
        try:
            self._current = sdk_runner.run_streamed(self._agent, input, **arguments)
        finally:
            current_agent_run.reset(token)
        if (loop_task := self._current.run_loop_task) is not None:
            # The reader of the events gets its error. Without a look at it, asyncio would also print it at the end.
            loop_task.add_done_callback(lambda task: task.cancelled() or task.exception())
        _share_attributes(self, self._current)

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller has cancelled the run at once."""
        return vars(self)["_cancel_mode"] == "immediate"

    async def stream_events(self) -> AsyncGenerator[StreamEvent]:  # type: ignore[override]
        """The events of the run."""
        while True:
            async for event in self._current.stream_events():
                yield event
            if not self.interruptions:
                return
            self._start(await self._agent_run.answer_interruptions(self._current), self._arguments)


class FollowedStream(RunResultStreaming):
    """The streamed result of a run of its own, for the caller that has started it.

    The program passes on the events and shares its attributes, if this process executes it. If the run has ended
    earlier, or in another process, there are only the events of its items.
    """

    __slots__ = ("_program", "_relay", "_task")

    def __init__(self, program: AgentProgram, call: AgentCall, run_id: str | None) -> None:
        super().__init__(
            input=call.input,
            new_items=[],
            raw_responses=[],
            final_output=None,
            input_guardrail_results=[],
            output_guardrail_results=[],
            tool_input_guardrail_results=[],
            tool_output_guardrail_results=[],
            context_wrapper=RunContextWrapper(call.arguments.get("context")),
            current_agent=program.agent,
            current_turn=0,
            max_turns=call.arguments.get("max_turns"),
            _current_agent_output_schema=None,
            trace=None,
        )
        self._program = program
        self._relay = call.relay
        self._relay.follower = self
        self._task = asyncio.create_task(self._follow(call, run_id))
        self.run_loop_task = self._task

    async def _follow(self, call: AgentCall, run_id: str | None) -> None:
        relay = self._relay
        try:
            handle = await self._program.start_call(call, run_id)
            recorded = await self._program.await_end(handle, call)
            if not relay.is_followed:
                self._add_result(await self._program.load_result(recorded, call.arguments.get("context")))
        except RunCancelled as error:
            if not relay.is_cancelled:
                relay.events.put_nowait(error)
        except Exception as error:
            relay.events.put_nowait(error)
        finally:
            self.is_complete = True
            relay.events.put_nowait(_END)

    def _add_result(self, result: RunResult) -> None:
        for name, value in vars(result).items():
            if name in vars(self):
                vars(self)[name] = value
        self.current_agent = result.last_agent
        for item in result.new_items:
            self._relay.events.put_nowait(RunItemStreamEvent(_EVENT_NAMES.get(item.type, item.type), item))  # type: ignore[arg-type]

    async def stream_events(self) -> AsyncGenerator[StreamEvent]:  # type: ignore[override]
        """The events of the run."""
        while (event := await self._relay.events.get()) is not _END:
            if isinstance(event, Exception):
                raise event
            yield event


class EventRelay:
    """Passes the events of a streamed run from its program to the caller."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.follower: FollowedStream | None = None
        """The caller's stream; ``None``: the caller is another process."""
        self.is_followed = False
        """Whether the caller sees the run as it executes."""
        self._stream: ProgramStream | None = None

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller has cancelled the stream."""
        return self._stream is not None and self._stream.is_cancelled

    async def run(
        self, settings: AgentSettings, agent: Agent[Any], input: Any, arguments: Mapping[str, Any]
    ) -> ProgramStream:
        """``Runner.run_streamed`` in the program."""
        stream = self._stream = ProgramStream(settings, agent, input, arguments, is_awaited=True)
        self.is_followed = self.follower is not None
        self._share(stream)
        async for event in stream.stream_events():
            if self.is_followed:
                self._share(stream)  # its attributes are others after an approval
                self.events.put_nowait(event)
        return stream

    def _share(self, stream: ProgramStream) -> None:
        if self.follower is not None:
            _share_attributes(self.follower, stream)


def _share_attributes(one: RunResultStreaming, other: RunResultStreaming) -> None:
    """Give an object the attributes of the other one, from now on."""
    setattr(one, "__dict__", vars(other))  # noqa: B010 - type checkers think that it is final


_EVENT_NAMES = {
    "message_output_item": "message_output_created",
    "handoff_call_item": "handoff_requested",
    "handoff_output_item": "handoff_occured",
    "tool_call_item": "tool_called",
    "tool_call_output_item": "tool_output",
    "reasoning_item": "reasoning_item_created",
    "mcp_approval_request_item": "mcp_approval_requested",
    "mcp_approval_response_item": "mcp_approval_response",
    "mcp_list_tools_item": "mcp_list_tools",
}
"""The SDK's names for the events of items."""
