"""The agent loop: workflow code that calls the model, executes the tool calls it asks for, and calls it again.

Before the first model call, a run records: the previous run of its session, if it is in one (and the wait for that
run's end), the instructions, if a function makes them, and the tools of its toolsets. Then each turn is a model call,
and one command for every tool call in the answer, all issued at once, each recorded as it finishes (``tool_calls``).
The cost of a turn does not grow with the conversation: nothing here walks through it.

When the context is full, the model call records that, the conversation is compacted, and the call is made again.

**Deploys.** What a deploy may change is decided inside steps and recorded: whether a call needs approval, whether the
context is full, what is wrong with an answer. So runs continue when an agent's tools or rules change. Its toolsets are
different: each is a step at the beginning, so one more or one fewer is drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.agents.compaction import compact
from holdfast.agents.conversation import Conversation, is_final
from holdfast.agents.deps import clear_run_deps
from holdfast.agents.models.context_limit import Compaction, ContextLimit
from holdfast.agents.models.finish_reasons import get_ending
from holdfast.agents.models.messages import load_messages
from holdfast.agents.models.model_call import MODEL_CALL_STEP, ModelCall, issue_within_budget
from holdfast.agents.models.reply import Reply
from holdfast.agents.models.request import SeenParts
from holdfast.agents.planner import PlanTracker
from holdfast.agents.sessions import read_context
from holdfast.agents.tool_calls import execute_calls
from holdfast.agents.tool_catalog import ToolCatalog
from holdfast.agents.toolsets import list_toolset_tools
from holdfast.authoring.step import invoke
from holdfast.codec import codec_for
from holdfast.core.commands import Outcome
from holdfast.core.execution import Execution, get_current_execution
from holdfast.core.failure_origin import mark_origin
from holdfast.core.records import SESSION_STEP, RecordKind
from holdfast.engine.definitions import ChildCall, StepCall, StepDefinition
from holdfast.engine.step_context import get_step_executor
from holdfast.errors import ContextFull, InvalidOutput, TurnLimitReached
from holdfast.reports.agent_result import AgentResult

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

    from holdfast.agents.agent import Agent


async def run_agent(
    agent: Agent[Any], prompt: str | list[Any], message_history: list[Any] | None, session: str | None
) -> AgentResult[Any]:
    """One run of an agent, from the prompt to the answer."""
    execution = get_current_execution()
    assert execution is not None
    # No `finally`: a run that is only evicted from memory raises a BaseException, and keeps its deps.
    try:
        result = await _run_turns(execution, agent, prompt, message_history, session)
    except Exception:
        clear_run_deps(execution.run_id)
        raise
    clear_run_deps(execution.run_id)
    return result


async def _run_turns(
    execution: Execution,
    agent: Agent[Any],
    prompt: str | list[Any],
    message_history: list[Any] | None,
    session: str | None,
) -> AgentResult[Any]:
    previous = None if session is None else await _await_previous_run(execution, agent)
    instructions = agent.add_guidance(await _get_instructions(execution, agent))
    tools = await list_toolset_tools(execution, agent.toolsets)
    catalog = ToolCatalog(agent, tools, instructions)
    conversation = Conversation(load_messages(message_history or []))
    conversation.add_prompt(prompt, execution.loop.time(), instructions)
    catalog.reveal_earlier_tools(conversation.messages)
    planner = PlanTracker(agent.output_spec) if agent.has_planning else None
    seen_parts = SeenParts()
    invalid_count = 0  # consecutive answers that do not fit the output type
    while conversation.turn_count < agent.max_turns:
        is_last = conversation.turn_count + 1 == agent.max_turns
        model_call = ModelCall(
            agent.model_chain,
            conversation.context,
            catalog.parameters,
            turn=conversation.turn_count + 1,
            get_feedback=agent.output_spec.get_feedback if planner is None or is_last else planner.get_feedback,
            last_usage=conversation.last_usage,
            peak_output_tokens=conversation.peak_output_tokens,
            add_earlier_messages=None if previous is None else partial(previous.add_earlier_messages, catalog),
            seen_parts=seen_parts,
            context_limit=None
            if agent.compaction is None
            else ContextLimit(agent.compaction, conversation.is_just_compacted),
            continue_if_truncated=agent.output.continue_truncated and not is_last,
        )
        try:
            reply, outcome = await issue_within_budget(execution, StepCall(MODEL_CALL_STEP, (model_call,), {}))
        except ContextFull as full:
            # None if a deploy turned compaction off after `ContextFull` was recorded.
            settings = agent.compaction or Compaction()
            await compact(execution, settings, model_call, full.context_window, conversation)
            previous = None if previous is None else previous.trim_after_compaction(conversation)
            seen_parts = SeenParts()
            continue
        conversation.add_reply(reply)
        if planner is not None:
            planner.note_reply(reply)
        if reply.feedback is None:
            invalid_count = 0
        elif planner is None or not planner.is_about_plan(reply.feedback):
            invalid_count += 1
            if invalid_count > agent.output.retries:
                raise _make_invalid_output(execution, agent, invalid_count, reply.feedback, outcome)
        if reply.feedback is not None:
            conversation.add_correction(reply, execution.loop.time())
        elif is_final(reply):
            return _make_result(agent, conversation, reply, execution.run_id)
        else:
            calls = reply.response.tool_calls
            outcomes = await execute_calls(execution, catalog, calls, agent.approvals)
            catalog.reveal_loaded_tools(calls, outcomes)
            if planner is not None:
                planner.note_tool_results(outcomes)
            conversation.add_tool_results(calls, outcomes)
    raise TurnLimitReached(
        f"run {execution.run_id!r} of agent {agent.name!r} has made {conversation.turn_count} turns, which is its "
        f"max_turns, and has no answer yet. `holdfast show {execution.run_id}` tells what it did. With a higher "
        f"max_turns in the code, `holdfast retry {execution.run_id}` lets it go on."
    )


def _make_result(agent: Agent[Any], conversation: Conversation, reply: Reply, run_id: str) -> AgentResult[Any]:
    output = agent.output_spec.read(reply.response)
    if agent.output_spec.is_text:
        output = conversation.text_prefix + output
    return AgentResult(output, conversation.usage, run_id, *get_ending(reply.response))


def _make_invalid_output(
    execution: Execution, agent: Agent[Any], count: int, feedback: str, outcome: Outcome
) -> InvalidOutput:
    error = InvalidOutput(
        f"run {execution.run_id!r} of agent {agent.name!r}: {count} answers in a row do not fit its output_type. What "
        f"is wrong with the last one: {feedback}\n"
        f"`holdfast retry {execution.run_id}` asks the model once more; Output(..., retries=...) as the output_type "
        f"allows more."
    )
    mark_origin(error, outcome.origin)
    return error


class _PreviousRun:
    """The previous run of the session. The step that needs the earlier messages reads them."""

    def __init__(self, run_id: str, newest_count: int | None = None) -> None:
        self._run_id = run_id
        self._newest_count = newest_count
        """How many of its newest messages are sent, after a summary; ``None``: all, and there is no summary."""
        self._messages: list[ModelMessage] | None = None
        self._own_count = 0
        """How many messages of the current run are in the list."""

    async def add_earlier_messages(self, catalog: ToolCatalog, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        """The messages of the completed runs of the session, followed by these. Only new messages are added."""
        if self._messages is None:
            self._messages = await read_context(self._run_id)
            catalog.reveal_earlier_tools(self._messages)
            if self._newest_count is not None:
                self._messages = [messages[0], *self._messages[-self._newest_count :]]
                self._own_count = 1
        self._messages += messages[self._own_count :]
        self._own_count = len(messages)
        return self._messages

    def trim_after_compaction(self, conversation: Conversation) -> _PreviousRun | None:
        """The part of the previous run that is still sent after a compaction."""
        return _PreviousRun(self._run_id, conversation.earlier_count) if conversation.earlier_count != 0 else None


async def _await_previous_run(execution: Execution, agent: Agent[Any]) -> _PreviousRun | None:
    """The previous run of the session, once it has ended."""
    run_id = await invoke(execution, _SESSION_STEP, (), {})
    if not run_id:
        return None
    # It may have failed: its messages are not part of the conversation then.
    await execution.issue(RecordKind.CHILD, agent.name, ChildCall(run_id, lambda _: None))
    return _PreviousRun(run_id)


async def _read_previous_run_id() -> str:
    return await get_step_executor().get_previous_run_id()


_SESSION_STEP = StepDefinition(SESSION_STEP, _read_previous_run_id, True, codec_for(str), (), {})


async def _get_instructions(execution: Execution, agent: Agent[Any]) -> str | None:
    instructions = agent.instructions
    if instructions is None or isinstance(instructions, str):
        return instructions
    return await invoke(execution, instructions, (), {})
