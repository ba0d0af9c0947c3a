"""Finds the workers that serve workflows, from the pollers of their task queues.

Temporal keeps no list of workers for Holdfast, but each task queue remembers its pollers for some minutes. A poll lasts
a minute at most, and a worker polls again at once. So a worker that has polled within ``MAX_POLL_AGE_S`` seconds counts
as alive.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from holdfast.stores.served_versions import make_served_name
from holdfast.stores.temporal.identifiers import format_task_queue
from holdfast.stores.temporal.outcomes import compute_worker_id
from holdfast.stores.workers import Worker

MAX_POLL_AGE_S = 75.0

ServedWorkflow = tuple[str, str, str]
"""A queue, a workflow and a version."""

_IDENTITY_PATTERN = re.compile(r"(?P<host>[^:@]+):(?P<pid>\d+)|(?P<pid2>\d+)@(?P<host2>.+)")


@dataclass
class _PollerInfo:
    last_seen_at: float = 0.0
    first_seen_at: float = float("inf")
    workflows: dict[str, None] = field(default_factory=dict[str, None])
    queues: dict[str, None] = field(default_factory=dict[str, None])


async def list_polling_workers(client: Client, served: Iterable[ServedWorkflow]) -> list[Worker]:
    """The workers that poll the task queues of these workflows."""
    served = list(dict.fromkeys(served))
    pollers_by_queue = await asyncio.gather(*(_fetch_pollers(client, format_task_queue(*names)) for names in served))
    infos: dict[str, _PollerInfo] = {}
    for (queue, workflow, version), pollers in zip(served, pollers_by_queue, strict=True):
        for identity, at in pollers:
            info = infos.setdefault(identity, _PollerInfo())
            info.last_seen_at, info.first_seen_at = max(info.last_seen_at, at), min(info.first_seen_at, at)
            info.workflows[make_served_name(workflow, version)] = None
            info.queues[queue] = None
    return [_make_worker(identity, info) for identity, info in sorted(infos.items())]


async def is_polled(client: Client, name: str) -> bool:
    """Whether a worker has polled a task queue within the last minutes."""
    return bool(await _fetch_pollers(client, name))


async def _fetch_pollers(client: Client, name: str) -> list[tuple[str, float]]:
    answer = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=name),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        ),
        retry=True,
    )
    return [(poller.identity, poller.last_access_time.ToNanoseconds() / 1e9) for poller in answer.pollers]


def _make_worker(identity: str, poller: _PollerInfo) -> Worker:
    match = _IDENTITY_PATTERN.fullmatch(identity)
    host = (match["host"] or match["host2"]) if match else identity
    pid = int(match["pid"] or match["pid2"]) if match else 0
    return Worker(
        id=compute_worker_id(identity),
        name=identity,
        host=host,
        pid=pid,
        state="live",
        workflows=tuple(poller.workflows),
        queues=tuple(poller.queues),
        started_at=poller.first_seen_at,
        lease_expires_at=poller.last_seen_at + MAX_POLL_AGE_S,
        heartbeat_at=poller.last_seen_at,
        is_listener=match is None,
    )
