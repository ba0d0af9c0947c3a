"""Recorded bytes as people and programs can read them. What cannot be read is said so, and stops nothing."""

from __future__ import annotations

import json
from typing import Any

from holdfast.codec import describe_error
from holdfast.core.records import Kind, Record
from holdfast.core.states import RunState
from holdfast.errors import CodecError
from holdfast.reports.agent_result import plain_output
from holdfast.reports.tool_results import is_tool_result, plain_tool_result
from holdfast.reports.types import Fault, Unreadable

LARGE = 16 * 1024
"""Values above this size, in bytes, are not printed for people."""


def error_of(data: bytes | None) -> Fault | None:
    """The recorded error, if there is one."""
    if data is None:
        return None
    try:
        info = describe_error(data)
    except CodecError as error:
        return Fault("holdfast.errors.UnreadableRecord", str(error), "")
    return Fault(info.type, info.message, info.traceback)


def failure_of(record: Record) -> Fault | None:
    """What a record failed with, if it did. Of another run, that is the error which that one ended with."""
    if record.ok:
        return None
    if record.kind is not Kind.CHILD or record.payload is None:
        return error_of(record.payload)
    try:
        told: Any = json.loads(record.payload)
        run_id, state, error = told["child"], RunState(told["state"]), told["error"]
    except (ValueError, TypeError, KeyError):
        return error_of(record.payload)  # it was not the run that failed, but its start
    if error not in (None, "null") and (fault := error_of(error.encode())) is not None:
        return fault
    name = "RunDead" if state is RunState.DEAD else "RunCancelled" if state is RunState.CANCELLED else "RunFailed"
    return Fault(f"holdfast.errors.{name}", f"run {run_id!r} ended {state}", "")


def value_of(data: bytes | None) -> Any:
    """The recorded value as plain data; ``None`` for none, and words for what cannot be read."""
    if data is None:
        return None
    try:
        return plain_tool_result(data) if is_tool_result(data) else plain_output(data)
    except CodecError as error:
        return Unreadable(f"<{error}>")
