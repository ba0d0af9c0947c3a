"""What can be read of a model's recorded answer without the model library.

The envelope is told in ``agents.models.reply``, which writes it, and reads all of it. Whoever follows a run needs only
its plain parts: texts, calls, usage. They are read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from pydantic_core import from_json

from holdfast.admission.usage import Usage
from holdfast.codec.formatting import begin
from holdfast.core.records import Kind, Record
from holdfast.errors import CodecError, UnreadableRecord

FORMAT = 1
"""The number of the envelope. A reader knows all numbers up to its own."""

MODEL_CALL = "model call"
"""The name of the step by which an agent asks a model. No tool can have it, because of the space."""
INSTRUCTIONS = "instructions"
"""The step that asks a function for an agent's instructions."""
ANSWER = "final_result"
"""The tool that stands for the answer, where an answer is no text."""
WRAPPED = "response"
"""The one argument of an answer that is no object: see ``agents.output``."""

_MARK = b'{"$model":'
USAGE = tuple(field.name for field in fields(Usage))
"""What of the usage is recorded."""


@dataclass(frozen=True, slots=True)
class FailedModel:
    """A model that was asked first and gave no answer."""

    model: str
    error: str
    """The provider's words."""
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class PlainCall:
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
class Compacted:
    """What a summary stands for: see ``agents.compaction``."""

    summarised: int
    """How many of the oldest messages it is in place of; 0: only results of tools were cut."""
    kept: int
    """How many of the newest messages are sent beside it."""
    answers: int
    """How many answers of the model are summarised, also those that an earlier summary stood for."""
    excerpt: int | None = None
    """To how many characters the results of tools are cut in the messages that are kept; ``None``: not at all."""


COMPACTION = tuple(field.name for field in fields(Compacted))
"""What of a compaction is recorded."""


@dataclass(frozen=True, slots=True)
class PlainReply:
    """What can be told of a recorded answer without the model library."""

    model: str
    text: str
    thinking: str
    calls: tuple[PlainCall, ...]
    usage: Usage
    failed: tuple[FailedModel, ...] = ()
    complaint: str | None = None
    compaction: Compacted | None = None
    finish_reason: str | None = None
    """Why the model stopped, as the provider says it: ``stop``, ``length``, ``content_filter``, ``tool_call``."""
    refusal: str = ""
    """The words in which the model refuses to answer, or to go on."""
    continues: bool = False
    """It was cut off, and the next answer goes on with it."""

    @property
    def cut_off(self) -> str:
        """How the answer was cut off, in words; ``""`` if it was not."""
        if self.finish_reason == "length":
            told = "cut off at the limit of tokens"
            return f"{told}; the model was asked to continue" if self.continues else told
        if self.finish_reason == "content_filter":
            return f"cut off by the content filter{f': {self.refusal}' if self.refusal else ''}"
        return ""

    def as_json(self) -> dict[str, Any]:
        """Who answered, what it said, and what it took, under stable names."""
        return {
            "model": self.model,
            "text": self.text,
            "thinking": self.thinking,
            "calls": [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in self.calls],
            "complaint": self.complaint,
            "failed": [asdict(model) for model in self.failed],
            "usage": usage_as_json(self.usage),
            "compaction": None if self.compaction is None else asdict(self.compaction),
            "finish_reason": self.finish_reason,
            "refusal": self.refusal,
            "continues": self.continues,
        }


def plain_reply(payload: bytes) -> PlainReply | None:
    """What can be read of a recorded answer without the model library; ``None`` if the payload is none.

    Raises ``UnreadableRecord`` for an answer that a newer version has recorded in another format.
    """
    envelope = open_envelope(payload, "a recorded answer")
    if envelope is None:
        return None
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[PlainCall] = []
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
                calls.append(_plain_call(part))
            after_text = "text" in part
        return PlainReply(
            envelope["model"],
            "\n\n".join(texts),
            "\n\n".join(thoughts),
            tuple(calls),
            usage_in(envelope),
            failed_in(envelope),
            envelope.get("complaint"),
            compaction_in(envelope),
            envelope["message"].get("finish_reason"),
            _refusal_in(envelope["message"]),
            bool(envelope.get("continues")),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise UnreadableRecord(f"A recorded answer cannot be read: {error!r}.") from error


def reply_of(record: Record) -> PlainReply | None:
    """The recorded answer of a model, if that is what the record is, and if this version can read it."""
    if not record.ok or record.kind is not Kind.STEP or record.payload is None:
        return None
    try:
        return plain_reply(record.payload)
    except CodecError:
        return None


def usage_as_json(used: Usage) -> dict[str, Any]:
    """What was used, under stable names. ``usd`` is null where no price is known."""
    return {
        "calls": used.calls,
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cached_tokens": used.cached_tokens,
        "usd": None if used.cost is None else float(used.cost),
        "unpriced": used.unpriced,
        "seconds": round(used.seconds, 6),
    }


def _refusal_in(message: Mapping[str, Any]) -> str:
    details: dict[str, Any] = message.get("provider_details") or {}
    return str(details.get("refusal") or "")


def _plain_call(part: Mapping[str, Any]) -> PlainCall:
    fields = part.get("other", part)
    return PlainCall(part["call"], fields.get("args"), fields["tool_call_id"])


# The envelope


def open_envelope(data: bytes, what: str) -> dict[str, Any] | None:
    """The envelope, if that is what it is."""
    if not data.startswith(_MARK):
        return None
    try:
        envelope = from_json(data)
    except ValueError as error:
        raise UnreadableRecord(f"{begin(what)} cannot be read: {error}.") from error
    if (number := envelope["$model"]) > FORMAT:
        raise UnreadableRecord(
            f"{begin(what)} was recorded in format {number}, by a newer version of Holdfast; this one knows formats "
            f"up to {FORMAT}. Upgrade Holdfast: `pip install --upgrade holdfast-agents`."
        )
    return envelope


def usage_in(envelope: Mapping[str, Any]) -> Usage:
    """What the call has used."""
    recorded = envelope["usage"]
    return Usage(**{name: recorded[name] for name in USAGE if name in recorded})


def failed_in(envelope: Mapping[str, Any]) -> tuple[FailedModel, ...]:
    """The models that were asked before the one that answered."""
    return tuple(FailedModel(one["model"], one["error"], one["attempts"]) for one in envelope.get("failed", ()))


def compaction_in(envelope: Mapping[str, Any]) -> Compacted | None:
    """What the answer stands for, if it is a summary."""
    recorded = envelope.get("compaction")
    return None if recorded is None else Compacted(**{name: recorded[name] for name in COMPACTION if name in recorded})
