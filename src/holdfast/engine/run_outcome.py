"""How the end of a workflow's code is told: the state of its run, and the error."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.codec import encode_error, get_error_message, read_error_info
from holdfast.core.execution import ExecutionResult
from holdfast.core.states import RunState
from holdfast.errors import CompensationFailed


class RunOutcome(NamedTuple):
    """What is written of the end of a run."""

    state: RunState
    output: bytes | None
    error: bytes | None


def make_run_outcome(result: ExecutionResult, run_id: str) -> RunOutcome:
    """The end of a run whose code has ended so; its value is encoded already."""
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
    why = read_error_info(record.payload or b"null")
    assert result.error is not None
    said = f"failed ({type(result.error).__name__}: {get_error_message(result.error)})"
    first = "was cancelled" if result.is_cancelled else said
    error = CompensationFailed(
        f"run {run_id!r} {first}, and step {step!r} could not be undone: its compensation {record.name!r} failed with "
        f"{why.type.rpartition('.')[2]}: {why.message}. What was recorded before {step!r} has not been undone either. "
        f"See to the cause, then `holdfast retry {run_id}` goes on undoing from there.",
        step,
        record.name,
    )
    error.__cause__ = result.error
    return error
