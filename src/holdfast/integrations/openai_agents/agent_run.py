"""One run of the SDK's loop in a program: its model calls, tools, and approvals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agents import Agent, FunctionTool, Model, RunContextWrapper, RunResult, RunResultStreaming, RunState, Tool
from agents.items import ToolApprovalItem
from agents.run import AgentRunner
from agents.sandbox import SandboxAgent
from agents.tool_context import ToolContext

from holdfast.authoring import program_calls
from holdfast.authoring.approval_requests import ApprovalPolicy, request_approval
from holdfast.codec import compute_content_digest
from holdfast.codec.formatting import truncate
from holdfast.core.program_calls import LogicalThread
from holdfast.core.states import Effect
from holdfast.engine.program_context import ProgramContext, current_program, find_program, get_owner
from holdfast.engine.program_run import ProgramRun
from holdfast.errors import UsageError
from holdfast.integrations import record_tool_call
from holdfast.integrations.openai_agents.model_calls import RecordedModel
from holdfast.integrations.openai_agents.sdk_hooks import current_agent_run
from holdfast.integrations.openai_agents.sessions import record_session
from holdfast.integrations.openai_agents.tool_calls import check_tools, record_function_tool
from holdfast.reports.observations import describe_denial
from holdfast.reports.recorded_reply import INSTRUCTIONS_STEP
from holdfast.services.approvals import Answer
from holdfast.stores.approvals import ApprovalRequest

_MAX_QUESTION_LENGTH = 4000

sdk_runner = AgentRunner()
"""The SDK's own runner."""


@dataclass(frozen=True)
class AgentSettings:
    """The settings of a durable agent: see ``durable``."""

    name: str
    effects: Mapping[str, Effect] = field(default_factory=dict[str, Effect])
    approver: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


class ToolResult(NamedTuple):
    """What the SDK's function for a tool call returns, as far as its caller reads it."""

    output: Any
    is_sdk_generated_error: bool


