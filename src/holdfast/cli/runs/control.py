"""``holdfast cancel``, ``holdfast pause``, and ``holdfast resume``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from holdfast.cli.shared.formatting import format_ago, format_command, format_duration, format_error
from holdfast.cli.shared.options import command, duration_option, json_changes_option, run_ids_argument, url_option
from holdfast.cli.shared.outcomes import Outcome, change_each, print_outcomes
from holdfast.cli.shared.store_access import run_client
from holdfast.client.client import Client
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.reports.run_info import RunInfo


@command("holdfast cancel etl-acme", "holdfast cancel etl-acme etl-bolt --wait 30")
@run_ids_argument
@duration_option(
    "--wait", "wait_s", min_s=0, help="Wait this long until they have ended; exits with 1 if they have not."
)
@json_changes_option
@url_option
def cancel(run_ids: tuple[str, ...], wait_s: float | None, as_json: bool, url: str | None) -> None:
    """Cancel runs.

    A run that has not started is cancelled at once. Otherwise its worker interrupts what it is doing, its `finally`
    blocks run, and steps with a compensation are undone. A paused run continues, to be cancelled.
    """

    async def cancel_runs(client: Client) -> list[Outcome]:
        outcomes = await change_each(client, run_ids, client.cancel, _describe_cancel)
        return outcomes if wait_s is None else await _await_ends(client, outcomes, wait_s)

    sys.exit(print_outcomes(url, run_client(url, cancel_runs), as_json=as_json))


def _describe_cancel(before: RunInfo, run: RunInfo, changed: bool) -> str:
    if not changed:
        state_text = "is cancelled already" if run.state.is_terminal else "is being cancelled already"
        return f"run {run.id!r} {state_text}: nothing changed"
    lifted = "; its pause is lifted" if before.is_paused else ""
    if run.state.is_terminal:
        untouched = ": it had not started" if not before.has_started else ""
        return f"run {run.id!r} is {run.state}{untouched}{lifted}"
    if run.is_claimed:
        how = "its worker will stop it"
    elif run.state is RunState.RUNNING:
        how = "its worker is dead, and the next one will stop it"
    else:
        how = "the next worker that claims it will stop it"
    return f"cancellation of run {run.id!r} requested: {how}{lifted}"


async def _await_ends(client: Client, outcomes: Sequence[Outcome], wait_s: float) -> list[Outcome]:
    """Wait for the runs to end, and return their outcomes."""
    cancelled_ids = [outcome.id for outcome in outcomes if outcome.error is None]
    # Some may have no result or end too late: the state of each is read afterwards.
    await asyncio.gather(*(client.wait(run_id, wait_s) for run_id in cancelled_ids), return_exceptions=True)
    runs = {run_id: await client.get(run_id) for run_id in cancelled_ids}
    return [
        _outcome_after_wait(outcome, runs[outcome.id], wait_s) if outcome.id in runs else outcome
        for outcome in outcomes
    ]


def _outcome_after_wait(outcome: Outcome, run: RunInfo, wait_s: float) -> Outcome:
    if not run.state.is_terminal:
        note = "" if outcome.stall_reason is None else f" ({outcome.stall_reason})"
        error = UsageError(
            f"run {run.id!r} has not ended within {format_duration(wait_s)}; it is still to be cancelled. It is "
            f"{run.state}{note}."
        )
        return replace(outcome, run=run, error=error)
    why = "" if run.error is None else f": {format_error(run.error)}"
    return replace(outcome, run=run, message=f"run {run.id!r} is {run.state}{why}", stall_reason=None)


@command("holdfast pause etl-acme")
@run_ids_argument
@json_changes_option
@url_option
def pause(run_ids: tuple[str, ...], as_json: bool, url: str | None) -> None:
    """Pause runs until they are resumed.

    Steps in flight may finish, and are recorded. Signals are kept. Timers that end meanwhile take effect afterwards.
    """
    outcomes = run_client(url, lambda client: change_each(client, run_ids, client.pause, _describe_pause))
    if not as_json:  # the message already says that it is paused
        outcomes = [replace(one, stall_reason=None) for one in outcomes]
    sys.exit(print_outcomes(url, outcomes, as_json=as_json))


def _describe_pause(before: RunInfo, run: RunInfo, changed: bool) -> str:
    if not changed:
        return f"run {run.id!r} is paused already: nothing changed"
    resume = f"`{format_command('resume', run.id)}`"
    if run.is_claimed:
        return f"run {run.id!r} is being paused: steps in flight may end and are recorded, then it rests until {resume}"
    return f"run {run.id!r} is paused: it rests until {resume}"


@command("holdfast resume etl-acme")
@run_ids_argument
@json_changes_option
@url_option
def resume(run_ids: tuple[str, ...], as_json: bool, url: str | None) -> None:
    """Resume paused runs."""
    outcomes = run_client(url, lambda client: change_each(client, run_ids, client.resume, _describe_resume))
    sys.exit(print_outcomes(url, outcomes, as_json=as_json))


def _describe_resume(before: RunInfo, run: RunInfo, changed: bool) -> str:
    if not changed:
        return f"run {run.id!r} was not paused: nothing changed"
    now = datetime.now(UTC)
    if run.state is RunState.PENDING and run.wake_at is not None and run.wake_at > now:
        return f"run {run.id!r} is no longer paused: it starts {format_ago((now - run.wake_at).total_seconds())}"
    outcome_text = "it continues" if run.is_claimed else "it continues when a worker claims it"
    return f"run {run.id!r} is no longer paused: {outcome_text}"
