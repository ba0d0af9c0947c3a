"""The recorded answer of a model.

The envelope is our own, so that a journal stays readable when the model library changes::

    {"$model": 1, "library": "2.66.0", "model": "openai:gpt-4o", "message": {...}, "usage": {...},
     "failed": [{"model": ..., "error": ..., "attempts": ...}], "complaint": "...",
     "compaction": {"summarised": 57, "kept": 8, "answers": 28, "excerpt": 4000}}

``message`` is in the form of ``messages``; ``failed`` and ``complaint`` are left out when there is nothing to say, and
``compaction`` is there when the answer is the summary of what was said before, and ``continues`` when the next one goes
on with it, because it was cut off. The plain parts of it (texts, calls,
usage) can be read without the model library: see ``reports.recorded_reply``.

A key that is not known is passed over, so that an older version reads what a newer one has only added to. What an older
one could not read rightly gets another number.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from holdfast.admission.usage import Usage
from holdfast.agents.models.messages import dump_message, load_message
from holdfast.codec import ValueCodec
from holdfast.codec.formatting import begin
from holdfast.errors import UnreadableRecord, UnrecordableValue
from holdfast.reports.recorded_reply import (
    COMPACTION,
    FORMAT,
    USAGE,
    Compacted,
    FailedModel,
    compaction_in,
    failed_in,
    open_envelope,
    usage_in,
)

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered."""

    response: ModelResponse
    model: str
    """The model that answered, as it was asked for: ``openai:gpt-4o``."""
    usage: Usage
    failed: tuple[FailedModel, ...] = ()
    """The models that were asked before it, and why they did not answer."""
    complaint: str | None = None
    """Why the answer cannot be used, in words for the model."""
    compaction: Compacted | None = None
    """What it stands for, if it is a summary."""
    continues: bool = False
    """It was cut off at the limit of tokens, and the complaint asks the model to go on with it."""


class ReplyCodec(ValueCodec):
    """Replies to bytes and back."""

    __slots__ = ()

    def __init__(self) -> None:
        self.annotation = Reply

    def record(self, value: object, what: str) -> tuple[bytes, object]:
        """The bytes to record, and the reply as it is read from them."""
        if not isinstance(value, Reply):
            raise UnrecordableValue(f"{begin(what)} cannot be recorded: it is a `{type(value).__name__}`, no reply.")
        from pydantic_ai import __version__

        envelope: dict[str, Any] = {
            "$model": FORMAT,
            "library": __version__,
            "model": value.model,
            "message": dump_message(value.response),
            "usage": {name: amount for name in USAGE if (amount := getattr(value.usage, name))},
        }
        if value.failed:
            envelope["failed"] = [
                {"model": one.model, "error": one.error, "attempts": one.attempts} for one in value.failed
            ]
        if value.complaint is not None:
            envelope["complaint"] = value.complaint
        if value.compaction is not None:
            envelope["compaction"] = {
                name: number for name in COMPACTION if (number := getattr(value.compaction, name)) is not None
            }
        if value.continues:
            envelope["continues"] = True
        try:
            data = to_json(envelope)
        except PydanticSerializationError:
            data = to_json(_mended(envelope))
        try:
            return data, self.decode(data, what)
        except UnreadableRecord as error:  # a part that is not what the library declares it to be
            raise UnrecordableValue(f"{begin(what)} cannot be recorded: {error}") from None

    def decode(self, data: bytes, what: str) -> Reply:
        """The reply in the bytes."""
        envelope = open_envelope(data, what)
        if envelope is None and data[:1] == b'"':
            return _said(from_json(data))
        if envelope is None:
            raise UnreadableRecord(f"{begin(what)} is not the record of a model's answer.")
        try:
            return Reply(
                cast("ModelResponse", load_message(envelope["message"])),
                envelope["model"],
                usage_in(envelope),
                failed_in(envelope),
                envelope.get("complaint"),
                compaction_in(envelope),
                bool(envelope.get("continues")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise UnreadableRecord(f"{begin(what)} cannot be read: {error!r}.") from error


REPLIES = ReplyCodec()
"""The codec of every model call."""


def _said(text: str) -> Reply:
    """The answer that somebody has put in place of a model's, in a fork: nobody was asked, and nothing was paid."""
    from pydantic_ai.messages import ModelResponse, TextPart

    return Reply(ModelResponse([TextPart(text)], timestamp=NEVER), "", Usage())


NEVER = datetime.fromtimestamp(0, UTC)
"""When a message was made that nobody has said, or sees: no two attempts may differ."""


def _mended(value: Any) -> Any:
    """The same data with text that UTF-8 can say: a model may answer with halves of surrogate pairs."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_mended(key): _mended(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [_mended(item) for item in cast("list[Any]", value)]
    return value