class AgentRun:
    """One run of the SDK's loop in a program.

    Its model calls follow one another, each in a task of its own. They are made in one logical thread, so that a
    changed request is compared with the recorded one. Tools, guardrails, and approvals are in threads of their own.

    Args:
        settings: those of the durable agent.
        program: the program that makes the run.
        thread: the logical thread of its model calls.
    """

    def __init__(self, settings: AgentSettings, program: ProgramRun, thread: LogicalThread) -> None:
        self.settings = settings
        self.program = program
        self._thread = thread
        self._models: list[tuple[Model, RecordedModel]] = []

    @classmethod
    def start(
        cls, settings: AgentSettings, agent: Agent[Any], input: Any, arguments: Mapping[str, Any], *, is_awaited: bool
    ) -> AgentRun:
        """A new run of the SDK's loop in the calling program.

        If the caller awaits it, its model calls are in the caller's thread. Not with input guardrails: these end a run
        while its first model call is in flight, and a replay need not make that call.
        """
        check_agent(agent, arguments)
        program = find_program()
        assert program is not None
        is_in_order = is_awaited and not (agent.input_guardrails or _get_option(arguments, "input_guardrails"))
        thread = program.thread
        if not is_in_order:
            content = "" if isinstance(input, RunState) else compute_content_digest(input)
            calls = program.run.execution.calls
            thread = calls.get_named_thread(thread.container, calls.make_thread_name(thread, f"{agent.name} {content}"))
        return cls(settings, program.run, thread)

    def record_model(self, model: Model) -> Model:
        """The model with its calls recorded; the same object for the same model."""
        for known, recorded in self._models:
            if known is model:
                return recorded
        recorded = RecordedModel(model, self._enter_thread, self._check_tools)
        self._models.append((model, recorded))
        return recorded

    def _check_tools(self, tools: list[Tool]) -> None:
        check_tools(tools, f"agent {self.settings.name!r}")

    async def record_tool(
        self, tool: FunctionTool, context: ToolContext[Any], arguments: str, invoke: Callable[[], Awaitable[Any]]
    ) -> ToolResult:
        """The result of a tool call: the recorded one, or a new one."""
        effect = self.settings.effects.get(tool.name, Effect.IDEMPOTENT)
        return ToolResult(*await record_function_tool(tool, context, arguments, effect, invoke))

    async def record_instructions(
        self, agent: Agent[Any], context: RunContextWrapper[Any], call: Callable[[], Awaitable[str | None]]
    ) -> str | None:
        """The instructions that a function makes: the recorded ones, or new ones."""
        # With the input, because it may be the first call of this run's thread, which identifies the thread.
        arguments = {"agent": agent.name, "input": compute_content_digest(context.turn_input)}
        with self._enter_thread():
            return await record_tool_call(INSTRUCTIONS_STEP, arguments, call, effect=Effect.READ)

    @contextmanager
    def _enter_thread(self) -> Generator[None]:
        found = find_program()
        if found is None or found.run is not self.program:
            yield
            return
        token = current_program.set(ProgramContext(found.run, self._thread, get_owner()))
        try:
            yield
        finally:
            current_program.reset(token)

    # Approvals

    async def answer_interruptions(self, result: RunResult | RunResultStreaming) -> RunState[Any]:
        """Ask people for the approvals that an interrupted result waits for, and return the state to continue with."""
        state: Any = result.to_state()
        state._context.usage = result.context_wrapper.usage  # of an agent as a tool: its caller's
        items = list(result.interruptions)
        answers = await asyncio.gather(*(self._ask(item) for item in items))
        for item, answer in zip(items, answers, strict=True):
            if answer.approved:
                state.approve(item)
            else:
                state.reject(item, rejection_message=describe_denial(item.name or "tool", answer, 0.0))
        return state

    async def _ask(self, item: ToolApprovalItem) -> Answer:
        found = find_program()
        if found is None:
            raise UsageError(f"the tool {item.name!r} needs an approval, which can only be requested in a program")
        call = f"{item.name}({item.arguments or ''})"
        question = f"Agent {item.agent.name!r} asks to call {truncate(call, _MAX_QUESTION_LENGTH)}"
        request, policy = ApprovalRequest(question), ApprovalPolicy(self.settings.approver)

        async def ask() -> Answer:
            answer = (await request_approval(found.run.execution, request, policy)).answer
            assert answer is not None  # there is no timeout
            return answer

        return await program_calls.call_workflow_api(found, ask, "approval", item.name, item.arguments, item.call_id)


def check_agent(agent: Agent[Any], arguments: Mapping[str, Any]) -> None:
    """Refuse what a durable run cannot do."""
    if isinstance(agent, SandboxAgent) or _get_option(arguments, "sandbox") is not None:
        raise UsageError(
            f"agent {agent.name!r} uses a sandbox, whose state is not recorded: after a crash, the recorded calls "
            "would fit no new sandbox. Use function tools that call your sandbox."
        )


def _get_option(arguments: Mapping[str, Any], name: str) -> Any:
    """An option of ``run_config=``, which may be a dictionary."""
    run_config = arguments.get("run_config")
    return run_config.get(name) if isinstance(run_config, dict) else getattr(run_config, name, None)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


async def run_agent(settings: AgentSettings, agent: Agent[Any], input: Any, arguments: Mapping[str, Any]) -> RunResult:
    """``Runner.run`` in a program."""
    agent_run = AgentRun.start(settings, agent, input, arguments, is_awaited=True)
    arguments = record_session(arguments, agent.name)
    token = current_agent_run.set(agent_run)
    try:
        result = await sdk_runner.run(agent, input, **arguments)
        while result.interruptions:
            state = await agent_run.answer_interruptions(result)
            result = await sdk_runner.run(agent, state, **get_resume_arguments(arguments))
        return result
    finally:
        current_agent_run.reset(token)


def get_resume_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with which an interrupted run continues: the others are in its state."""
    return {name: arguments[name] for name in ("hooks", "run_config", "error_handlers", "session") if name in arguments}
