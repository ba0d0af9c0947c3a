"""The agent's loop: workflow code that asks the model, does what it wants, and asks again.

A run begins with what is recorded before the first model call: which run came before it in its session, if it is in one
(and the wait for that one's end), the instructions, if a function makes them, and what its toolsets have. Then each
turn is a model call, and a command for every call that the answer asks for, all issued at once, each recorded as it
finishes (``tool_calls``). The cost of a turn does not grow with the conversation: nothing here walks through it.

When the context is full, the model call says so, the conversation is compacted, and the call is made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.agents.compaction import compact
from holdfast.agents.conversation import Conversation, is_final
from holdfast.agents.deps import take_back
from holdfast.agents.models.context_limit import Compaction, Room
from holdfast.agents.models.finish_reasons import ending_of
from holdfast.agents.models.messages import load_messages
from holdfast.agents.models.model_call import MODEL_CALL, Ask, within_budget
from holdfast.agents.models.reply import Reply
from holdfast.agents.models.request import Looked
from holdfast.agents.planner import Planner
from holdfast.agents.sessions import context_before
from holdfast.agents.tool_calls import carry_out
from holdfast.agents.tool_catalog import Offered
from holdfast.agents.toolsets import listed_tools
from holdfast.authoring.step import invoke
from holdfast.codec import codec_for
from holdfast.core.commands import Outcome
from holdfast.core.compensations import mark_origin
from holdfast.core.execution import Execution, current_execution
from holdfast.core.records import SESSION, Kind
from holdfast.engine import step_context
from holdfast.engine.definitions import ChildCall, StepCall, StepDefinition
from holdfast.errors import ContextFull, InvalidOutput, TurnLimitReached
from holdfast.reports.agent_result import AgentResult

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

    from holdfast.agents.agent import Agent


async def run_agent(
    agent: Agent[Any], prompt: str | list[Any], message_history: list[Any] | None, session: str | None
) -> AgentResult[Any]:
    """One run of an agent, from the prompt to the answer."""
    execution = current_execution()
    assert execution is not None
    try:
        result = await _go_round(execution, agent, prompt, message_history, session)
    except Exception:
        take_back(execution.run_id)
        raise
    take_back(execution.run_id)  # not when the run only leaves memory: that is no `Exception`
    return result


async def _go_round(
    execution: Execution,
    agent: Agent[Any],
    prompt: str | list[Any],
    message_history: list[Any] | None,
    session: str | None,
) -> AgentResult[Any]:
    previous = None if session is None else await _previous_run(execution, agent)
    instructions = await _instructions(execution, agent)
    tools = await listed_tools(execution, agent.toolsets)
    offered = Offered(agent, tools, agent.guided(instructions))
    conversation = Conversation(load_messages(message_history or []))
    conversation.asked(prompt, execution.loop.time(), agent.guided(instructions))
    offered.recall(conversation.messages)
    planner = Planner(agent.output) if agent.plans else None
    looked = Looked()
    invalid = 0
    """Answers in a row that do not fit."""
    while conversation.turns < agent.max_turns:
        is_last = conversation.turns + 1 == agent.max_turns
        question = Ask(
            agent.chain,
            conversation.context,
            offered.parameters,
            turn=conversation.turns + 1,
            check=agent.output.check if planner is None or is_last else planner.check,
            told=conversation.last,
            most_output=conversation.most_output,
            whole=None if previous is None else partial(previous.before, offered),
            looked=looked,
            room=None if agent.compaction is None else Room(agent.compaction, conversation.just_compacted),
            continues=agent.continue_truncated and not is_last,
        )
        reply, outcome, window = await _ask(execution, question)
        if reply is None:
            await compact(execution, agent.compaction or Compaction(), question, window, conversation)
            previous = None if previous is None else previous.left_by(conversation)
            looked = Looked()
            continue
        conversation.replied(reply)
        if planner is not None:
            planner.replied(reply)
        if reply.complaint is None:
            invalid = 0
        elif planner is None or not planner.is_about_plan(reply.complaint):
            invalid += 1
            if invalid > agent.output_retries:
                raise _invalid_output(execution, agent, invalid, reply.complaint, outcome)
        if reply.complaint is not None:
            conversation.complained(reply, execution.loop.time())
        elif is_final(reply):
            return _result(agent, conversation, reply, execution.run_id)
        else:
            calls = reply.response.tool_calls
            outcomes = await carry_out(execution, offered, calls, agent.approvals)
            offered.observed(calls, outcomes)
            if planner is not None:
                planner.observed(outcomes)
            conversation.observed(calls, outcomes)
    raise TurnLimitReached(
        f"run {execution.run_id!r} of agent {agent.name!r} has made {conversation.turns} turns, which is its "
        f"max_turns, and has no answer yet. `holdfast show {execution.run_id}` tells what it did. With a higher "
        f"max_turns in the code, `holdfast retry {execution.run_id}` lets it go on."
    )


def _result(agent: Agent[Any], conversation: Conversation, reply: Reply, run_id: str) -> AgentResult[Any]:
    output = agent.output.read(reply.response)
    if agent.output.is_text:
        output = conversation.text_before + output
    return AgentResult(output, conversation.usage, run_id, *ending_of(reply.response))


def _invalid_output(
    execution: Execution, agent: Agent[Any], count: int, complaint: str, outcome: Outcome | None
) -> InvalidOutput:
    error = InvalidOutput(
        f"run {execution.run_id!r} of agent {agent.name!r}: {count} answers in a row do not fit its output_type. What "
        f"is wrong with the last one: {complaint}\n"
        f"`holdfast retry {execution.run_id}` asks the model once more; output_retries= of the agent allows more."
    )
    if outcome is not None:
        mark_origin(error, outcome.origin)
    return error


async def _ask(execution: Execution, question: Ask) -> tuple[Reply | None, Outcome | None, int]:
    """The model's reply and its outcome; none if the context is full, and then how many tokens the model takes."""
    try:
        return *await within_budget(execution, StepCall(MODEL_CALL, (question,), {})), 0
    except ContextFull as full:
        return None, None, full.window


