"""The plain parts of a model's recorded answer, decoded without the model library.

``agents.models.reply`` defines the envelope, writes it, and decodes all of it. Readers of a run need only its plain
parts: texts, tool calls, and usage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from pydantic_core import from_json

from holdfast.admission.usage import Usage
from holdfast.codec.formatting import capitalize_first
from holdfast.core.records import Record, RecordKind
from holdfast.errors import CodecError, UnreadableRecord
from holdfast.services.json_form import UsageWithCost, UserValue

FORMAT_VERSION = 1
"""The version of the envelope. A reader knows all versions up to its own."""

MODEL_CALL_STEP = "model call"
"""The name of the step in which an agent calls a model. No tool can have it, because of the space."""
TURN_STEP = "agent turn"
"""The name of the step of an agent that runs elsewhere, which makes its model calls itself."""
AGENT_STEPS = (MODEL_CALL_STEP, TURN_STEP)
"""The names of the steps that are answered by a model."""
INSTRUCTIONS_STEP = "instructions"
"""The step that calls a function for an agent's instructions."""
ANSWER_TOOL = "final_result"
"""The tool that a model calls with an answer that is not a text."""
ANSWER_ARGUMENT = "response"
"""The single argument of an answer that is not an object: see ``agents.output``."""

_ENVELOPE_PREFIX = b'{"$model":'
USAGE_FIELDS = tuple(field.name for field in fields(Usage))
"""The recorded fields of the usage."""


@dataclass(frozen=True, slots=True)
class FailedModel:
    """A model that was called first and did not answer."""

    model: str
    error: str
    """The provider's message."""
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class ToolCallReport:
    """A tool call that a model asked for."""

    id: str
    name: str
    arguments: UserValue
    """The arguments of the tool; the model's text if it is not JSON."""

    @classmethod
    def from_raw(cls, name: str, args: str | dict[str, Any] | None, id: str) -> ToolCallReport:
        """From the arguments that the model sent: JSON text, or data."""
        if not isinstance(args, str):
            return cls(id, name, args or {})
        try:
            return cls(id, name, from_json(args) if args else {})
        except ValueError:
            return cls(id, name, args)

    @property
    def raw_arguments(self) -> str | dict[str, Any]:
        """The arguments in a form that a model sends."""
        given: Any = self.arguments
        return cast("dict[str, Any]", given) if isinstance(given, dict) else json.dumps(given)


@dataclass(frozen=True, slots=True)
class RecordedCompaction:
    """What a summary replaces: see ``agents.compaction``."""

    summarized_count: int
    """Number of oldest messages that it replaces; 0: only tool results were cut."""
    kept_count: int
    """Number of newest messages that are sent with it."""
    answer_count: int
    """Number of summarized answers of the model, including those that an earlier summary replaced."""
    max_result_length: int | None = None
    """Maximum number of characters of tool results in the messages that are kept; ``None``: they are not cut."""


COMPACTION_FIELDS = tuple(field.name for field in fields(RecordedCompaction))
"""The recorded fields of a compaction."""


@dataclass(frozen=True, slots=True)
class ModelCallReport:
    """The plain parts of a model's recorded answer."""

    model: str
    text: str
    thinking: str
    tool_calls: tuple[ToolCallReport, ...]
    feedback: str | None
    failed_models: tuple[FailedModel, ...]
    usage: UsageWithCost
    compaction: RecordedCompaction | None
    finish_reason: str | None = None
    """Why the model stopped, as the provider reports it: ``stop``, ``length``, ``content_filter``, ``tool_call``."""
    refusal: str = ""
    """The words in which the model refuses to answer, or to continue."""
    is_continued: bool = False
    """The answer was cut off, and the next one continues it."""

    @property
    def cut_off_reason(self) -> str:
        """How the answer was cut off, as text; ``""`` if it was not."""
        if self.finish_reason == "length":
            reason = "cut off at the limit of tokens"
            return f"{reason}; the model was asked to continue" if self.is_continued else reason
        if self.finish_reason == "content_filter":
            return f"cut off by the content filter{f': {self.refusal}' if self.refusal else ''}"
        return ""


def decode_reply(payload: bytes) -> ModelCallReport | None:
    """The plain parts of a recorded answer; ``None`` if the payload is something else.

    Raises ``UnreadableRecord`` for an answer that a newer version recorded in another format.
    """
    envelope = decode_envelope(payload, "a recorded answer")
    if envelope is None:
        return None
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCallReport] = []
    after_text = False
    try:
        for part in envelope["message"]["parts"]:
            if "text" in part and after_text:
                texts[-1] += part["text"]  # the library joins them like this: only another part separates two texts
            elif "text" in part:
                texts.append(part["text"])
            elif "thinking" in part:
                thoughts.append(part["thinking"])
            elif "call" in part:
                calls.append(_tool_call_from_part(part))
            after_text = "text" in part
        return ModelCallReport(
            envelope["model"],
            "\n\n".join(texts),
            "\n\n".join(thoughts),
            tuple(calls),
            envelope.get("feedback"),
            failed_models_from_envelope(envelope),
            usage_from_envelope(envelope),
            compaction_from_envelope(envelope),
            envelope["message"].get("finish_reason"),
            _get_refusal(envelope["message"]),
            bool(envelope.get("is_continued")),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise UnreadableRecord(f"A recorded answer cannot be read: {error!r}.") from error


def reply_from_record(record: Record) -> ModelCallReport | None:
    """The model's answer in a record; ``None`` if there is none, or this version cannot read it."""
    if not record.ok or record.kind is not RecordKind.STEP or record.payload is None:
        return None
    try:
        return decode_reply(record.payload)
    except CodecError:
        return None


def _get_refusal(message: Mapping[str, Any]) -> str:
    details: dict[str, Any] = message.get("provider_details") or {}
    return str(details.get("refusal") or "")


def _tool_call_from_part(part: Mapping[str, Any]) -> ToolCallReport:
    fields = part.get("other", part)
    return ToolCallReport.from_raw(part["call"], fields.get("args"), fields["tool_call_id"])


# The envelope


def decode_envelope(data: bytes, subject: str) -> dict[str, Any] | None:
    """The envelope of a recorded answer; ``None`` if the data is something else."""
    if not data.startswith(_ENVELOPE_PREFIX):
        return None
    try:
        envelope = from_json(data)
    except ValueError as error:
        raise UnreadableRecord(f"{capitalize_first(subject)} cannot be read: {error}.") from error
    if (number := envelope["$model"]) > FORMAT_VERSION:
        raise UnreadableRecord(
            f"{capitalize_first(subject)} was recorded in format {number}, by a newer version of Holdfast; this one "
            f"knows formats up to {FORMAT_VERSION}. Upgrade Holdfast: `pip install --upgrade holdfast-agents`."
        )
    return envelope


def usage_from_envelope(envelope: Mapping[str, Any]) -> Usage:
    """What the call used."""
    recorded = envelope["usage"]
    return Usage(**{name: recorded[name] for name in USAGE_FIELDS if name in recorded})


def failed_models_from_envelope(envelope: Mapping[str, Any]) -> tuple[FailedModel, ...]:
    """The models that were called before the one that answered."""
    failed = envelope.get("failed_models", ())
    return tuple(FailedModel(model["model"], model["error"], model["attempts"]) for model in failed)


def compaction_from_envelope(envelope: Mapping[str, Any]) -> RecordedCompaction | None:
    """What the answer replaces, if it is a summary."""
    recorded = envelope.get("compaction")
    if recorded is None:
        return None
    return RecordedCompaction(**{name: recorded[name] for name in COMPACTION_FIELDS if name in recorded})
