"""A step's arguments in a few words, for people to read in the CLI and the dashboard.

Nothing reads a preview but people, so it is cheap before it is complete: long values are cut before they are turned
into text, and values that look like credentials are not shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import islice
from types import NoneType
from typing import Any, cast
from uuid import UUID

from holdfast.codec.formatting import kind_of
from holdfast.codec.round_trip import fields_of

_WORDS_OF_SECRETS = ("password", "passwd", "secret", "token", "api_key", "apikey", "authorization", "credential")
_LONGEST_TEXT = 80
_MOST_ITEMS = 4
_DEEPEST = 2
_SMALL = frozenset({bool, float, NoneType, date, datetime, time, timedelta, UUID})

_hidden: dict[str, bool] = {}
_shown: dict[type, tuple[str, ...]] = {}


def preview(parameters: Sequence[str], args: Sequence[object], kwargs: Mapping[str, object], limit: int = 512) -> str:
    """The arguments as ``customer='acme', 3, rows=[…12 items]``, in at most ``limit`` bytes of UTF-8."""
    parts: list[str] = []
    room = limit
    for index, value in enumerate(args):
        if room <= 0:
            break
        name = parameters[index] if index < len(parameters) else "*"
        if name[:1] == "*":
            parameters = parameters[:index]  # this and all that follow belong to ``*args``
            part = _brief(value)
        else:
            part = f"{name}=***" if _is_hidden(name) else f"{name}={_brief(value)}"
        parts.append(part)
        room -= len(part)
    for name, value in kwargs.items():
        if room <= 0:
            break
        part = f"{name}=***" if _is_hidden(name) else f"{name}={_brief(value)}"
        parts.append(part)
        room -= len(part)
    return _cut(", ".join(parts), limit)


def _is_hidden(name: str) -> bool:
    hidden = _hidden.get(name)
    if hidden is None:
        folded = name.lower().replace("-", "_")
        hidden = any(word in folded for word in _WORDS_OF_SECRETS)
        if len(_hidden) < 10_000:  # dict keys come from data: do not keep all of them for ever
            _hidden[name] = hidden
    return hidden


def _brief(value: Any, depth: int = 0) -> str:
    """A bounded ``repr``: never looks at more than a few items of anything."""
    kind = kind_of(value)
    if kind is str:
        return repr(value) if len(value) <= _LONGEST_TEXT else f"{value[:_LONGEST_TEXT]!r}…"
    if kind is int:
        return repr(value) if value.bit_length() <= 256 else f"<int of {value.bit_length()} bits>"
    if kind in _SMALL:
        return repr(value)
    try:
        return _brief_other(value, kind, depth)
    except BaseException:
        return f"<{kind.__name__}>"  # a repr or an attribute of the user's that fails is no reason to fail a step


def _brief_other(value: Any, kind: type[Any], depth: int) -> str:
    if isinstance(value, Enum):
        return f"{kind.__name__}.{value.name}"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(cast(bytes, value))} bytes>"
    if isinstance(value, Decimal):
        return f"{kind.__name__}('{str(value)[:_LONGEST_TEXT]}')"
    if isinstance(value, Mapping):
        return _brief_mapping(cast("Mapping[Any, Any]", value), depth)
    fields = fields_of(kind)
    if fields is not None:
        return _brief_fields(value, kind, fields, depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        left, right = ("[", "]") if isinstance(value, list) else ("(", ")") if isinstance(value, tuple) else ("{", "}")
        items = cast("list[Any]", value)
        if len(items) > _MOST_ITEMS or (depth >= _DEEPEST and items):
            return f"{left}…{len(items)} items{right}"
        return f"{left}{', '.join(_brief(item, depth + 1) for item in items)}{right}"
    text = " ".join(repr(value)[: _LONGEST_TEXT * 2].split())
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def _brief_mapping(entries: Mapping[Any, Any], depth: int) -> str:
    if len(entries) > _MOST_ITEMS or (depth >= _DEEPEST and entries):
        return f"{{…{len(entries)} items}}"
    shown = (
        f"{_brief(key, depth + 1)}: ***"
        if type(key) is str and _is_hidden(key)
        else f"{_brief(key, depth + 1)}: {_brief(item, depth + 1)}"
        for key, item in entries.items()
    )
    return f"{{{', '.join(shown)}}}"


def _brief_fields(value: Any, kind: type[Any], fields: tuple[str, ...], depth: int) -> str:
    """A model or dataclass by its first fields; those that it keeps out of its own ``repr`` are kept out here too."""
    if depth >= _DEEPEST:
        return f"{kind.__name__}(…)"
    names = _shown.get(kind)
    if names is None:
        declared: dict[str, Any] = getattr(kind, "__dataclass_fields__", None) or kind.__pydantic_fields__
        names = _shown[kind] = tuple(name for name in fields if declared[name].repr)
    shown = [
        f"{name}=***" if _is_hidden(name) else f"{name}={_brief(getattr(value, name, None), depth + 1)}"
        for name in islice(names, _MOST_ITEMS)
    ]
    if len(names) > _MOST_ITEMS:
        shown.append("…")
    return f"{kind.__name__}({', '.join(shown)})"


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit and text.isascii():
        return text
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode()
    return data[: max(limit - 3, 0)].decode("utf-8", "ignore") + ("…" if limit >= 3 else "")
