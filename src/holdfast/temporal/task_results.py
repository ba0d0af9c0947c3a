"""How an activity or a child workflow of a live execution ended, from the task of its handle."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.exceptions import FailureError

from holdfast.codec import encode_error
from holdfast.stores.temporal.payloads import from_payload, get_note
from holdfast.stores.temporal.run_events import EndResult, EndStatus, result_from_failure


def read_end(task: asyncio.Task[Any]) -> EndResult:
    """The result of an activity or a child."""
    if task.cancelled():
        return EndResult(EndStatus.CANCELLED)
    error = task.exception()
    if error is None:
        return EndResult(EndStatus.COMPLETED, from_payload(task.result().payload))
    if not isinstance(error, FailureError):
        return EndResult(EndStatus.FAILED, encode_error(error))
    return EndResult(EndStatus.CANCELLED) if error.failure is None else result_from_failure(error.failure)


def read_usage_note(task: asyncio.Task[Any]) -> str:
    """The note with the usage on an activity's result."""
    is_done = not task.cancelled() and task.exception() is None
    return get_note(task.result().payload, "usage") if is_done else ""
