"""Recorded bytes without their types: for comparing inputs, and for people.

The same inputs can reach the store in two ways: encoded by the workflow's own types, or by a client that knows only the
parameters' names. ``compute_digest`` is equal for both, because it uses one form: the JSON that pydantic would write
for the values, with keys and sets sorted and whole floats as integers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, cast

from pydantic_core import from_json, to_json, to_jsonable_python

from holdfast.codec.encrypted_values import check_decrypted
from holdfast.codec.formatting import get_type
from holdfast.codec.tags import FLAT_TYPES, TAGGED_PREFIX, UNPACK_ERRORS, unpack, unpack_record
from holdfast.errors import UnreadableRecord

_SCALAR_TYPES = FLAT_TYPES | {float}


def compute_digest(data: bytes) -> bytes:
    """Sixteen bytes that are equal for equal values, however they were encoded."""
    value = unpack_record(data, "the record of the inputs")
    return hashlib.blake2b(to_canonical_bytes(value), digest_size=16).digest()


def compute_content_digest(*values: object) -> str:
    """A short digest that is equal for equal values; ``""`` for values without JSON, such as open connections."""
    try:
        return hashlib.blake2b(to_canonical_bytes(values), digest_size=12).hexdigest()
    except (TypeError, ValueError, RecursionError):
        return ""


def decode_plain(data: bytes) -> object:
    """The recorded value as plain Python data, for people and for clients without the code."""
    try:
        return unpack(data)
    except UNPACK_ERRORS as error:
        try:
            return from_json(data.removeprefix(TAGGED_PREFIX))  # a tag from a newer version: show it as it is
        except ValueError:
            check_decrypted(data, "the recorded value")
            raise UnreadableRecord(f"The record is not JSON: {error}.") from error


def to_canonical_bytes(value: object) -> bytes:
    """The canonical bytes of a value; they also order a set's elements."""
    parts: list[bytes] = []
    _write_value(value, parts)
    return b"".join(parts)


def canonicalize(value: Any) -> Any:
    """A single value as JSON data, in the form that equal values share."""
    kind = get_type(value)
    if kind in FLAT_TYPES:
        return value
    if kind is float:
        if not math.isfinite(value):
            return str(value)
        return int(value) if value.is_integer() else value
    return to_jsonable_python(value, bytes_mode="base64")


def _write_value(value: Any, parts: list[bytes]) -> None:
    """Append the canonical bytes of a value.

    Every part is written once: sorting the elements of a set compares bytes that exist already, and one call writes a
    whole list or dict of flat values.
    """
    kind = get_type(value)
    if kind is dict:
        _write_entries(cast("dict[object, object]", value), parts)
    elif kind is list or kind is tuple:
        _write_items(value, parts)
    elif kind is set or kind is frozenset:
        elements = sorted(map(to_canonical_bytes, value))
        parts += (b"[", b",".join(elements), b"]")
    else:
        parts.append(to_json(canonicalize(value)))


def _write_items(items: Sequence[object], parts: list[bytes]) -> None:
    kinds = set(map(type, items))
    if kinds <= _SCALAR_TYPES:
        parts.append(to_json(list(items) if kinds <= FLAT_TYPES else list(map(canonicalize, items))))
        return
    before = b"["
    for item in items:
        parts.append(before)
        _write_value(item, parts)
        before = b","
    parts.append(b"]")


def _write_entries(entries: dict[object, object], parts: list[bytes]) -> None:
    by_name = entries if set(map(type, entries)) <= {str} else {_format_key(key): item for key, item in entries.items()}
    ordered = sorted(cast("dict[str, object]", by_name).items(), key=itemgetter(0))
    kinds = set(map(type, entries.values()))
    if kinds <= _SCALAR_TYPES:
        flat = dict(ordered) if kinds <= FLAT_TYPES else {name: canonicalize(item) for name, item in ordered}
        parts.append(to_json(flat))
        return
    before = b"{"
    for name, item in ordered:
        parts += (before, to_json(name), b":")
        _write_value(item, parts)
        before = b","
    parts.append(b"}")


def _format_key(key: object) -> str:
    """A dict's key as pydantic writes it in JSON."""
    if type(key) is str:
        return key
    try:
        (name,) = cast("dict[str, None]", to_jsonable_python({key: None}, bytes_mode="base64"))
    except (TypeError, ValueError):
        return to_canonical_bytes(key).decode()
    return name
