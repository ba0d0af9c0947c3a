"""``holdfast cancel``, ``holdfast pause`` and ``holdfast resume``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from holdfast.cli.liveness import Surroundings, is_held
from holdfast.cli.opening import existing_store
from holdfast.cli.outcomes import Outcome, change_each, report
from holdfast.cli.recorded import error_of
from holdfast.cli.wording import ago, command, duration
from holdfast.client.client import Client
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.stores.contract import Store
from holdfast.stores.operations import Run

_POLL = 0.5


def cancel_runs(url: str | None, run_ids: Sequence[str], *, wait: float | None, as_json: bool) -> int:
    """Ask for runs to be cancelled, and say who carries it out."""
    return report(asyncio.run(_cancel(url, run_ids, wait)), as_json=as_json)


async def _cancel(url: str | None, run_ids: Sequence[str], wait: float | None) -> list[Outcome]:
    async with existing_store(url) as store, Client(url) as client:

        async def cancel(before: Run):
            changed = await client.cancel(before.id)

            def told(run: Run, around: Surroundings) -> str:
                return _cancelled(before, run, around) if changed else _cancelled_before(run)

            return changed, told

        outcomes = await change_each(store, run_ids, cancel)
        return outcomes if wait is None else await _ended(store, outcomes, wait)


def _cancelled(before: Run, run: Run, around: Surroundings) -> str:
    lifted = "; its pause is lifted" if before.paused_at is not None else ""
    if run.state.is_terminal:
        untouched = ": nobody had begun it" if before.epoch == 0 else ""
        return f"run {run.id!r} is {run.state}{untouched}{lifted}"
    if is_held(run, around):
        how = "its worker carries it out"
    elif run.state is RunState.RUNNING:
        how = "its worker is dead, and the next one carries it out"
    else:
        how = "it is carried out when a worker takes the run up"
    return f"asked for run {run.id!r} to be cancelled: {how}{lifted}"


def _cancelled_before(run: Run) -> str:
    what = "is cancelled already" if run.state.is_terminal else "is being cancelled already"
    return f"run {run.id!r} {what}: nothing changed"


async def _ended(store: Store, outcomes: Sequence[Outcome], wait: float) -> list[Outcome]:
    """The same, once the runs have ended."""
    end = time.monotonic() + wait
    asked = [outcome.id for outcome in outcomes if outcome.error is None]
    while True:
        runs = {run.id: run for run in await store.get_many(asked)}
        left = end - time.monotonic()
        if left <= 0 or all(run.state.is_terminal for run in runs.values()):
            return [_end(outcome, runs[outcome.id], wait) if outcome.id in runs else outcome for outcome in outcomes]
        await store.changed(min(left, _POLL))


def _end(outcome: Outcome, run: Run, wait: float) -> Outcome:
    if not run.state.is_terminal:
        note = "" if outcome.stalled is None else f" ({outcome.stalled})"
        error = UsageError(
            f"run {run.id!r} has not ended within {duration(wait)}; it is still to be cancelled. It is {run.state}"
            f"{note}."
        )
        return replace(outcome, run=run, error=error)
    fault = error_of(run.error)
    why = "" if fault is None else f": {fault.in_short}"
    return replace(outcome, run=run, message=f"run {run.id!r} is {run.state}{why}", stalled=None)


def pause_runs(url: str | None, run_ids: Sequence[str], *, as_json: bool) -> int:
    """Pause runs, and say when they rest."""
    return report(asyncio.run(_pause(url, run_ids)), as_json=as_json)


async def _pause(url: str | None, run_ids: Sequence[str]) -> list[Outcome]:
    async with existing_store(url) as store, Client(url) as client:

        async def pause(before: Run):
            changed = await client.pause(before.id)

            def told(run: Run, around: Surroundings) -> str:
                if not changed:
                    return f"run {run.id!r} is paused already: nothing changed"
                resume = f"`{command('resume', run.id)}`"
                if is_held(run, around):
                    return (
                        f"run {run.id!r} is being paused: steps in flight may end and are recorded, then it rests "
                        f"until {resume}"
                    )
                return f"run {run.id!r} is paused: it rests until {resume}"

            return changed, told

        return await change_each(store, run_ids, pause)


def resume_runs(url: str | None, run_ids: Sequence[str], *, as_json: bool) -> int:
    """Let paused runs go on, and say who takes them up."""
    return report(asyncio.run(_resume(url, run_ids)), as_json=as_json)


async def _resume(url: str | None, run_ids: Sequence[str]) -> list[Outcome]:
    async with existing_store(url) as store, Client(url) as client:

        async def resume(before: Run):
            changed = await client.resume(before.id)

            def told(run: Run, around: Surroundings) -> str:
                if not changed:
                    return f"run {run.id!r} was not paused: nothing changed"
                if run.state is RunState.PENDING and run.wake_at is not None and run.wake_at > around.now:
                    return f"run {run.id!r} is no longer paused: it starts {ago(around.now - run.wake_at)}"
                how = "it goes on" if is_held(run, around) else "it goes on when a worker takes it up"
                return f"run {run.id!r} is no longer paused: {how}"

            return changed, told

        return await change_each(store, run_ids, resume)
