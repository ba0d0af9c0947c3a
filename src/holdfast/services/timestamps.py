"""Times of a store, which are seconds, as users have them: in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import overload


@overload
def to_datetime(at: float) -> datetime: ...
@overload
def to_datetime(at: float | None) -> datetime | None: ...
def to_datetime(at: float | None) -> datetime | None:
    """The same moment; ``None`` for none."""
    return None if at is None else datetime.fromtimestamp(at, UTC)
