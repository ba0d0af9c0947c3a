"""What can be read of a model's recorded answer without the model library.

The envelope is told in ``agents.models.reply``, which writes it, and reads all of it. Whoever follows a run needs only
its plain parts: texts, calls, usage. They are read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pydantic_core import from_json

from holdfast.admission.usage import Usage
from holdfast.codec.formatting import capitalize_first
from holdfast.core.records import Record, RecordKind
from holdfast.errors import CodecError, UnreadableRecord

FORMAT_VERSION = 1
"""The number of the envelope. A reader knows all numbers up to its own."""

MODEL_CALL_STEP = "model call"
"""The name of the step by which an agent asks a model. No tool can have it, because of the space."""
INSTRUCTIONS_STEP = "instructions"
"""The step that asks a function for an agent's instructions."""
ANSWER_TOOL = "final_result"
"""The tool that stands for the answer, where an answer is no text."""
ANSWER_ARGUMENT = "response"
"""The one argument of an answer that is no object: see ``agents.output``."""

_ENVELOPE_PREFIX = b'{"$model":'
USAGE_FIELDS = tuple(field.name for field in fields(Usage))
"""What of the usage is recorded."""


@dataclass(frozen=True, slots=True)
class FailedModel:
    """A model that was asked first and gave no answer."""

    model: str
    error: str
    """The provider's words."""
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class RecordedToolCall:
    """A call that a model asked for."""

    name: str
    args: str | dict[str, Any] | None
    """As the model sent them: JSON text, or data."""
    id: str

    @property
    def arguments(self) -> Any:
        """What the tool is called with; text that is no JSON as it is."""
        if not isinstance(self.args, str):
            return self.args or {}
        try:
            return from_json(self.args) if self.args else {}
        except ValueError:
            return self.args


@dataclass(frozen=True, slots=True)
class RecordedCompaction:
    """What a summary stands for: see ``agents.compaction``."""

    summarized_count: int
    """How many of the oldest messages it is in place of; 0: only results of tools were cut."""
    kept_count: int
    """How many of the newest messages are sent beside it."""
    answer_count: int
    """How many answers of the model are summarised, also those that an earlier summary stood for."""
    max_result_length: int | None = None
    """To how many characters the results of tools are cut in the messages that are kept; ``None``: not at all."""


COMPACTION_FIELDS = tuple(field.name for field in fields(RecordedCompaction))
"""What of a compaction is recorded."""


@dataclass(frozen=True, slots=True)
class RecordedReply:
    """What can be told of a recorded answer without the model library."""

    model: str
    text: str
    thinking: str
    tool_calls: tuple[RecordedToolCall, ...]
    usage: Usage
    failed_models: tuple[FailedModel, ...] = ()
    feedback: str | None = None
    compaction: RecordedCompaction | None = None
    finish_reason: str | None = None
    """Why the model stopped, as the provider says it: ``stop``, ``length``, ``content_filter``, ``tool_call``."""
    refusal: str = ""
    """The words in which the model refuses to answer, or to go on."""
    is_continued: bool = False
    """It was cut off, and the next answer goes on with it."""

    @property
    def cut_off_reason(self) -> str:
        """How the answer was cut off, in words; ``""`` if it was not."""
        if self.finish_reason == "length":
            told = "cut off at the limit of tokens"
            return f"{told}; the model was asked to continue" if self.is_continued else told
        if self.finish_reason == "content_filter":
            return f"cut off by the content filter{f': {self.refusal}' if self.refusal else ''}"
        return ""


def decode_reply(payload: bytes) -> RecordedReply | None:
    """What can be read of a recorded answer without the model library; ``None`` if the payload is none.

    Raises ``UnreadableRecord`` for an answer that a newer version has recorded in another format.
    """
    envelope = decode_envelope(payload, "a recorded answer")
    if envelope is None:
        return None
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[RecordedToolCall] = []
    after_text = False
    try:
        for part in envelope["message"]["parts"]:
            if "text" in part and after_text:
                texts[-1] += part["text"]  # as the library joins them: what stands between two texts separates them
            elif "text" in part:
                texts.append(part["text"])
            elif "thinking" in part:
                thoughts.append(part["thinking"])
            elif "call" in part:
                calls.append(_tool_call_from_part(part))
            after_text = "text" in part
        return RecordedReply(
            envelope["model"],
            "\n\n".join(texts),
            "\n\n".join(thoughts),
            tuple(calls),
            usage_from_envelope(envelope),
            failed_models_from_envelope(envelope),
            envelope.get("feedback"),
            compaction_from_envelope(envelope),
            envelope["message"].get("finish_reason"),
            _get_refusal(envelope["message"]),
            bool(envelope.get("is_continued")),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise UnreadableRecord(f"A recorded answer cannot be read: {error!r}.") from error


def reply_from_record(record: Record) -> RecordedReply | None:
    """The recorded answer of a model, if that is what the record is, and if this version can read it."""
    if not record.ok or record.kind is not RecordKind.STEP or record.payload is None:
        return None
    try:
        return decode_reply(record.payload)
    except CodecError:
        return None


def _get_refusal(message: Mapping[str, Any]) -> str:
    details: dict[str, Any] = message.get("provider_details") or {}
    return str(details.get("refusal") or "")


def _tool_call_from_part(part: Mapping[str, Any]) -> RecordedToolCall:
    fields = part.get("other", part)
    return RecordedToolCall(part["call"], fields.get("args"), fields["tool_call_id"])


# The envelope


def decode_envelope(data: bytes, subject: str) -> dict[str, Any] | None:
    """The envelope, if that is what it is."""
    if not data.startswith(_ENVELOPE_PREFIX):
        return None
    try:
        envelope = from_json(data)
    except ValueError as error:
        raise UnreadableRecord(f"{capitalize_first(subject)} cannot be read: {error}.") from error
    if (number := envelope["$model"]) > FORMAT_VERSION:
        raise UnreadableRecord(
            f"{capitalize_first(subject)} was recorded in format {number}, by a newer version of Holdfast; this one "
            "knows formats "
            f"up to {FORMAT_VERSION}. Upgrade Holdfast: `pip install --upgrade holdfast-agents`."
        )
    return envelope


def usage_from_envelope(envelope: Mapping[str, Any]) -> Usage:
    """What the call has used."""
    recorded = envelope["usage"]
    return Usage(**{name: recorded[name] for name in USAGE_FIELDS if name in recorded})


def failed_models_from_envelope(envelope: Mapping[str, Any]) -> tuple[FailedModel, ...]:
    """The models that were asked before the one that answered."""
    return tuple(FailedModel(one["model"], one["error"], one["attempts"]) for one in envelope.get("failed_models", ()))


def compaction_from_envelope(envelope: Mapping[str, Any]) -> RecordedCompaction | None:
    """What the answer stands for, if it is a summary."""
    recorded = envelope.get("compaction")
    return (
        None
        if recorded is None
        else RecordedCompaction(**{name: recorded[name] for name in COMPACTION_FIELDS if name in recorded})
    )
