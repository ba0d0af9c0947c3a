"""The child workflows of a live execution, each on the task queue of its own workflow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from holdfast.stores.operations import NewRun
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.payloads import to_raw_value
from holdfast.stores.temporal.run_events import ChildEnded, ChildStarted, RunEvent
from holdfast.stores.temporal.run_memo import RUN_MEMO_KEY
from holdfast.temporal.task_results import read_end


class ChildWorkflows:
    """The child workflows of one execution; ``receive`` gets their events."""

    def __init__(self, receive: Callable[[RunEvent], None]) -> None:
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._handles: dict[str, workflow.ChildWorkflowHandle[Any, Any]] = {}
        self._cancelled_before_start: set[str] = set()
        """Runs to cancel as soon as they have started."""
        self._tasks: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        """Whether any of them has not ended."""
        return bool(self._tasks)

    def start(self, new: NewRun, position: int, memo: Mapping[str, Any], *, is_awaited: bool) -> None:
        """Start a child, and report its start and its end."""
        task = self._loop.create_task(self._run(new, position, memo, is_awaited))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, new: NewRun, position: int, memo: Mapping[str, Any], is_awaited: bool) -> None:
        policies = workflow.ParentClosePolicy
        try:
            handle = self._handles[new.id] = await workflow.start_child_workflow(
                new.workflow,
                args=[to_raw_value(new.inputs)],
                id=new.id,
                task_queue=identifiers.format_task_queue(new.queue, new.workflow, new.version),
                result_type=RawValue,
                memo={RUN_MEMO_KEY: memo},
                parent_close_policy=policies.REQUEST_CANCEL if is_awaited else policies.ABANDON,
                cancellation_type=workflow.ChildWorkflowCancellationType.TRY_CANCEL,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            )
        except WorkflowAlreadyStartedError:
            self._receive(ChildStarted(position, new.id, is_new=False))
            return
        self._receive(ChildStarted(position, new.id))
        if new.id in self._cancelled_before_start:
            handle.cancel()
        await asyncio.wait([handle])
        self._receive(ChildEnded(position, new.id, read_end(handle)))

    def cancel(self, run_id: str) -> None:
        """Cancel a child, as soon as it has started."""
        handle = self._handles.get(run_id)
        if handle is None:
            self._cancelled_before_start.add(run_id)
        else:
            handle.cancel()
