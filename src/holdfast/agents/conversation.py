"""What has been said in a run, made from what is recorded, and from nothing else.

The agent's loop adds to it as the run goes on; ``rebuild`` makes the same thing from a run's inputs and journal,
without the agent's code. That works because every answer of a model is one record, and every call that it asks for is
exactly one more, at the positions behind it and in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

from holdfast.agents.models.calls import STEP
from holdfast.agents.models.messages import load_content, load_messages
from holdfast.agents.models.reply import REPLIES, Reply
from holdfast.agents.observations import failure_of_child, observation_of_failure, outcome_of_failure
from holdfast.agents.output import ANSWER, correction
from holdfast.client.agent_result import AgentResult, plain_result
from holdfast.codec import to_plain
from holdfast.core.records import Kind, Record
from holdfast.core.usage import Usage

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ToolCallPart

INSTRUCTIONS = "instructions"
"""The step that asks a function for the agent's instructions."""

SESSION = "session"
"""The step that tells which run came before this one in its session."""


class Conversation:
    """The messages of one run so far."""

    def __init__(self, history: Sequence[ModelMessage] = ()) -> None:
        self.messages: list[ModelMessage] = list(history)
        self.usage = Usage()
        """What this run and the sub-agents that have answered it have used."""
        self.turns = 0
        self.last: Usage | None = None
        """What the last model call has used."""
        self.most_output = 0
        """The most tokens that an answer had so far."""

    def asked(self, prompt: str | list[Any], at: float, instructions: str | None) -> None:
        """The prompt, with which a run begins."""
        from pydantic_ai.messages import ModelRequest, UserPromptPart

        content = prompt if isinstance(prompt, str) else load_content(prompt)
        part = UserPromptPart(content, timestamp=_time(at))
        self.messages.append(ModelRequest([part], timestamp=_time(at), instructions=instructions))

    def replied(self, reply: Reply) -> None:
        """A model has answered."""
        self.messages.append(reply.response)
        self.usage += reply.usage
        self.turns += 1
        self.last = reply.usage
        self.most_output = max(self.most_output, reply.usage.output_tokens)

    def complained(self, reply: Reply, at: float) -> None:
        """The last answer cannot be used: the model is told why."""
        assert reply.complaint is not None
        self.messages.append(correction(reply.response, reply.complaint, _time(at)))

    def observed(self, calls: Sequence[ToolCallPart], records: Sequence[Record], at: float) -> None:
        """The calls that the last answer asked for have their outcomes."""
        from pydantic_ai.messages import ModelRequest

        parts = [self._observation(call, record) for call, record in zip(calls, records, strict=True)]
        self.messages.append(ModelRequest(parts, timestamp=_time(at)))

    def _observation(self, call: ToolCallPart, record: Record) -> ModelRequestPart:
        from pydantic_ai.messages import ToolReturnPart

        payload = record.payload or b"null"
        content: Any
        outcome = "success"
        if record.ok and record.kind is Kind.CHILD:
            content = plain_result(payload)
            if isinstance(content, AgentResult):
                result = cast("AgentResult[Any]", content)
                self.usage += result.usage
                content = result.output
        elif record.ok:
            content = to_plain(payload)
        elif record.kind is Kind.CHILD:
            content, outcome = failure_of_child(payload, call.tool_name), "failed"
        else:
            content, outcome = observation_of_failure(payload, call.tool_name), outcome_of_failure(payload)
        return ToolReturnPart(call.tool_name, content, call.tool_call_id, timestamp=_time(record.at), outcome=outcome)


def is_final(reply: Reply) -> bool:
    """Whether an answer ends the run."""
    if reply.complaint is not None:
        return False
    calls = reply.response.tool_calls
    return not calls or any(call.tool_name == ANSWER for call in calls)


def rebuild(inputs: bytes, began_at: float, records: Sequence[Record], instructions: str | None = None) -> Conversation:
    """The conversation of a run, as far as it is recorded. Messages of earlier runs of its session are not in it."""
    given: Any = to_plain(inputs)
    conversation = Conversation(load_messages(given.get("message_history") or []))
    by_position = {record.position: record for record in records if record.kind.has_position}
    at, position = began_at, 0
    while (record := by_position.get(position)) is not None and record.name != STEP:
        position += 1  # what comes before the first model call: see `loop`
        at = max(at, record.at)
        if record.name == INSTRUCTIONS and record.ok:
            instructions = to_plain(record.payload or b"null")  # type: ignore[assignment]
    conversation.asked(given["prompt"], at, instructions)
    while (record := by_position.get(position)) is not None:
        position += 1
        if record.name != STEP or not record.ok:
            continue  # a call that a budget did not allow, and the wait for more
        reply = REPLIES.decode(record.payload or b"null", "a recorded answer")
        conversation.replied(reply)
        if reply.complaint is not None:
            conversation.complained(reply, record.at)
        elif not is_final(reply):
            calls = reply.response.tool_calls
            outcomes = [by_position.get(position + index) for index in range(len(calls))]
            known = [outcome for outcome in outcomes if outcome is not None]
            if len(known) < len(calls):
                break
            conversation.observed(calls, known, max(outcome.at for outcome in known))
            position += len(calls)
    return conversation


class Recorded(Sequence["ModelMessage"]):
    """The messages up to the end of a run, rebuilt when somebody looks at them: most results are not asked for them."""

    def __init__(
        self,
        before: Sequence[ModelMessage],
        inputs: bytes,
        began_at: float,
        records: Sequence[Record],
        instructions: str | None,
    ) -> None:
        given: Any = to_plain(inputs)
        self.earlier = len(before) + len(given.get("message_history") or ())
        """How many of them were there before the run."""
        self._before = before
        self._rebuild = partial(rebuild, inputs, began_at, records, instructions)

    @cached_property
    def _messages(self) -> list[ModelMessage]:
        messages = [*self._before, *self._rebuild().messages]
        del self._rebuild  # and with it the records
        return messages

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: Any) -> Any:
        messages: Any = self._messages
        return messages[index]


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
