"""The engine of a ``Runtime`` over ``temporal://``: it starts runs in Temporal, and serves this process's workflows."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError

from holdfast.admission.queue_limits import QueueLimits
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES
from holdfast.codec.encryption import KEYS_VARIABLE
from holdfast.core.states import RunState
from holdfast.engine import forked_child, replay_logging
from holdfast.engine.clock import SystemClock
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.loop_watchdog import MAX_BLOCKED_S, LoopWatchdog
from holdfast.engine.store_readiness import retry_until_store_ready
from holdfast.engine.thread_pool import StepThreadPool
from holdfast.errors import RunNotFound, UsageError
from holdfast.processes.process_name import get_process_name
from holdfast.processes.readiness import STOPPING
from holdfast.run_log import RunLog
from holdfast.stores.change_feed import ChangeFeed
from holdfast.stores.contract import History
from holdfast.stores.operations import ClientOp, NewRun, Op, OpResult, OpStatus, ReopenRun, Run, StartRun
from holdfast.stores.served_versions import make_served_name
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.awaited_run import AwaitedRun, FoundRun
from holdfast.stores.temporal.connection import Encryption
from holdfast.stores.temporal.history import fetch_events_after
from holdfast.stores.temporal.payloads import get_max_value_size
from holdfast.stores.temporal.sessions import find_previous_run
from holdfast.stores.temporal.store import TemporalStore
from holdfast.stores.temporal.targets import Target
from holdfast.stores.temporal.visibility import list_other_task_queues
from holdfast.telemetry.telemetry import Telemetry
from holdfast.temporal.activities import Activities
from holdfast.temporal.engine_context import EngineContext, TemporalSettings
from holdfast.temporal.rebuilt_runs import RebuiltRuns
from holdfast.temporal.worker_thread import WorkerThread

log = logging.getLogger("holdfast.engine")

REQUEST_TIMEOUT_S = 1.0
"""How long a closing engine waits for the last requests of programs."""

NOTIFY_INTERVAL_S = 0.3
"""How often followers of runs read them again: Temporal does not report changes."""


class TemporalEngine:
    """Executes runs in Temporal, in this process."""

    worker_id = 0
    """Temporal has no rows for workers."""

    def __init__(
        self,
        target: Target,
        definitions: Mapping[str, WorkflowDefinition],
        *,
        lease_s: float = 10.0,
        max_concurrency: int = 1000,
        queues: Collection[str] | None = None,
        queue_limits: Mapping[str, QueueLimits] | None = None,
        threads: int = 64,
        max_blocked_s: float = MAX_BLOCKED_S,
        max_value: int = DEFAULT_MAX_VALUE_BYTES,
        continue_as_new_after: int | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        self.store = TemporalStore(target, encryption=encryption)
        self._encryption = encryption
        self.clock = SystemClock()
        self.max_value = get_max_value_size(max_value, has_external_payloads=bool(target.payload_location))
        self.change_feed = ChangeFeed()
        self.on_stuck: Callable[[], None] = lambda: None
        self._max_blocked_s = max_blocked_s
        self._loop_watch: LoopWatchdog
        self.close_callbacks: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self.thread_pool = StepThreadPool(threads)
        self.loop: asyncio.AbstractEventLoop
        self._target = target
        self._definitions = definitions
        self._limits: Mapping[str, QueueLimits] = {} if queue_limits is None else queue_limits
        self._queues = None if queues is None else tuple(queues)
        settings = TemporalSettings(
            heartbeat_timeout_s=lease_s / 2,
            max_value=max_value,
            continue_as_new_after=continue_as_new_after,
        )
        run_log = RunLog(is_encrypted=encryption is not None or bool(os.environ.get(KEYS_VARIABLE)))
        self.context = EngineContext(
            definitions, settings, self._serve_task_queue, self._check_no_queue_limits, run_log
        )
        self._workers = WorkerThread(self.context, self._connect, self._make_activities, max_concurrency)
        self._worker_store: TemporalStore | None = None
        """The store of the workers' thread."""
        self.rebuilt_runs: RebuiltRuns
        self._announced: set[str] = set()
        self._called_loaders: set[Callable[[], None]] = set()
        self._announce_lock = asyncio.Lock()
        self._notify_task: asyncio.Task[None] | None = None
        self.ending_tasks: set[asyncio.Task[None]] = set()
        """Requests of programs that have ended, which are about to be answered."""
        self._is_grace_skipped = False
        self._is_closed = False

    # Opening and closing

    async def open(self) -> None:
        """Connect, and start to serve runs."""
        replay_logging.install_filter()
        self.loop = asyncio.get_running_loop()
        self._loop_watch = LoopWatchdog(max_blocked_s=self._max_blocked_s, on_stuck=lambda: self.on_stuck())
        await retry_until_store_ready(self.store.open, self.clock)
        self.context.telemetry = Telemetry.find(self.context.run_log)
        try:
            await self._workers.start()
            await self._announce_workflows()
        except BaseException:
            await self._workers.stop(0.0, lambda: True)
            await self.store.close()
            raise
        forked_child.guard_loop(self.loop)
        self._notify_task = self.loop.create_task(self._notify_periodically(), name="holdfast-engine")

    async def _connect(self) -> Client:
        """Called in the workers' thread."""
        self._worker_store = TemporalStore(self._target, encryption=self._encryption, identity=get_process_name())
        await self._worker_store.open()
        return self._worker_store.client

    def _make_activities(self, client: Client) -> Activities:
        self.rebuilt_runs = RebuiltRuns(self.context, partial(fetch_events_after, client))
        return Activities(
            self.context, self, self.loop, self.rebuilt_runs, client, self._find_run, self._loop_watch.poll
        )

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop: running steps get ``grace_s`` seconds to end; then Temporal gives them to other workers."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._notify_task is None:
            # It was never opened, or opening failed and has cleaned up; another error must not hide that one.
            self.thread_pool.stop()
            return
        if self._notify_task is not asyncio.current_task():
            self._notify_task.cancel()
        try:
            await self._workers.stop(grace_s, lambda: self._is_grace_skipped)
            await self._finish_requests()
        finally:
            forked_child.unguard_loop(self.loop)
        if self._worker_store is not None:
            self._worker_store.abandon()  # its loop has ended with the workers
        self.rebuilt_runs.close()
        self.thread_pool.stop()
        for error in await asyncio.gather(*(close() for close in self.close_callbacks), return_exceptions=True):
            if isinstance(error, Exception):
                log.error("something that steps have left open could not be closed", exc_info=error)
        await self.store.close()
        self.change_feed.notify_all(
            UsageError("the runtime was closed; the run goes on when a worker that knows it is open")
        )

    async def _finish_requests(self) -> None:
        """Wait for requests of programs: the SDK may crash a process that ends while one is under way."""
        if self.ending_tasks:
            await asyncio.wait(self.ending_tasks, timeout=REQUEST_TIMEOUT_S)
        for task in self.ending_tasks:
            task.cancel()

    def abandon(self) -> None:
        """Release everything without the event loop, which has closed."""
        forked_child.unguard_loop(self.loop)
        self._is_closed = True
        self._workers.abandon()
        self.thread_pool.stop()
        self.store.abandon()

    def skip_grace(self) -> None:
        """Make a running ``close`` stop waiting for steps."""
        self._is_grace_skipped = True

    @property
    def is_closed(self) -> bool:
        """Whether this engine has released its runs."""
        return self._is_closed

    @property
    def is_stopping(self) -> bool:
        """Whether it is closed, or about to be: the end of ``asyncio.run`` cancels all tasks at once."""
        return self._is_closed or (self._notify_task is not None and self._notify_task.cancelling() > 0)

    @property
    def not_ready_reason(self) -> str:
        """Why this engine takes no runs at the moment; empty if it does. Read from any thread."""
        return STOPPING if self._is_closed else ""

    async def _notify_periodically(self) -> None:
        try:
            while True:
                await asyncio.sleep(NOTIFY_INTERVAL_S)
                if self.change_feed:
                    self.change_feed.notify_all()
        except asyncio.CancelledError:
            # `asyncio.run` cancels every task when its main coroutine has ended: the moment to close cleanly.
            if not self._is_closed:
                await self.close()
            raise

    async def _announce_workflows(self) -> None:
        """Announce new workflows, and poll for them."""
        async with self._announce_lock:
            new = {name: item for name, item in self._definitions.items() if name not in self._announced}
            for definition in new.values():
                self._check_supported(definition)
                if definition.load_imports is not None and definition.load_imports not in self._called_loaders:
                    await asyncio.to_thread(definition.load_imports)
                    self._called_loaders.add(definition.load_imports)
            definitions = {id(definition): definition for definition in new.values()}.values()
            await self.store.announce_workflows([definition.to_spec() for definition in definitions])
            if definitions:
                await self._workers.serve_entity_workflows()
            await self._workers.serve(queue for item in definitions for queue in self._list_task_queues(item))
            self._announced.update(new)
            if new and self._queues is None:
                await self._serve_other_queues([definition.name for definition in definitions])

    async def _serve_other_queues(self, workflows: Collection[str]) -> None:
        """Also poll for runs that were started in other queues than their workflow's own."""
        try:
            async for task_queue in list_other_task_queues(self.client, workflows, self._workers.task_queues):
                self._serve_task_queue(task_queue)
        except RPCError as error:
            log.warning("runs in other queues than those of their workflows cannot be looked for: %s", error)

    def _check_supported(self, definition: WorkflowDefinition) -> None:
        """Refuse workflows with features that Temporal does not support."""
        self._check_no_queue_limits(definition.queue, f"workflow {definition.name!r}")
        if definition.schedules:
            raise UsageError(
                f"workflow {definition.name!r} has a schedule, and on Temporal runs are started by Temporal's own "
                f"schedules: `temporal schedule create` (see docs/temporal.md)"
            )

    def _check_no_queue_limits(self, queue: str, subject: str) -> None:
        if queue in self._limits:
            raise UsageError(
                f"{subject} is in the queue {queue!r}, which has limits, and Temporal cannot keep them for a fleet: "
                f"use a plain queue name there (see docs/temporal.md)"
            )

    def _list_task_queues(self, definition: WorkflowDefinition) -> list[str]:
        queues = (definition.queue,) if self._queues is None else self._queues
        versions = (definition.version, *definition.also_served_versions)
        return [
            identifiers.format_task_queue(queue, definition.name, version) for queue in queues for version in versions
        ]

    def _serve_task_queue(self, task_queue: str) -> None:
        """Also serve the queue of a started run, if this engine serves all queues."""
        served_name = task_queue.partition("/")[2]
        if self._queues is None and served_name in self._announced:
            self._workers.serve_soon(task_queue)

    # For the runtime

    async def start(self, new: NewRun, *, join_orphan: bool) -> OpResult:
        """Create a run."""
        self._check_no_queue_limits(new.queue, f"run {new.id!r} of workflow {new.workflow!r}")
        if make_served_name(new.workflow, new.version) not in self._announced:
            await self._announce_workflows()
        self._serve_task_queue(identifiers.format_task_queue(new.queue, new.workflow, new.version))
        return await self.perform(StartRun(new, join_orphan=join_orphan))

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """A run's row and journal, if there is such a run."""
        run = await self.store.get_run(run_id)
        return None if run is None else (run, await self.store.read_journal(run_id))

    async def change_run(self, op: ClientOp) -> OpStatus:
        """Change a run from outside."""
        answer = await self.perform(op)
        assert isinstance(answer, OpStatus)
        self.change_feed.notify_all()
        return answer

    async def wait(self, run_id: str) -> Run:
        """The run's row, once it has ended, wherever that happens."""
        return await self.store.wait_until_ended(run_id)

    @property
    def writer(self) -> TemporalEngine:
        """The engine performs operations itself."""
        return self

    async def perform(self, op: Op) -> OpResult:
        """Perform an operation, and return the answer."""
        [answer] = await self.store.commit([op])
        return answer

    # For steps

    async def update_run(self, run: Run, name: str, *args: Any) -> bool:
        """Send an update to a run; whether it was accepted."""
        return await self.store.update_run(run.id, identifiers.RESERVED_PREFIX + name, *args)

    @property
    def client(self) -> Client:
        """The connection to Temporal of the program's loop."""
        return self.store.client

    async def find_previous_run(self, run: Run) -> str:
        """The run before this one in its session, if it still exists."""
        previous = await find_previous_run(self.client, run)
        if previous and await self.store.get_run(previous) is None:
            log.info(
                "run %r begins its session %r anew: Temporal has deleted run %r, which came before it",
                run.id,
                run.session,
                previous,
            )
            return ""
        return previous

    async def _find_run(self, awaited: AwaitedRun) -> FoundRun | None:
        """In the workers' thread: find a run, or wait for its end."""
        assert self._worker_store is not None
        run = await self._worker_store.get_run(awaited.run_id)
        if run is None:
            return None
        if awaited.reopen and run.state.is_terminal and run.state is not RunState.COMPLETED:
            await self._worker_store.commit([ReopenRun(run.id, self.clock.now())])
            run = await self._worker_store.get_run(awaited.run_id) or run
        if awaited.wait and not run.state.is_terminal:
            try:
                run = await self._worker_store.wait_until_ended(awaited.run_id)
            except RunNotFound:
                return None
        return FoundRun(run.workflow, run.digest, run.state, run.output, run.error)
