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

from holdfast.codec import codec_for, to_plain
from holdfast.codec.tags import TAGGED
from holdfast.errors import InputError, UnreadableRecord

VALUES = "Holdfast-Values"
"""The header by which a request says which form it sends and wants."""
TAGGED_VALUES = "tagged"

_MARK = "$tagged"
_LONGEST_NUMBER = 14_000
"""In bits; about 4200 digits."""
_values = codec_for(Any)


def to_wire(value: Any, what: str = "the value", *, tagged: bool = True) -> Any:
    """A value as JSON data. Raises ``UnrecordableValue`` for what cannot be recorded either."""
    if not tagged:
        return _plain(value)
    return encoded_to_wire(_values.encode(value, what))


def encoded_to_wire(data: bytes) -> Any:
    """A value that is encoded as for a record, in its tagged form."""
    return {_MARK: json.loads(data[len(TAGGED) :])} if data.startswith(TAGGED) else json.loads(data)


def _plain(value: Any) -> Any:
    try:
        # By way of the text: only there do infinite numbers, which JSON does not have, become words.
        return from_json(to_json(value, bytes_mode="base64", inf_nan_mode="strings", fallback=repr))
    except ValueError:  # there is something in it that even pydantic has no form for
        return _in_words(value)


def _in_words(value: Any) -> Any:
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value).items()
        return {key if isinstance(key, str) else str(_in_words(key)): _in_words(item) for key, item in entries}
    if isinstance(value, list | tuple | set | frozenset):
        return [_in_words(item) for item in cast("list[Any]", value)]
    # Python does not write numbers of so many digits, nor read them.
    return hex(value) if isinstance(value, int) and value.bit_length() > _LONGEST_NUMBER else _plain(value)


def from_wire(data: Any, what: str = "the value") -> Any:
    """A value from its tagged form. Raises ``InputError``."""
    if not isinstance(data, dict) or _MARK not in data:
        return cast("Any", data)
    try:
        return to_plain(TAGGED + json.dumps(data[_MARK]).encode())
    except UnreadableRecord as error:
        raise InputError(f"{what} cannot be read: {error}") from None
