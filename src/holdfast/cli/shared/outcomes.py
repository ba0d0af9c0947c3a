"""What a command did to runs: a sentence for each run, or with ``--json`` an object for each.

The object is the same for every command; some commands add fields. If one run cannot be changed, the others still are.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.cli.shared.formatting import make_printable, print_error
from holdfast.cli.shared.store_access import build_run_not_found, with_store_options
from holdfast.client.client import Client
from holdfast.errors import HoldfastError, RunNotFound, ServerError
from holdfast.reports.run_info import RunInfo


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to one run."""

    id: str
    run: RunInfo | None
    """The run afterwards, if it exists."""
    changed: bool = False
    message: str = ""
    """What happened, and what happens next."""
    stall_reason: str | None = None
    """Why the run does not continue, if it does not."""
    error: HoldfastError | None = None
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields that only this command adds to the JSON object."""

    @classmethod
    def from_run(cls, run: RunInfo, *, changed: bool, message: str, **extra: Any) -> Outcome:
        """The outcome for a run that exists."""
        return cls(run.id, run, changed, message, run.stall_advice, None, extra)


async def change_each(
    client: Client,
    run_ids: Sequence[str],
    action: Callable[[str], Awaitable[bool]],
    describe: Callable[[RunInfo, RunInfo, bool], str],
) -> list[Outcome]:
    """Apply ``action`` to each run, by its id. It returns whether anything changed.

    ``describe`` makes the message from the run before, the run afterwards, and whether anything changed.
    """
    outcomes: list[Outcome] = []
    for run_id in run_ids:
        try:
            before = await client.get(run_id)
            changed = await action(run_id)
            run = await client.get(run_id)
        except HoldfastError as error:
            outcomes.append(await outcome_from_error(client, run_id, error))
        else:
            outcomes.append(Outcome.from_run(run, changed=changed, message=describe(before, run, changed)))
    return outcomes


async def outcome_from_error(client: Client, run_id: str, error: HoldfastError) -> Outcome:
    """The outcome for a run that could not be changed."""
    if isinstance(error, RunNotFound):
        return Outcome(run_id, None, error=await build_run_not_found(client, error.run_id))
    try:
        run = await client.get(run_id)
    except (RunNotFound, ServerError):
        run = None
    return Outcome(run_id, run, error=error)


def print_outcomes(url: str | None, outcomes: Sequence[Outcome], *, as_json: bool) -> int:
    """Print outcomes and return the exit code: 1 if one of them is an error."""
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


def print_change(as_json: bool, *, name: str, changed: bool, message: str, **fields: str | None) -> None:
    """Print the message about a change to something other than a run, or with ``as_json`` all of this as an object."""
    change = {"name": name, "changed": changed, "message": message, **fields}
    print(json.dumps(change) if as_json else make_printable(message))


def error_to_json(error: HoldfastError | None) -> dict[str, str] | None:
    """An error for ``--json``."""
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
