"""The agent's loop: workflow code that asks the model, does what it wants, and asks again.

A run begins with what is recorded before the first model call: which run came before it in its session, if it is in one
(and the wait for that one's end), and the instructions, if a function makes them. Then each turn is a model call, and a
command for every call that the answer asks for, all issued at once, each recorded as it finishes. The cost of a turn
does not grow with the conversation: nothing here walks through it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.agents.conversation import SESSION, Conversation, is_final
from holdfast.agents.deps import take_back
from holdfast.agents.models.calls import Ask, call_model
from holdfast.agents.models.messages import load_messages
from holdfast.agents.models.request import Looked
from holdfast.agents.sessions import messages_before
from holdfast.authoring.step import invoke
from holdfast.client.agent_result import AgentResult
from holdfast.codec import codec_for, decode_error, describe_error
from holdfast.core.execution import Execution, Outcome, current_execution
from holdfast.core.records import Kind
from holdfast.core.undoing import mark_origin
from holdfast.engine import steps
from holdfast.engine.definitions import ChildCall, StepDefinition
from holdfast.errors import DepsMissing, TurnLimitReached

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
    conversation = Conversation(load_messages(message_history or []))
    conversation.asked(prompt, execution.loop.time(), instructions)
    parameters = agent.output.parameters(agent.tool_definitions(), instructions)
    looked = Looked()
    while conversation.turns < agent.max_turns:
        reply = await call_model(
            execution,
            Ask(
                agent.chain,
                conversation.messages,
                parameters,
                turn=conversation.turns + 1,
                check=agent.output.check,
                told=conversation.last,
                most_output=conversation.most_output,
                whole=None if previous is None else previous.before,
                looked=looked,
            ),
        )
        conversation.replied(reply)
        if reply.complaint is not None:
            conversation.complained(reply, execution.loop.time())
        elif is_final(reply):
            return AgentResult(agent.output.read(reply.response), conversation.usage, execution.run_id)
        else:
            calls = reply.response.tool_calls
            begun = [_begin(execution, agent, call) for call in calls]
            outcomes = await asyncio.gather(*begun) if len(begun) > 1 else [await begun[0]]  # mostly it is one
            _raise_what_is_ours(outcomes)
            conversation.observed(calls, [outcome.record for outcome in outcomes], execution.loop.time())
    raise TurnLimitReached(
        f"run {execution.run_id!r} of agent {agent.name!r} has made {conversation.turns} turns, which is its "
        f"max_turns, and has no answer yet. `holdfast show {execution.run_id}` tells what it did. With a higher "
        f"max_turns in the code, `holdfast retry {execution.run_id}` lets it go on."
    )


def _begin(execution: Execution, agent: Agent[Any], call: Any) -> asyncio.Future[Outcome]:
    """Carry out a call that the model asks for: one command, whatever comes of it."""
    kind, name, command = agent.command_for(execution, call)
    return execution.issue(kind, name, command)


def _raise_what_is_ours(outcomes: list[Outcome]) -> None:
    """A call that could not be made because of how this process was set up is none of the model's business."""
    for outcome in outcomes:
        if outcome.record.ok:
            continue
        payload = outcome.record.payload or b"null"
        if outcome.record.kind is Kind.CHILD:  # a sub-agent that has failed for the same reason
            payload = (json.loads(payload).get("error") or "null").encode()
        if payload != b"null" and describe_error(payload).type == _DEPS_MISSING:
            error = decode_error(payload, [])
            mark_origin(error, outcome.origin)
            raise error


class _Previous:
    """The run before this one in its session; what was said until then is read in the step that needs it."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._whole: list[ModelMessage] | None = None
        self._own = 0
        """How many messages of this run are in it."""

    async def before(self, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        """All that was said in the completed runs of the session, and then these. Only what is new is added."""
        if self._whole is None:
            self._whole = list(await messages_before(self._run_id))
        self._whole += messages[self._own :]
        self._own = len(messages)
        return self._whole


async def _previous_run(execution: Execution, agent: Agent[Any]) -> _Previous | None:
    """Which run came before this one in its session, once that has ended."""
    run_id = await invoke(execution, _SESSION, (), {})
    if not run_id:
        return None
    # A failed one is no obstacle: what it said is not part of the conversation.
    await execution.issue(Kind.CHILD, agent.name, ChildCall(run_id, lambda _: None))
    return _Previous(run_id)


async def _read_previous() -> str:
    return steps.current.get().run.previous


_DEPS_MISSING = f"{DepsMissing.__module__}.{DepsMissing.__qualname__}"
_SESSION = StepDefinition(SESSION, _read_previous, True, codec_for(str), (), {})


async def _instructions(execution: Execution, agent: Agent[Any]) -> str | None:
    made = agent.instructions
    if made is None or isinstance(made, str):
        return made
    return await invoke(execution, made, (), {})
