"""The JSON form of Holdfast's own types, the same in the server, the CLI, and the client.

Pydantic derives the form from the declaration of the type: fields by name, times as ISO 8601 in UTC, enumerations by
value. The annotated types below add what a declaration cannot express.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    GetJsonSchemaHandler,
    PlainSerializer,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
    WrapSerializer,
)
from pydantic_core import CoreSchema, PydanticSerializationError

from holdfast.admission.usage import Usage
from holdfast.services.timestamps import to_datetime
from holdfast.services.wire_values import to_wire

T = TypeVar("T")

ValueEncoder = Callable[[Any], Any]
"""Turns a value of users' code into JSON data."""
ValueDecoder = Callable[[Any, str], Any]
"""Reads a value of users' code from JSON data; the text names the value in errors."""


# Types of fields


# The functions that write declare no return type, so that the JSON schema remains that of the field's type.


def _write_user_value(value: Any, info: SerializationInfo):
    encode = cast("ValueEncoder | None", info.context)
    if encode is None:  # the codec records it
        return value
    return encode(str(value) if isinstance(value, UnreadableValue) else value)


def _read_user_value(data: Any, info: ValidationInfo) -> Any:
    decode = cast("ValueDecoder | None", info.context)
    return data if decode is None else decode(data, info.field_name or "the value")


UserValue = Annotated[
    Any, PlainSerializer(_write_user_value, when_used="unless-none"), BeforeValidator(_read_user_value)
]
"""A value of users' code. The caller chooses one of the forms of ``wire_values``; default: plain."""
UserData = Annotated[dict[str, Any], PlainSerializer(_write_user_value), BeforeValidator(_read_user_value)]
"""An object of users' code, in the same forms."""


class UnreadableValue(str):
    """Text instead of a value that cannot be read: it is encrypted, or from a newer version."""

    __slots__ = ()


UtcDatetime = Annotated[datetime, AfterValidator(lambda at: at.astimezone(UTC))]
"""A time with the zone ``UTC``, also when it is read: pydantic would use a zone class of its own."""


def _write_timestamp(at: float, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> Any:
    return handler(at) if info.context is None else get_adapter(datetime).dump_python(to_datetime(at), mode="json")


def _read_timestamp(data: Any) -> Any:
    return datetime.fromisoformat(data).timestamp() if isinstance(data, str) else data


Timestamp = Annotated[
    float,
    WrapSerializer(_write_timestamp),
    BeforeValidator(_read_timestamp),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""Seconds since 1970, written as ISO 8601, like other times."""


class _UsdProperty:
    """Adds ``usd`` to the JSON schema of ``Usage``."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        reference = handler(schema)
        usage = handler.resolve_ref_schema(reference)
        if handler.mode == "serialization" and "usd" not in usage["properties"]:
            usage["properties"]["usd"] = {
                "anyOf": [{"type": "number"}, {"type": "null"}],
                "description": "Dollars, of the calls whose price is known; null if none is.",
            }
            usage["required"] = [*usage.get("required", ()), "usd"]
        return reference


def _write_usage(usage: Usage, handler: SerializerFunctionWrapHandler, info: SerializationInfo):
    if info.context is None:
        return handler(usage)
    return {**handler(usage), "usd": None if usage.cost is None else float(usage.cost)}


UsageWithCost = Annotated[Usage, WrapSerializer(_write_usage), _UsdProperty()]
"""Usage of model calls, written with its cost in dollars."""


# Writing and reading


@cache
def get_adapter(kind: Any) -> TypeAdapter[Any]:
    """The adapter that writes and reads values of a type."""
    return TypeAdapter(UsageWithCost if kind is Usage else kind)


def encode_plain(value: Any) -> Any:
    """A value of users' code in its plain form."""
    return to_wire(value, tagged=False)


def to_json(value: Any, encode_value: ValueEncoder = encode_plain) -> Any:
    """A value of one of Holdfast's own types, or a list of them, as JSON data."""
    if isinstance(value, list | tuple):
        return [to_json(one, encode_value) for one in cast("list[Any]", value)]
    return get_adapter(cast("Any", type(value))).dump_python(value, mode="json", context=encode_value)


def to_json_bytes(
    value: Any, encode_value: ValueEncoder = encode_plain, *, adapter: TypeAdapter[Any] | None = None
) -> bytes:
    """The same as JSON text. Lone surrogates, which a model may have produced, become question marks."""
    chosen = adapter or get_adapter(cast("Any", type(value)))
    try:
        return chosen.dump_json(value, context=encode_value)
    except PydanticSerializationError:  # a lone surrogate has no form in UTF-8
        data = chosen.dump_python(value, mode="json", context=encode_value)
        return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(errors="replace")


def from_json(kind: type[T], data: Any, decode_value: ValueDecoder | None = None) -> T:
    """A value of this type from JSON data. Raises ``ValidationError``, and what ``decode_value`` raises."""
    return get_adapter(kind).validate_python(data, context=decode_value)
