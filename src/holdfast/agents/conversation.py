"""What has been said in a run, made from what is recorded, and from nothing else.

The agent's loop adds to it as the run goes on; ``rebuild_conversation`` makes the same thing from a run's inputs and
journal, without the agent's code. That works because every answer of a model is one record, and the records of every
call that it asks for are found by one rule: see ``tool_calls``.

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
from holdfast.agents.models.context_limit import count_last_turn, truncate_results
from holdfast.agents.models.messages import load_content, load_messages
from holdfast.agents.models.reply import REPLY_CODEC, Reply
from holdfast.agents.models.summaries import count_answers, make_summary_message
from holdfast.agents.observations import get_failure_outcome, note_changed_arguments
from holdfast.agents.output import make_correction
from holdfast.agents.tool_results import decode_tool_result
from holdfast.codec import decode_plain
from holdfast.core.records import Record, RecordKind
from holdfast.reports.agent_result import AgentResult, decode_plain_result
from holdfast.reports.observations import describe_child_failure, describe_denial, describe_tool_failure
from holdfast.reports.plans import Plan, plan_from_record
from holdfast.reports.recorded_reply import ANSWER_TOOL, INSTRUCTIONS_STEP, MODEL_CALL_STEP, RecordedCompaction
from holdfast.reports.tool_calls import ToolCallStatus, match_tool_calls

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequest, ModelRequestPart, ToolCallPart

COMPACTION_STEP_NAME = "compaction"
"""The step that summarises what was said: see ``compaction``."""

InstructionsBuilder = Callable[[str | None], str | None]
"""What the model is told at the beginning, from what the step ``INSTRUCTIONS`` has recorded, if it has: only the
agent's code knows all of it."""


