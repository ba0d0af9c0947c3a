"""What has been said in a run, made from what is recorded, and from nothing else.

The agent's loop adds to it as the run goes on; ``rebuild`` makes the same thing from a run's inputs and journal,
without the agent's code. That works because every answer of a model is one record, and the records of every call that
it asks for are found by one rule: see ``tool_calls``.

There are two views of it: ``messages``, all that was said, and ``context``, what the model is sent. They are the same
until the conversation is compacted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, cast

from holdfast.admission.usage import Usage
from holdfast.agents.models.context_limit import excerpts, last_turn
from holdfast.agents.models.messages import load_content, load_messages
from holdfast.agents.models.reply import REPLIES, Reply
from holdfast.agents.models.summaries import answers_in, summary_message
from holdfast.agents.observations import outcome_of_failure, with_changed_arguments
from holdfast.agents.output import correction
from holdfast.agents.tool_results import result_for_model
from holdfast.codec import to_plain
from holdfast.core.records import Kind, Record
from holdfast.reports.agent_result import AgentResult, plain_result
from holdfast.reports.observations import failure_of_child, observation_of_denial, observation_of_failure
from holdfast.reports.plans import Plan, plan_in
from holdfast.reports.recorded_reply import ANSWER, INSTRUCTIONS, MODEL_CALL, Compacted
from holdfast.reports.tool_calls import Called, matched

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequest, ModelRequestPart, ToolCallPart

COMPACTION = "compaction"
"""The step that summarises what was said: see ``compaction``."""

Told = Callable[[str | None], str | None]
"""What the model is told at the beginning, from what the step ``INSTRUCTIONS`` has recorded, if it has: only the
agent's code knows all of it."""


class Conversation:
    """The messages of one run so far."""

    def __init__(self, history: Sequence[ModelMessage] = ()) -> None:
        self.messages: list[ModelMessage] = list(history)
        """All that was said."""
        self.context = self.messages
        """What the model is sent of it: a list that only grows, until there is another one after a compaction."""
        self.earlier: int | None = None
        """How many of the newest messages of earlier runs of the session are sent, too; ``None``: all of them."""
        self.is_compacted = False
        """The first message of the context is a summary."""
        self.just_compacted = False
        """Nothing was said since the last compaction."""
        self._prompt: ModelRequest | None = None
        self._plan: Plan | None = None
        """As the model has written it last."""
        self.text_before = ""
        """The texts of the last answers that were cut off: the next answer goes on with them."""
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
        self._prompt = ModelRequest([part], timestamp=_time(at), instructions=instructions)
        self._add(self._prompt)

    def replied(self, reply: Reply) -> None:
        """A model has answered."""
        self._add(reply.response)
        self.just_compacted = False
        if reply.continues:
            self.text_before += reply.response.text or ""
        elif not is_final(reply):
            self.text_before = ""
        self.usage += reply.usage
        self.turns += 1
        self.last = reply.usage
        self.most_output = max(self.most_output, reply.usage.output_tokens)

    def complained(self, reply: Reply, at: float) -> None:
        """The last answer cannot be used: the model is told why."""
        assert reply.complaint is not None
        self._add(correction(reply.response, reply.complaint, _time(at)))

    def observed(self, calls: Sequence[ToolCallPart], outcomes: Sequence[Called]) -> None:
        """The calls that the last answer asked for have their outcomes."""
        from pydantic_ai.messages import ModelRequest

        parts: list[ModelRequestPart] = []
        beside: list[ModelRequestPart] = []
        """What tools show the model beside their results, which comes after all of these."""
        for call, outcome in zip(calls, outcomes, strict=True):
            parts.append(self._observation(call, outcome, beside))
        for outcome in outcomes:
            self._plan = plan_in(outcome.record) or self._plan
        self._add(ModelRequest(parts + beside, timestamp=_time(max(outcome.at for outcome in outcomes))))

    def compacted(self, reply: Reply, at: float) -> None:
        """A model has summarised what was said: from now on, the summary is sent in place of it."""
        self.usage += reply.usage
        if reply.complaint is not None:
            return  # there is nothing in it
        own = self.context[1:] if self.is_compacted else self.context
        done = reply.compaction
        if done is None:  # somebody has put a text in its place, in a fork
            kept = last_turn(own)
            done = Compacted(len(self.context) - kept, kept, answers_in(self.context[: len(self.context) - kept]))
        if not done.summarised:
            self.context = excerpts(self.context, done.excerpt)
        else:
            tail = own[max(0, len(own) - done.kept) :]
            self.context = [self._summary(reply.response.text or "", done, tail, at), *excerpts(tail, done.excerpt)]
            self.earlier = max(0, done.kept - len(own))
            self.is_compacted = True
        self.just_compacted = True
        self.last = None  # what was counted then is not what is sent now

    def after(self, earlier: list[ModelMessage]) -> list[ModelMessage]:
        """What the model is sent, with what is sent of earlier runs of the session: that list may be added to."""
        if self.earlier is None:
            earlier += self.context
            return earlier
        if not self.earlier:
            return list(self.context)
        return [self.context[0], *earlier[-self.earlier :], *self.context[1:]]

    def _add(self, message: ModelMessage) -> None:
        self.messages.append(message)
        if self.context is not self.messages:
            self.context.append(message)

    def _summary(self, summary: str, done: Compacted, tail: Sequence[ModelMessage], at: float) -> ModelMessage:
        """The message that stands for what was summarised; the task is kept in its own words."""
        from pydantic_ai.messages import SystemPromptPart, UserPromptPart

        assert self._prompt is not None
        gone = self.context[: len(self.context) - len(tail)]
        system = [part for message in gone for part in message.parts if isinstance(part, SystemPromptPart)]
        is_kept = any(message is self._prompt for message in tail)
        task = [] if is_kept else [part for part in self._prompt.parts if isinstance(part, UserPromptPart)]
        told = [one for message in (self._prompt, *reversed(gone)) if (one := getattr(message, "instructions", None))]
        return summary_message(summary, done, system, task, told[0] if told else None, self._plan, _time(at))

    def _observation(self, call: ToolCallPart, called: Called, beside: list[ModelRequestPart]) -> ModelRequestPart:
        from pydantic_ai.messages import ToolReturnPart, UserPromptPart

        record, decision = called.record, called.decision
        payload = record.payload or b"null"
        content: Any
        metadata: Any = None
        outcome = "success"
        if decision is not None and not decision.approved:
            content, outcome = observation_of_denial(call.tool_name, decision.answer, decision.within), "denied"
        elif record.ok and record.kind is Kind.CHILD:
            content = plain_result(payload)
            if isinstance(content, AgentResult):
                answered = cast("AgentResult[Any]", content)
                self.usage += answered.usage
                content = answered.output
        elif record.ok:
            result = result_for_model(payload)
            content, metadata = result.value, result.metadata
            if result.content:
                beside.append(UserPromptPart(result.content, timestamp=_time(called.at)))
        elif record.kind is Kind.CHILD:
            content, outcome = failure_of_child(payload, call.tool_name), "failed"
        else:
            content, outcome = observation_of_failure(payload, call.tool_name), outcome_of_failure(payload)
        if decision is not None and called.changed is not None:
            content = with_changed_arguments(content, decision.answer, called.changed, is_result=record.ok)
        return ToolReturnPart(
            call.tool_name, content, call.tool_call_id, metadata=metadata, timestamp=_time(called.at), outcome=outcome
        )


