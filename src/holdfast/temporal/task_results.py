"""How an activity or a child workflow of a live execution has ended, from the task of its handle."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.exceptions import FailureError

from holdfast.codec import encode_error
from holdfast.stores.temporal.payloads import from_payload, get_note
from holdfast.stores.temporal.run_events import EndResult, EndStatus, result_from_failure


def read_end(task: asyncio.Task[Any]) -> EndResult:
    """How an activity or a child has ended, by the outcome of its handle."""
    if task.cancelled():
        return EndResult(EndStatus.CANCELLED, b"null")
    error = task.exception()
    if error is None:
        return EndResult(EndStatus.COMPLETED, from_payload(task.result().payload))
    if isinstance(error, FailureError) and error.failure is not None:
        return result_from_failure(error.failure)
    return (
        EndResult(EndStatus.CANCELLED, b"null")
        if isinstance(error, FailureError)
        else EndResult(EndStatus.FAILED, encode_error(error))
    )


def read_usage_note(task: asyncio.Task[Any]) -> str:
    """The note on an activity's result that says what it has used."""
    is_done = not task.cancelled() and task.exception() is None
    return get_note(task.result().payload, "usage") if is_done else ""
