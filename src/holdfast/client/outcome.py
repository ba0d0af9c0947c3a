"""What the end of a run means to whoever waits for it: a value, or an exception that says what to do next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from holdfast.codec import decode_error, describe_error
from holdfast.core.states import RunState
from holdfast.errors import CodecError, RunCancelled, RunDead, RunFailed, RunUnsuccessful
from holdfast.stores.contract import Run

R = TypeVar("R")

_EXCEPTIONS: dict[RunState, type[RunUnsuccessful]] = {
    RunState.FAILED: RunFailed,
    RunState.CANCELLED: RunCancelled,
    RunState.DEAD: RunDead,
}


def result_of(run: Run, decode: Callable[[bytes], R], namespaces: Sequence[Mapping[str, object]] = ()) -> R:
    """The recorded result of an ended run; raises when it has none."""
    if run.state is RunState.COMPLETED:
        return decode(run.output or b"null")
    raise unsuccessful(run, namespaces)


def unsuccessful(run: Run, namespaces: Sequence[Mapping[str, object]] = ()) -> RunUnsuccessful:
    """The exception for a run that ended without a result, caused by the workflow's own where that can be rebuilt."""
    reason = ""
    cause: BaseException | None = None
    if run.error is not None:
        info = describe_error(run.error)
        reason = f"{info.type.rpartition('.')[2]}: {info.message}"
        try:
            cause = decode_error(run.error, namespaces)
            reason = reason.partition("\n")[0]  # the rest is told by the cause
        except CodecError:
            pass  # its class is not loaded here; its words are in the message
    words = {RunState.FAILED: "failed", RunState.CANCELLED: "was cancelled", RunState.DEAD: "is dead"}[run.state]
    error = _EXCEPTIONS[run.state](
        f"run {run.id!r} of workflow {run.workflow!r} {words}{': ' if reason else '.'}{reason}\n"
        f"`holdfast show {run.id}` tells what happened; `holdfast retry {run.id}` lets it go on; "
        f"start it under another id for a new run.",
        run.id,
        state=run.state.value,
        error=reason,
    )
    error.__cause__ = cause
    return error