def is_final(reply: Reply) -> bool:
    """Whether an answer ends the run."""
    if reply.complaint is not None:
        return False
    calls = reply.response.tool_calls
    return not calls or any(call.tool_name == ANSWER for call in calls)


def rebuild(inputs: bytes, began_at: float, records: Sequence[Record], told: Told | None = None) -> Conversation:
    """The conversation of a run, as far as it is recorded. Messages of earlier runs of its session are not in it."""
    given: Any = to_plain(inputs)
    conversation = Conversation(load_messages(given.get("message_history") or []))
    # By position, which may have gaps: what the workflow no longer waited for.
    ordered = sorted((one for one in records if one.kind.has_position), key=lambda one: one.position)
    at = began_at
    made: str | None = None
    for record in ordered:
        if record.name == MODEL_CALL:
            break
        at = max(at, record.at)  # what comes before the first model call: see `loop`
        if record.name == INSTRUCTIONS and record.ok:
            made = to_plain(record.payload or b"null")  # type: ignore[assignment]
    conversation.asked(given["prompt"], at, made if told is None else told(made))
    is_full = False
    for index, record in enumerate(ordered):
        if record.name == MODEL_CALL:
            is_full = not record.ok
        if not record.ok or record.name not in (MODEL_CALL, COMPACTION) or (record.name == COMPACTION and not is_full):
            continue  # what came of calls, or a call that a budget did not allow, and the wait for more
        reply = REPLIES.decode(record.payload or b"null", "a recorded answer")
        if record.name == COMPACTION:
            conversation.compacted(reply, record.at)
            continue
        conversation.replied(reply)
        if reply.complaint is not None:
            conversation.complained(reply, record.at)
        elif not is_final(reply):
            calls = reply.response.tool_calls
            behind = takewhile(lambda one: one.name != MODEL_CALL, islice(ordered, index + 1, None))
            found = matched(len(calls), record.position + 1, list(behind))
            ended = [one for one in found if one is not None and one.has_ended]
            if len(ended) < len(calls):
                break
            conversation.observed(calls, ended)
    return conversation


class Recorded(Sequence["ModelMessage"]):
    """The messages up to the end of a run, rebuilt when somebody looks at them: most results are not asked for them."""

    def __init__(
        self,
        before: Sequence[ModelMessage],
        inputs: bytes,
        began_at: float,
        records: Sequence[Record],
        told: Told,
    ) -> None:
        given: Any = to_plain(inputs)
        self.earlier = len(before) + len(given.get("message_history") or ())
        """How many of them were there before the run."""
        self._before = before
        self._rebuild = partial(rebuild, inputs, began_at, records, told)

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
