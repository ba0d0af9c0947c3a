"""``holdfast cancel``, ``holdfast pause`` and ``holdfast resume``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import ago, brief_error, command, duration
from holdfast.cli.outcomes import Outcome, change_each, report
from holdfast.cli.store_access import reached
from holdfast.client.client import Client
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.reports.run_info import RunInfo


def cancel_runs(url: str | None, run_ids: Sequence[str], *, wait: float | None, as_json: bool) -> int:
    """Ask for runs to be cancelled, and say who carries it out."""
    return report(url, in_loop(_cancel(url, run_ids, wait)), as_json=as_json)


async def _cancel(url: str | None, run_ids: Sequence[str], wait: float | None) -> list[Outcome]:
    async with reached(url) as client:

        async def cancel(before: RunInfo):
            changed = await client.cancel(before.id)

            def told(run: RunInfo) -> str:
                return _cancelled(before, run) if changed else _cancelled_before(run)

            return changed, told

        outcomes = await change_each(client, run_ids, cancel)
        return outcomes if wait is None else await _ended(client, outcomes, wait)


def _cancelled(before: RunInfo, run: RunInfo) -> str:
    lifted = "; its pause is lifted" if before.paused else ""
    if run.state.is_terminal:
        untouched = ": nobody had begun it" if not before.begun else ""
        return f"run {run.id!r} is {run.state}{untouched}{lifted}"
    if run.held:
        how = "its worker carries it out"
    elif run.state is RunState.RUNNING:
        how = "its worker is dead, and the next one carries it out"
    else:
        how = "it is carried out when a worker takes the run up"
    return f"asked for run {run.id!r} to be cancelled: {how}{lifted}"


def _cancelled_before(run: RunInfo) -> str:
    what = "is cancelled already" if run.state.is_terminal else "is being cancelled already"
    return f"run {run.id!r} {what}: nothing changed"


async def _ended(client: Client, outcomes: Sequence[Outcome], wait: float) -> list[Outcome]:
    """The same, once the runs have ended."""
    asked = [outcome.id for outcome in outcomes if outcome.error is None]
    # Some have no result, or have not ended in time: what has become of each is looked at afterwards.
    await asyncio.gather(*(client.wait(run_id, wait) for run_id in asked), return_exceptions=True)
    runs = {run_id: await client.get(run_id) for run_id in asked}
    return [_end(outcome, runs[outcome.id], wait) if outcome.id in runs else outcome for outcome in outcomes]


def _end(outcome: Outcome, run: RunInfo, wait: float) -> Outcome:
    if not run.state.is_terminal:
        note = "" if outcome.stalled is None else f" ({outcome.stalled})"
        error = UsageError(
            f"run {run.id!r} has not ended within {duration(wait)}; it is still to be cancelled. It is {run.state}"
            f"{note}."
        )
        return replace(outcome, run=run, error=error)
    why = "" if run.error is None else f": {brief_error(run.error)}"
    return replace(outcome, run=run, message=f"run {run.id!r} is {run.state}{why}", stalled=None)


def pause_runs(url: str | None, run_ids: Sequence[str], *, as_json: bool) -> int:
    """Pause runs, and say when they rest."""
    outcomes = in_loop(_pause(url, run_ids))
    if not as_json:  # that it is paused is what was just said
        outcomes = [replace(one, stalled=None) for one in outcomes]
    return report(url, outcomes, as_json=as_json)


async def _pause(url: str | None, run_ids: Sequence[str]) -> list[Outcome]:
    async with reached(url) as client:

        async def pause(before: RunInfo):
            changed = await client.pause(before.id)

            def told(run: RunInfo) -> str:
                if not changed:
                    return f"run {run.id!r} is paused already: nothing changed"
                resume = f"`{command('resume', run.id)}`"
                if run.held:
                    return (
                        f"run {run.id!r} is being paused: steps in flight may end and are recorded, then it rests "
                        f"until {resume}"
                    )
                return f"run {run.id!r} is paused: it rests until {resume}"

            return changed, told

        return await change_each(client, run_ids, pause)


def resume_runs(url: str | None, run_ids: Sequence[str], *, as_json: bool) -> int:
    """Let paused runs go on, and say who takes them up."""
    return report(url, in_loop(_resume(url, run_ids)), as_json=as_json)


async def _resume(url: str | None, run_ids: Sequence[str]) -> list[Outcome]:
    async with reached(url) as client:

        async def resume(before: RunInfo):
            changed = await client.resume(before.id)

            def told(run: RunInfo) -> str:
                if not changed:
                    return f"run {run.id!r} was not paused: nothing changed"
                now = datetime.now(UTC)
                if run.state is RunState.PENDING and run.wake_at is not None and run.wake_at > now:
                    starts = ago((now - run.wake_at).total_seconds())
                    return f"run {run.id!r} is no longer paused: it starts {starts}"
                how = "it goes on" if run.held else "it goes on when a worker takes it up"
                return f"run {run.id!r} is no longer paused: {how}"

            return changed, told

        return await change_each(client, run_ids, resume)
