"""Recorded bytes as plain data. A value that cannot be decoded becomes a text that says so."""

from __future__ import annotations

import json
from typing import Any

from holdfast.codec import read_error_info
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.errors import CodecError
from holdfast.reports.agent_result import decode_plain_output
from holdfast.reports.tool_results import decode_plain_tool_result, has_files
from holdfast.reports.types import RecordedError
from holdfast.services.json_form import UnreadableValue

MAX_PRINTED_BYTES = 16 * 1024
"""Larger values, in bytes, are not printed."""


def decode_recorded_error(data: bytes | None) -> RecordedError | None:
    """The recorded error, if there is one."""
    if data is None:
        return None
    try:
        info = read_error_info(data)
    except CodecError as error:
        return RecordedError("holdfast.errors.UnreadableRecord", str(error), "")
    return RecordedError(info.type, info.message, info.traceback)


def get_record_error(record: Record) -> RecordedError | None:
    """The error of a failed record; for a child, the error that the child ended with."""
    if record.ok:
        return None
    if record.kind is not RecordKind.CHILD or record.payload is None:
        return decode_recorded_error(record.payload)
    try:
        failure: Any = json.loads(record.payload)
        run_id, state, error = failure["child"], RunState(failure["state"]), failure["error"]
    except (ValueError, TypeError, KeyError):
        return decode_recorded_error(record.payload)  # the child was not started
    if error not in (None, "null"):
        return decode_recorded_error(error.encode())
    name = "RunDead" if state is RunState.DEAD else "RunCancelled" if state is RunState.CANCELLED else "RunFailed"
    return RecordedError(f"holdfast.errors.{name}", f"run {run_id!r} ended {state}", "")


def decode_for_display(data: bytes | None) -> Any:
    """The recorded value as plain data; ``None`` if there is none, and a text if it cannot be decoded."""
    if data is None:
        return None
    try:
        return decode_plain_tool_result(data) if has_files(data) else decode_plain_output(data)
    except CodecError as error:
        return UnreadableValue(f"<{error}>")
