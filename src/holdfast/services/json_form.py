"""The JSON form of Holdfast's own types: one for each, whoever writes it (the server, the CLI) and whoever reads it.

The form follows from the declaration of the type, by pydantic: the names of its fields, times as ISO 8601 in UTC,
enumerations by value. What a declaration cannot say is part of a field's type: the annotated types below.
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
"""Makes JSON data of a value of users' code."""
ValueDecoder = Callable[[Any, str], Any]
"""Reads a value of users' code from JSON data; the text names it in errors."""


# Types of fields


# The writing functions declare no return type, so that the JSON schema stays the one of the field's type.


def _write_user_value(value: Any, handler: SerializerFunctionWrapHandler, info: SerializationInfo):
    encode = cast("ValueEncoder | None", info.context)
    if encode is None:  # it is recorded, by the codec
        return handler(value)
    return encode(str(value) if isinstance(value, UnreadableValue) else value)


def _read_user_value(data: Any, info: ValidationInfo) -> Any:
    decode = cast("ValueDecoder | None", info.context)
    return data if decode is None else decode(data, info.field_name or "the value")


UserValue = Annotated[Any, WrapSerializer(_write_user_value), BeforeValidator(_read_user_value)]
"""A value of users' code. Who writes or reads it says in which of the forms of ``wire_values``; default: plain."""
UserData = Annotated[dict[str, Any], WrapSerializer(_write_user_value), BeforeValidator(_read_user_value)]
"""The same, of an object."""


class UnreadableValue(str):
    """Words in place of a value which cannot be read: it is encrypted, or of a newer version."""

    __slots__ = ()


UtcDatetime = Annotated[datetime, AfterValidator(lambda at: at.astimezone(UTC))]
"""A time whose time zone is ``UTC`` itself, also when it is read: pydantic has a zone of its own for that."""


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
"""Seconds since 1970, written as the others: as ISO 8601."""


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
"""What model calls have used, written with its cost in dollars."""


# Writing and reading


@cache
def get_adapter(kind: Any) -> TypeAdapter[Any]:
    """What writes and reads values of a type."""
    return TypeAdapter(UsageWithCost if kind is Usage else kind)


def encode_plain(value: Any) -> Any:
    """A value of users' code in its plain form: what JSON has no form for, as text."""
    return to_wire(value, tagged=False)


def to_json(value: Any, encode_value: ValueEncoder = encode_plain) -> Any:
    """One of Holdfast's own types, or a list of them, as JSON data."""
    if isinstance(value, list | tuple):
        return [to_json(one, encode_value) for one in cast("list[Any]", value)]
    return get_adapter(cast("Any", type(value))).dump_python(value, mode="json", context=encode_value)


def to_json_bytes(
    value: Any, encode_value: ValueEncoder = encode_plain, *, adapter: TypeAdapter[Any] | None = None
) -> bytes:
    """The same as it is sent. Halves of characters, which a model may have said, become question marks."""
    chosen = adapter or get_adapter(cast("Any", type(value)))
    try:
        return chosen.dump_json(value, context=encode_value)
    except PydanticSerializationError:  # half a character has no form in UTF-8
        data = chosen.dump_python(value, mode="json", context=encode_value)
        return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(errors="replace")


def from_json(kind: type[T], data: Any, decode_value: ValueDecoder | None = None) -> T:
    """A value of this type from JSON data. Raises ``ValidationError``, and what ``decode_value`` raises."""
    return get_adapter(kind).validate_python(data, context=decode_value)
