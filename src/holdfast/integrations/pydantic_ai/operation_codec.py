"""The recorded form of the library's operations.

A model's answer is recorded as in Holdfast's own agents (``agents.models.reply``), so that readers of a journal do not
need the library, or to know which kind of agent wrote it. A tool's result is plain JSON. Everything else, such as a
tool that asks for an approval, or the tools of an MCP server, is in the library's own form, with its version::

    {"$pydantic_ai": 1, "library": "2.66.0", "value": {"kind": "model_retry", "message": "..."}}

The library promises to read the forms of its earlier versions.
"""

from __future__ import annotations

from typing import Any, cast

from pydantic import ValidationError
from pydantic_ai import __version__ as LIBRARY
from pydantic_ai.durable_exec import JSON_CODEC
from pydantic_ai.messages import ModelResponse
from pydantic_core import from_json, to_json

from holdfast.codec import ValueCodec
from holdfast.codec.formatting import capitalize_first
from holdfast.core.execution import get_current_execution
from holdfast.errors import UnreadableRecord, UnrecordableValue

FORMAT_VERSION = 1
_FORMAT_KEY = "$pydantic_ai"
_RESULT_KEYS = {"kind", "result"}
"""The keys of the library's form of a plain result."""


class LibraryValueCodec:
    """Converts the library's values to plain data: its ``DurabilityCodec``. Answers of models are not converted."""

    def dump(self, tp: Any, value: Any) -> Any:
        """The value as plain data."""
        return value if isinstance(value, ModelResponse) else JSON_CODEC.dump(tp, value)

    def load(self, tp: Any, payload: Any) -> Any:
        """The value from plain data."""
        if isinstance(payload, ModelResponse):
            return payload
        try:
            return JSON_CODEC.load(tp, payload)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            unreadable = UnreadableRecord(
                f"What a step of a Pydantic AI agent has recorded cannot be read by version {LIBRARY} of the library, "
                f"which is installed here: {first['msg']}. If a newer version wrote it, install that one."
            )
            execution = get_current_execution()
            if execution is not None:  # the run's code must not catch it: the installed library cannot read the journal
                execution.fatal_error = execution.fatal_error or unreadable
            raise unreadable from error


def make_unrecordable_error(error: Exception) -> UnrecordableValue:
    """The error for a value that the library could not serialize."""
    return UnrecordableValue(
        f"What a tool of a Pydantic AI agent returned cannot be recorded: {error}. Return plain data, a pydantic "
        f"model, a dataclass, or what the library takes as a tool's result."
    )


class OperationCodec(ValueCodec):
    """Encodes the plain data of operations."""

    __slots__ = ()

    def __init__(self) -> None:
        self.annotation = dict

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the data decoded from them."""
        data: Any = value
        if isinstance(value, dict) and value.keys() == _RESULT_KEYS and value["kind"] == "tool_return":
            data = cast("dict[str, Any]", value)["result"]
            if isinstance(data, dict) and _FORMAT_KEY in data:
                data = _wrap_in_envelope(value)  # pyright: ignore[reportUnknownArgumentType]
        else:
            data = _wrap_in_envelope(value)
        try:
            written = to_json(data, inf_nan_mode="strings")
        except ValueError as error:
            raise UnrecordableValue(f"{capitalize_first(subject)} cannot be recorded: {error}") from None
        return written, self.decode(written, subject)

    def decode(self, data: bytes, subject: str) -> Any:
        """The recorded data."""
        envelope: dict[str, Any] = from_json(data)
        if not isinstance(envelope, dict) or _FORMAT_KEY not in envelope:  # pyright: ignore[reportUnnecessaryIsInstance]
            return {"kind": "tool_return", "result": envelope}
        if envelope[_FORMAT_KEY] != FORMAT_VERSION:
            raise UnreadableRecord(
                f"{capitalize_first(subject)} was recorded by a newer version of Holdfast: upgrade this one."
            )
        return envelope["value"]


def _wrap_in_envelope(value: Any) -> dict[str, Any]:
    return {_FORMAT_KEY: FORMAT_VERSION, "library": LIBRARY, "value": value}


OPERATION_CODEC = OperationCodec()
