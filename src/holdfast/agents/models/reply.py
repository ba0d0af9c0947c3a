"""The recorded answer of a model.

The envelope is our own, so that a journal stays readable when the model library changes::

    {"$model": 1, "library": "2.66.0", "model": "openai:gpt-4o", "message": {...}, "usage": {...},
     "failed": [{"model": ..., "error": ..., "attempts": ...}], "complaint": "..."}

``message`` is in the form of ``messages``; ``failed`` and ``complaint`` are left out when there is nothing to say. The
plain parts of it (texts, calls, usage) can be read without the model library: see ``plain_reply``.

A key that is not known is passed over, so that an older version reads what a newer one has only added to. What an older
one could not read rightly gets another number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from holdfast.agents.models.messages import dump_message, load_message
from holdfast.codec import ValueCodec
from holdfast.core.usage import Usage
from holdfast.errors import UnreadableRecord, UnrecordableValue

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

FORMAT = 1
"""The number of the envelope. A reader knows all numbers up to its own."""

_MARK = b'{"$model":'
_USAGE = tuple(field.name for field in fields(Usage))


@dataclass(frozen=True, slots=True)
class FailedModel:
    """A model that was asked first and gave no answer."""

    model: str
    error: str
    """The provider's words."""
    attempts: int = 1


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


@dataclass(frozen=True, slots=True)
class PlainCall:
    """A call that a model asked for."""

    name: str
    args: str | dict[str, Any] | None
    """As the model sent them: JSON text, or data."""
    id: str


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


class ReplyCodec(ValueCodec):
    """Replies to bytes and back."""

    __slots__ = ()

    def __init__(self) -> None:
        self.annotation = Reply

    def record(self, value: object, what: str) -> tuple[bytes, object]:
        """The bytes to record, and the reply as it is read from them."""
        if not isinstance(value, Reply):
            raise UnrecordableValue(f"{_begin(what)} cannot be recorded: it is a `{type(value).__name__}`, no reply.")
        from pydantic_ai import __version__

        envelope: dict[str, Any] = {
            "$model": FORMAT,
            "library": __version__,
            "model": value.model,
            "message": dump_message(value.response),
            "usage": {name: amount for name in _USAGE if (amount := getattr(value.usage, name))},
        }
        if value.failed:
            envelope["failed"] = [
                {"model": one.model, "error": one.error, "attempts": one.attempts} for one in value.failed
            ]
        if value.complaint is not None:
            envelope["complaint"] = value.complaint
        try:
            data = to_json(envelope)
        except PydanticSerializationError:
            data = to_json(_mended(envelope))
        try:
            return data, self.decode(data, what)
        except UnreadableRecord as error:  # a part that is not what the library declares it to be
            raise UnrecordableValue(f"{_begin(what)} cannot be recorded: {error}") from None

    def decode(self, data: bytes, what: str) -> Reply:
        """The reply in the bytes."""
        envelope = _open(data, what)
        if envelope is None and data[:1] == b'"':
            return _said(from_json(data))
        if envelope is None:
            raise UnreadableRecord(f"{_begin(what)} is not the record of a model's answer.")
        try:
            return Reply(
                cast("ModelResponse", load_message(envelope["message"])),
                envelope["model"],
                _usage_in(envelope),
                _failed_in(envelope),
                envelope.get("complaint"),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise UnreadableRecord(f"{_begin(what)} cannot be read: {error!r}.") from error


REPLIES = ReplyCodec()
"""The codec of every model call."""


def plain_reply(payload: bytes) -> PlainReply | None:
    """What can be read of a recorded answer without the model library; ``None`` if the payload is none.

    Raises ``UnreadableRecord`` for an answer that a newer version has recorded in another format.
    """
    envelope = _open(payload, "a recorded answer")
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
            _usage_in(envelope),
            _failed_in(envelope),
            envelope.get("complaint"),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise UnreadableRecord(f"A recorded answer cannot be read: {error!r}.") from error


def _plain_call(part: Mapping[str, Any]) -> PlainCall:
    fields = part.get("other", part)
    return PlainCall(part["call"], fields.get("args"), fields["tool_call_id"])


def _said(text: str) -> Reply:
    """The answer that somebody has put in place of a model's, in a fork: nobody was asked, and nothing was paid."""
    from pydantic_ai.messages import ModelResponse, TextPart

    return Reply(ModelResponse([TextPart(text)], timestamp=_NEVER), "", Usage())


_NEVER = datetime.fromtimestamp(0, UTC)


def _open(data: bytes, what: str) -> dict[str, Any] | None:
    """The envelope, if that is what it is."""
    if not data.startswith(_MARK):
        return None
    try:
        envelope = from_json(data)
    except ValueError as error:
        raise UnreadableRecord(f"{_begin(what)} cannot be read: {error}.") from error
    if (number := envelope["$model"]) > FORMAT:
        raise UnreadableRecord(
            f"{_begin(what)} was recorded in format {number}, by a newer version of Holdfast; this one knows formats "
            f"up to {FORMAT}. Upgrade Holdfast: `pip install --upgrade holdfast`."
        )
    return envelope


def _usage_in(envelope: Mapping[str, Any]) -> Usage:
    recorded = envelope["usage"]
    return Usage(**{name: recorded[name] for name in _USAGE if name in recorded})


def _failed_in(envelope: Mapping[str, Any]) -> tuple[FailedModel, ...]:
    return tuple(FailedModel(one["model"], one["error"], one["attempts"]) for one in envelope.get("failed", ()))


def _mended(value: Any) -> Any:
    """The same data with text that UTF-8 can say: a model may answer with halves of surrogate pairs."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_mended(key): _mended(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [_mended(item) for item in cast("list[Any]", value)]
    return value


def _begin(what: str) -> str:
    return f"{what[:1].upper()}{what[1:]}"
