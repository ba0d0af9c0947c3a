"""How the end of a workflow's code is told: the state of its run, and the error."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.codec import describe_error, encode_error, message_of
from holdfast.core.execution import Ending
from holdfast.core.states import RunState
from holdfast.errors import CompensationFailed


class End(NamedTuple):
    """What is written of the end of a run."""

    state: RunState
    output: bytes | None
    error: bytes | None


def end_of(ending: Ending, run_id: str) -> End:
    """The end of a run whose code has ended so; its value is encoded already."""
    if ending.error is None:
        return End(RunState.COMPLETED, ending.value, None)
    if ending.not_undone is not None:
        return End(RunState.FAILED, None, encode_error(_not_undone(ending, run_id)))
    if ending.is_cancelled:
        return End(RunState.CANCELLED, None, None)
    return End(RunState.FAILED, None, encode_error(ending.error))


def _not_undone(ending: Ending, run_id: str) -> CompensationFailed:
    assert ending.not_undone is not None
    step, record = ending.not_undone
    why = describe_error(record.payload or b"null")
    assert ending.error is not None
    said = f"failed ({type(ending.error).__name__}: {message_of(ending.error)})"
    first = "was cancelled" if ending.is_cancelled else said
    error = CompensationFailed(
        f"run {run_id!r} {first}, and step {step!r} could not be undone: its compensation {record.name!r} failed with "
        f"{why.type.rpartition('.')[2]}: {why.message}. What was recorded before {step!r} has not been undone either. "
        f"See to the cause, then `holdfast retry {run_id}` goes on undoing from there.",
        step,
        record.name,
    )
    error.__cause__ = ending.error
    return error
