"""The outcome of a run, from how its workflow's code ended."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import NamedTuple

from holdfast.codec import encode_error, get_error_message, read_error_info
from holdfast.core.records import Rewind
from holdfast.core.states import RunState
from holdfast.core.workflow_code import ExecutionResult
from holdfast.errors import CompensationFailed
from holdfast.stores.operations import Run


class RunOutcome(NamedTuple):
    """The end of a run, as the store keeps it."""

    state: RunState
    output: bytes | None
    error: bytes | None


_RUN_FIELDS = [field.name for field in fields(Run)]
_get_run_values = attrgetter(*_RUN_FIELDS)
_STATE, _OUTPUT, _ERROR = map(_RUN_FIELDS.index, ("state", "output", "error"))
_FINISHED_AT, _OWNER, _REWIND = map(_RUN_FIELDS.index, ("finished_at", "owner", "rewind"))


def make_ended_run(run: Run, end: RunOutcome, at: float, rewind: Rewind | None) -> Run:
    """The row of a run that ends so. (``dataclasses.replace`` takes four times as long for a row of this size.)"""
    values = list(_get_run_values(run))
    values[_STATE], values[_OUTPUT], values[_ERROR] = end
    values[_FINISHED_AT], values[_OWNER], values[_REWIND] = at, None, rewind
    return Run(*values)


def make_run_outcome(result: ExecutionResult, run_id: str) -> RunOutcome:
    """The outcome of a run with this result; the value is encoded already."""
    if result.error is None:
        return RunOutcome(RunState.COMPLETED, result.value, None)
    if result.failed_compensation is not None:
        return RunOutcome(RunState.FAILED, None, encode_error(_make_compensation_error(result, run_id)))
    if result.is_cancelled:
        return RunOutcome(RunState.CANCELLED, None, None)
    return RunOutcome(RunState.FAILED, None, encode_error(result.error))


def _make_compensation_error(result: ExecutionResult, run_id: str) -> CompensationFailed:
    assert result.failed_compensation is not None
    step, record = result.failed_compensation
    cause = read_error_info(record.payload or b"null")
    assert result.error is not None
    failure = f"failed ({type(result.error).__name__}: {get_error_message(result.error)})"
    ending = "was cancelled" if result.is_cancelled else failure
    error = CompensationFailed(
        f"run {run_id!r} {ending}, and step {step!r} could not be undone: its compensation {record.name!r} failed with "
        f"{cause.type.rpartition('.')[2]}: {cause.message}. What was recorded before {step!r} has not been undone "
        f"either. See to the cause, then `holdfast retry {run_id}` goes on undoing from there.",
        step,
        record.name,
    )
    error.__cause__ = result.error
    return error
