"""The conversation of a run, made from recorded data alone.

The agent loop adds to it while the run executes; ``rebuild_conversation`` makes the same conversation from a run's
inputs and journal, without the agent's code. This works because every answer of a model is one record, and one rule
finds the records of the calls in it: see ``tool_calls``.

A conversation has two views: ``messages`` is everything, and ``context`` is what the model gets. They are the same
until the conversation is compacted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Literal, cast

from holdfast.admission.usage import Usage
from holdfast.agents.models.context_limit import count_last_turn, truncate_results
from holdfast.agents.models.messages import load_content, load_messages
from holdfast.agents.models.reply import REPLY_CODEC, Reply
from holdfast.agents.models.summaries import count_answers, make_summary_message
from holdfast.agents.output import make_correction
from holdfast.agents.tool_results import decode_tool_result, get_parts_with_images
from holdfast.codec import decode_plain, read_error_info
from holdfast.core.records import Record, RecordKind
from holdfast.reports.agent_result import AgentResult, decode_plain_result
from holdfast.reports.observations import (
    CORRECTABLE_ERRORS,
    describe_child_failure,
    describe_denial,
    describe_tool_failure,
)
from holdfast.reports.plans import Plan, plan_from_record
from holdfast.reports.recorded_reply import ANSWER_TOOL, INSTRUCTIONS_STEP, MODEL_CALL_STEP, RecordedCompaction
from holdfast.reports.tool_calls import ToolCallStatus, match_tool_calls
from holdfast.services.approvals import Answer

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequest, ModelRequestPart, ToolCallPart

COMPACTION_STEP_NAME = "compaction"
"""The step that summarizes older messages: see ``compaction``."""

InstructionsBuilder = Callable[[str | None], str | None]
"""Returns the instructions of the first message, given the recorded value of ``INSTRUCTIONS_STEP``, if there is
one. Only the agent's code knows all of them."""


class Conversation:
    """The messages of one run so far."""

    def __init__(self, history: Sequence[ModelMessage] = ()) -> None:
        self.messages: list[ModelMessage] = list(history)
        """All messages."""
        self.context = self.messages
        """The messages that the model gets: a list that only grows, until a compaction replaces it."""
        self.earlier_count: int | None = None
        """How many of the newest messages of earlier runs of the session the model gets, too; ``None``: all."""
        self.is_compacted = False
        """The first message of the context is a summary."""
        self.is_just_compacted = False
        """There are no new messages since the last compaction."""
        self._prompt: ModelRequest | None = None
        self._plan: Plan | None = None
        """The newest plan of the model."""
        self.text_prefix = ""
        """The texts of the last answers that were cut off, which the next answer continues."""
        self.usage = Usage()
        """The usage of this run and of the sub-agents that have answered it."""
        self.turn_count = 0
        self.last_usage: Usage | None = None
        """The usage of the last model call."""
        self.peak_output_tokens = 0
        """The most output tokens of an answer so far."""

    def add_prompt(self, prompt: str | list[Any], timestamp: float, instructions: str | None) -> None:
        """Add the prompt, with which a run begins."""
        from pydantic_ai.messages import ModelRequest, UserPromptPart

        content = prompt if isinstance(prompt, str) else load_content(prompt)
        part = UserPromptPart(content, timestamp=_to_datetime(timestamp))
        self._prompt = ModelRequest([part], timestamp=_to_datetime(timestamp), instructions=instructions)
        self._append(self._prompt)

    def add_reply(self, reply: Reply) -> None:
        """Add the answer of a model."""
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
        """Add the feedback for an answer that cannot be used."""
        assert reply.feedback is not None
        self._append(make_correction(reply.response, reply.feedback, _to_datetime(timestamp)))

    def add_tool_results(self, calls: Sequence[ToolCallPart], outcomes: Sequence[ToolCallStatus]) -> None:
        """Add the outcomes of the calls in the last answer."""
        from pydantic_ai.messages import ModelRequest

        parts: list[ModelRequestPart] = []
        extra_parts: list[ModelRequestPart] = []  # further content from tools, which comes after all results
        for call, outcome in zip(calls, outcomes, strict=True):
            parts.append(self._make_tool_result(call, outcome, extra_parts))
        for outcome in outcomes:
            self._plan = plan_from_record(outcome.record) or self._plan
        timestamp = _to_datetime(max(outcome.at for outcome in outcomes))
        self._append(ModelRequest(parts + extra_parts, timestamp=timestamp))

    def apply_compaction(self, reply: Reply, timestamp: float) -> None:
        """Replace older messages of the context by a model's summary."""
        self.usage += reply.usage
        if reply.feedback is not None:
            return  # the summary is empty
        own = self.context[1:] if self.is_compacted else self.context
        compacted = reply.compaction
        if compacted is None:  # in a fork, a user's text replaces the summary
            kept_count = count_last_turn(own)
            older = self.context[: len(self.context) - kept_count]
            compacted = RecordedCompaction(len(older), kept_count, count_answers(older))
        if not compacted.summarized_count:
            self.context = truncate_results(self.context, compacted.max_result_length)
        else:
            tail = own[max(0, len(own) - compacted.kept_count) :]
            self.context = [
                self._make_summary_message(reply.response.text or "", compacted, tail, timestamp),
                *truncate_results(tail, compacted.max_result_length),
            ]
            self.earlier_count = max(0, compacted.kept_count - len(own))
            self.is_compacted = True
        self.is_just_compacted = True
        self.last_usage = None  # the provider counted another context

    def build_context(self, earlier_messages: list[ModelMessage]) -> list[ModelMessage]:
        """All messages that the model gets, including those of earlier runs.

        May extend ``earlier_messages`` in place.
        """
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
        """The message that replaces the summarized ones. It repeats the task word for word."""
        from pydantic_ai.messages import SystemPromptPart, UserPromptPart

        assert self._prompt is not None
        older = self.context[: len(self.context) - len(tail)]
        system = [part for message in older for part in message.parts if isinstance(part, SystemPromptPart)]
        has_prompt = any(message is self._prompt for message in tail)
        task = [] if has_prompt else [part for part in self._prompt.parts if isinstance(part, UserPromptPart)]
        candidates = (getattr(message, "instructions", None) for message in (self._prompt, *reversed(older)))
        instructions = next(filter(None, candidates), None)
        return make_summary_message(summary, compacted, system, task, instructions, self._plan, _to_datetime(timestamp))

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
            content = _note_changed_arguments(content, decision.answer, called.edited_arguments, is_result=record.ok)
        return ToolReturnPart(
            call.tool_name,
            content,
            call.tool_call_id,
            metadata=metadata,
            timestamp=_to_datetime(called.at),
            outcome=outcome,
        )


