"""Who serves which workflows: told by who polls their task queues.

Temporal keeps no list of workers for us, but each task queue remembers for some minutes who has asked it for work, and
when. A worker asks again at the latest when a question has gone unanswered for a minute. So whoever has asked within
``ALIVE`` seconds is taken to be alive.
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

from holdfast.stores.contract import Worker
from holdfast.stores.served_versions import served_name
from holdfast.stores.temporal.identifiers import task_queue
from holdfast.stores.temporal.outcomes import worker_id

ALIVE = 75.0
"""Seconds."""

Place = tuple[str, str, str]
"""A queue, a workflow and a version."""

_PROCESS = re.compile(r"(?P<host>[^:@]+):(?P<pid>\d+)|(?P<pid2>\d+)@(?P<host2>.+)")


@dataclass
class _Seen:
    at: float = 0.0
    first: float = float("inf")
    workflows: dict[str, None] = field(default_factory=dict[str, None])
    queues: dict[str, None] = field(default_factory=dict[str, None])


async def workers_at(client: Client, places: Iterable[Place]) -> list[Worker]:
    """The workers that poll the task queues of these workflows."""
    places = list(dict.fromkeys(places))
    found = await asyncio.gather(*(_pollers(client, task_queue(*place)) for place in places))
    seen: dict[str, _Seen] = {}
    for (queue, workflow, version), pollers in zip(places, found, strict=True):
        for identity, at in pollers:
            known = seen.setdefault(identity, _Seen())
            known.at, known.first = max(known.at, at), min(known.first, at)
            known.workflows[served_name(workflow, version)] = None
            known.queues[queue] = None
    return [_worker(identity, one) for identity, one in sorted(seen.items())]


async def is_polled(client: Client, name: str) -> bool:
    """Whether somebody has asked a task queue for work within the last minutes."""
    return bool(await _pollers(client, name))


async def _pollers(client: Client, name: str) -> list[tuple[str, float]]:
    answer = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=name),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        ),
        retry=True,
    )
    return [(one.identity, one.last_access_time.ToNanoseconds() / 1e9) for one in answer.pollers]


def _worker(identity: str, seen: _Seen) -> Worker:
    found = _PROCESS.fullmatch(identity)
    host = (found["host"] or found["host2"]) if found else identity
    pid = int(found["pid"] or found["pid2"]) if found else 0
    return Worker(
        id=worker_id(identity),
        name=identity,
        host=host,
        pid=pid,
        state="live",
        workflows=tuple(seen.workflows),
        queues=tuple(seen.queues),
        started_at=seen.first,
        lease_until=seen.at + ALIVE,
        beat_at=seen.at,
        by_lease=found is None,
    )
