"""The JSON form of values in HTTP requests and responses.

There are two forms. Programs in other languages use the *plain* form: JSON, with values that JSON has no form for
(times, bytes, sets) as pydantic writes them. Holdfast's own client uses the *tagged* form, which loses nothing. It is
the plain form where JSON is exact, and otherwise ``{"$tagged": ...}`` around the recorded form of ``codec.tags``,
which can also write an object that looks like this one.
"""

from __future__ import annotations

import json
from typing import Any, cast

from pydantic_core import from_json, to_json

from holdfast.codec import codec_for, decode_plain
from holdfast.codec.tags import TAGGED_PREFIX
from holdfast.errors import InputError, UnreadableRecord

VALUES_HEADER = "Holdfast-Values"
"""The request header that names the form of the values sent and wanted."""
TAGGED_VALUES = "tagged"

_TAGGED_KEY = "$tagged"
_MAX_INT_BITS = 14_000
"""About 4200 digits."""
_any_codec = codec_for(Any)


def to_wire(value: Any, subject: str = "the value", *, tagged: bool = True) -> Any:
    """A value as JSON data. Raises ``UnrecordableValue``."""
    if not tagged:
        return _to_plain_json(value)
    return encoded_to_wire(_any_codec.encode(value, subject))


def encoded_to_wire(data: bytes) -> Any:
    """The tagged form of a value that is encoded as for a record."""
    return {_TAGGED_KEY: json.loads(data[len(TAGGED_PREFIX) :])} if data.startswith(TAGGED_PREFIX) else json.loads(data)


def _to_plain_json(value: Any) -> Any:
    try:
        # Through text, because only there infinite numbers, which JSON does not have, become strings.
        return from_json(to_json(value, bytes_mode="base64", inf_nan_mode="strings", fallback=repr))
    except ValueError:  # pydantic has no form for a part of it
        return _to_fallback_json(value)


def _to_fallback_json(value: Any) -> Any:
    if isinstance(value, str):
        return value  # it contains a lone surrogate
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value).items()
        return {
            key if isinstance(key, str) else str(_to_fallback_json(key)): _to_fallback_json(item)
            for key, item in entries
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_fallback_json(item) for item in cast("list[Any]", value)]
    # Python neither writes nor reads numbers with more digits.
    return hex(value) if isinstance(value, int) and value.bit_length() > _MAX_INT_BITS else _to_plain_json(value)


def from_wire(data: Any, subject: str = "the value") -> Any:
    """The value of a tagged form. Raises ``InputError``."""
    if not isinstance(data, dict) or _TAGGED_KEY not in data:
        return cast("Any", data)
    try:
        return decode_plain(TAGGED_PREFIX + json.dumps(data[_TAGGED_KEY]).encode())
    except UnreadableRecord as error:
        raise InputError(f"{subject} cannot be read: {error}") from None
