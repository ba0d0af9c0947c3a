"""Workflows of Holdfast's own that keep something for many runs: the account of a budget, the order of a session.

What several runs share cannot be kept by one of them: that one may end, or be retried as another execution, while the
rest go on. So a *keeper* has a workflow id of its own, and a task queue that every worker polls, since it needs none of
the user's code. Runs ask it by updates, and tell it things by signals.

A keeper ends when nobody needs it any more, as far as it can tell, and its result is all that it knew. Whoever comes
after that starts it again with what it has left; so it does no harm that it cannot tell for certain.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client, WithStartWorkflowOperation, WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from holdfast.stores.temporal import identifiers

log = logging.getLogger("holdfast.stores")


@dataclass(frozen=True, slots=True)
class EntityWorkflow:
    """Which one, and what it begins with if there never was one."""

    type: str
    id: str
    initial_state: Mapping[str, Any]
    memo: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What it shows to readers without being asked."""


async def update_entity(client: Client, entity: EntityWorkflow, name: str, *args: Any) -> Any:
    """Its answer to an update. It may be repeated: a keeper answers the same asker alike."""
    id = secrets.token_hex(8)
    try:
        known: Any = client.get_workflow_handle(entity.id)
        return await known.execute_update(name, args=list(args), id=id)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
    begin = WithStartWorkflowOperation[Any, Any](
        entity.type, await _load_last_state(client, entity), memo=entity.memo, **_make_start_options(entity)
    )
    untyped: Any = client
    return await untyped.execute_update_with_start_workflow(
        name, args=list(args), id=id, start_workflow_operation=begin
    )


async def signal_entity(client: Client, entity: EntityWorkflow, name: str, *args: Any) -> None:
    """Send it a signal. That needs no worker: it is heard when there is one."""
    try:
        await client.get_workflow_handle(entity.id).signal(name, args=list(args))
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        await client.start_workflow(
            entity.type,
            await _load_last_state(client, entity),
            memo=entity.memo,
            start_signal=name,
            start_signal_args=list(args),
            **_make_start_options(entity),
        )


def _make_start_options(entity: EntityWorkflow) -> dict[str, Any]:
    """Where it is started, or found."""
    return {
        "id": entity.id,
        "task_queue": identifiers.ENTITY_TASK_QUEUE,
        "id_conflict_policy": WorkflowIDConflictPolicy.USE_EXISTING,
    }


async def read_entity_memo(client: Client, id: str) -> Mapping[str, Any]:
    """What a keeper shows; nothing, if there is none."""
    try:
        return await (await client.get_workflow_handle(id).describe()).memo()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return {}


async def _load_last_state(client: Client, entity: EntityWorkflow) -> Mapping[str, Any]:
    """What the last one knew when it ended; if there never was one, what the first one begins with."""
    try:
        known = await client.get_workflow_handle(entity.id).describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return entity.initial_state
    if known.status is WorkflowExecutionStatus.COMPLETED:
        last = client.get_workflow_handle(entity.id, run_id=known.run_id, result_type=dict[str, Any])
        return await last.result(follow_runs=False)
    if known.status is not WorkflowExecutionStatus.RUNNING:
        log.warning("somebody has ended workflow %r in Temporal: what it kept is lost, and begins anew", entity.id)
    return entity.initial_state
