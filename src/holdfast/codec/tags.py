"""The closed set of values that can be recorded without a declared type, and their bytes.

The stored form is plain JSON wherever JSON preserves the value. Otherwise it is the byte ``0x01`` followed by JSON in
which an object with one key that starts with ``$`` is a tag: ``{"$tuple": [1, 2]}``, ``{"$datetime":
"2024-05-01T12:00:00"}``. A dict that could be mistaken for a tag, or with keys that are not strings, is written as
``{"$dict": [[key, value], ...]}``. ``{"$json": ...}`` contains plain JSON, whatever its keys look like.

The set is closed on purpose. Reading a record must never run code that the record names, and the value read must be
exactly the value written: a subclass of ``str`` or an ``Enum`` member would come back as something else, so it is
refused.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, cast
from uuid import UUID

from pydantic_core import PydanticSerializationError, from_json, to_json

from holdfast.codec.encrypted_values import check_decrypted
from holdfast.codec.formatting import (
    capitalize_first,
    format_key,
    format_path,
    format_type,
    make_unrecordable_error,
    suggest_fix,
)
from holdfast.codec.value_codec import EncodedValue
from holdfast.errors import UnreadableRecord, UnrecordableValue

UNPACK_ERRORS = (ValueError, TypeError, ArithmeticError, AttributeError)
"""What ``unpack`` raises for bytes that ``pack`` does not write."""

TAGGED_PREFIX = b"\x01"
"""The first byte of the tagged form; no JSON text begins with it."""

MAX_DEPTH = 190
"""Maximum nesting of JSON: the parser stops at 200, and an inputs object adds some levels of its own."""

MAX_DECIMAL_BITS = 4096
"""Larger integers are written in hexadecimal, since parsers limit decimal digits (CPython to 4300)."""

_LEAF_TAGS: dict[type, str] = {
    bytes: "$bytes",
    datetime: "$datetime",
    date: "$date",
    time: "$time",
    timedelta: "$timedelta",
    Decimal: "$decimal",
    UUID: "$uuid",
}
FLAT_TYPES = frozenset({str, int, bool, NoneType})
"""Types whose values JSON always preserves."""
ATOMIC_TYPES = frozenset({*FLAT_TYPES, float, *_LEAF_TAGS})
TAGGED_TYPES = ATOMIC_TYPES | {list, dict, tuple, set, frozenset}
"""The closed set."""

Replacer = Callable[[object], object]
"""Turns a value outside the closed set into one of the set, or raises ``TypeError``."""


def pack(value: object, subject: str, replacer: Replacer | None = None) -> bytes:
    """The bytes of a value of the closed set.

    ``replacer`` replaces every value outside the set; without it such values are refused.
    """
    return pack_and_unpack(value, subject, replacer)[0]


def pack_and_unpack(value: object, subject: str, replacer: Replacer | None = None) -> tuple[bytes, object]:
    """The bytes of a value, and the value read from them: equal, and sharing nothing mutable."""
    if type(value) is EncodedValue:
        return value.data, value
    try:
        if is_plain(value):
            data = to_json(value)
            return data, from_json(data)
    except (PydanticSerializationError, ValueError, RecursionError):
        pass  # the slow path finds a tag that helps, or the position for the error
    try:
        tagged = _Tagger(subject, replacer).tag(value)
        body = to_json(tagged)
        return body if is_plain(tagged) else TAGGED_PREFIX + body, untag(from_json(body))
    except UnrecordableValue:
        raise
    except RecursionError:
        raise _make_depth_error(subject) from None
    except ValueError as error:
        raise make_unrecordable_error(subject, f"its encoding failed ({error})", "Return plain data.") from error


def unpack(data: bytes) -> object:
    """The value in the bytes, tagged or plain. Raises one of ``UNPACK_ERRORS``."""
    if data[:1] == TAGGED_PREFIX:
        return untag(from_json(data[1:]))
    return from_json(data)


def unpack_record(data: bytes, subject: str) -> object:
    """Like ``unpack``, but raises ``UndecryptableValue`` or ``UnreadableRecord``, with ``subject`` in the message."""
    try:
        return unpack(data)
    except UNPACK_ERRORS as error:
        check_decrypted(data, subject)
        raise UnreadableRecord(f"{capitalize_first(subject)} cannot be read: {error}.") from error


def is_plain(value: object, depth: int = 0, *, allow_dollar_keys: bool = False) -> bool:
    """Whether plain JSON preserves the value. (Values that contain themselves are not plain.)

    With ``allow_dollar_keys``, keys may begin with ``$``: harmless in plain JSON, but not among tags.
    """
    kind = type(value)
    if kind in FLAT_TYPES:
        return True
    if kind is float:
        return math.isfinite(cast(float, value))
    if depth > MAX_DEPTH:
        return False
    if kind is dict:
        entries = cast("dict[object, object]", value)
        for key in entries:
            if type(key) is not str or (key[:1] == "$" and not allow_dollar_keys):
                return False
        items: Collection[object] = entries.values()
    elif kind is list:
        items = cast("list[object]", value)
    else:
        return False
    return set(map(type, items)) <= FLAT_TYPES or all(
        is_plain(item, depth + 1, allow_dollar_keys=allow_dollar_keys) for item in items
    )


def _make_depth_error(subject: str) -> UnrecordableValue:
    return make_unrecordable_error(
        subject, "it is nested too deeply", f"Keep it under {MAX_DEPTH} levels, for example as a flat list."
    )


class _Tagger:
    """Turns one value into JSON data with tags; tracks the path, for errors, and the ancestors, for cycles."""

    def __init__(self, subject: str, replacer: Replacer | None) -> None:
        self._subject = subject
        self._replacer = replacer
        self._path: list[str] = []
        self._ancestor_ids: set[int] = set()

    def tag(self, value: object, depth: int = 0) -> object:
        """The JSON data for the value; every list, dict, and tag is a level."""
        kind = type(value)
        if kind is str:
            return self._validate_text(cast(str, value))
        if kind is bool or kind is NoneType:
            return value
        if kind is int:
            number = cast(int, value)
            return number if number.bit_length() <= MAX_DECIMAL_BITS else {"$int": hex(number)}
        if kind is float:
            real = cast(float, value)
            return real if math.isfinite(real) else {"$float": str(real)}
        if kind in _LEAF_TAGS:
            return {_LEAF_TAGS[kind]: self._encode_leaf(kind, value)}
        if kind not in TAGGED_TYPES:
            return self._tag_replacement(value, depth)
        if depth > MAX_DEPTH:
            raise _make_depth_error(self._subject)
        if id(value) in self._ancestor_ids:
            raise make_unrecordable_error(
                self._subject, f"{format_path(self._path)}it contains itself", "Return data without cycles."
            )
        self._ancestor_ids.add(id(value))
        try:
            return self._tag_container(kind, value, depth)
        finally:
            self._ancestor_ids.discard(id(value))

    def _tag_container(self, kind: type, value: object, depth: int) -> object:
        if kind is list:
            return self._tag_items(cast("list[object]", value), depth + 1)
        if kind is tuple:
            return {"$tuple": self._tag_items(cast("tuple[object, ...]", value), depth + 2)}
        if kind is dict:
            return self._tag_entries(cast("dict[object, object]", value), depth)
        # The order of a set depends on the process's hash seed; the order of encoded elements does not.
        elements = self._tag_items(cast("set[object]", value), depth + 2)
        return {"$set" if kind is set else "$frozenset": sorted(elements, key=to_json)}

    def _tag_items(self, items: Any, depth: int) -> list[object]:
        tagged: list[object] = []
        for index, item in enumerate(items):
            self._path.append(f"[{index}]")
            tagged.append(self.tag(item, depth))
            self._path.pop()
        return tagged

    def _tag_entries(self, entries: dict[object, object], depth: int) -> object:
        if all(type(key) is str and key[:1] != "$" for key in entries):
            plain: dict[object, object] = {}
            for key, item in entries.items():
                self._path.append(f"[{format_key(key)}]")
                plain[self._validate_text(cast(str, key))] = self.tag(item, depth + 1)
                self._path.pop()
            return plain
        pairs: list[list[object]] = []
        for index, (key, item) in enumerate(entries.items()):
            self._path.append(f"[key {index + 1}]")
            name = self.tag(key, depth + 3)
            self._path[-1] = f"[value {index + 1}]"
            pairs.append([name, self.tag(item, depth + 3)])
            self._path.pop()
        return {"$dict": pairs}

    def _validate_text(self, text: str) -> str:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise make_unrecordable_error(
                    self._subject,
                    f"{format_path(self._path)}there is text with half a character in it (a lone surrogate)",
                    "Clean it with `text.encode('utf-8', 'replace').decode()`, or return bytes.",
                ) from None
        return text

    def _encode_leaf(self, kind: type, value: object) -> object:
        if kind is bytes:
            return b64encode(cast(bytes, value)).decode()
        if kind is timedelta:
            duration = cast(timedelta, value)
            return [duration.days, duration.seconds, duration.microseconds]
        if kind is datetime or kind is date:
            return cast(date, value).isoformat()
        if kind is time:
            clock = cast(time, value)
            if clock.tzinfo is not None and clock.utcoffset() is None:
                problem = f"{format_path(self._path)}there is a time of day in a zone whose offset depends on the date"
                raise make_unrecordable_error(
                    self._subject, problem, "Return a datetime, or the time and the zone's name."
                )
            return clock.isoformat()
        return str(value)

    def _tag_replacement(self, value: object, depth: int) -> object:
        if self._replacer is not None:
            if depth > MAX_DEPTH:
                raise _make_depth_error(self._subject)
            try:
                replacement = self._replacer(value)
            except (TypeError, ValueError):
                pass
            else:
                return self.tag(replacement, depth + 1)
        problem = f"{format_path(self._path)}there is a `{format_type(type(value))}`, which no declared type describes"
        raise make_unrecordable_error(self._subject, problem, suggest_fix(value))


def untag(data: object) -> object:
    """The value that JSON data with tags represents."""
    if type(data) is dict:
        entries = cast("dict[str, Any]", data)
        if len(entries) == 1:
            (key,) = entries
            if key[:1] == "$":
                reader = _TAG_READERS.get(key)
                if reader is None:
                    raise ValueError(f"unknown tag {key!r}: written by a newer Holdfast?")
                return reader(entries[key])
        return {key: item if type(item) in FLAT_TYPES else untag(item) for key, item in entries.items()}
    if type(data) is list:
        return [item if type(item) in FLAT_TYPES else untag(item) for item in cast("list[object]", data)]
    return data


def _read_items(body: Any) -> list[Any]:
    return [untag(item) for item in body]


_TAG_READERS: dict[str, Callable[[Any], object]] = {
    "$json": lambda body: body,
    "$int": lambda body: int(body, 16),
    "$float": float,
    "$tuple": lambda body: tuple(_read_items(body)),
    "$set": lambda body: set(_read_items(body)),
    "$frozenset": lambda body: frozenset(_read_items(body)),
    "$dict": lambda body: {untag(key): untag(item) for key, item in body},
    "$bytes": b64decode,
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$time": time.fromisoformat,
    "$timedelta": lambda body: timedelta(*body),
    "$decimal": Decimal,
    "$uuid": UUID,
}
