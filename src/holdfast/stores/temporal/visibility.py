"""Lists runs from Temporal's visibility store.

**What it can do.** It finds executions by type, status, id, time and search attributes, and counts them. It does not
order them by start time (open ones come first, then those that ended last), and it cannot search memos. So
``list_newest_first`` reads it in windows of time: it counts the executions that started in the last minutes, hours or
days until there are enough, and sorts those. Conditions that a query cannot express are checked on the rows.

**What it does not know yet.** It lags a moment behind the server. A caller that reads one run by its id asks the server
instead.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Collection
from datetime import UTC, datetime

from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import CountWorkflowExecutionsRequest, ListWorkflowExecutionsRequest
from temporalio.client import Client

from holdfast.core.states import RunState
from holdfast.errors import CodecError, StoreError
from holdfast.stores import run_errors
from holdfast.stores.contract import RunFilter
from holdfast.stores.operations import Run
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.rows import MILLISECOND_NS, ExecutionDescription, get_key, get_time_range, read_memo

log = logging.getLogger("holdfast.stores")

PAGE_SIZE = 200
_MAX_WINDOW_COUNT = 400
"""The maximum number of executions to read and sort at once."""
_MAX_IDS_PER_QUERY = 100
_SECOND_NS = 1_000_000_000
_MAX_CLOCK_SKEW_S = 600.0
"""By how much the clocks of clients and of the server may differ."""

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
    """A string literal for a query."""
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def _is_queryable(text: str | None) -> bool:
    """Whether a query can find this text: the server misreads its own escapes of these characters."""
    return bool(text) and not set(text or "") & set('\\"')


def make_query(where: RunFilter, *, has_tags: bool) -> str:
    """The part of a filter that the visibility store understands."""
    terms = [f"NOT WorkflowType STARTS_WITH '{identifiers.RESERVED_PREFIX}'", "ExecutionStatus != 'ContinuedAsNew'"]
    if where.parent is not None and _is_queryable(where.parent):
        terms.append(f"ParentWorkflowId = {quote_literal(where.parent)}")
    if where.parent is None and where.states:
        statuses = dict.fromkeys(status for state in where.states for status in _STATUSES_BY_STATE[state])
        terms.append(f"ExecutionStatus IN ({', '.join(map(quote_literal, statuses))})")
    if where.workflow is not None and _is_queryable(where.workflow):
        terms.append(f"WorkflowType = {quote_literal(where.workflow)}")
    if where.id_prefix is not None and _is_queryable(where.id_prefix):
        terms.append(f"WorkflowId STARTS_WITH {quote_literal(where.id_prefix)}")
    if where.created_after is not None:
        terms.append(f"StartTime >= {_format_time(int((where.created_after - _MAX_CLOCK_SKEW_S) * _SECOND_NS))}")
    if where.tag is not None and has_tags and _is_queryable(where.tag):
        terms.append(f"HoldfastTags = {quote_literal(where.tag)}")
    return " AND ".join(terms)


def _format_time(nanoseconds: int) -> str:
    whole, rest = divmod(max(0, nanoseconds), _SECOND_NS)
    return f"'{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z'"


async def list_executions(client: Client, query: str) -> AsyncIterator[ExecutionDescription]:
    """The executions that match, in the order of the visibility store."""
    async for info in _list_infos(client, query):
        if (execution := await _describe_or_skip(client, info)) is not None:
            yield execution


async def _describe_or_skip(client: Client, info: WorkflowExecutionInfo) -> ExecutionDescription | None:
    """The execution; ``None`` if its memo cannot be read here, which must not hide the others."""
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
    """The executions that match and have a key below ``before``, newest first."""
    end = get_time_range(before)[1] if before is not None else int((now + _MAX_CLOCK_SKEW_S) * _SECOND_NS)
    async for begin, until in _iter_windows(client, query, end):
        infos = [info async for info in _list_infos(client, limit_to_window(query, begin, until))]
        infos.sort(key=get_key, reverse=True)
        for info in infos:
            if before is None or get_key(info) < before:
                execution = await _describe_or_skip(client, info)
                if execution is not None:
                    yield execution


def limit_to_window(query: str, begin: int, end: int) -> str:
    """The query, limited to executions that started in this window."""
    since = f" AND StartTime >= {_format_time(begin)}" if begin else ""
    return f"{query} AND StartTime < {_format_time(end)}{since}"


async def _iter_windows(client: Client, query: str, end: int) -> AsyncIterator[tuple[int, int]]:
    """Windows of time, the latest first, each with a limited number of starts.

    They begin and end at whole milliseconds, like keys: two runs of the same millisecond, which their keys may put in
    any order, are always in the same window.
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
    """How far to go back from ``end`` to find some starts, but not too many. (There are some further back.)"""

    async def count(width: int) -> int:
        return await count_executions(client, limit_to_window(query, end - width, end))

    while await count(width) > _MAX_WINDOW_COUNT and width > MILLISECOND_NS:
        width //= 4
    while await count(width) < _MAX_WINDOW_COUNT // 8:
        if await count(width * 4) > _MAX_WINDOW_COUNT:
            break
        width *= 4
    return width


