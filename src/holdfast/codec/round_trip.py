"""Whether a value survives being recorded: it is compared with what its own record reads back as.

A value survives when the decoded value has the same types all the way down and the same content, so that code that sees
the decoded value (as every workflow does, live and on replay) cannot tell it from the original. This is where a
subclass loses its fields, a string becomes a number, or a secret becomes stars. It must be noticed before the record is
written, not when the run is replayed a week later.

One promotion is allowed, since Python itself makes it everywhere: an ``int`` where a ``float`` is declared.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from typing import Any, cast

from holdfast.codec.formatting import format_key, format_type, get_type, is_secret
from holdfast.codec.tags import ATOMIC_TYPES


@dataclasses.dataclass(slots=True)
class Difference:
    """The first difference between a value and its decoded record."""

    original: object
    problem: str
    is_type_changed: bool = False
    path: list[str] = dataclasses.field(default_factory=list[str])

    def add_parent(self, step: str) -> Difference:
        """The same difference, seen from one level further up."""
        self.path.insert(0, step)
        return self


def find_difference(original: Any, decoded: Any, uncomparable: list[type]) -> Difference | None:
    """The first difference between ``original`` and ``decoded``, which was decoded from its record.

    Types that cannot be compared (their equality is identity) are added to ``uncomparable``: for them, the caller
    compares the bytes of a second encoding. So is ``float`` where an ``int`` was given for one: its bytes may differ.
    """
    kind = get_type(original)
    other = get_type(decoded)
    if kind is not other:
        if kind is int and other is float and original == decoded:
            uncomparable.append(float)
            return None
        return Difference(
            original, f"there is a `{format_type(kind)}` that would be read back as `{format_type(other)}`", True
        )
    if kind in ATOMIC_TYPES:
        if original == decoded or (kind in (float, Decimal) and math.isnan(original) and math.isnan(decoded)):
            return None
        return _make_changed_difference(original)
    if kind is list or kind is tuple:
        return _compare_sequences(original, decoded, uncomparable)
    if kind is dict:
        return _compare_mappings(original, decoded, uncomparable)
    fields = get_data_fields(kind)
    if fields is not None:
        for name in fields:
            found = find_difference(getattr(original, name, None), getattr(decoded, name, None), uncomparable)
            if found:
                return found.add_parent(f".{name}")
        extra = getattr(original, "__pydantic_extra__", None)
        return (
            _compare_mappings(extra, getattr(decoded, "__pydantic_extra__", None) or {}, uncomparable)
            if extra
            else None
        )
    if isinstance(original, Enum):
        return None if original is decoded else _make_changed_difference(original)
    if isinstance(original, (list, tuple)):
        return _compare_sequences(original, decoded, uncomparable)
    if isinstance(original, Mapping):
        return _compare_mappings(cast("Mapping[Any, Any]", original), decoded, uncomparable)
    if isinstance(original, (set, frozenset)):
        return _compare_sets(cast("set[Any]", original), cast("set[Any]", decoded), uncomparable)
    return _compare_others(original, decoded, uncomparable)


_field_names_cache: dict[type, tuple[str, ...] | None] = {}


def get_data_fields(cls: type) -> tuple[str, ...] | None:
    """The data fields of a pydantic model or dataclass, ``None`` for other classes. Private attributes are not data."""
    try:
        return _field_names_cache[cls]
    except KeyError:
        pass
    fields: tuple[str, ...] | None = None
    declared: Any = getattr(cls, "__pydantic_fields__", None)
    if isinstance(declared, dict):
        fields = tuple(cast("dict[str, object]", declared))
    elif "__dataclass_fields__" in dir(cls):
        fields = tuple(field.name for field in dataclasses.fields(cast(Any, cls)))
    _field_names_cache[cls] = fields
    return fields


def _compare_sequences(a: Any, b: Any, uncomparable: list[type]) -> Difference | None:
    if len(a) != len(b):
        return _make_changed_difference(a)
    kinds = set(map(type, a))
    # One comparison in C settles long lists of plain items; a NaN in them falls through to the loop.
    if kinds <= ATOMIC_TYPES and a == b and list(map(type, a)) == list(map(type, b)):
        return None
    names: tuple[str, ...] | None = getattr(a, "_fields", None)
    for index, (item, other_item) in enumerate(zip(a, b, strict=True)):
        found = find_difference(item, other_item, uncomparable)
        if found:
            return found.add_parent(f".{names[index]}" if names else f"[{index}]")
    return None


def _compare_mappings(a: Mapping[Any, Any], b: Mapping[Any, Any], uncomparable: list[type]) -> Difference | None:
    for (key, item), (other_key, other_item) in zip(a.items(), b.items(), strict=False):
        if key is not other_key and find_difference(key, other_key, uncomparable):
            if type(key) is type(other_key) and key not in b:
                return Difference(key, f"the key {format_key(key)} would be lost")
            return Difference(key, f"the key {format_key(key)} would be read back as something else")
        found = find_difference(item, other_item, uncomparable)
        if found:
            return found.add_parent(f"[{format_key(key)}]")
    if len(a) != len(b):
        lost = [format_key(key) for key in a if key not in b]
        return Difference(a, f"the keys {', '.join(lost[:5])} would be lost" if lost else "keys would be added")
    return None


def _compare_sets(a: set[Any], b: set[Any], uncomparable: list[type]) -> Difference | None:
    if a != b:
        return _make_changed_difference(a)
    equals = {element: element for element in b}
    for element in a:
        found = find_difference(element, equals[element], uncomparable)
        if found:
            return found.add_parent("{…}")
    return None


def _compare_others(a: Any, b: Any, uncomparable: list[type]) -> Difference | None:
    kind = get_type(a)
    if is_secret(a) and a != b:
        return Difference(a, f"there is a `{format_type(kind)}`, which would be recorded as stars")
    try:
        if a is b or bool(a == b):
            return None
    except Exception:
        return _make_changed_difference(a)  # an equality that raises proves nothing
    if kind.__eq__ is object.__eq__:
        uncomparable.append(kind)
        return None
    return _make_changed_difference(a)


def _make_changed_difference(a: object) -> Difference:
    return Difference(a, f"there is a `{format_type(type(a))}` that would be read back with another content")
