"""Errors that are too large for a history: what people need of them is kept."""

from __future__ import annotations

from holdfast.codec import describe_error, encode_error
from holdfast.errors import StepFailed
from holdfast.stores.temporal.payloads import MOST

LONGEST = 2000
"""Characters of a message beside its error, for those who read Temporal's own words."""

_KEPT = 4000


def short_enough(error: bytes, most: int) -> bytes:
    """An encoded error, if it fits where values of so many bytes do; else one that says as much as fits."""
    # Two of them have to fit: a failure also says what the run has recorded.
    if len(error) <= (most if most > MOST else MOST // 2):
        return error
    told = describe_error(error)
    words = (
        f"{told.type.rpartition('.')[2]}: {told.message[:_KEPT]}… (the error takes {len(error):,} bytes, and is cut: "
        f"Temporal keeps no larger ones in a history; raise one with a shorter message, or give large payloads a "
        f"storage of their own: `?payloads=` in the URL)"
    )
    return encode_error(StepFailed(words, ""))


def short_message(message: str) -> str:
    """What is told beside an error, whose own message is whole."""
    return message if len(message) <= LONGEST else f"{message[:LONGEST]}…"