class Conversation:
    """The messages of one run so far."""

    def __init__(self, history: Sequence[ModelMessage] = ()) -> None:
        self.messages: list[ModelMessage] = list(history)
        """All that was said."""
        self.context = self.messages
        """What the model is sent of it: a list that only grows, until there is another one after a compaction."""
        self.earlier_count: int | None = None
        """How many of the newest messages of earlier runs of the session are sent, too; ``None``: all of them."""
        self.is_compacted = False
        """The first message of the context is a summary."""
        self.is_just_compacted = False
        """Nothing was said since the last compaction."""
        self._prompt: ModelRequest | None = None
        self._plan: Plan | None = None
        """As the model has written it last."""
        self.text_prefix = ""
        """The texts of the last answers that were cut off: the next answer goes on with them."""
        self.usage = Usage()
        """What this run and the sub-agents that have answered it have used."""
        self.turn_count = 0
        self.last_usage: Usage | None = None
        """What the last model call has used."""
        self.peak_output_tokens = 0
        """The most tokens that an answer had so far."""

    def add_prompt(self, prompt: str | list[Any], timestamp: float, instructions: str | None) -> None:
        """The prompt, with which a run begins."""
        from pydantic_ai.messages import ModelRequest, UserPromptPart

        content = prompt if isinstance(prompt, str) else load_content(prompt)
        part = UserPromptPart(content, timestamp=_to_datetime(timestamp))
        self._prompt = ModelRequest([part], timestamp=_to_datetime(timestamp), instructions=instructions)
        self._append(self._prompt)

    def add_reply(self, reply: Reply) -> None:
        """A model has answered."""
        self._append(reply.response)
        self.is_just_compacted = False
        if reply.is_continued:
            self.text_prefix += reply.response.text or ""
        elif not is_final(reply):
            self.text_prefix = ""
        self.usage += reply.usage
        self.turn_count += 1
        self.last_usage = reply.usage
        self.peak_output_tokens = max(self.peak_output_tokens, reply.usage.output_tokens)

    def add_correction(self, reply: Reply, timestamp: float) -> None:
        """The last answer cannot be used: the model is told why."""
        assert reply.feedback is not None
        self._append(make_correction(reply.response, reply.feedback, _to_datetime(timestamp)))

    def add_tool_results(self, calls: Sequence[ToolCallPart], outcomes: Sequence[ToolCallStatus]) -> None:
        """The calls that the last answer asked for have their outcomes."""
        from pydantic_ai.messages import ModelRequest

        parts: list[ModelRequestPart] = []
        beside: list[ModelRequestPart] = []
        """What tools show the model beside their results, which comes after all of these."""
        for call, outcome in zip(calls, outcomes, strict=True):
            parts.append(self._make_tool_result(call, outcome, beside))
        for outcome in outcomes:
            self._plan = plan_from_record(outcome.record) or self._plan
        self._append(ModelRequest(parts + beside, timestamp=_to_datetime(max(outcome.at for outcome in outcomes))))

    def apply_compaction(self, reply: Reply, timestamp: float) -> None:
        """A model has summarised what was said: from now on, the summary is sent in place of it."""
        self.usage += reply.usage
        if reply.feedback is not None:
            return  # there is nothing in it
        own = self.context[1:] if self.is_compacted else self.context
        done = reply.compaction
        if done is None:  # somebody has put a text in its place, in a fork
            kept = count_last_turn(own)
            done = RecordedCompaction(
                len(self.context) - kept, kept, count_answers(self.context[: len(self.context) - kept])
            )
        if not done.summarized_count:
            self.context = truncate_results(self.context, done.max_result_length)
        else:
            tail = own[max(0, len(own) - done.kept_count) :]
            self.context = [
                self._make_summary_message(reply.response.text or "", done, tail, timestamp),
                *truncate_results(tail, done.max_result_length),
            ]
            self.earlier_count = max(0, done.kept_count - len(own))
            self.is_compacted = True
        self.is_just_compacted = True
        self.last_usage = None  # what was counted then is not what is sent now

    def build_context(self, earlier_messages: list[ModelMessage]) -> list[ModelMessage]:
        """What the model is sent, with what is sent of earlier runs of the session: that list may be added to."""
        if self.earlier_count is None:
            earlier_messages += self.context
            return earlier_messages
        if not self.earlier_count:
            return list(self.context)
        return [self.context[0], *earlier_messages[-self.earlier_count :], *self.context[1:]]

    def _append(self, message: ModelMessage) -> None:
        self.messages.append(message)
        if self.context is not self.messages:
            self.context.append(message)

    def _make_summary_message(
        self, summary: str, compacted: RecordedCompaction, tail: Sequence[ModelMessage], timestamp: float
    ) -> ModelMessage:
        """The message that stands for what was summarised; the task is kept in its own words."""
        from pydantic_ai.messages import SystemPromptPart, UserPromptPart

        assert self._prompt is not None
        gone = self.context[: len(self.context) - len(tail)]
        system = [part for message in gone for part in message.parts if isinstance(part, SystemPromptPart)]
        is_kept = any(message is self._prompt for message in tail)
        task = [] if is_kept else [part for part in self._prompt.parts if isinstance(part, UserPromptPart)]
        told = [one for message in (self._prompt, *reversed(gone)) if (one := getattr(message, "instructions", None))]
        return make_summary_message(
            summary, compacted, system, task, told[0] if told else None, self._plan, _to_datetime(timestamp)
        )

    def _make_tool_result(
        self, call: ToolCallPart, called: ToolCallStatus, extra_parts: list[ModelRequestPart]
    ) -> ModelRequestPart:
        from pydantic_ai.messages import ToolReturnPart, UserPromptPart

        record, decision = called.record, called.decision
        payload = record.payload or b"null"
        content: Any
        metadata: Any = None
        outcome = "success"
        if decision is not None and not decision.approved:
            content, outcome = describe_denial(call.tool_name, decision.answer, decision.timeout_s), "denied"
        elif record.ok and record.kind is RecordKind.CHILD:
            content = decode_plain_result(payload)
            if isinstance(content, AgentResult):
                answered = cast("AgentResult[Any]", content)
                self.usage += answered.usage
                content = answered.output
        elif record.ok:
            result = decode_tool_result(payload)
            content, metadata = result.value, result.metadata
            if result.content:
                extra_parts.append(UserPromptPart(result.content, timestamp=_to_datetime(called.at)))
        elif record.kind is RecordKind.CHILD:
            content, outcome = describe_child_failure(payload, call.tool_name), "failed"
        else:
            content, outcome = describe_tool_failure(payload, call.tool_name), get_failure_outcome(payload)
        if decision is not None and called.edited_arguments is not None:
            content = note_changed_arguments(content, decision.answer, called.edited_arguments, is_result=record.ok)
        return ToolReturnPart(
            call.tool_name,
            content,
            call.tool_call_id,
            metadata=metadata,
            timestamp=_to_datetime(called.at),
            outcome=outcome,
        )


