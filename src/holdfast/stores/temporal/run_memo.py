"""The entry about a run in its workflow's memo: all of ``NewRun`` except its id, its type, and its inputs.

The entry is called ``holdfast``, and is plain JSON. A workflow that was started by other means, such as Temporal's own
command line, has none. Defaults and the execution itself supply its values then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.admission.usage import BudgetLimits
from holdfast.codec import compute_digest
from holdfast.core.records import RewindPoint
from holdfast.core.seeded_random import SEED_BYTES
from holdfast.core.states import RunState
from holdfast.stores.operations import MAX_DELIVERIES, NewRun, Run

RUN_MEMO_KEY = "holdfast"

EXTERNAL_PAYLOADS_KEY = "external_payloads"
"""In that entry: whether large payloads go to external storage."""

USAGE_KEY = "used"
"""The memo's entry with the run's usage, so that lists need not read the history."""

APPROVALS_KEY = "approvals"
"""The memo's entry with the run's open approvals."""


class BudgetOwner(NamedTuple):
    """A run that was started with a budget."""

    run_id: str
    limits: BudgetLimits
    """Its limits at the start, which may have been replaced since."""


def make_run_memo(
    new: NewRun,
    *,
    position: int | None = None,
    is_awaited: bool = False,
    ancestor_budgets: Sequence[BudgetOwner] = (),
    has_external_payloads: bool = False,
) -> dict[str, Any]:
    """The memo's entry of a new run.

    ``position`` is the parent's command that starts it, if it has a parent; ``ancestor_budgets`` are the budgets of the
    runs above it. ``has_external_payloads`` says that large payloads go to external storage. It is stored because the
    run's decisions depend on it, and must be the same on replay.
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
        "has_generated_id": new.has_generated_id,
        "python_version": new.python_version,
        "clock_started_at": new.clock_started_at,
        "parent": new.parent,
        "forked_from": new.forked_from,
        "rewind_points": [list(point) for point in new.rewind_points],
        "budget": None if new.budget is None else list(new.budget),
        "session": new.session,
        "previous_run": new.previous_run,
        "version": new.version,
        "trace_parent": new.trace_parent,
        "position": position,
        "is_awaited": is_awaited,
        "ancestor_budgets": [[owner.run_id, list(owner.limits)] for owner in ancestor_budgets],
        EXTERNAL_PAYLOADS_KEY: has_external_payloads,
    }
    return {name: value for name, value in head.items() if value not in (None, "", [], False, 0, 0.0)}


def run_from_memo(
    run_memo: Mapping[str, Any], *, id: str, execution_id: str, workflow: str, inputs: bytes, started_at: float
) -> Run:
    """A run's row as its own execution sees it: running. ``execution_id`` is Temporal's run id."""
    seed = run_memo.get("seed")
    return Run(
        key=0,
        id=id,
        workflow=workflow,
        queue=run_memo.get("queue", "default"),
        state=RunState.RUNNING,
        epoch=1,
        owner=None,
        starter=None,
        delivery_count=0,
        max_deliveries=run_memo.get("max_deliveries", MAX_DELIVERIES),
        wake_at=None,
        waits_for="",
        priority=run_memo.get("priority", 0),
        deadline=run_memo.get("deadline"),
        inputs=inputs,
        digest=bytes.fromhex(run_memo["digest"]) if "digest" in run_memo else compute_digest(inputs) if inputs else b"",
        seed=bytes.fromhex(seed) if seed else hashlib.blake2b(execution_id.encode(), digest_size=SEED_BYTES).digest(),
        output=None,
        error=None,
        tags=tuple(run_memo.get("tags", ())),
        python_version=run_memo.get("python_version", ""),
        created_at=run_memo.get("created_at", started_at),
        finished_at=None,
        clock_started_at=run_memo.get("clock_started_at") or run_memo.get("created_at") or started_at,
        parent=run_memo.get("parent", ""),
        forked_from=run_memo.get("forked_from", ""),
        rewind_points=tuple(RewindPoint(*point) for point in run_memo.get("rewind_points", ())),
        session=run_memo.get("session", ""),
        previous_run=run_memo.get("previous_run", ""),
        has_budget="budget" in run_memo or "ancestor_budgets" in run_memo,
        version=run_memo.get("version", ""),
        trace_parent=run_memo.get("trace_parent", ""),
    )


def budget_from_memo(run_memo: Mapping[str, Any]) -> BudgetLimits | None:
    """The run's own budget."""
    return BudgetLimits(*run_memo["budget"]) if run_memo.get("budget") else None


def budgets_from_memo(run_memo: Mapping[str, Any], run_id: str) -> tuple[BudgetOwner, ...]:
    """All budgets that apply to a run: its own, and those of the runs above it, the nearest first."""
    own = budget_from_memo(run_memo)
    others = tuple(BudgetOwner(id, BudgetLimits(*limits)) for id, limits in run_memo.get("ancestor_budgets", ()))
    return others if own is None else (BudgetOwner(run_id, own), *others)
