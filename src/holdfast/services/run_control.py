"""Changing a run from outside: signals, cancelling, pausing, retrying, another budget; and what each answer means."""

from __future__ import annotations

from typing import Any

from holdfast.admission.usage import Budget
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, codec_for, validate_size
from holdfast.core.states import RunState
from holdfast.errors import RetryRefused, RunEnded, RunNotFound, UsageError
from holdfast.services.store_provider import StoreProvider
from holdfast.stores.operations import (
    CancelRun,
    OpStatus,
    PauseRun,
    ReopenRun,
    ResumeRun,
    SendSignal,
    SetBudget,
)
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
    """Send a signal; false when one with this deduplication id was sent before."""
    what = f"signal {name!r}"
    payload = validate_size(_any_codec.encode(value, what), what, max_value)
    verdict = await provider.change(SendSignal(run_id, name, payload, dedup, await provider.now()))
    await _check_verdict(provider, verdict, run_id, f"run {run_id!r} takes no signal {name!r}")
    return verdict is not OpStatus.DUPLICATE


async def cancel_run(provider: StoreProvider, run_id: str) -> bool:
    """Ask for a run to be cancelled; false when that was asked before."""
    verdict = await provider.change(CancelRun(run_id, await provider.now()))
    await _check_verdict(provider, verdict, run_id, f"run {run_id!r} cannot be cancelled")
    return verdict is not OpStatus.DUPLICATE


async def pause_run(provider: StoreProvider, run_id: str) -> bool:
    """Pause a run; false when it was paused before."""
    verdict = await provider.change(PauseRun(run_id, await provider.now()))
    await _check_verdict(provider, verdict, run_id, f"run {run_id!r} cannot be paused")
    return verdict is not OpStatus.DUPLICATE


async def resume_run(provider: StoreProvider, run_id: str) -> bool:
    """Let a paused run go on; false when it was not paused."""
    verdict = await provider.change(ResumeRun(run_id, await provider.now()))
    await _check_verdict(provider, verdict, run_id, f"run {run_id!r} cannot be resumed")
    return verdict is not OpStatus.DUPLICATE


async def retry_run(
    provider: StoreProvider, run_id: str, *, run_again: bool = False, version: str | None = None
) -> None:
    """Let a failed, cancelled or dead run go on from where it went wrong; with the code of ``version``, if given."""
    if version is not None and (refused := explain_invalid_version(version)) is not None:
        raise UsageError(f"run {run_id!r} cannot be retried so: {refused}")
    verdict = await provider.change(ReopenRun(run_id, await provider.now(), run_again, version))
    if verdict is OpStatus.REFUSED:
        raise RetryRefused(
            f"retrying run {run_id!r} would run a `once` step a second time (`holdfast show {run_id}` tells which). "
            f"Check whether it happened. If it did not, or may happen again, say so: "
            f"`holdfast retry {run_id} --run-again`. If its outcome is unknown, and it did happen: "
            f"`holdfast settle {run_id} STEP --output JSON`.",
            run_id,
            needs_run_again=True,
        )
    if verdict is OpStatus.COMPENSATED:
        raise RetryRefused(
            f"run {run_id!r} cannot go on: compensations have undone what it, or a run that it had started, had done. "
            f"Start it anew under another id; `holdfast fork {run_id} --at STEP` keeps what was recorded before a step "
            f"of your choice.",
            run_id,
        )
    if verdict is OpStatus.ENDED:
        run = await provider.read(run_id)
        raise RetryRefused(
            f"run {run_id!r} is {run.state}; only a failed, cancelled or dead run can be retried", run_id
        )
    await _check_verdict(provider, verdict, run_id, f"run {run_id!r} cannot be retried")


async def set_budget(provider: StoreProvider, run_id: str, budget: Budget) -> None:
    """Give a run another budget in place of its own: model calls that were refused, there or below it, are made now."""
    verdict = await provider.change(SetBudget(run_id, budget.to_limits(), await provider.now()))
    if verdict is OpStatus.REFUSED:
        run = await provider.read(run_id)
        told = f"run {run_id!r} cannot be given another budget: it was started without one of its own"
        if run.has_budget and run.parent:
            told += f". It heeds the budget of a run above it: set that of {run.parent!r}, which started it"
        else:
            told += ", and so nothing limits it. A budget is given with the start of a run, or to its agent"
        raise UsageError(told)
    await _check_verdict(provider, verdict, run_id, f"run {run_id!r} cannot be given another budget")


async def _check_verdict(provider: StoreProvider, verdict: OpStatus, run_id: str, refusal: str) -> None:
    if verdict is OpStatus.UNKNOWN_RUN:
        raise RunNotFound(f"{refusal}: there is no run {run_id!r}", run_id)
    if verdict is OpStatus.ENDED:
        run = await provider.read(run_id)
        raise RunEnded(f"{refusal}: {_END_PHRASES.get(run.state, 'it had ended')}", run_id)
