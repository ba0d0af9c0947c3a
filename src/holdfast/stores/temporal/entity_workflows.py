"""Entity workflows: workflows of Holdfast itself that hold the state that several runs share.

A run cannot hold shared state: it may end, or be retried as another execution, while other runs continue. So an entity
has a workflow id of its own: the account of a budget, the order of a session. Its task queue is polled by every worker,
because it needs no user code. Runs call it with updates, and report to it with signals.

An entity ends when no run seems to need it any more, and its whole state is its result. The next caller starts it again
with that state, so it does no harm if the entity was wrong about that.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client, WithStartWorkflowOperation, WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy

from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.errors import suppress_not_found

log = logging.getLogger("holdfast.stores")


@dataclass(frozen=True, slots=True)
class EntityWorkflow:
    """An entity, and its state if it never existed before."""

    type: str
    id: str
    initial_state: Mapping[str, Any]
    memo: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What readers see without a query."""


async def update_entity(client: Client, entity: EntityWorkflow, name: str, *args: Any) -> Any:
    """Send an update, and return the answer. It may be repeated: an entity gives a caller the same answer again."""
    id = secrets.token_hex(8)
    with suppress_not_found():
        handle: Any = client.get_workflow_handle(entity.id)
        return await handle.execute_update(name, args=list(args), id=id)
    start = WithStartWorkflowOperation[Any, Any](
        entity.type, await _load_last_state(client, entity), memo=entity.memo, **_make_start_options(entity)
    )
    untyped: Any = client
    return await untyped.execute_update_with_start_workflow(
        name, args=list(args), id=id, start_workflow_operation=start
    )


async def signal_entity(client: Client, entity: EntityWorkflow, name: str, *args: Any) -> None:
    """Send a signal. This needs no worker: the entity receives it when there is one."""
    with suppress_not_found():
        await client.get_workflow_handle(entity.id).signal(name, args=list(args))
        return
    await client.start_workflow(
        entity.type,
        await _load_last_state(client, entity),
        memo=entity.memo,
        start_signal=name,
        start_signal_args=list(args),
        **_make_start_options(entity),
    )


def _make_start_options(entity: EntityWorkflow) -> dict[str, Any]:
    return {
        "id": entity.id,
        "task_queue": identifiers.ENTITY_TASK_QUEUE,
        "id_conflict_policy": WorkflowIDConflictPolicy.USE_EXISTING,
    }


async def read_entity_memo(client: Client, id: str) -> Mapping[str, Any]:
    """The memo of an entity; empty if it does not exist."""
    with suppress_not_found():
        return await (await client.get_workflow_handle(id).describe()).memo()
    return {}


async def _load_last_state(client: Client, entity: EntityWorkflow) -> Mapping[str, Any]:
    """The state with which the entity last ended, or its initial state."""
    with suppress_not_found():
        last = await client.get_workflow_handle(entity.id).describe()
        if last.status is WorkflowExecutionStatus.COMPLETED:
            handle = client.get_workflow_handle(entity.id, run_id=last.run_id, result_type=dict[str, Any])
            return await handle.result(follow_runs=False)
        if last.status is not WorkflowExecutionStatus.RUNNING:
            log.warning("somebody has ended workflow %r in Temporal: what it kept is lost, and begins anew", entity.id)
    return entity.initial_state
