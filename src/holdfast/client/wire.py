"""Values on their way over HTTP, in JSON.

Two forms. *Plain* is what programs in other languages send and get: JSON as it is, and what JSON has no form for
(times, bytes, sets) as pydantic writes it. *Tagged* is what Holdfast's own client asks for: nothing is lost on the way.
It is plain as long as JSON says all there is to say, else ``{"$tagged": ...}`` around the recorded form of
``codec.tags``, which has a way to write an object of that shape itself.
"""

from __future__ import annotations

import json
from typing import Any, cast

from pydantic_core import to_jsonable_python

from holdfast.codec import codec_for, to_plain
from holdfast.codec.tags import TAGGED
from holdfast.errors import InputError, UnreadableRecord

VALUES = "Holdfast-Values"
"""The header by which a request says which form it sends and wants."""
TAGGED_VALUES = "tagged"

_MARK = "$tagged"
_values = codec_for(Any)


def to_wire(value: Any, what: str = "the value", *, tagged: bool = True) -> Any:
    """A value as JSON data. Raises ``UnrecordableValue`` for what cannot be recorded either."""
    if not tagged:
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="strings", fallback=repr)
    data = _values.encode(value, what)
    return {_MARK: json.loads(data[len(TAGGED) :])} if data.startswith(TAGGED) else json.loads(data)


def from_wire(data: Any, what: str = "the value") -> Any:
    """A value from its tagged form. Raises ``InputError``."""
    if not isinstance(data, dict) or _MARK not in data:
        return cast("Any", data)
    try:
        return to_plain(TAGGED + json.dumps(data[_MARK]).encode())
    except UnreadableRecord as error:
        raise InputError(f"{what} cannot be read: {error}") from None
