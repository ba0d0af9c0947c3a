"""The thread of Temporal's workers.

A worker that does not answer counts as dead. So the workers have an event loop and a thread of their own: a step that
blocks the program's loop for a while does not cost the worker its activities.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from holdfast.stores.temporal import identifiers
from holdfast.temporal.activities import Activities
from holdfast.temporal.engine_context import EngineContext
from holdfast.temporal.entity_workflows import ENTITY_WORKFLOWS
from holdfast.temporal.run_workflow import EngineContextInterceptor, RunWorkflow

log = logging.getLogger("holdfast.engine")

T = TypeVar("T")

RESTART_DELAY_S = 5.0
"""The delay before a new worker replaces one that has failed."""

RELEASE_TIMEOUT_S = 10.0
"""How long programs may take to stop when the time for their steps in flight is over."""

STICKY_TIMEOUT = timedelta(seconds=2)
"""How long a workflow task waits for the worker that had the last one, before other workers may have it."""

MAX_POLLERS = 20
"""The maximum number of open polls of each kind, over all task queues; each task queue has 2 to 5."""

GRACEFUL_SHUTDOWN_TIMEOUT = timedelta(hours=1)
"""How long the SDK waits for activities to end; ``stop`` hands them over long before."""


class WorkerThread:
    """Workers for any number of task queues, in a thread.

    Args:
        engine_context: what their runs and steps share.
        connect: connects to Temporal; called in the thread.
        make_activities: makes the activities, once there is a connection.
        max_concurrency: the maximum number of runs in memory, and of running steps, for each task queue.
    """

    def __init__(
        self,
        engine_context: EngineContext,
        connect: Callable[[], Coroutine[Any, Any, Client]],
        make_activities: Callable[[Client], Activities],
        max_concurrency: int,
    ) -> None:
        self._engine_context = engine_context
        self._connect = connect
        self._make_activities = make_activities
        self._max_concurrency = max_concurrency
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Client | None = None
        self._activities: Activities | None = None
        self._workers: dict[str, Worker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    async def start(self) -> None:
        """Start the thread, and connect. Raises the error if it cannot connect."""
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run_loop, args=(ready,), name="holdfast-temporal", daemon=True)
        self._thread.start()
        await asyncio.wrap_future(ready)

    def _run_loop(self, ready: Future[None]) -> None:
        with asyncio.Runner() as runner:  # which cancels the remaining tasks at the end, such as waits for other runs
            self._loop = runner.get_loop()
            runner.run(self._connect_worker(ready))
            if ready.exception() is None:
                self._loop.run_forever()

    async def _connect_worker(self, ready: Future[None]) -> None:
        try:
            self._client = await self._connect()
            self._activities = self._make_activities(self._client)
        except BaseException as error:
            ready.set_exception(error)
        else:
            ready.set_result(None)

    async def run_coroutine(self, coro: Coroutine[Any, Any, T]) -> T:
        """Await something in the thread."""
        assert self._loop is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coro, self._loop))

    async def serve(self, task_queues: Iterable[str]) -> None:
        """Also poll these task queues."""
        new = [name for name in task_queues if name not in self._workers]
        if new:
            await self.run_coroutine(self._start_workers(new))

    async def serve_entity_workflows(self) -> None:
        """Also poll the task queue of entity workflows."""
        if identifiers.ENTITY_TASK_QUEUE not in self._workers:
            await self.run_coroutine(self._start_workers([identifiers.ENTITY_TASK_QUEUE], ENTITY_WORKFLOWS))

    @property
    def task_queues(self) -> list[str]:
        """The task queues that are polled."""
        return list(self._workers)

    def serve_soon(self, task_queue: str) -> None:
        """Also poll this task queue, without waiting for it; called from any thread."""
        if task_queue not in self._workers and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._schedule_worker, task_queue, (RunWorkflow,))

    async def _start_workers(self, task_queues: list[str], workflows: Sequence[type] = (RunWorkflow,)) -> None:
        assert self._client is not None
        assert self._activities is not None
        heartbeat = timedelta(seconds=self._engine_context.settings.heartbeat_timeout_s)
        pollers = max(2, min(5, MAX_POLLERS // (len(self._workers) + len(task_queues))))
        for name in task_queues:
            if name in self._workers or self._is_stopping:
                continue
            worker = self._workers[name] = Worker(
                self._client,
                task_queue=name,
                workflows=workflows,
                activities=[self._activities.run_activity],
                workflow_runner=UnsandboxedWorkflowRunner(),
                interceptors=[EngineContextInterceptor(self._engine_context)],
                max_cached_workflows=self._max_concurrency,
                max_concurrent_activities=self._max_concurrency,
                max_concurrent_workflow_task_polls=pollers,
                max_concurrent_activity_task_polls=pollers,
                sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
                max_heartbeat_throttle_interval=heartbeat / 5,
                default_heartbeat_throttle_interval=heartbeat / 5,
                graceful_shutdown_timeout=GRACEFUL_SHUTDOWN_TIMEOUT,
            )
            _disable_deadlock_timeout(worker)
            task = asyncio.create_task(worker.run(), name=f"holdfast-temporal {name}")
            self._tasks.add(task)
            task.add_done_callback(partial(self._on_worker_ended, name, workflows))

    def _on_worker_ended(self, task_queue: str, workflows: Sequence[type], task: asyncio.Task[None]) -> None:
        """Replace a worker that has failed after a while."""
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error(
            "Temporal's worker for task queue %r has stopped; a new one follows: %s", task_queue, error, exc_info=error
        )
        self._workers.pop(task_queue, None)
        if self._loop is not None and not self._is_stopping:
            self._loop.call_later(RESTART_DELAY_S, self._schedule_worker, task_queue, workflows)

    def _schedule_worker(self, task_queue: str, workflows: Sequence[type]) -> None:
        start = asyncio.get_running_loop().create_task(self._start_workers([task_queue], workflows))
        self._tasks.add(start)
        start.add_done_callback(partial(self._on_worker_ended, task_queue, workflows))

    async def stop(self, grace_s: float, is_grace_skipped: Callable[[], bool]) -> None:
        """Stop polling. Running steps get ``grace_s`` seconds to end; then they are handed over."""
        if self._loop is None or self._loop.is_closed() or self._client is None:
            return
        await self.run_coroutine(self._stop(grace_s, is_grace_skipped))
        self._loop.call_soon_threadsafe(self._loop.stop)
        assert self._thread is not None
        await asyncio.to_thread(self._thread.join)

    async def _stop(self, grace_s: float, is_grace_skipped: Callable[[], bool]) -> None:
        self._is_stopping = True
        # The worker of entity workflows stops last: steps may call these until their end.
        entity_worker = self._workers.pop(identifiers.ENTITY_TASK_QUEUE, None)
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s
        if self._activities is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s + RELEASE_TIMEOUT_S):
                    await self._activities.release_programs(lambda: loop.time() >= until or is_grace_skipped())
        shutdowns = [asyncio.create_task(worker.shutdown()) for worker in self._workers.values()]
        while loop.time() < until:
            if self._activities is None or not self._activities.running_step_count or is_grace_skipped():
                break
            await asyncio.sleep(0.02)
        if self._activities is not None:
            self._activities.hand_over()
        if shutdowns:
            await asyncio.wait(shutdowns)
        if entity_worker is not None:
            await entity_worker.shutdown()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def abandon(self) -> None:
        """Stop without waiting, because the process ends, or the program's loop has closed."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._stop(0.0, lambda: True), loop)


def _disable_deadlock_timeout(worker: Worker) -> None:
    """Remove the SDK's limit of 2 s for a turn: replaying the carried records of a long run may take longer.

    The SDK's ``debug_mode`` removes it as well, but also runs workflow code in the thread that sends the heartbeats:
    one slow run would cost this worker all its running steps.
    """
    workflow_worker: Any = getattr(worker, "_workflow_worker", None)
    if workflow_worker is not None:
        workflow_worker._deadlock_timeout_seconds = None
