"""Dataclasses that nothing changes, for values that are made for every row or request.

The type checker refuses assignments to their fields, as it does for ``dataclass(frozen=True)``. At run time nothing
does: a frozen dataclass sets each field with a call, and takes ten times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def immutable(cls: type[T]) -> type[T]:
    """Make a class a dataclass with slots, which is compared and hashed by its fields."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
