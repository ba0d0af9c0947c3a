"""Values on their way over HTTP, in JSON.

Two forms. *Plain* is what programs in other languages send and get: JSON as it is, and what JSON has no form for
(times, bytes, sets) as pydantic writes it. *Tagged* is what Holdfast's own client asks for: nothing is lost on the way.
It is plain as long as JSON says all there is to say, else ``{"$tagged": ...}`` around the recorded form of
``codec.tags``, which has a way to write an object of that shape itself.
"""

from __future__ import annotations

import json
from typing import Any, cast

from pydantic_core import from_json, to_json

from holdfast.codec import codec_for, decode_plain
from holdfast.codec.tags import TAGGED_PREFIX
from holdfast.errors import InputError, UnreadableRecord

VALUES_HEADER = "Holdfast-Values"
"""The header by which a request says which form it sends and wants."""
TAGGED_VALUES = "tagged"

_TAGGED_KEY = "$tagged"
_MAX_INT_BITS = 14_000
"""In bits; about 4200 digits."""
_any_codec = codec_for(Any)


def to_wire(value: Any, subject: str = "the value", *, tagged: bool = True) -> Any:
    """A value as JSON data. Raises ``UnrecordableValue`` for what cannot be recorded either."""
    if not tagged:
        return _to_plain_json(value)
    return encoded_to_wire(_any_codec.encode(value, subject))


def encoded_to_wire(data: bytes) -> Any:
    """A value that is encoded as for a record, in its tagged form."""
    return {_TAGGED_KEY: json.loads(data[len(TAGGED_PREFIX) :])} if data.startswith(TAGGED_PREFIX) else json.loads(data)


def _to_plain_json(value: Any) -> Any:
    try:
        # By way of the text: only there do infinite numbers, which JSON does not have, become words.
        return from_json(to_json(value, bytes_mode="base64", inf_nan_mode="strings", fallback=repr))
    except ValueError:  # there is something in it that even pydantic has no form for
        return _to_fallback_json(value)


def _to_fallback_json(value: Any) -> Any:
    if isinstance(value, str):
        return value  # with half a character in it
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value).items()
        return {
            key if isinstance(key, str) else str(_to_fallback_json(key)): _to_fallback_json(item)
            for key, item in entries
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_fallback_json(item) for item in cast("list[Any]", value)]
    # Python does not write numbers of so many digits, nor read them.
    return hex(value) if isinstance(value, int) and value.bit_length() > _MAX_INT_BITS else _to_plain_json(value)


def from_wire(data: Any, subject: str = "the value") -> Any:
    """A value from its tagged form. Raises ``InputError``."""
    if not isinstance(data, dict) or _TAGGED_KEY not in data:
        return cast("Any", data)
    try:
        return decode_plain(TAGGED_PREFIX + json.dumps(data[_TAGGED_KEY]).encode())
    except UnreadableRecord as error:
        raise InputError(f"{subject} cannot be read: {error}") from None
