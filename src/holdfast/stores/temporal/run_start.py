"""Starting runs: a run is there as soon as Temporal has accepted its workflow."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.common import (
    Priority,
    RawValue,
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError

from holdfast.stores.operations import NewRun, Run, Started, StartRun
from holdfast.stores.rules import new_row
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.payloads import payload_of
from holdfast.stores.temporal.rows import describe, key_at, row_of
from holdfast.stores.temporal.run_memo import HEAD, head_of
from holdfast.stores.temporal.sessions import note_started
from holdfast.stores.temporal.unsupported import lacking

TAGS = SearchAttributeKey.for_keyword_list("HoldfastTags")
"""The search attribute with a run's tags, where the namespace has it."""

_LONGEST_KEY = 64


async def start_run(client: Client, op: StartRun, now: float, *, has_tags: bool) -> Started:
    """Create a run, or find the one that is there. An orphan is never joined: Temporal knows of no dead starters."""
    new = op.run
    _refuse_what_is_lacking(new)
    if await begin(client, new, now, has_tags=has_tags):
        await note_started(client, new)
        return Started(created(new, now), created=True)
    found = await describe(client, new.id)
    if found is None:  # it was deleted in the meantime
        return await start_run(client, op, now, has_tags=has_tags)
    run = await row_of(client, found)
    is_ours = run.seed == new.seed
    if is_ours:
        await note_started(client, new)
    return Started(run, created=is_ours)


async def begin(client: Client, new: NewRun, now: float, *, has_tags: bool, brought: Sequence[Payload] = ()) -> bool:
    """Start the execution of a new run; false: there is one under this id. ``brought`` are records it begins with."""
    return await start_execution(
        client,
        workflow=new.workflow,
        id=new.id,
        task_queue=identifiers.task_queue(new.queue, new.workflow, new.version),
        args=[payload_of(new.inputs), *brought],
        memo={HEAD: head_of(new, apart=client.data_converter.external_storage is not None)},
        priority=priority_of(new),
        tags=new.tags if has_tags else (),
        delay=new.available_at - now,
    )


async def start_execution(
    client: Client,
    *,
    workflow: str,
    id: str,
    task_queue: str,
    args: Sequence[Payload],
    memo: Mapping[str, Any],
    priority: Priority,
    tags: Sequence[str],
    delay: float = 0.0,
    again: bool = False,
) -> bool:
    """Start an execution; false: there is one under this id. ``again``: only one that has not ended counts."""
    policies = WorkflowIDReusePolicy
    try:
        await client.start_workflow(
            workflow,
            args=list(map(RawValue, args)),
            id=id,
            task_queue=task_queue,
            memo=memo,
            id_reuse_policy=policies.ALLOW_DUPLICATE if again else policies.REJECT_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            start_delay=timedelta(seconds=delay) if delay > 0 else None,
            priority=priority,
            search_attributes=TypedSearchAttributes([SearchAttributePair(TAGS, list(tags))]) if tags else None,
        )
    except WorkflowAlreadyStartedError:
        return False
    return True


def created(new: NewRun, now: float) -> Run:
    """The row of a run that was just created, without asking the server for it."""
    return new_row(new, key_at(new.id, int(now * 1e9)), None, now, new.previous, new.budget is not None)


def _refuse_what_is_lacking(new: NewRun) -> None:
    if new.dedup:
        raise lacking(
            f"starting run {new.id!r} with dedup= or debounce=",
            "which joins runs by their ids only",
            "give the run an id that is made from what it is about",
        )
    if new.by_delivery:
        raise lacking(
            f"sending work to {new.workflow!r}",
            "which knows workflows only",
            "make it a workflow, or use another store",
        )


def priority_of(new: NewRun) -> Priority:
    """Ours rises from 0, below or above; Temporal's falls from 5 to 1, and is 3 for most."""
    key = new.queue_key
    if len(key.encode()) > _LONGEST_KEY:
        key = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    return Priority(priority_key=min(5, max(1, 3 - new.priority)), fairness_key=key or None)
