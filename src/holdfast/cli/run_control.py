"""``holdfast cancel``, ``holdfast pause`` and ``holdfast resume``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import format_ago, format_command, format_duration, format_error
from holdfast.cli.outcomes import Outcome, change_each, print_outcomes
from holdfast.cli.store_access import open_client
from holdfast.client.client import Client
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.reports.run_info import RunInfo


def cancel_runs(url: str | None, run_ids: Sequence[str], *, wait_s: float | None, as_json: bool) -> int:
    """Ask for runs to be cancelled, and say who carries it out."""
    return print_outcomes(url, run_in_loop(_cancel(url, run_ids, wait_s)), as_json=as_json)


async def _cancel(url: str | None, run_ids: Sequence[str], wait_s: float | None) -> list[Outcome]:
    async with open_client(url) as client:

        async def cancel(before: RunInfo):
            changed = await client.cancel(before.id)

            def told(run: RunInfo) -> str:
                return _describe_cancel(before, run) if changed else _describe_already_cancelled(run)

            return changed, told

        outcomes = await change_each(client, run_ids, cancel)
        return outcomes if wait_s is None else await _await_ends(client, outcomes, wait_s)


def _describe_cancel(before: RunInfo, run: RunInfo) -> str:
    lifted = "; its pause is lifted" if before.is_paused else ""
    if run.state.is_terminal:
        untouched = ": nobody had begun it" if not before.has_started else ""
        return f"run {run.id!r} is {run.state}{untouched}{lifted}"
    if run.is_claimed:
        how = "its worker carries it out"
    elif run.state is RunState.RUNNING:
        how = "its worker is dead, and the next one carries it out"
    else:
        how = "it is carried out when a worker takes the run up"
    return f"asked for run {run.id!r} to be cancelled: {how}{lifted}"


def _describe_already_cancelled(run: RunInfo) -> str:
    what = "is cancelled already" if run.state.is_terminal else "is being cancelled already"
    return f"run {run.id!r} {what}: nothing changed"


async def _await_ends(client: Client, outcomes: Sequence[Outcome], wait_s: float) -> list[Outcome]:
    """The same, once the runs have ended."""
    asked = [outcome.id for outcome in outcomes if outcome.error is None]
    # Some have no result, or have not ended in time: what has become of each is looked at afterwards.
    await asyncio.gather(*(client.wait(run_id, wait_s) for run_id in asked), return_exceptions=True)
    runs = {run_id: await client.get(run_id) for run_id in asked}
    return [
        _outcome_after_wait(outcome, runs[outcome.id], wait_s) if outcome.id in runs else outcome
        for outcome in outcomes
    ]


def _outcome_after_wait(outcome: Outcome, run: RunInfo, wait_s: float) -> Outcome:
    if not run.state.is_terminal:
        note = "" if outcome.stall_reason is None else f" ({outcome.stall_reason})"
        error = UsageError(
            f"run {run.id!r} has not ended within {format_duration(wait_s)}; it is still to be cancelled. It is "
            f"{run.state}"
            f"{note}."
        )
        return replace(outcome, run=run, error=error)
    why = "" if run.error is None else f": {format_error(run.error)}"
    return replace(outcome, run=run, message=f"run {run.id!r} is {run.state}{why}", stall_reason=None)


def pause_runs(url: str | None, run_ids: Sequence[str], *, as_json: bool) -> int:
    """Pause runs, and say when they rest."""
    outcomes = run_in_loop(_pause(url, run_ids))
    if not as_json:  # that it is paused is what was just said
        outcomes = [replace(one, stall_reason=None) for one in outcomes]
    return print_outcomes(url, outcomes, as_json=as_json)


async def _pause(url: str | None, run_ids: Sequence[str]) -> list[Outcome]:
    async with open_client(url) as client:

        async def pause(before: RunInfo):
            changed = await client.pause(before.id)

            def told(run: RunInfo) -> str:
                if not changed:
                    return f"run {run.id!r} is paused already: nothing changed"
                resume = f"`{format_command('resume', run.id)}`"
                if run.is_claimed:
                    return (
                        f"run {run.id!r} is being paused: steps in flight may end and are recorded, then it rests "
                        f"until {resume}"
                    )
                return f"run {run.id!r} is paused: it rests until {resume}"

            return changed, told

        return await change_each(client, run_ids, pause)


def resume_runs(url: str | None, run_ids: Sequence[str], *, as_json: bool) -> int:
    """Let paused runs go on, and say who takes them up."""
    return print_outcomes(url, run_in_loop(_resume(url, run_ids)), as_json=as_json)


async def _resume(url: str | None, run_ids: Sequence[str]) -> list[Outcome]:
    async with open_client(url) as client:

        async def resume(before: RunInfo):
            changed = await client.resume(before.id)

            def told(run: RunInfo) -> str:
                if not changed:
                    return f"run {run.id!r} was not paused: nothing changed"
                now = datetime.now(UTC)
                if run.state is RunState.PENDING and run.wake_at is not None and run.wake_at > now:
                    starts = format_ago((now - run.wake_at).total_seconds())
                    return f"run {run.id!r} is no longer paused: it starts {starts}"
                how = "it goes on" if run.is_claimed else "it goes on when a worker takes it up"
                return f"run {run.id!r} is no longer paused: {how}"

            return changed, told

        return await change_each(client, run_ids, resume)
