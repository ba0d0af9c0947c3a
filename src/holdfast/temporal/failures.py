"""The failures with which steps and runs end in Temporal. Errors that are too large for a history are truncated."""

from __future__ import annotations

from datetime import timedelta

from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from holdfast.codec import encode_error, read_error_info
from holdfast.core.states import RunState
from holdfast.errors import StepFailed
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.payloads import MAX_INLINE_SIZE, to_raw_value

MAX_MESSAGE_CHARS = 2000
"""The maximum length of a failure's message, for readers of Temporal's UI. The error itself has the whole message."""

_MAX_ERROR_CHARS = 4000


def make_failure(
    error: bytes, state: RunState, *details: RawValue, retry_delay_s: float | None = None
) -> ApplicationError:
    """The failure with an encoded error. It is final unless there is a ``retry_delay_s``."""
    info = read_error_info(error)
    message = info.message
    return ApplicationError(
        message if len(message) <= MAX_MESSAGE_CHARS else f"{message[:MAX_MESSAGE_CHARS]}…",
        to_raw_value(error, {identifiers.ENDING_NOTE: state}),
        *details,
        type=info.type.rpartition(".")[2],
        category=ApplicationErrorCategory.BENIGN,  # user code failed, so the SDK need not warn about it
        non_retryable=retry_delay_s is None,
        next_retry_delay=None if retry_delay_s is None else timedelta(seconds=max(0.001, retry_delay_s)),
    )


def make_handover_failure(delay_s: float = 0.001) -> ApplicationError:
    """The failure that lets another worker execute an activity."""
    return ApplicationError(
        "not by this worker any more",
        type=identifiers.HANDOVER_FAILURE,
        category=ApplicationErrorCategory.BENIGN,
        next_retry_delay=timedelta(seconds=delay_s),
    )


def truncate_error(error: bytes, max_value: int) -> bytes:
    """An encoded error that fits where values of ``max_value`` bytes do."""
    # A history needs room for two: the failure of a run also carries the order of its records.
    if len(error) <= (max_value if max_value > MAX_INLINE_SIZE else MAX_INLINE_SIZE // 2):
        return error
    info = read_error_info(error)
    words = (
        f"{info.type.rpartition('.')[2]}: {info.message[:_MAX_ERROR_CHARS]}… (the error takes {len(error):,} bytes, "
        f"and is cut: Temporal keeps no larger ones in a history; raise one with a shorter message, or give large "
        f"payloads a storage of their own: `?payloads=` in the URL)"
    )
    return encode_error(StepFailed(words, ""))
