"""Listing runs by Temporal's visibility store.

**What it can do.** It finds executions by type, status, id, time and search attributes, and counts them. It does not
order them by the time of their start (open ones come first, then those that ended last), and it does not know what is
in a memo. So ``newest_first`` takes it span by span: it counts how many were started in the last minutes, hours or days
until there are enough of them, and orders those. What the query cannot say is looked up in the rows.

**What it does not know yet.** It learns of everything a moment later than the server itself. Whoever asks for a single
run by its id asks the server.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Collection
from datetime import UTC, datetime

from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import CountWorkflowExecutionsRequest, ListWorkflowExecutionsRequest
from temporalio.client import Client

from holdfast.core.states import RunState
from holdfast.errors import CodecError, StoreError
from holdfast.stores.contract import RunFilter
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.rows import MILLI, Described, key_of, read_memo, span_of

log = logging.getLogger("holdfast.stores")

PAGE = 200
_FEW = 400
"""So many are read and put in order at once."""
_NAMED = 100
"""So many ids are named in one query."""
_SECOND = 1_000_000_000
_LATE = 600.0
"""Seconds by which the clocks of clients and of the server may differ."""

_STATUSES = {
    RunState.PENDING: ("Running",),
    RunState.RUNNING: ("Running",),
    RunState.WAITING: ("Running",),
    RunState.COMPLETED: ("Completed",),
    RunState.CANCELLED: ("Canceled",),
    RunState.FAILED: ("Failed", "Terminated", "TimedOut"),
    RunState.DEAD: ("Failed",),
}

_COUNTED = {
    "Running": RunState.RUNNING,
    "Paused": RunState.RUNNING,
    "Completed": RunState.COMPLETED,
    "Canceled": RunState.CANCELLED,
    "Failed": RunState.FAILED,
    "Terminated": RunState.FAILED,
    "TimedOut": RunState.FAILED,
}


def quoted(text: str) -> str:
    """A text in a query, whatever is in it."""
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def _can_be_said(text: str | None) -> bool:
    """Whether the server finds this text: it does not understand its own way to write these characters."""
    return bool(text) and not set(text or "") & set('\\"')


def query_of(where: RunFilter, *, has_tags: bool) -> str:
    """As much of a filter as the visibility store understands."""
    said = [f"NOT WorkflowType STARTS_WITH '{identifiers.PREFIX}'", "ExecutionStatus != 'ContinuedAsNew'"]
    if where.parent is not None and _can_be_said(where.parent):
        said.append(f"ParentWorkflowId = {quoted(where.parent)}")
    if where.parent is None and where.states:
        statuses = dict.fromkeys(status for state in where.states for status in _STATUSES[state])
        said.append(f"ExecutionStatus IN ({', '.join(map(quoted, statuses))})")
    if where.workflow is not None and _can_be_said(where.workflow):
        said.append(f"WorkflowType = {quoted(where.workflow)}")
    if where.id_prefix is not None and _can_be_said(where.id_prefix):
        said.append(f"WorkflowId STARTS_WITH {quoted(where.id_prefix)}")
    if where.created_after is not None:
        said.append(f"StartTime >= {_time(int((where.created_after - _LATE) * _SECOND))}")
    if where.tag is not None and has_tags and _can_be_said(where.tag):
        said.append(f"HoldfastTags = {quoted(where.tag)}")
    return " AND ".join(said)


def _time(nanoseconds: int) -> str:
    whole, rest = divmod(max(0, nanoseconds), _SECOND)
    return f"'{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z'"


async def executions(client: Client, query: str) -> AsyncIterator[Described]:
    """What the visibility store finds, in its own order."""
    async for info in _listed(client, query):
        if (told := await _told(client, info)) is not None:
            yield told


async def _told(client: Client, info: WorkflowExecutionInfo) -> Described | None:
    """What was found; ``None`` if its memo cannot be read here: that stops nobody from seeing the others."""
    try:
        return Described(info, await read_memo(client, info.memo))
    except (StoreError, CodecError, ValueError) as error:
        log.warning("workflow %r is left out of a list: %s", info.execution.workflow_id, error)
        return None


async def _listed(client: Client, query: str, page: int = PAGE) -> AsyncIterator[WorkflowExecutionInfo]:
    token = b""
    while True:
        answer = await client.workflow_service.list_workflow_executions(
            ListWorkflowExecutionsRequest(
                namespace=client.namespace, page_size=page, next_page_token=token, query=query
            ),
            retry=True,
        )
        for info in answer.executions:
            yield info
        token = answer.next_page_token
        if not token:
            return


async def newest_first(client: Client, query: str, before: int | None, now: float) -> AsyncIterator[Described]:
    """What the visibility store finds, those that were started last first; those with a key below ``before``."""
    end = span_of(before)[1] if before is not None else int((now + _LATE) * _SECOND)
    async for begin, until in _spans(client, query, end):
        found = [info async for info in _listed(client, within(query, begin, until))]
        found.sort(key=key_of, reverse=True)
        for info in found:
            if (before is None or key_of(info) < before) and (told := await _told(client, info)) is not None:
                yield told


def within(query: str, begin: int, end: int) -> str:
    """A query for what was started in a span of time."""
    since = f" AND StartTime >= {_time(begin)}" if begin else ""
    return f"{query} AND StartTime < {_time(end)}{since}"


async def _spans(client: Client, query: str, end: int) -> AsyncIterator[tuple[int, int]]:
    """Spans of time, the latest first, in each of which not too many were started.

    They begin and end with whole milliseconds, as keys do: of two runs of one millisecond, which may be in any order by
    their keys, none is in another span than the other.
    """
    width = 60 * _SECOND
    end = -(-end // MILLI) * MILLI
    while await count(client, within(query, 0, end)) > _FEW:
        width = await _wide_enough(client, query, end, width)
        begin = (end - width) // MILLI * MILLI
        yield begin, end
        end = begin
    yield 0, end


async def _wide_enough(client: Client, query: str, end: int, width: int) -> int:
    """How far to go back from ``end`` to find some, and not too many. (There are some, further back if not here.)"""

    async def found(width: int) -> int:
        return await count(client, within(query, end - width, end))

    while await found(width) > _FEW and width > MILLI:
        width //= 4
    while await found(width) < _FEW // 8:
        if await found(width * 4) > _FEW:
            break
        width *= 4
    return width


async def count(client: Client, query: str) -> int:
    """How many the visibility store finds."""
    answer = await client.workflow_service.count_workflow_executions(
        CountWorkflowExecutionsRequest(namespace=client.namespace, query=query), retry=True
    )
    return answer.count


async def told_of(client: Client, field: str, ids: Collection[str]) -> AsyncIterator[Described]:
    """The newest execution of each run whose ``field`` (``WorkflowId``, ``ParentWorkflowId``) is one of these ids."""
    names = [quoted(id) for id in ids if _can_be_said(id)]
    newest: dict[str, Described] = {}
    for at in range(0, len(names), _NAMED):
        query = f"{query_of(RunFilter(), has_tags=False)} AND {field} IN ({', '.join(names[at : at + _NAMED])})"
        async for told in executions(client, query):
            known = newest.get(told.id)
            if known is None or known.info.start_time.ToNanoseconds() < told.info.start_time.ToNanoseconds():
                newest[told.id] = told
    for told in newest.values():
        yield told


async def other_task_queues(client: Client, workflows: Collection[str], known: Collection[str]) -> AsyncIterator[str]:
    """The task queues in which there are unfinished runs of these workflows, beside those that are known."""
    names = [quoted(name) for name in workflows if _can_be_said(name)]
    found = [name for name in known if _can_be_said(name)]
    while names:
        query = (
            f"ExecutionStatus = 'Running' AND WorkflowType IN ({', '.join(names)}) "
            f"AND TaskQueue NOT IN ({', '.join(map(quoted, found))})"
        )
        async for info in _listed(client, query, page=1):
            found.append(info.task_queue)
            yield info.task_queue
            break
        else:
            return


async def count_by_state(client: Client, workflow: str) -> dict[RunState, int]:
    """How many executions of a workflow there are, as far as the visibility store tells their states apart."""
    asked = CountWorkflowExecutionsRequest(
        namespace=client.namespace,
        query=f"WorkflowType = {quoted(workflow)} AND ExecutionStatus != 'ContinuedAsNew' GROUP BY ExecutionStatus",
    )
    answer = await client.workflow_service.count_workflow_executions(asked, retry=True)
    found: dict[RunState, int] = {}
    for group in answer.groups:
        state = _COUNTED.get(json.loads(group.group_values[0].data))
        if state is not None:  # else one that only a newer server knows
            found[state] = found.get(state, 0) + group.count
    return found


def matcher(where: RunFilter) -> Callable[[Described], bool]:
    """Whether what was found fits, as far as a list tells, before more is asked about it."""

    def fits(told: Described) -> bool:
        head = told.head
        if where.tag is not None and where.tag not in head.get("tags", ()):
            return False
        if where.workflow not in (None, told.info.type.name) or not told.id.startswith(where.id_prefix or ""):
            return False
        created = head.get("created_at") or told.info.start_time.ToNanoseconds() / 1e9
        if where.created_after is not None and created < where.created_after:
            return False
        return where.created_before is None or created < where.created_before

    return fits