def is_final(reply: Reply) -> bool:
    """Whether an answer ends the run."""
    if reply.feedback is not None:
        return False
    calls = reply.response.tool_calls
    return not calls or any(call.tool_name == ANSWER_TOOL for call in calls)


def rebuild_conversation(
    inputs: bytes, started_at: float, records: Sequence[Record], build_instructions: InstructionsBuilder | None = None
) -> Conversation:
    """The conversation of a run, as far as it is recorded. Messages of earlier runs of its session are not in it."""
    given: Any = decode_plain(inputs)
    conversation = Conversation(load_messages(given.get("message_history") or []))
    # By position, which may have gaps: what the workflow no longer waited for.
    ordered = sorted((one for one in records if one.kind.has_position), key=lambda one: one.position)
    at = started_at
    made: str | None = None
    for record in ordered:
        if record.name == MODEL_CALL_STEP:
            break
        at = max(at, record.at)  # what comes before the first model call: see `loop`
        if record.name == INSTRUCTIONS_STEP and record.ok:
            made = decode_plain(record.payload or b"null")  # type: ignore[assignment]
    conversation.add_prompt(given["prompt"], at, made if build_instructions is None else build_instructions(made))
    is_full = False
    for index, record in enumerate(ordered):
        if record.name == MODEL_CALL_STEP:
            is_full = not record.ok
        if (
            not record.ok
            or record.name not in (MODEL_CALL_STEP, COMPACTION_STEP_NAME)
            or (record.name == COMPACTION_STEP_NAME and not is_full)
        ):
            continue  # what came of calls, or a call that a budget did not allow, and the wait for more
        reply = REPLY_CODEC.decode(record.payload or b"null", "a recorded answer")
        if record.name == COMPACTION_STEP_NAME:
            conversation.apply_compaction(reply, record.at)
            continue
        conversation.add_reply(reply)
        if reply.feedback is not None:
            conversation.add_correction(reply, record.at)
        elif not is_final(reply):
            calls = reply.response.tool_calls
            behind = takewhile(lambda one: one.name != MODEL_CALL_STEP, islice(ordered, index + 1, None))
            found = match_tool_calls(len(calls), record.position + 1, list(behind))
            ended = [one for one in found if one is not None and one.has_ended]
            if len(ended) < len(calls):
                break
            conversation.add_tool_results(calls, ended)
    return conversation


class RecordedMessages(Sequence["ModelMessage"]):
    """The messages up to the end of a run, rebuilt when somebody looks at them: most results are not asked for them."""

    def __init__(
        self,
        earlier_messages: Sequence[ModelMessage],
        inputs: bytes,
        started_at: float,
        records: Sequence[Record],
        build_instructions: InstructionsBuilder,
    ) -> None:
        given: Any = decode_plain(inputs)
        self.earlier_count = len(earlier_messages) + len(given.get("message_history") or ())
        """How many of them were there before the run."""
        self._earlier_messages = earlier_messages
        self._rebuild = partial(rebuild_conversation, inputs, started_at, records, build_instructions)

    @cached_property
    def _messages(self) -> list[ModelMessage]:
        messages = [*self._earlier_messages, *self._rebuild().messages]
        del self._rebuild  # and with it the records
        return messages

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: Any) -> Any:
        messages: Any = self._messages
        return messages[index]


def _to_datetime(timestamp: float) -> datetime:
    return datetime.fromtimestamp(timestamp, UTC)
