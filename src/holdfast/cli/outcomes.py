"""What a command did to runs: told to people in a sentence for each, to programs in an object for each.

The object is the same for every command; some add a few fields of their own. One run that cannot be changed does not
keep the others from being changed.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.cli.formatting import make_printable, print_error
from holdfast.cli.store_access import get_run, with_store_options
from holdfast.client.client import Client
from holdfast.errors import HoldfastError, RunNotFound, ServerError
from holdfast.reports.run_info import RunInfo


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one run."""

    id: str
    run: RunInfo | None
    """As it is afterwards, if it is there."""
    changed: bool = False
    message: str = ""
    """What happened, and what happens next."""
    stall_reason: str | None = None
    """Why that does not happen by itself, if it does not."""
    error: HoldfastError | None = None
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """What only this command has to tell to programs."""

    @classmethod
    def from_run(cls, run: RunInfo, *, changed: bool, message: str, **extra: Any) -> Outcome:
        """Of a run that was found."""
        return cls(run.id, run, changed, message, run.stall_advice, None, extra)


Action = Callable[[RunInfo], Awaitable[tuple[bool, Callable[[RunInfo], str]]]]
"""Changes a run: whether that is new, and how it is told of the run as it is afterwards."""


async def change_each(client: Client, run_ids: Sequence[str], action: Action) -> list[Outcome]:
    """Do the same to each of these runs."""
    return [await _change(client, run_id, action) for run_id in run_ids]


async def _change(client: Client, run_id: str, action: Action) -> Outcome:
    try:
        before = await get_run(client, run_id)
        changed, told = await action(before)
        run = await client.get(run_id)
    except HoldfastError as error:
        return await outcome_from_error(client, run_id, error)
    return Outcome.from_run(run, changed=changed, message=told(run))


async def outcome_from_error(client: Client, run_id: str, error: HoldfastError) -> Outcome:
    """Of a run that could not be changed."""
    try:
        run = await client.get(run_id)
    except (RunNotFound, ServerError):
        run = None
    return Outcome(run_id, run, error=error)


def print_outcomes(url: str | None, outcomes: Sequence[Outcome], *, as_json: bool) -> int:
    """Tell what happened at ``url``; the exit code is 1 if something did not."""
    for outcome in outcomes:
        if as_json:
            print(json.dumps(_outcome_to_json(outcome)))
        elif outcome.error is not None:
            print_error(with_store_options(url, str(outcome.error)))
        else:
            print(make_printable(with_store_options(url, outcome.message)))
            if outcome.stall_reason:
                print(make_printable(with_store_options(url, outcome.stall_reason)))
    return 1 if any(outcome.error is not None for outcome in outcomes) else 0


def error_to_json(error: HoldfastError | None) -> dict[str, str] | None:
    """Why something could not be done, for programs."""
    return None if error is None else {"type": type(error).__name__, "message": str(error)}


def _outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    run = outcome.run
    return {
        "id": outcome.id,
        "workflow": None if run is None else run.workflow,
        "state": None if run is None else run.state.value,
        "changed": outcome.changed,
        "is_paused": run is not None and run.is_paused,
        "is_cancelling": run is not None and run.is_cancelling,
        "stall_reason": outcome.stall_reason,
        "message": outcome.message or None,
        "error": error_to_json(outcome.error),
        **outcome.extra,
    }
