"""The recorded answer of a model.

It has an envelope of its own, so that a journal stays readable when the model library changes::

    {"$model": 1, "library": "2.66.0", "model": "openai:gpt-4o", "message": {...}, "usage": {...},
     "failed_models": [{"model": ..., "error": ..., "attempts": ...}], "feedback": "...",
     "compaction": {"summarized_count": 57, "kept_count": 8, "answer_count": 28, "max_result_length": 4000}}

``message`` is in the form of ``messages``. The other keys are optional: ``compaction`` if the answer is a summary of
earlier messages, and ``is_continued`` if the answer was cut off and the next one continues it. The plain parts of it
(texts, calls, usage) can be read without the model library: see ``reports.recorded_reply``.

An unknown key is ignored, so that an older version reads records to which a newer one has added keys. A form that an
older version would misread gets another number.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from holdfast.admission.usage import Usage
from holdfast.agents.models.messages import dump_message, load_message
from holdfast.codec import ValueCodec
from holdfast.codec.formatting import capitalize_first
from holdfast.errors import UnreadableRecord, UnrecordableValue
from holdfast.reports.recorded_reply import (
    COMPACTION_FIELDS,
    FORMAT_VERSION,
    USAGE_FIELDS,
    FailedModel,
    RecordedCompaction,
    compaction_from_envelope,
    decode_envelope,
    failed_models_from_envelope,
    usage_from_envelope,
)

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of a model."""

    response: ModelResponse
    model: str
    """The model that answered, as it was requested: ``openai:gpt-4o``."""
    usage: Usage
    failed_models: tuple[FailedModel, ...] = ()
    """The models that were called before it, and why they did not answer."""
    feedback: str | None = None
    """Why the answer cannot be used, in words for the model."""
    compaction: RecordedCompaction | None = None
    """The messages that it replaces, if it is a summary."""
    is_continued: bool = False
    """It was cut off at the token limit, and the feedback asks the model to continue it."""


class ReplyCodec(ValueCodec):
    """Replies to bytes and back."""

    __slots__ = ()

    def __init__(self) -> None:
        self.annotation = Reply

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the reply decoded from them."""
        if not isinstance(value, Reply):
            raise UnrecordableValue(
                f"{capitalize_first(subject)} cannot be recorded: it is a `{type(value).__name__}`, no reply."
            )
        from pydantic_ai import __version__

        envelope: dict[str, Any] = {
            "$model": FORMAT_VERSION,
            "library": __version__,
            "model": value.model,
            "message": dump_message(value.response),
            "usage": {name: amount for name in USAGE_FIELDS if (amount := getattr(value.usage, name))},
        }
        if value.failed_models:
            envelope["failed_models"] = [
                {"model": failed.model, "error": failed.error, "attempts": failed.attempts}
                for failed in value.failed_models
            ]
        if value.feedback is not None:
            envelope["feedback"] = value.feedback
        if value.compaction is not None:
            envelope["compaction"] = {
                name: number for name in COMPACTION_FIELDS if (number := getattr(value.compaction, name)) is not None
            }
        if value.is_continued:
            envelope["is_continued"] = True
        try:
            data = to_json(envelope)
        except PydanticSerializationError:
            data = to_json(_replace_surrogates(envelope))
        try:
            return data, self.decode(data, subject)
        except UnreadableRecord as error:  # a part whose value is not of the type that the library declares
            raise UnrecordableValue(f"{capitalize_first(subject)} cannot be recorded: {error}") from None

    def decode(self, data: bytes, subject: str) -> Reply:
        """The recorded reply."""
        envelope = decode_envelope(data, subject)
        if envelope is None and data[:1] == b'"':
            return _make_text_reply(from_json(data))
        if envelope is None:
            raise UnreadableRecord(f"{capitalize_first(subject)} is not the record of a model's answer.")
        try:
            return Reply(
                cast("ModelResponse", load_message(envelope["message"])),
                envelope["model"],
                usage_from_envelope(envelope),
                failed_models_from_envelope(envelope),
                envelope.get("feedback"),
                compaction_from_envelope(envelope),
                bool(envelope.get("is_continued")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise UnreadableRecord(f"{capitalize_first(subject)} cannot be read: {error!r}.") from error


REPLY_CODEC = ReplyCodec()
"""The codec of every model call."""


def _make_text_reply(text: str) -> Reply:
    """A text that replaces a model's answer in a fork. It has no model and no usage."""
    from pydantic_ai.messages import ModelResponse, TextPart

    return Reply(ModelResponse([TextPart(text)], timestamp=FIXED_TIMESTAMP), "", Usage())


FIXED_TIMESTAMP = datetime.fromtimestamp(0, UTC)
"""The timestamp of messages that no model or user wrote: it must not differ between attempts."""


def _replace_surrogates(value: Any) -> Any:
    """The same data with valid Unicode: a model may answer with halves of surrogate pairs."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {
            _replace_surrogates(key): _replace_surrogates(item) for key, item in cast("dict[Any, Any]", value).items()
        }
    if isinstance(value, list):
        return [_replace_surrogates(item) for item in cast("list[Any]", value)]
    return value
