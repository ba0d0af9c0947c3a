"""What an ``@llm_step`` records: the model's answer, in the envelope of every model call (see ``models.reply``).

Whoever calls the step sees the value of the answer. An answer that does not fit is recorded as well, because it was
paid for: it is read as ``Unfit``. The first one of a call has the prompt in its envelope, under ``prompt``, so that the
model can be asked again without running the step's body once more.

A value that is in no envelope is taken as the answer itself: a mock gives one, and so does a fork.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from holdfast.admission.usage import Usage
from holdfast.agents.models.messages import dump_messages, load_messages
from holdfast.agents.models.reply import REPLIES, Reply
from holdfast.agents.output import Output, correction
from holdfast.codec import ValueCodec
from holdfast.engine.definitions import Used
from holdfast.errors import UnreadableRecord, UnrecordableValue
from holdfast.reports.recorded_reply import plain_reply

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call of the model came to, before it is recorded."""

    reply: Reply
    prompt: Sequence[ModelMessage] | None = None
    """What the step's body wanted to ask; ``None`` when the model was asked again."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """A recorded answer that does not fit what was asked for."""

    complaint: str
    usage: Usage
    data: bytes = field(repr=False)

    def __repr__(self) -> str:
        return f"<an answer that does not fit: {self.complaint}>"


class AnswerCodec(ValueCodec):
    """The answers of one ``@llm_step``."""

    __slots__ = ("_output",)

    def __init__(self, output: Output) -> None:
        self.annotation = output.codec.annotation
        self._output = output

    def record(self, value: object, what: str) -> tuple[bytes, object]:
        """The bytes to record, and the answer as it is read from them."""
        if not isinstance(value, Asked):
            return self._output.codec.record(value, what)
        data, _ = REPLIES.record(value.reply, what)
        if value.reply.complaint is not None and value.prompt is not None:
            try:
                data = data[:-1] + b',"prompt":' + to_json(dump_messages(value.prompt)) + b"}"
            except PydanticSerializationError as error:
                raise UnrecordableValue(f"The prompt of {what} cannot be recorded: {error}.") from error
        return data, self.decode(data, what)

    def decode(self, data: bytes, what: str) -> object:
        """The answer in the bytes, or ``Unfit``."""
        reply = plain_reply(data)
        if reply is None:
            return self._output.codec.decode(data, what)
        if reply.complaint is not None:
            return Unfit(reply.complaint, reply.usage, data)
        return self._output.read_plain(reply)


def conversation_of(unfit: Sequence[Unfit]) -> list[ModelMessage]:
    """What the model is asked after answers that did not fit: the prompt, and each answer with what was wrong."""
    messages: list[ModelMessage] = []
    for answer in unfit:
        reply = REPLIES.decode(answer.data, "a recorded answer")
        if not messages:
            prompt = from_json(answer.data).get("prompt")
            if prompt is None:
                raise UnreadableRecord("The record of an answer that does not fit lacks its prompt.")
            messages += load_messages(prompt)
        messages += [reply.response, correction(reply.response, answer.complaint, reply.response.timestamp)]
    return messages


def used_by(value: Any) -> Used | None:
    """What a call of the step has used."""
    return Used(value.reply.usage, value.reply.model) if isinstance(value, Asked) else None
