"""The end of a run as its caller gets it: a value, or an exception that says what to do next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from holdfast.codec import check_readable, decode_error, read_error_info
from holdfast.core.states import RunState
from holdfast.errors import (
    CodecError,
    NonDeterminismError,
    RunCancelled,
    RunDead,
    RunFailed,
    RunUnsuccessful,
    StepOutcomeUnknown,
)
from holdfast.stores.operations import Run

R = TypeVar("R")

_ERROR_BY_STATE: dict[RunState, type[RunUnsuccessful]] = {
    RunState.FAILED: RunFailed,
    RunState.CANCELLED: RunCancelled,
    RunState.DEAD: RunDead,
}


class EndedRun(NamedTuple):
    """The part of a run's row that says how it ended."""

    id: str
    workflow: str
    state: RunState
    output: bytes | None
    error: bytes | None


def get_result(run: Run | EndedRun, decode: Callable[[bytes], R], namespaces: Sequence[Mapping[str, object]] = ()) -> R:
    """The recorded result of an ended run. Raises ``RunUnsuccessful`` if it has none."""
    if run.state is RunState.COMPLETED:
        check_readable(run.output or b"", f"what run {run.id!r} returned")
        return decode(run.output or b"null")
    raise make_unsuccessful_error(run, namespaces)


def make_unsuccessful_error(
    run: Run | EndedRun, namespaces: Sequence[Mapping[str, object]] = (), *, undone: bool = False
) -> RunUnsuccessful:
    """The exception for a run that ended without a result. Its cause is the workflow's exception, if it can be rebuilt.

    ``undone``: compensations undid the run's steps. A ``Run`` has that itself.
    """
    reason = ""
    cause: BaseException | None = None
    if run.error is not None:
        info = read_error_info(run.error)
        reason = f"{info.type.rpartition('.')[2]}: {info.message}"
        try:
            cause = decode_error(run.error, namespaces)
            reason = reason.partition("\n")[0]  # the cause has the rest
        except CodecError:
            pass  # its class is not loaded here; the message has its text
    rewind = None if isinstance(run, EndedRun) else run.rewind
    undone = undone or (rewind is not None and rewind.is_compensated)
    retry = f"`holdfast retry {run.id}`"
    next_step = f"Continue the run: {retry}."
    if reason.startswith(f"{NonDeterminismError.__name__}:"):
        next_step = f"To continue it with the earlier code, run {retry} first, then start the program or worker again."
    if reason.startswith(f"{StepOutcomeUnknown.__name__}:"):
        next_step = f"Settle the outcome of that step, and the run continues: `holdfast settle {run.id} STEP`."
    if undone:
        next_step = "It cannot continue, because compensations have undone its steps."
    words = {RunState.FAILED: "failed", RunState.CANCELLED: "was cancelled", RunState.DEAD: "is dead"}[run.state]
    error = _ERROR_BY_STATE[run.state](
        f"run {run.id!r} of workflow {run.workflow!r} {words}{': ' if reason else '.'}{reason}\n"
        f"See what happened: `holdfast show {run.id}`. {next_step} For a new run, use another id.",
        run.id,
        state=run.state.value,
        error=reason,
    )
    error.__cause__ = cause
    return error
