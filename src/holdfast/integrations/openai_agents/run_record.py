"""The recorded result of an agent's run.

It is an ``AgentResult`` for all who read runs, with the final output in it. The rest of the SDK's result is in
``state``, as the text that the SDK itself makes of it, so that the SDK's own code reads it, also in later versions.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, NamedTuple, cast

from agents import Agent, AgentOutputSchema, RunResult, RunState
from agents.result import RunResultBase
from pydantic_core import to_json

from holdfast.admission.usage import Usage
from holdfast.codec import ValueCodec, codec_for
from holdfast.codec.formatting import capitalize_first
from holdfast.errors import CodecError, DefinitionError, UnreadableRecord, UnrecordableValue
from holdfast.reports.agent_result import AGENT_RESULT_PREFIX

_OUTPUT_KEY = b',"output":'
"""It cannot occur before the output: ``state`` is a text, in which quotes are escaped."""
_ANY_CODEC = codec_for(Any)


class RunOutcome(NamedTuple):
    """How a run ended, in the process that executed it."""

    run_id: str
    result: RunResultBase
    usage: Usage


class RecordedRun(NamedTuple):
    """The record of a run that has ended."""

    state: str
    """The JSON of the SDK's state. The caller of a run that ended in this process does not need it."""
    output: bytes
    is_typed: bool
    """Whether the output is of the last agent's ``output_type``."""

    async def load(self, agent: Agent[Any], context: Any) -> RunResult:
        """The SDK's result."""
        state: Any = await RunState.from_string(agent, self.state)
        last_agent: Agent[Any] = state._current_agent
        wrapper = state._context
        wrapper.context = context
        items = state._session_items
        codec = _get_output_codec(last_agent) if self.is_typed else _ANY_CODEC
        return RunResult(
            input=state._original_input,
            new_items=items,
            raw_responses=state._model_responses,
            final_output=codec.decode(self.output, "the final output of a run"),
            input_guardrail_results=state._input_guardrail_results,
            output_guardrail_results=state._output_guardrail_results,
            tool_input_guardrail_results=state._tool_input_guardrail_results,
            tool_output_guardrail_results=state._tool_output_guardrail_results,
            context_wrapper=wrapper,
            _last_agent=last_agent,
            _current_turn=state._current_turn,
            _model_input_items=state._generated_items or list(items),
            _original_input=state._original_input,
            max_turns=state._max_turns,
        )


class RecordedRunCodec(ValueCodec):
    """Records a ``RunOutcome``, and reads a ``RecordedRun``."""

    __slots__ = ()

    def __init__(self) -> None:
        self.annotation = RunResult

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the record decoded from them."""
        data = self.encode(value, subject)
        return data, self.decode(data, subject)

    def encode(self, value: object, subject: str) -> bytes:
        """The bytes to record."""
        outcome = cast(RunOutcome, value)
        output, is_typed = _encode_output(outcome.result, subject)
        state = json.dumps(_dump_state(outcome.result), separators=(",", ":"), ensure_ascii=False)
        fields = {
            "run_id": outcome.run_id,
            "usage": {name: amount for name, amount in asdict(outcome.usage).items() if amount},
            "typed": is_typed,
            "state": state,
        }
        try:
            head = to_json(fields)
        except ValueError as error:
            raise UnrecordableValue(f"{capitalize_first(subject)} cannot be recorded: {error}") from error
        return AGENT_RESULT_PREFIX + head[1:-1] + _OUTPUT_KEY + output + b"}"

    def decode(self, data: bytes, subject: str) -> RecordedRun:
        """The recorded run."""
        head, _, output = data[:-1].partition(_OUTPUT_KEY)
        try:
            fields = json.loads(head + b"}")
            return RecordedRun(fields["state"], output, fields["typed"])
        except (ValueError, KeyError) as error:
            raise UnreadableRecord(f"{capitalize_first(subject)} is not the result of an agent's run.") from error


def _dump_state(result: RunResultBase) -> dict[str, Any]:
    """The SDK's state of a run that has ended. The context is not recorded: it may be any object of the process."""
    state = cast(Any, result).to_state()
    state._context.context = None
    if [id(item) for item in state._generated_items] == [id(item) for item in state._session_items]:
        state._generated_items = []  # `load` takes the items of the session
    state._last_processed_response = state._current_step = state._trace_state = None  # an interrupted run needs them
    return state.to_json()


def _encode_output(result: RunResultBase, subject: str) -> tuple[bytes, bool]:
    """The final output, and whether it is of the last agent's ``output_type``."""
    value = result.final_output
    if not isinstance(value, str):
        try:
            return _get_output_codec(result.last_agent).encode(value, subject), True
        except CodecError:
            pass  # the output of a tool that ends the run
    return _ANY_CODEC.encode(value, subject), False


def _get_output_codec(agent: Agent[Any]) -> ValueCodec:
    output_type: Any = agent.output_type
    if isinstance(output_type, AgentOutputSchema):
        output_type = output_type.output_type
    try:
        return codec_for(Any if output_type is None else output_type)
    except (DefinitionError, TypeError):  # a schema class of the user's own
        return _ANY_CODEC
