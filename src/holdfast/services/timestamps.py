"""Times of a store, which are seconds, as users have them: in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import overload


@overload
def moment(at: float) -> datetime: ...
@overload
def moment(at: float | None) -> datetime | None: ...
def moment(at: float | None) -> datetime | None:
    """The same moment; ``None`` for none."""
    return None if at is None else datetime.fromtimestamp(at, UTC)
