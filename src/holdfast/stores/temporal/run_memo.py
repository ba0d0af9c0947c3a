"""What a workflow's memo says of a run: all of ``NewRun`` that is neither its id, its type nor its inputs.

It is one entry, ``holdfast``, as plain JSON. A workflow that somebody has started by other means, such as Temporal's
own command line, has none: then what can be known without it is made up from the execution.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.admission.usage import Limits
from holdfast.codec import digest
from holdfast.core.states import RunState
from holdfast.stores.operations import MAX_DELIVERIES, NewRun, Run

HEAD = "holdfast"
"""The entry of the memo."""

APART = "apart"
"""In that entry: large payloads have a storage of their own."""

SHOWS_USED = "shows_used"
"""In that entry: the run writes what its steps have used into its memo. It is noted for the same reason as ``APART``:
runs that were started before there was such an entry must not write one when they are replayed."""

USED = "used"
"""The entry of the memo with that: lists read it, where the history would have to be read otherwise."""

QUESTIONS = "questions"
"""The entry of the memo with what the run asks people."""


class Owner(NamedTuple):
    """A run that was started with a budget."""

    run_id: str
    limits: Limits
    """As it was started; it may have been given others since."""


def head_of(
    new: NewRun,
    *,
    position: int | None = None,
    awaited: bool = False,
    above: Sequence[Owner] = (),
    apart: bool = False,
) -> dict[str, Any]:
    """What is written of a new run.

    ``position`` is the command of the run that starts it, if a run does; ``above`` are the budgets that it has to keep
    to beside its own. ``apart``: large payloads have a storage of their own. That is noted because a run decides by it,
    and must decide the same whenever it is replayed.
    """
    head: dict[str, Any] = {
        "queue": new.queue,
        "seed": new.seed.hex(),
        "digest": new.digest.hex(),
        "created_at": new.created_at,
        "available_at": new.available_at,
        "priority": new.priority,
        "deadline": new.deadline,
        "max_deliveries": new.max_deliveries,
        "tags": list(new.tags),
        "generated_id": new.generated_id,
        "python": new.python,
        "began_at": new.began_at,
        "parent": new.parent,
        "forked_from": new.forked_from,
        "rewound": list(new.rewound),
        "budget": None if new.budget is None else list(new.budget),
        "session": new.session,
        "previous": new.previous,
        "version": new.version,
        "position": position,
        "awaited": awaited,
        "above": [[owner.run_id, list(owner.limits)] for owner in above],
        APART: apart,
        SHOWS_USED: True,
    }
    return {name: value for name, value in head.items() if value not in (None, "", [], False, 0, 0.0)}


def run_of(head: Mapping[str, Any], *, id: str, execution: str, workflow: str, inputs: bytes, started_at: float) -> Run:
    """A run's row as its own execution sees it: running. ``execution`` is what Temporal calls its run id."""
    seed = head.get("seed")
    return Run(
        key=0,
        id=id,
        workflow=workflow,
        queue=head.get("queue", "default"),
        state=RunState.RUNNING,
        epoch=1,
        owner=None,
        starter=None,
        deliveries=0,
        max_deliveries=head.get("max_deliveries", MAX_DELIVERIES),
        wake_at=None,
        waits_for="",
        priority=head.get("priority", 0),
        deadline=head.get("deadline"),
        inputs=inputs,
        digest=bytes.fromhex(head["digest"]) if "digest" in head else digest(inputs) if inputs else b"",
        seed=bytes.fromhex(seed) if seed else hashlib.blake2b(execution.encode(), digest_size=16).digest(),
        output=None,
        error=None,
        tags=tuple(head.get("tags", ())),
        python=head.get("python", ""),
        created_at=head.get("created_at", started_at),
        finished_at=None,
        began_at=head.get("began_at") or head.get("created_at") or started_at,
        parent=head.get("parent", ""),
        forked_from=head.get("forked_from", ""),
        rewound=tuple(head.get("rewound", ())),
        session=head.get("session", ""),
        previous=head.get("previous", ""),
        has_budget="budget" in head or "above" in head,
        version=head.get("version", ""),
    )


def budget_in(head: Mapping[str, Any]) -> Limits | None:
    """The run's own budget."""
    return Limits(*head["budget"]) if head.get("budget") else None


def budgets_in(head: Mapping[str, Any], run_id: str) -> tuple[Owner, ...]:
    """All budgets that a run has to keep to: its own, and those of the runs above it, the nearest first."""
    own = budget_in(head)
    above = tuple(Owner(id, Limits(*limits)) for id, limits in head.get("above", ()))
    return above if own is None else (Owner(run_id, own), *above)
