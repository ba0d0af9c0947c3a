"""Listing runs by Temporal's visibility store.

**What it can do.** It finds executions by type, status, id, time and search attributes, and counts them. It does not
order them by the time of their start (open ones come first, then those that ended last), and it does not know what is
in a memo. So ``list_newest_first`` takes it span by span: it counts how many were started in the last minutes, hours or
days until there are enough of them, and orders those. What the query cannot say is looked up in the rows.

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
from holdfast.stores.temporal.rows import MILLISECOND_NS, ExecutionDescription, get_key, get_time_range, read_memo

log = logging.getLogger("holdfast.stores")

PAGE_SIZE = 200
_MAX_WINDOW_COUNT = 400
"""So many are read and put in order at once."""
_MAX_IDS_PER_QUERY = 100
"""So many ids are named in one query."""
_SECOND_NS = 1_000_000_000
_MAX_CLOCK_SKEW_S = 600.0
"""Seconds by which the clocks of clients and of the server may differ."""

_STATUSES_BY_STATE = {
    RunState.PENDING: ("Running",),
    RunState.RUNNING: ("Running",),
    RunState.WAITING: ("Running",),
    RunState.COMPLETED: ("Completed",),
    RunState.CANCELLED: ("Canceled",),
    RunState.FAILED: ("Failed", "Terminated", "TimedOut"),
    RunState.DEAD: ("Failed",),
}

_STATE_BY_STATUS = {
    "Running": RunState.RUNNING,
    "Paused": RunState.RUNNING,
    "Completed": RunState.COMPLETED,
    "Canceled": RunState.CANCELLED,
    "Failed": RunState.FAILED,
    "Terminated": RunState.FAILED,
    "TimedOut": RunState.FAILED,
}


def quote_literal(text: str) -> str:
    """A text in a query, whatever is in it."""
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def _is_queryable(text: str | None) -> bool:
    """Whether the server finds this text: it does not understand its own way to write these characters."""
    return bool(text) and not set(text or "") & set('\\"')


def make_query(where: RunFilter, *, has_tags: bool) -> str:
    """As much of a filter as the visibility store understands."""
    said = [f"NOT WorkflowType STARTS_WITH '{identifiers.RESERVED_PREFIX}'", "ExecutionStatus != 'ContinuedAsNew'"]
    if where.parent is not None and _is_queryable(where.parent):
        said.append(f"ParentWorkflowId = {quote_literal(where.parent)}")
    if where.parent is None and where.states:
        statuses = dict.fromkeys(status for state in where.states for status in _STATUSES_BY_STATE[state])
        said.append(f"ExecutionStatus IN ({', '.join(map(quote_literal, statuses))})")
    if where.workflow is not None and _is_queryable(where.workflow):
        said.append(f"WorkflowType = {quote_literal(where.workflow)}")
    if where.id_prefix is not None and _is_queryable(where.id_prefix):
        said.append(f"WorkflowId STARTS_WITH {quote_literal(where.id_prefix)}")
    if where.created_after is not None:
        said.append(f"StartTime >= {_format_time(int((where.created_after - _MAX_CLOCK_SKEW_S) * _SECOND_NS))}")
    if where.tag is not None and has_tags and _is_queryable(where.tag):
        said.append(f"HoldfastTags = {quote_literal(where.tag)}")
    return " AND ".join(said)


def _format_time(nanoseconds: int) -> str:
    whole, rest = divmod(max(0, nanoseconds), _SECOND_NS)
    return f"'{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z'"


async def list_executions(client: Client, query: str) -> AsyncIterator[ExecutionDescription]:
    """What the visibility store finds, in its own order."""
    async for info in _list_infos(client, query):
        if (told := await _describe_or_skip(client, info)) is not None:
            yield told


async def _describe_or_skip(client: Client, info: WorkflowExecutionInfo) -> ExecutionDescription | None:
    """What was found; ``None`` if its memo cannot be read here: that stops nobody from seeing the others."""
    try:
        return ExecutionDescription(info, await read_memo(client, info.memo))
    except (StoreError, CodecError, ValueError) as error:
        log.warning("workflow %r is left out of a list: %s", info.execution.workflow_id, error)
        return None


async def _list_infos(client: Client, query: str, page_size: int = PAGE_SIZE) -> AsyncIterator[WorkflowExecutionInfo]:
    token = b""
    while True:
        answer = await client.workflow_service.list_workflow_executions(
            ListWorkflowExecutionsRequest(
                namespace=client.namespace, page_size=page_size, next_page_token=token, query=query
            ),
            retry=True,
        )
        for info in answer.executions:
            yield info
        token = answer.next_page_token
        if not token:
            return


async def list_newest_first(
    client: Client, query: str, before: int | None, now: float
) -> AsyncIterator[ExecutionDescription]:
    """What the visibility store finds, those that were started last first; those with a key below ``before``."""
    end = get_time_range(before)[1] if before is not None else int((now + _MAX_CLOCK_SKEW_S) * _SECOND_NS)
    async for begin, until in _iter_windows(client, query, end):
        found = [info async for info in _list_infos(client, limit_to_window(query, begin, until))]
        found.sort(key=get_key, reverse=True)
        for info in found:
            if (before is None or get_key(info) < before) and (
                told := await _describe_or_skip(client, info)
            ) is not None:
                yield told


def limit_to_window(query: str, begin: int, end: int) -> str:
    """A query for what was started in a span of time."""
    since = f" AND StartTime >= {_format_time(begin)}" if begin else ""
    return f"{query} AND StartTime < {_format_time(end)}{since}"


async def _iter_windows(client: Client, query: str, end: int) -> AsyncIterator[tuple[int, int]]:
    """Spans of time, the latest first, in each of which not too many were started.

    They begin and end with whole milliseconds, as keys do: of two runs of one millisecond, which may be in any order by
    their keys, none is in another span than the other.
    """
    width = 60 * _SECOND_NS
    end = -(-end // MILLISECOND_NS) * MILLISECOND_NS
    while await count_executions(client, limit_to_window(query, 0, end)) > _MAX_WINDOW_COUNT:
        width = await _find_window_width(client, query, end, width)
        begin = (end - width) // MILLISECOND_NS * MILLISECOND_NS
        yield begin, end
        end = begin
    yield 0, end


async def _find_window_width(client: Client, query: str, end: int, width: int) -> int:
    """How far to go back from ``end`` to find some, and not too many. (There are some, further back if not here.)"""

    async def found(width: int) -> int:
        return await count_executions(client, limit_to_window(query, end - width, end))

    while await found(width) > _MAX_WINDOW_COUNT and width > MILLISECOND_NS:
        width //= 4
    while await found(width) < _MAX_WINDOW_COUNT // 8:
        if await found(width * 4) > _MAX_WINDOW_COUNT:
            break
        width *= 4
    return width


async def count_executions(client: Client, query: str) -> int:
    """How many the visibility store finds."""
    answer = await client.workflow_service.count_workflow_executions(
        CountWorkflowExecutionsRequest(namespace=client.namespace, query=query), retry=True
    )
    return answer.count


async def list_newest_executions(
    client: Client, field: str, ids: Collection[str]
) -> AsyncIterator[ExecutionDescription]:
    """The newest execution of each run whose ``field`` (``WorkflowId``, ``ParentWorkflowId``) is one of these ids."""
    names = [quote_literal(id) for id in ids if _is_queryable(id)]
    newest: dict[str, ExecutionDescription] = {}
    for at in range(0, len(names), _MAX_IDS_PER_QUERY):
        query = (
            f"{make_query(RunFilter(), has_tags=False)} AND {field} IN "
            f"({', '.join(names[at : at + _MAX_IDS_PER_QUERY])})"
        )
        async for told in list_executions(client, query):
            known = newest.get(told.id)
            if known is None or known.info.start_time.ToNanoseconds() < told.info.start_time.ToNanoseconds():
                newest[told.id] = told
    for told in newest.values():
        yield told


async def list_other_task_queues(
    client: Client, workflows: Collection[str], known: Collection[str]
) -> AsyncIterator[str]:
    """The task queues in which there are unfinished runs of these workflows, beside those that are known."""
    names = [quote_literal(name) for name in workflows if _is_queryable(name)]
    found = [name for name in known if _is_queryable(name)]
    while names:
        query = (
            f"ExecutionStatus = 'Running' AND WorkflowType IN ({', '.join(names)}) "
            f"AND TaskQueue NOT IN ({', '.join(map(quote_literal, found))})"
        )
        async for info in _list_infos(client, query, page_size=1):
            found.append(info.task_queue)
            yield info.task_queue
            break
        else:
            return


async def count_by_state(client: Client, workflow: str) -> dict[RunState, int]:
    """How many executions of a workflow there are, as far as the visibility store tells their states apart."""
    asked = CountWorkflowExecutionsRequest(
        namespace=client.namespace,
        query=f"WorkflowType = {quote_literal(workflow)} AND ExecutionStatus != 'ContinuedAsNew' GROUP BY "
        "ExecutionStatus",
    )
    answer = await client.workflow_service.count_workflow_executions(asked, retry=True)
    found: dict[RunState, int] = {}
    for group in answer.groups:
        state = _STATE_BY_STATUS.get(json.loads(group.group_values[0].data))
        if state is not None:  # else one that only a newer server knows
            found[state] = found.get(state, 0) + group.count
    return found


def make_matcher(where: RunFilter) -> Callable[[ExecutionDescription], bool]:
    """Whether what was found fits, as far as a list tells, before more is asked about it."""

    def fits(told: ExecutionDescription) -> bool:
        head = told.run_memo
        if where.tag is not None and where.tag not in head.get("tags", ()):
            return False
        if where.workflow not in (None, told.info.type.name) or not told.id.startswith(where.id_prefix or ""):
            return False
        created = head.get("created_at") or told.info.start_time.ToNanoseconds() / 1e9
        if where.created_after is not None and created < where.created_after:
            return False
        return where.created_before is None or created < where.created_before

    return fits
