"""A story as JSON, and back.

The names are those of the fields. Values of users' code go through a function of whoever writes or reads: for people
and other languages as JSON can say them, for Holdfast's own client without loss (see ``services.wire_values``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any, TypeVar, cast

from holdfast.reports.formatting import value_to_json
from holdfast.reports.types import USER_VALUE, UnreadableValue

T = TypeVar("T")


def report_to_json(obj: Any, encode_value: Callable[[Any], Any] = value_to_json) -> Any:
    """Any of the types of a story as JSON data."""
    if is_dataclass(obj) and not isinstance(obj, type):
        return {
            one.name: encode_value(getattr(obj, one.name))
            if USER_VALUE in one.metadata
            else report_to_json(getattr(obj, one.name), encode_value)
            for one in fields(obj)
        }
    if isinstance(obj, tuple):
        return [report_to_json(one, encode_value) for one in cast("tuple[Any, ...]", obj)]
    if isinstance(obj, datetime):
        return obj.isoformat()
    return obj.value if isinstance(obj, Enum) else obj


def map_user_values(obj: T, convert: Callable[[Any], Any]) -> T:
    """The same, with each value of users' code as ``convert`` makes it."""
    if isinstance(obj, tuple):
        return cast("T", tuple(map_user_values(one, convert) for one in cast("tuple[Any, ...]", obj)))
    if not is_dataclass(obj) or isinstance(obj, type):
        return obj
    changed: dict[str, Any] = {}
    for one in fields(obj):
        old = getattr(obj, one.name)
        if USER_VALUE in one.metadata:
            changed[one.name] = convert(str(old) if isinstance(old, UnreadableValue) else old)
        elif isinstance(old, tuple) or (is_dataclass(old) and not isinstance(old, type)):
            changed[one.name] = map_user_values(cast("Any", old), convert)
    return replace(obj, **changed) if changed else obj
