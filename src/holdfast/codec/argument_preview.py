"""A short preview of a step's arguments, for the CLI and the dashboard.

Only people read a preview, so low cost matters more than completeness: long values are cut before they are turned into
text, and values that look like credentials are not shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any, cast
from uuid import UUID

from holdfast.codec.formatting import get_type
from holdfast.codec.round_trip import get_data_fields

_SECRET_WORDS = ("password", "passwd", "secret", "token", "api_key", "apikey", "authorization", "credential")
_MAX_TEXT_LENGTH = 80
_MAX_ITEMS = 4
_MAX_DEPTH = 2
_SHORT_TYPES = frozenset({bool, float, NoneType, date, datetime, time, timedelta, UUID})

_is_secret_cache: dict[str, bool] = {}
_shown_fields_cache: dict[type, tuple[str, ...]] = {}


def preview_arguments(
    parameters: Sequence[str], args: Sequence[object], kwargs: Mapping[str, object], max_bytes: int = 512
) -> str:
    """The arguments as ``customer='acme', 3, rows=[…12 items]``, in at most ``max_bytes`` bytes of UTF-8."""
    if not args and not kwargs:
        return ""
    parts: list[str] = []
    room = max_bytes
    for index, value in enumerate(args):
        if room <= 0:
            break
        name = parameters[index] if index < len(parameters) else "*"
        if name[:1] == "*":
            parameters = parameters[:index]  # this and all that follow belong to ``*args``
            part = _format_brief(value)
        else:
            part = _format_named(name, value)
        parts.append(part)
        room -= len(part)
    for name, value in kwargs.items():
        if room <= 0:
            break
        part = _format_named(name, value)
        parts.append(part)
        room -= len(part)
    text = ", ".join(parts)
    return text if text.isascii() and len(text) <= max_bytes else _truncate(text, max_bytes)


def _format_named(name: str, value: Any, depth: int = 0) -> str:
    hidden = _is_secret_cache.get(name)
    if hidden is None:
        hidden = is_secret_name(name)
    return f"{name}=***" if hidden else f"{name}={_format_brief(value, depth)}"


def is_secret_name(name: str) -> bool:
    """Whether a parameter, field, or key with this name looks like a credential."""
    hidden = _is_secret_cache.get(name)
    if hidden is None:
        folded = name.lower().replace("-", "_")
        hidden = any(word in folded for word in _SECRET_WORDS)
        if len(_is_secret_cache) < 10_000:  # dict keys come from data: do not keep all of them forever
            _is_secret_cache[name] = hidden
    return hidden


def _format_brief(value: Any, depth: int = 0) -> str:
    """A bounded ``repr``, which never reads more than a few items of a collection."""
    kind = get_type(value)
    if kind is str:
        return repr(value) if len(value) <= _MAX_TEXT_LENGTH else f"{value[:_MAX_TEXT_LENGTH]!r}…"
    if kind is int:
        return repr(value) if value.bit_length() <= 256 else f"<int of {value.bit_length()} bits>"
    if kind in _SHORT_TYPES:
        return repr(value)
    try:
        return _format_other(value, kind, depth)
    except BaseException:
        return f"<{kind.__name__}>"  # a user's repr or attribute that raises must not fail the step


def _format_other(value: Any, kind: type[Any], depth: int) -> str:
    if isinstance(value, Enum):
        return f"{kind.__name__}.{value.name}"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(cast(bytes, value))} bytes>"
    if isinstance(value, Decimal):
        return f"{kind.__name__}('{str(value)[:_MAX_TEXT_LENGTH]}')"
    if isinstance(value, Mapping):
        return _format_mapping(cast("Mapping[Any, Any]", value), depth)
    fields = get_data_fields(kind)
    if fields is not None:
        return _format_fields(value, kind, fields, depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        left, right = ("[", "]") if isinstance(value, list) else ("(", ")") if isinstance(value, tuple) else ("{", "}")
        items = cast("list[Any]", value)
        if len(items) > _MAX_ITEMS or (depth >= _MAX_DEPTH and items):
            return f"{left}…{len(items)} items{right}"
        return f"{left}{', '.join(_format_brief(item, depth + 1) for item in items)}{right}"
    text = " ".join(repr(value)[: _MAX_TEXT_LENGTH * 2].split())
    return text if len(text) <= _MAX_TEXT_LENGTH else f"{text[:_MAX_TEXT_LENGTH]}…"


def _format_mapping(entries: Mapping[Any, Any], depth: int) -> str:
    if len(entries) > _MAX_ITEMS or (depth >= _MAX_DEPTH and entries):
        return f"{{…{len(entries)} items}}"
    parts: list[str] = []
    for key, item in entries.items():
        text = "***" if type(key) is str and is_secret_name(key) else _format_brief(item, depth + 1)
        parts.append(f"{_format_brief(key, depth + 1)}: {text}")
    return f"{{{', '.join(parts)}}}"


def _format_fields(value: Any, kind: type[Any], fields: tuple[str, ...], depth: int) -> str:
    """A model or dataclass by its first fields, without those that its own ``repr`` omits."""
    if depth >= _MAX_DEPTH:
        return f"{kind.__name__}(…)"
    names = _shown_fields_cache.get(kind)
    if names is None:
        declared: dict[str, Any] = getattr(kind, "__dataclass_fields__", None) or kind.__pydantic_fields__
        names = _shown_fields_cache[kind] = tuple(name for name in fields if declared[name].repr)
    shown = [_format_named(name, getattr(value, name, None), depth + 1) for name in names[:_MAX_ITEMS]]
    if len(names) > _MAX_ITEMS:
        shown.append("…")
    return f"{kind.__name__}({', '.join(shown)})"


def _truncate(text: str, max_bytes: int) -> str:
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= max_bytes:
        return data.decode()
    return data[: max(max_bytes - 3, 0)].decode("utf-8", "ignore") + ("…" if max_bytes >= 3 else "")
