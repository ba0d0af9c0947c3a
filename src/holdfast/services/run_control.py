"""Changes to a run from outside: signals, cancel, pause, resume, retry, and budget."""

from __future__ import annotations

from typing import Any

from holdfast.admission.usage import Budget
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, codec_for, validate_size
from holdfast.core.states import RunState
from holdfast.errors import RetryRefused, RunEnded, RunNotFound, UsageError
from holdfast.services.store_provider import StoreProvider
from holdfast.stores.operations import (
    CancelRun,
    ClientOp,
    OpStatus,
    PauseRun,
    ReopenRun,
    ResumeRun,
    SendSignal,
    SetBudget,
)
from holdfast.stores.run_errors import make_erased_error
from holdfast.stores.served_versions import explain_invalid_version

_any_codec = codec_for(Any)

_END_PHRASES = {
    RunState.COMPLETED: "it has completed",
    RunState.FAILED: "it has failed",
    RunState.CANCELLED: "it was cancelled",
    RunState.DEAD: "it is dead",
}


async def send_signal(
    provider: StoreProvider,
    run_id: str,
    name: str,
    value: Any,
    dedup: str | None,
    max_value: int = DEFAULT_MAX_VALUE_BYTES,
) -> bool:
    """Send a signal; false if one with this deduplication id was sent before."""
    subject = f"signal {name!r}"
    payload = validate_size(_any_codec.encode(value, subject), subject, max_value)
    op = SendSignal(run_id, name, payload, dedup, await provider.now())
    return await _change_run(provider, run_id, op, f"run {run_id!r} takes no signal {name!r}")


async def cancel_run(provider: StoreProvider, run_id: str) -> bool:
    """Request that a run is cancelled; false if that was requested before."""
    op = CancelRun(run_id, await provider.now())
    return await _change_run(provider, run_id, op, f"run {run_id!r} cannot be cancelled")


async def pause_run(provider: StoreProvider, run_id: str) -> bool:
    """Pause a run; false if it was paused before."""
    op = PauseRun(run_id, await provider.now())
    return await _change_run(provider, run_id, op, f"run {run_id!r} cannot be paused")


async def resume_run(provider: StoreProvider, run_id: str) -> bool:
    """Resume a paused run; false if it was not paused."""
    op = ResumeRun(run_id, await provider.now())
    return await _change_run(provider, run_id, op, f"run {run_id!r} cannot be resumed")


async def _change_run(provider: StoreProvider, run_id: str, op: ClientOp, refusal: str) -> bool:
    """Change a run; false if nothing changed."""
    status = await provider.change(op)
    await _check_status(provider, status, run_id, refusal)
    return status is not OpStatus.DUPLICATE


async def retry_run(
    provider: StoreProvider, run_id: str, *, run_again: bool = False, version: str | None = None
) -> None:
    """Continue a failed, cancelled, or dead run from where it went wrong; with the code of ``version``, if given."""
    if version is not None and (refused := explain_invalid_version(version)) is not None:
        raise UsageError(f"run {run_id!r} cannot be retried so: {refused}")
    status = await provider.change(ReopenRun(run_id, await provider.now(), run_again, version))
    if status is OpStatus.REFUSED:
        raise RetryRefused(
            f"retrying run {run_id!r} would run a `once` step a second time (`holdfast show {run_id}` tells which). "
            f"Check whether it happened. If it did not, or may happen again, say so: "
            f"`holdfast retry {run_id} --run-again`. If its outcome is unknown, and it did happen: "
            f"`holdfast settle {run_id} STEP --output JSON`.",
            run_id,
            needs_run_again=True,
        )
    if status is OpStatus.ERASED:
        raise make_erased_error(run_id)
    if status is OpStatus.COMPENSATED:
        raise RetryRefused(
            f"run {run_id!r} cannot go on: compensations have undone what it, or a run that it had started, had done. "
            f"Start it anew under another id; `holdfast fork {run_id} --at STEP` keeps what was recorded before a step "
            f"of your choice.",
            run_id,
        )
    if status is OpStatus.ENDED:
        run = await provider.read(run_id)
        raise RetryRefused(
            f"run {run_id!r} is {run.state}; only a failed, cancelled or dead run can be retried", run_id
        )
    await _check_status(provider, status, run_id, f"run {run_id!r} cannot be retried")


async def set_budget(provider: StoreProvider, run_id: str, budget: Budget) -> None:
    """Replace the budget of a run. Model calls that were refused, in it or in runs below it, are tried again."""
    status = await provider.change(SetBudget(run_id, budget.to_limits(), await provider.now()))
    if status is OpStatus.REFUSED:
        run = await provider.read(run_id)
        message = f"run {run_id!r} cannot be given another budget: it was started without one of its own"
        if run.has_budget and run.parent:
            message += f". It heeds the budget of a run above it: set that of {run.parent!r}, which started it"
        else:
            message += ", and so nothing limits it. A budget is given with the start of a run, or to its agent"
        raise UsageError(message)
    await _check_status(provider, status, run_id, f"run {run_id!r} cannot be given another budget")


async def _check_status(provider: StoreProvider, status: OpStatus, run_id: str, refusal: str) -> None:
    if status is OpStatus.UNKNOWN_RUN:
        raise RunNotFound(f"{refusal}: there is no run {run_id!r}", run_id)
    if status is OpStatus.ENDED:
        run = await provider.read(run_id)
        raise RunEnded(f"{refusal}: {_END_PHRASES.get(run.state, 'it had ended')}", run_id)
