"""What workers announce about their workflows, so that a client can start them without their code.

Temporal has no table for this. But it keeps a memo with each workflow, and has at most one open workflow under an id.
So an announcement is a workflow that no worker ever executes: its id is the served name, its memo the spec. It can be
read without a worker as soon as it is written, and is replaced in one step. The list of all announcements comes from
Temporal's visibility store, which lags a moment behind: so ``announce`` waits until they are listed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, cast

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from holdfast.admission.usage import BudgetLimits
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.served_versions import make_served_name
from holdfast.stores.temporal.identifiers import ANNOUNCEMENT_ID_PREFIX, ANNOUNCEMENT_TYPE
from holdfast.stores.temporal.rows import describe_execution
from holdfast.stores.temporal.visibility import list_executions

ANNOUNCEMENT_TASK_QUEUE = "holdfast/announcements"
"""No worker polls it."""

_SPEC_KEY = "spec"
_MAX_POLLS, _POLL_INTERVAL_S = 50, 0.1
"""``announce`` waits up to five seconds."""


async def announce(client: Client, specs: Sequence[WorkflowSpec], now: float) -> None:
    """Announce these, and wait until all clients can see them."""
    specs_by_name = {make_served_name(spec.name, spec.version): spec for spec in specs}
    changed = await asyncio.gather(*(_announce_one(client, name, spec, now) for name, spec in specs_by_name.items()))
    if any(changed):
        for _ in range(_MAX_POLLS):
            listed = await list_announced(client)
            if all(listed.get(name) == spec for name, spec in specs_by_name.items()):
                return
            await asyncio.sleep(_POLL_INTERVAL_S)


async def _announce_one(client: Client, name: str, spec: WorkflowSpec, now: float) -> bool:
    """Announce one; false if nothing has changed."""
    id = ANNOUNCEMENT_ID_PREFIX + name
    execution = await describe_execution(client, id)
    before = spec_from_memo(execution.memo) if execution is not None and execution.is_open else None
    if before == spec:
        return False
    spec = replace(spec, announced_at=now if before is None else before.announced_at)
    await client.start_workflow(
        ANNOUNCEMENT_TYPE,
        id=id,
        task_queue=ANNOUNCEMENT_TASK_QUEUE,
        memo={_SPEC_KEY: json.loads(json.dumps(asdict(spec)))},
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING,
    )
    return True


async def list_announced(client: Client) -> Mapping[str, WorkflowSpec]:
    """All announced workflows, by served name."""
    specs: dict[str, WorkflowSpec] = {}
    query = f"WorkflowType = '{ANNOUNCEMENT_TYPE}' AND ExecutionStatus = 'Running'"
    async for execution in list_executions(client, query):
        spec = spec_from_memo(execution.memo)
        if spec is not None:
            specs.setdefault(make_served_name(spec.name, spec.version), spec)
    return specs


def spec_from_memo(memo: Mapping[str, Any]) -> WorkflowSpec | None:
    """The announcement in a memo; ``None`` if there is none that this version can read."""
    entry = memo.get(_SPEC_KEY)
    if not isinstance(entry, dict) or "name" not in entry:
        return None
    known = {field.name for field in fields(WorkflowSpec)}
    values = {key: value for key, value in cast("dict[str, Any]", entry).items() if key in known}
    values |= {key: tuple(cast("list[Any]", value)) for key, value in values.items() if isinstance(value, list)}
    if values.get("budget") is not None:
        values["budget"] = BudgetLimits(*values["budget"])
    return WorkflowSpec(**values)
