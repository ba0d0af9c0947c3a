"""Recorded bytes without their types: for comparing inputs, and for people.

The same inputs can reach the store along two ways: encoded by the workflow's own types, or by a client that knows
only the parameters' names. ``digest`` is equal for both, because it looks at one form: the JSON that pydantic would
write for the values, with keys and sets sorted and whole floats as integers.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, cast

from pydantic_core import from_json, to_json, to_jsonable_python

from holdfast.codec.sealing import refuse_sealed
from holdfast.codec.tags import TAGGED, unpack
from holdfast.codec.wording import kind_of
from holdfast.errors import UnreadableRecord


def digest(data: bytes) -> bytes:
    """Sixteen bytes that are equal for equal values, whoever encoded them."""
    try:
        value = unpack(data)
    except (ValueError, TypeError, ArithmeticError, AttributeError) as error:
        refuse_sealed(data, "what was recorded as inputs")
        raise UnreadableRecord(f"The recorded inputs cannot be read: {error}.") from error
    return hashlib.blake2b(sort_key(value), digest_size=16).digest()


def to_plain(data: bytes) -> object:
    """The recorded value as plain Python data, for people and for clients without the code."""
    try:
        return unpack(data)
    except (ValueError, TypeError, ArithmeticError, AttributeError) as error:
        try:
            return from_json(data.removeprefix(TAGGED))  # a tag from a newer version: show it as it stands
        except ValueError:
            refuse_sealed(data, "the recorded value")
            raise UnreadableRecord(f"The record is not JSON: {error}.") from error


def sort_key(value: object) -> bytes:
    """The canonical bytes of a value; also the order of a set's elements."""
    return to_json(canonical(value))


def canonical(value: Any) -> Any:
    """The value as JSON data in the one form that equal values share."""
    kind = kind_of(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is float:
        if not math.isfinite(value):
            return str(value)
        return int(value) if value.is_integer() else value
    if kind is dict:
        entries = {_key(key): canonical(item) for key, item in cast("dict[object, object]", value).items()}
        return dict(sorted(entries.items()))
    if kind is list or kind is tuple:
        return [canonical(item) for item in value]
    if kind is set or kind is frozenset:
        return sorted((canonical(item) for item in value), key=to_json)
    return to_jsonable_python(value, bytes_mode="base64")


def _key(key: object) -> str:
    """A dict's key as pydantic writes it in JSON."""
    if type(key) is str:
        return key
    try:
        (name,) = cast("dict[str, None]", to_jsonable_python({key: None}, bytes_mode="base64"))
    except (TypeError, ValueError):
        return sort_key(key).decode()
    return name
