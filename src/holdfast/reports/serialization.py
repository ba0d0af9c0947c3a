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

from holdfast.reports.formatting import jsonable
from holdfast.reports.types import VALUE, Unreadable

T = TypeVar("T")


def as_json(told: Any, value: Callable[[Any], Any] = jsonable) -> Any:
    """Any of the types of a story as JSON data."""
    if is_dataclass(told) and not isinstance(told, type):
        return {
            one.name: value(getattr(told, one.name))
            if VALUE in one.metadata
            else as_json(getattr(told, one.name), value)
            for one in fields(told)
        }
    if isinstance(told, tuple):
        return [as_json(one, value) for one in cast("tuple[Any, ...]", told)]
    if isinstance(told, datetime):
        return told.isoformat()
    return told.value if isinstance(told, Enum) else told


def with_values(told: T, value: Callable[[Any], Any]) -> T:
    """The same, with each value of users' code as ``value`` makes it."""
    if isinstance(told, tuple):
        return cast("T", tuple(with_values(one, value) for one in cast("tuple[Any, ...]", told)))
    if not is_dataclass(told) or isinstance(told, type):
        return told
    changed: dict[str, Any] = {}
    for one in fields(told):
        old = getattr(told, one.name)
        if VALUE in one.metadata:
            changed[one.name] = value(str(old) if isinstance(old, Unreadable) else old)
        elif isinstance(old, tuple) or (is_dataclass(old) and not isinstance(old, type)):
            changed[one.name] = with_values(cast("Any", old), value)
    return replace(told, **changed) if changed else told
