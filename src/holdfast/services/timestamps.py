"""Times of a store, in seconds, as ``datetime`` in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import overload


@overload
def to_datetime(at: float) -> datetime: ...
@overload
def to_datetime(at: float | None) -> datetime | None: ...
def to_datetime(at: float | None) -> datetime | None:
    """The same time; ``None`` for ``None``."""
    return None if at is None else datetime.fromtimestamp(at, UTC)
