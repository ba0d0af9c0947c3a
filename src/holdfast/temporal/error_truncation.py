"""Errors that are too large for a history: what people need of them is kept."""

from __future__ import annotations

from holdfast.codec import encode_error, read_error_info
from holdfast.errors import StepFailed
from holdfast.stores.temporal.payloads import MAX_INLINE_SIZE

MAX_MESSAGE_CHARS = 2000
"""Characters of a message beside its error, for those who read Temporal's own words."""

_MAX_ERROR_CHARS = 4000


def truncate_error(error: bytes, max_value: int) -> bytes:
    """An encoded error, if it fits where values of so many bytes do; else one that says as much as fits."""
    # Two of them have to fit: a failure also says what the run has recorded.
    if len(error) <= (max_value if max_value > MAX_INLINE_SIZE else MAX_INLINE_SIZE // 2):
        return error
    told = read_error_info(error)
    words = (
        f"{told.type.rpartition('.')[2]}: {told.message[:_MAX_ERROR_CHARS]}… (the error takes {len(error):,} bytes, "
        "and is cut: "
        f"Temporal keeps no larger ones in a history; raise one with a shorter message, or give large payloads a "
        f"storage of their own: `?payloads=` in the URL)"
    )
    return encode_error(StepFailed(words, ""))


def truncate_message(message: str) -> str:
    """What is told beside an error, whose own message is whole."""
    return message if len(message) <= MAX_MESSAGE_CHARS else f"{message[:MAX_MESSAGE_CHARS]}…"
