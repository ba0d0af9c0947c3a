"""Small facts that Temporal keeps for Holdfast: what a name stands for, for everybody to see at once.

Temporal has no table for such things. But it keeps a memo with each workflow, and there is one open workflow under an
id at most. So a *pointer* is a workflow that nobody ever executes: its id is the name, its memo the fact. It can be
read without any worker, as soon as it is written, and is replaced in one step.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from holdfast.stores.temporal.rows import ExecutionDescription, describe_execution

POINTER_TASK_QUEUE = "holdfast/announcements"
"""Nobody polls it."""


async def set_pointer(
    client: Client, kind: str, id: str, memo: dict[str, Any], *, expires_after: timedelta | None = None
) -> None:
    """Let a name stand for something, in place of what it stood for. ``expires_after``: forget it after this time."""
    await client.start_workflow(
        kind,
        id=id,
        task_queue=POINTER_TASK_QUEUE,
        memo=memo,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING,
        execution_timeout=expires_after,
    )


async def read_pointer(client: Client, id: str) -> ExecutionDescription | None:
    """What a name stands for; ``None``: nothing."""
    found = await describe_execution(client, id)
    return found if found is not None and found.is_open else None
