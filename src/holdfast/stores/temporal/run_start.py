"""Starts runs: a run exists as soon as Temporal has accepted its workflow."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
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
from temporalio.service import RPCError

from holdfast.stores.operations import NewRun, Run, StartResult, StartRun
from holdfast.stores.rules import make_run
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.payloads import to_payload
from holdfast.stores.temporal.rows import describe_execution, make_key, read_row
from holdfast.stores.temporal.run_memo import RUN_MEMO_KEY, make_run_memo
from holdfast.stores.temporal.sessions import note_started
from holdfast.stores.temporal.unsupported import unsupported_error

TAGS_ATTRIBUTE = SearchAttributeKey.for_keyword_list("HoldfastTags")
"""The search attribute with a run's tags, if the namespace has it."""

_MAX_FAIRNESS_KEY_BYTES = 64


async def has_tags_attribute(client: Client) -> bool:
    """Whether the namespace has the search attribute for tags; false if the client may not know."""
    try:
        request = ListSearchAttributesRequest(namespace=client.namespace)
        answer = await client.operator_service.list_search_attributes(request)
    except RPCError:
        return False
    return TAGS_ATTRIBUTE.name in answer.custom_attributes


async def start_run(client: Client, op: StartRun, now: float, *, has_tags: bool) -> StartResult:
    """Create a run, or return the existing one. It never joins an orphan: Temporal does not know dead starters."""
    new = op.run
    _check_supported(new)
    if await start_new_run(client, new, now, has_tags=has_tags):
        await note_started(client, new)
        return StartResult(make_created_row(new, now), is_new=True)
    execution = await describe_execution(client, new.id)
    if execution is None:  # it was deleted in the meantime
        return await start_run(client, op, now, has_tags=has_tags)
    run = await read_row(client, execution)
    is_new = run.seed == new.seed  # an earlier attempt of this start created it
    if is_new:
        await note_started(client, new)
    return StartResult(run, is_new=is_new)


async def start_new_run(
    client: Client, new: NewRun, now: float, *, has_tags: bool, carried: Sequence[Payload] = ()
) -> bool:
    """Start the execution of a new run with these ``carried`` records; false if its id is taken."""
    return await start_execution(
        client,
        workflow=new.workflow,
        id=new.id,
        task_queue=identifiers.format_task_queue(new.queue, new.workflow, new.version),
        args=[to_payload(new.inputs), *carried],
        memo={
            RUN_MEMO_KEY: make_run_memo(new, has_external_payloads=client.data_converter.external_storage is not None)
        },
        priority=to_temporal_priority(new),
        tags=new.tags if has_tags else (),
        delay_s=new.available_at - now,
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
    delay_s: float = 0.0,
    allow_ended: bool = False,
) -> bool:
    """Start an execution; false if its id is taken. With ``allow_ended``, only by an execution that has not ended."""
    policies = WorkflowIDReusePolicy
    try:
        await client.start_workflow(
            workflow,
            args=list(map(RawValue, args)),
            id=id,
            task_queue=task_queue,
            memo=memo,
            id_reuse_policy=policies.ALLOW_DUPLICATE if allow_ended else policies.REJECT_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            start_delay=timedelta(seconds=delay_s) if delay_s > 0 else None,
            priority=priority,
            search_attributes=TypedSearchAttributes([SearchAttributePair(TAGS_ATTRIBUTE, list(tags))])
            if tags
            else None,
        )
    except WorkflowAlreadyStartedError:
        return False
    return True


def make_created_row(new: NewRun, now: float) -> Run:
    """The row of a run that was just created, without a request to the server."""
    return make_run(new, make_key(new.id, int(now * 1e9)), None, now, new.previous_run, new.budget is not None)


def _check_supported(new: NewRun) -> None:
    if new.dedup_key:
        raise unsupported_error(
            f"starting run {new.id!r} with dedup= or debounce=",
            "which joins runs by their ids only",
            "give the run an id that is made from what it is about",
        )
    if new.is_delivery:
        raise unsupported_error(
            f"sending work to {new.workflow!r}",
            "which knows workflows only",
            "make it a workflow, or use another store",
        )


def to_temporal_priority(new: NewRun) -> Priority:
    """Holdfast's priority is 0 by default and higher for more urgent runs; Temporal's is 3, from 5 down to 1."""
    key = new.queue_key
    if len(key.encode()) > _MAX_FAIRNESS_KEY_BYTES:
        key = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    return Priority(priority_key=min(5, max(1, 3 - new.priority)), fairness_key=key or None)
