"""Would a value survive being recorded? Compare it with what its own record reads back as.

A value survives when what is decoded has the same types all the way down and the same content, so that code which
sees the decoded value (as every workflow does, live and on replay alike) cannot tell it from the original. That is
where a subclass loses its fields, a string becomes a number, or a secret becomes stars, and where it must be noticed:
before the record is written, not when the run is replayed a week later.

One promotion is allowed, since Python itself makes it everywhere: an ``int`` where a ``float`` is declared.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any, cast
from uuid import UUID

from holdfast.codec.formatting import is_secret, key_of, kind_of, name_of

_ATOMS = frozenset({str, int, bool, float, NoneType, bytes, datetime, date, time, timedelta, Decimal, UUID})


@dataclasses.dataclass(slots=True)
class Difference:
    """The first place where a value and its decoded record part."""

    original: object
    trouble: str
    type_changed: bool = False
    path: list[str] = dataclasses.field(default_factory=list[str])

    def under(self, step: str) -> Difference:
        """The same difference, seen from one level further up."""
        self.path.insert(0, step)
        return self


def difference(a: Any, b: Any, unsure: list[type]) -> Difference | None:
    """Where ``b``, decoded from the record of ``a``, is not what ``a`` was.

    Types that cannot be compared (their equality is identity) are added to ``unsure``: for them, the caller compares
    the bytes of a second encoding. So is ``float`` where an ``int`` stood for one, whose bytes may differ.
    """
    kind = kind_of(a)
    other = kind_of(b)
    if kind is not other:
        if kind is int and other is float and a == b:
            unsure.append(float)
            return None
        return Difference(a, f"there is a `{name_of(kind)}` that would be read back as `{name_of(other)}`", True)
    if kind in _ATOMS:
        if a == b or (kind in (float, Decimal) and math.isnan(a) and math.isnan(b)):
            return None
        return _changed(a)
    if kind is list or kind is tuple:
        return _sequences(a, b, unsure)
    if kind is dict:
        return _mappings(a, b, unsure)
    fields = fields_of(kind)
    if fields is not None:
        for name in fields:
            found = difference(getattr(a, name, None), getattr(b, name, None), unsure)
            if found:
                return found.under(f".{name}")
        extra = getattr(a, "__pydantic_extra__", None)
        return _mappings(extra, getattr(b, "__pydantic_extra__", None) or {}, unsure) if extra else None
    if isinstance(a, Enum):
        return None if a is b else _changed(a)
    if isinstance(a, (list, tuple)):
        return _sequences(a, b, unsure)
    if isinstance(a, Mapping):
        return _mappings(cast("Mapping[Any, Any]", a), b, unsure)
    if isinstance(a, (set, frozenset)):
        return _sets(cast("set[Any]", a), cast("set[Any]", b), unsure)
    return _others(a, b, unsure)


_field_names: dict[type, tuple[str, ...] | None] = {}


def fields_of(kind: type) -> tuple[str, ...] | None:
    """The data fields of a pydantic model or dataclass, ``None`` for other classes. Private attributes are not data."""
    try:
        return _field_names[kind]
    except KeyError:
        pass
    fields: tuple[str, ...] | None = None
    declared: Any = getattr(kind, "__pydantic_fields__", None)
    if isinstance(declared, dict):
        fields = tuple(cast("dict[str, object]", declared))
    elif "__dataclass_fields__" in dir(kind):
        fields = tuple(field.name for field in dataclasses.fields(cast(Any, kind)))
    _field_names[kind] = fields
    return fields


def _sequences(a: Any, b: Any, unsure: list[type]) -> Difference | None:
    if len(a) != len(b):
        return _changed(a)
    kinds = set(map(type, a))
    # One comparison in C settles long lists of plain items; a NaN in them falls through to the loop.
    if kinds <= _ATOMS and a == b and list(map(type, a)) == list(map(type, b)):
        return None
    names: tuple[str, ...] | None = getattr(a, "_fields", None)
    for index, (one, other) in enumerate(zip(a, b, strict=True)):
        found = difference(one, other, unsure)
        if found:
            return found.under(f".{names[index]}" if names else f"[{index}]")
    return None


def _mappings(a: Mapping[Any, Any], b: Mapping[Any, Any], unsure: list[type]) -> Difference | None:
    for (key, one), (other_key, other) in zip(a.items(), b.items(), strict=False):
        if key is not other_key and difference(key, other_key, unsure):
            if type(key) is type(other_key) and key not in b:
                return Difference(key, f"the key {key_of(key)} would be lost")
            return Difference(key, f"the key {key_of(key)} would be read back as something else")
        found = difference(one, other, unsure)
        if found:
            return found.under(f"[{key_of(key)}]")
    if len(a) != len(b):
        lost = [key_of(key) for key in a if key not in b]
        return Difference(a, f"the keys {', '.join(lost[:5])} would be lost" if lost else "keys would be added")
    return None


def _sets(a: set[Any], b: set[Any], unsure: list[type]) -> Difference | None:
    if a == b:
        twins = {element: element for element in b}
        for element in a:
            found = difference(element, twins[element], unsure)
            if found:
                return found.under("{…}")
        return None
    return _changed(a)


def _others(a: Any, b: Any, unsure: list[type]) -> Difference | None:
    kind = kind_of(a)
    if is_secret(a) and a != b:
        return Difference(a, f"there is a `{name_of(kind)}`, which would be recorded as stars")
    try:
        if a is b or bool(a == b):
            return None
    except Exception:
        return _changed(a)  # an equality that cannot answer says nothing in favour of the record
    if kind.__eq__ is object.__eq__:
        unsure.append(kind)
        return None
    return _changed(a)


def _changed(a: object) -> Difference:
    return Difference(a, f"there is a `{name_of(type(a))}` that would be read back with another content")
