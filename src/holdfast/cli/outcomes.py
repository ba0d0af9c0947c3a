"""What a command did to runs: told to people in a sentence for each, to programs in an object for each.

The object is the same for every command; some add a few fields of their own. One run that cannot be changed does not
keep the others from being changed.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.cli.formatting import printable, tell_error
from holdfast.cli.store_access import get_run, placed
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
    stalled: str | None = None
    """Why that does not happen by itself, if it does not."""
    error: HoldfastError | None = None
    more: dict[str, Any] = field(default_factory=dict[str, Any])
    """What only this command has to tell to programs."""

    @classmethod
    def of(cls, run: RunInfo, *, changed: bool, message: str, **more: Any) -> Outcome:
        """Of a run that was found."""
        return cls(run.id, run, changed, message, run.stalled, None, more)


Action = Callable[[RunInfo], Awaitable[tuple[bool, Callable[[RunInfo], str]]]]
"""Changes a run: whether that is new, and how it is told of the run as it is afterwards."""


async def change_each(client: Client, run_ids: Sequence[str], act: Action) -> list[Outcome]:
    """Do the same to each of these runs."""
    return [await _change(client, run_id, act) for run_id in run_ids]


async def _change(client: Client, run_id: str, act: Action) -> Outcome:
    try:
        before = await get_run(client, run_id)
        changed, told = await act(before)
        run = await client.get(run_id)
    except HoldfastError as error:
        return await failure(client, run_id, error)
    return Outcome.of(run, changed=changed, message=told(run))


async def failure(client: Client, run_id: str, error: HoldfastError) -> Outcome:
    """Of a run that could not be changed."""
    try:
        run = await client.get(run_id)
    except (RunNotFound, ServerError):
        run = None
    return Outcome(run_id, run, error=error)


def report(url: str | None, outcomes: Sequence[Outcome], *, as_json: bool) -> int:
    """Tell what happened at ``url``; the exit code is 1 if something did not."""
    for outcome in outcomes:
        if as_json:
            print(json.dumps(_as_json(outcome)))
        elif outcome.error is not None:
            tell_error(placed(url, str(outcome.error)))
        else:
            print(printable(placed(url, outcome.message)))
            if outcome.stalled:
                print(printable(placed(url, outcome.stalled)))
    return 1 if any(outcome.error is not None for outcome in outcomes) else 0


def error_as_json(error: HoldfastError | None) -> dict[str, str] | None:
    """Why something could not be done, for programs."""
    return None if error is None else {"type": type(error).__name__, "message": str(error)}


def _as_json(outcome: Outcome) -> dict[str, Any]:
    run = outcome.run
    return {
        "id": outcome.id,
        "workflow": None if run is None else run.workflow,
        "state": None if run is None else run.state.value,
        "changed": outcome.changed,
        "paused": run is not None and run.paused,
        "cancelling": run is not None and run.cancelling,
        "stalled": outcome.stalled,
        "message": outcome.message or None,
        "error": error_as_json(outcome.error),
        **outcome.more,
    }
