"""What a command did to runs: told to people in a sentence for each, to programs in an object for each.

The object is the same for every command; some add a few fields of their own. One run that cannot be changed does not
keep the others from being changed.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.cli.liveness import Surroundings, is_cancelling, is_paused, look_around, why_stalled
from holdfast.cli.opening import find_run
from holdfast.cli.wording import printable, tell_error
from holdfast.errors import HoldfastError
from holdfast.stores.contract import Store
from holdfast.stores.operations import Run


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one run."""

    id: str
    run: Run | None
    """Its row afterwards, if it is there."""
    changed: bool = False
    message: str = ""
    """What happened, and what happens next."""
    stalled: str | None = None
    """Why that does not happen by itself, if it does not."""
    error: HoldfastError | None = None
    more: dict[str, Any] = field(default_factory=dict[str, Any])
    """What only this command has to tell to programs."""

    @classmethod
    def of(cls, run: Run, around: Surroundings, *, changed: bool, message: str, **more: Any) -> Outcome:
        """Of a run that was found."""
        return cls(run.id, run, changed, message, why_stalled(run, around), None, more)


Action = Callable[[Run], Awaitable[tuple[bool, Callable[[Run, Surroundings], str]]]]
"""Changes a run: whether that is new, and how it is told of the run as it is afterwards."""


async def change_each(store: Store, run_ids: Sequence[str], act: Action) -> list[Outcome]:
    """Do the same to each of these runs."""
    return [await _change(store, run_id, act) for run_id in run_ids]


async def _change(store: Store, run_id: str, act: Action) -> Outcome:
    try:
        before = await find_run(store, run_id)
        changed, told = await act(before)
        run = await find_run(store, run_id)
        around = await look_around(store, [run])
    except HoldfastError as error:
        return await failure(store, run_id, error)
    return Outcome.of(run, around, changed=changed, message=told(run, around))


async def failure(store: Store, run_id: str, error: HoldfastError) -> Outcome:
    """Of a run that could not be changed."""
    return Outcome(run_id, await store.get(run_id), error=error)


def report(outcomes: Sequence[Outcome], *, as_json: bool) -> int:
    """Tell what happened; the exit code is 1 if something did not."""
    for outcome in outcomes:
        if as_json:
            print(json.dumps(_as_json(outcome)))
        elif outcome.error is not None:
            tell_error(outcome.error)
        else:
            print(printable(outcome.message))
            if outcome.stalled and not (outcome.run and is_paused(outcome.run)):  # that it is paused was just said
                print(printable(outcome.stalled))
    return 1 if any(outcome.error is not None for outcome in outcomes) else 0


def _as_json(outcome: Outcome) -> dict[str, Any]:
    run, error = outcome.run, outcome.error
    return {
        "id": outcome.id,
        "workflow": None if run is None else run.workflow,
        "state": None if run is None else run.state.value,
        "changed": outcome.changed,
        "paused": run is not None and is_paused(run),
        "cancelling": run is not None and is_cancelling(run),
        "stalled": outcome.stalled,
        "message": outcome.message or None,
        "error": None if error is None else {"type": type(error).__name__, "message": str(error)},
        **outcome.more,
    }
