"""Flows of CrewAI in a program.

The methods of a flow run again when its program does; the calls that they make return what they returned before: those
of models, tools, and crews, and the answers of people. A flow's state begins with an id that CrewAI makes up; in a
program, it is the same when the program runs again.
"""

from __future__ import annotations

from asyncio import events
from typing import Any

from crewai.agents.agent_executor import AgentExecutor
from crewai.flow.flow import Flow
from crewai.flow.persistence.base import FlowPersistence

from holdfast.codec import codec_for
from holdfast.core.states import Effect
from holdfast.engine.program_context import find_program
from holdfast.errors import UsageError
from holdfast.integrations.crewai.crew_runs import run_in_own_loop
from holdfast.integrations.crewai.generated_values import make_id
from holdfast.integrations.crewai.human_input import request_review_sync, request_text_sync, use_approvals
from holdfast.integrations.crewai.method_wrappers import Method, is_outermost, wrap_in_subclasses, wrap_method
from holdfast.integrations.tool_call import record_tool_call_sync

LOAD_STEP = "flow_state"


def replace_methods() -> None:
    """Let flows in a program ask in approvals, and begin with the same state when it runs again."""
    wrap_method(_get_base(), "kickoff", _wrap_kickoff)
    wrap_method(_get_base(), "kickoff_async", _wrap_kickoff_async)
    wrap_method(_get_base(), "_resolve_input_provider", _wrap_input_provider)
    wrap_method(_get_base(), "_request_human_feedback", _wrap_feedback)
    wrap_in_subclasses(FlowPersistence, {"load_state": _wrap_load_state})


def _get_base() -> type[Any]:
    """The class that defines the methods of flows."""
    return next(cls for cls in Flow.__mro__ if "kickoff_async" in cls.__dict__)


def _wrap_kickoff(original: Method) -> Method:
    def kickoff(flow: Any, *args: Any, **kwargs: Any) -> Any:
        program = find_program()
        if program is not None and events._get_running_loop() is program.run.loop:
            raise UsageError(
                "Flow.kickoff() would block the event loop that records its steps: `await flow.kickoff_async(...)`, or "
                "make the @program a plain function"
            )
        return original(flow, *args, **kwargs)

    return kickoff


def _wrap_kickoff_async(original: Method) -> Method:
    async def kickoff_async(flow: Any, *args: Any, **kwargs: Any) -> Any:
        program = find_program()
        if program is None or isinstance(flow, AgentExecutor):
            return await original(flow, *args, **kwargs)
        use_approvals()
        inputs = args[0] if args else kwargs.get("inputs")
        if not (inputs and "id" in inputs):
            flow._stamp_state_id(make_id("flow", type(flow).__qualname__))
        if events._get_running_loop() is program.run.loop and not flow.stream:
            return await run_in_own_loop(lambda: original(flow, *args, **kwargs))
        return await original(flow, *args, **kwargs)

    return kickoff_async


def _wrap_load_state(original: Method) -> Method:
    codec = codec_for(Any)

    def load_state(persistence: FlowPersistence, flow_uuid: str) -> Any:
        # A state that was saved later must not be read when the program runs again.
        if find_program() is None or not is_outermost(persistence, "load_state", original):
            return original(persistence, flow_uuid)
        return record_tool_call_sync(
            LOAD_STEP, {"id": flow_uuid}, lambda: original(persistence, flow_uuid), effect=Effect.READ, codec=codec
        )

    return load_state


# People


class _ApprovalInput:
    """Answers ``Flow.ask``."""

    def request_input(self, message: str, flow: Any, metadata: dict[str, Any] | None = None) -> str | None:
        """What a person answers; ``None``: the question was denied."""
        return request_text_sync(message)


def _wrap_input_provider(original: Method) -> Method:
    def resolve(flow: Any) -> Any:
        provider = original(flow)
        is_console = type(provider).__name__ in ("ConsoleProvider", "ConsoleInputProvider")
        return _ApprovalInput() if is_console and find_program() is not None else provider

    return resolve


def _wrap_feedback(original: Method) -> Method:
    def request(flow: Any, message: str, output: Any, *args: Any, **kwargs: Any) -> str:
        if find_program() is None:
            return original(flow, message, output, *args, **kwargs)
        return request_review_sync(f"{message}\n\n{output}")

    return request