async def count_executions(client: Client, query: str) -> int:
    """The number of executions that match."""
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
    for start in range(0, len(names), _MAX_IDS_PER_QUERY):
        listed = ", ".join(names[start : start + _MAX_IDS_PER_QUERY])
        query = f"{make_query(RunFilter(), has_tags=False)} AND {field} IN ({listed})"
        async for execution in list_executions(client, query):
            other = newest.get(execution.id)
            if other is None or other.started_at < execution.started_at:
                newest[execution.id] = execution
    for execution in newest.values():
        yield execution


async def list_other_task_queues(
    client: Client, workflows: Collection[str], known: Collection[str]
) -> AsyncIterator[str]:
    """The task queues with unfinished runs of these workflows, other than the known ones."""
    names = [quote_literal(name) for name in workflows if _is_queryable(name)]
    excluded = [name for name in known if _is_queryable(name)]
    while names:
        query = (
            f"ExecutionStatus = 'Running' AND WorkflowType IN ({', '.join(names)}) "
            f"AND TaskQueue NOT IN ({', '.join(map(quote_literal, excluded))})"
        )
        async for info in _list_infos(client, query, page_size=1):
            excluded.append(info.task_queue)
            yield info.task_queue
            break
        else:
            return


async def count_by_state(client: Client, workflow: str) -> dict[RunState, int]:
    """The number of a workflow's executions by state, as far as the visibility store distinguishes states."""
    query = f"WorkflowType = {quote_literal(workflow)} AND ExecutionStatus != 'ContinuedAsNew' GROUP BY ExecutionStatus"
    answer = await client.workflow_service.count_workflow_executions(
        CountWorkflowExecutionsRequest(namespace=client.namespace, query=query), retry=True
    )
    counts = Counter[RunState]()
    for group in answer.groups:
        state = _STATE_BY_STATUS.get(json.loads(group.group_values[0].data))
        if state is not None:  # only a newer server knows other statuses
            counts[state] += group.count
    return counts


def is_match(execution: ExecutionDescription, where: RunFilter) -> bool:
    """Whether a listed execution matches, as far as that is known before its row is read."""
    head = execution.run_memo
    created_at = head.get("created_at") or execution.started_at
    return (
        (where.tag is None or where.tag in head.get("tags", ()))
        and where.workflow in (None, execution.workflow)
        and execution.id.startswith(where.id_prefix or "")
        and (where.created_after is None or created_at >= where.created_after)
        and (where.created_before is None or created_at < where.created_before)
    )


def is_row_match(run: Run, where: RunFilter) -> bool:
    """Whether a row matches the conditions that the visibility store cannot check."""
    return (
        (not where.states or run.state in where.states)
        and (where.parent is None or run.parent == where.parent)
        and (where.text is None or run_errors.has_text(run, where.text))
    )