def get_failure_outcome(payload: bytes) -> Literal["retried", "failed"]:
    """The model library's name for a failed call: ``retried`` if the model is asked to correct it."""
    return "retried" if read_error_info(payload).type in CORRECTABLE_ERRORS else "failed"


def _note_changed_arguments(content: Any, answer: Answer | None, arguments: dict[str, Any], *, is_result: bool) -> Any:
    """The outcome of a call, with a note that a person changed its arguments: the model would misread it otherwise."""
    who = (answer.answered_by if answer is not None else "") or "a person"
    note = f"Before approving this call, {who} changed its arguments"
    if not is_result:
        return f"{note} to {json.dumps(arguments, ensure_ascii=False)}. {content}"
    note_fields = {"note": f"{note}. It was made with these.", "arguments": arguments}
    parts = get_parts_with_images(content)
    # The model sees an image only at the top level of a result: within other data, it would read it as text.
    return {**note_fields, "result": content} if parts is None else [note_fields, *parts]


def is_final(reply: Reply) -> bool:
    """Whether an answer ends the run."""
    if reply.feedback is not None:
        return False
    calls = reply.response.tool_calls
    return not calls or any(call.tool_name == ANSWER_TOOL for call in calls)


def rebuild_conversation(
    inputs: bytes, started_at: float, records: Sequence[Record], build_instructions: InstructionsBuilder | None = None
) -> Conversation:
    """The recorded conversation of a run, without the messages of earlier runs of its session."""
    run_inputs: Any = decode_plain(inputs)
    conversation = Conversation(load_messages(run_inputs.get("message_history") or []))
    # By position, which may have gaps where the workflow no longer waited for a command.
    ordered = sorted((record for record in records if record.kind.has_position), key=lambda record: record.position)
    prompted_at = started_at
    instructions: str | None = None
    for record in ordered:
        if record.name == MODEL_CALL_STEP:
            break
        prompted_at = max(prompted_at, record.at)  # of the commands before the first model call: see `agent_loop`
        if record.name == INSTRUCTIONS_STEP and record.ok:
            instructions = decode_plain(record.payload or b"null")  # type: ignore[assignment]
    if build_instructions is not None:
        instructions = build_instructions(instructions)
    conversation.add_prompt(run_inputs["prompt"], prompted_at, instructions)
    is_full = False
    for index, record in enumerate(ordered):
        if record.name == MODEL_CALL_STEP:
            is_full = not record.ok
        is_compaction = record.name == COMPACTION_STEP_NAME and is_full
        if not record.ok or not (record.name == MODEL_CALL_STEP or is_compaction):
            continue  # an outcome of a tool call, or a model call that a budget did not allow, and the wait for it
        reply = REPLY_CODEC.decode(record.payload or b"null", "a recorded answer")
        if is_compaction:
            conversation.apply_compaction(reply, record.at)
            continue
        conversation.add_reply(reply)
        if reply.feedback is not None:
            conversation.add_correction(reply, record.at)
        elif not is_final(reply):
            calls = reply.response.tool_calls
            following = takewhile(lambda later: later.name != MODEL_CALL_STEP, islice(ordered, index + 1, None))
            statuses = match_tool_calls(len(calls), record.position + 1, list(following))
            outcomes = [status for status in statuses if status is not None and status.has_ended]
            if len(outcomes) < len(calls):
                break
            conversation.add_tool_results(calls, outcomes)
    return conversation


class RecordedMessages(Sequence["ModelMessage"]):
    """The messages up to the end of a run, rebuilt on first access: most users of a result do not read them."""

    def __init__(
        self,
        earlier_messages: Sequence[ModelMessage],
        inputs: bytes,
        started_at: float,
        records: Sequence[Record],
        build_instructions: InstructionsBuilder,
    ) -> None:
        run_inputs: Any = decode_plain(inputs)
        self.earlier_count = len(earlier_messages) + len(run_inputs.get("message_history") or ())
        """How many of the messages are older than the run."""
        self._earlier_messages = earlier_messages
        self._rebuild = partial(rebuild_conversation, inputs, started_at, records, build_instructions)

    @cached_property
    def _messages(self) -> list[ModelMessage]:
        messages = [*self._earlier_messages, *self._rebuild().messages]
        del self._rebuild  # frees the records
        return messages

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: Any) -> Any:
        messages: Any = self._messages
        return messages[index]


def _to_datetime(timestamp: float) -> datetime:
    return datetime.fromtimestamp(timestamp, UTC)
