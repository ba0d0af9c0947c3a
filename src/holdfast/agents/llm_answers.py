"""The record of an ``@llm_step``: the model's answer, in the envelope of every model call (see ``models.reply``).

The caller of the step gets the value of the answer. An answer that does not fit is recorded as well, because it was
paid for, and decoded as ``InvalidAnswer``. The envelope of the first one contains the prompt, under ``prompt``, so that
the model can be called again without running the step's body again.

A value without an envelope is the answer itself. Mocks and forks record such values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from holdfast.admission.usage import Usage
from holdfast.agents.models.messages import dump_messages, load_messages
from holdfast.agents.models.reply import REPLY_CODEC, Reply
from holdfast.agents.output import OutputSpec, make_correction
from holdfast.codec import ValueCodec
from holdfast.engine.definitions import ModelUsage
from holdfast.errors import UnreadableRecord, UnrecordableValue
from holdfast.reports.recorded_reply import decode_reply

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage


@dataclass(frozen=True, slots=True)
class PromptedReply:
    """The reply of a model, before it is recorded."""

    reply: Reply
    prompt: Sequence[ModelMessage] | None = None
    """The prompt from the step's body; ``None`` in a repeated call."""


@dataclass(frozen=True, slots=True)
class InvalidAnswer:
    """A recorded answer that does not fit the output type."""

    feedback: str
    usage: Usage
    payload: bytes = field(repr=False)

    def __repr__(self) -> str:
        return f"<an answer that does not fit: {self.feedback}>"


class AnswerCodec(ValueCodec):
    """The answers of one ``@llm_step``."""

    __slots__ = ("_output_spec",)

    def __init__(self, output_spec: OutputSpec) -> None:
        self.annotation = output_spec.codec.annotation
        self._output_spec = output_spec

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the answer decoded from them."""
        if not isinstance(value, PromptedReply):
            return self._output_spec.codec.round_trip(value, subject)
        data, _ = REPLY_CODEC.round_trip(value.reply, subject)
        if value.reply.feedback is not None and value.prompt is not None:
            try:
                data = data[:-1] + b',"prompt":' + to_json(dump_messages(value.prompt)) + b"}"
            except PydanticSerializationError as error:
                raise UnrecordableValue(f"The prompt of {subject} cannot be recorded: {error}.") from error
        return data, self.decode(data, subject)

    def decode(self, data: bytes, subject: str) -> object:
        """The recorded answer, or an ``InvalidAnswer``."""
        reply = decode_reply(data)
        if reply is None:
            return self._output_spec.codec.decode(data, subject)
        if reply.feedback is not None:
            return InvalidAnswer(reply.feedback, reply.usage, data)
        return self._output_spec.read_plain(reply)


def build_correction_messages(invalid_answers: Sequence[InvalidAnswer]) -> list[ModelMessage]:
    """The messages after answers that did not fit: the prompt, and each answer with its feedback."""
    messages: list[ModelMessage] = []
    for answer in invalid_answers:
        reply = REPLY_CODEC.decode(answer.payload, "a recorded answer")
        if not messages:
            prompt = from_json(answer.payload).get("prompt")
            if prompt is None:
                raise UnreadableRecord("The record of an answer that does not fit lacks its prompt.")
            messages += load_messages(prompt)
        messages += [reply.response, make_correction(reply.response, answer.feedback, reply.response.timestamp)]
    return messages


def read_usage(value: Any) -> ModelUsage | None:
    """The usage of a call of the step."""
    return ModelUsage(value.reply.usage, value.reply.model) if isinstance(value, PromptedReply) else None
