"""Recorded bytes as people and programs can read them. What cannot be read is said so, and stops nothing."""

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
"""Values above this size, in bytes, are not printed for people."""


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
    """What a record failed with, if it did. Of another run, that is the error which that one ended with."""
    if record.ok:
        return None
    if record.kind is not RecordKind.CHILD or record.payload is None:
        return decode_recorded_error(record.payload)
    try:
        told: Any = json.loads(record.payload)
        run_id, state, error = told["child"], RunState(told["state"]), told["error"]
    except (ValueError, TypeError, KeyError):
        return decode_recorded_error(record.payload)  # it was not the run that failed, but its start
    if error not in (None, "null") and (fault := decode_recorded_error(error.encode())) is not None:
        return fault
    name = "RunDead" if state is RunState.DEAD else "RunCancelled" if state is RunState.CANCELLED else "RunFailed"
    return RecordedError(f"holdfast.errors.{name}", f"run {run_id!r} ended {state}", "")


def decode_for_display(data: bytes | None) -> Any:
    """The recorded value as plain data; ``None`` for none, and words for what cannot be read."""
    if data is None:
        return None
    try:
        return decode_plain_tool_result(data) if has_files(data) else decode_plain_output(data)
    except CodecError as error:
        return UnreadableValue(f"<{error}>")