class _Previous:
    """The run before this one in its session; what was said until then is read in the step that needs it."""

    def __init__(self, run_id: str, newest: int | None = None) -> None:
        self._run_id = run_id
        self._newest = newest
        """How many of its newest messages are sent, behind a summary; ``None``: all, and there is none."""
        self._whole: list[ModelMessage] | None = None
        self._own = 0
        """How many messages of this run are in it."""

    async def before(self, offered: Offered, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        """What is sent of the completed runs of the session, and then these. Only what is new is added."""
        if self._whole is None:
            self._whole = await context_before(self._run_id)
            offered.recall(self._whole)
            if self._newest is not None:
                self._whole = [messages[0], *self._whole[-self._newest :]]
                self._own = 1
        self._whole += messages[self._own :]
        self._own = len(messages)
        return self._whole

    def left_by(self, conversation: Conversation) -> _Previous | None:
        """What is still sent of it after a compaction."""
        return _Previous(self._run_id, conversation.earlier) if conversation.earlier != 0 else None


async def _previous_run(execution: Execution, agent: Agent[Any]) -> _Previous | None:
    """Which run came before this one in its session, once that has ended."""
    run_id = await invoke(execution, _SESSION, (), {})
    if not run_id:
        return None
    # A failed one is no obstacle: what it said is not part of the conversation.
    await execution.issue(Kind.CHILD, agent.name, ChildCall(run_id, lambda _: None))
    return _Previous(run_id)


async def _read_previous() -> str:
    return await step_context.current.get().previous_run()


_SESSION = StepDefinition(SESSION, _read_previous, True, codec_for(str), (), {})


async def _instructions(execution: Execution, agent: Agent[Any]) -> str | None:
    made = agent.instructions
    if made is None or isinstance(made, str):
        return made
    return await invoke(execution, made, (), {})
