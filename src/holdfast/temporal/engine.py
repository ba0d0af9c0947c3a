"""What a ``Runtime`` over ``temporal://`` is: it starts runs in Temporal, and serves those that this process knows."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError

from holdfast.admission.queue_limits import QueueLimits
from holdfast.codec import LARGEST
from holdfast.codec.encryption import VARIABLE
from holdfast.core.states import RunState
from holdfast.engine import forked_child, replay_logging
from holdfast.engine.clock import SystemClock
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.loop_watchdog import MAX_BLOCKED_S, LoopWatch
from holdfast.engine.store_readiness import when_available
from holdfast.engine.thread_pool import Threads
from holdfast.errors import RunNotFound, UsageError
from holdfast.run_log import RunLog
from holdfast.stores.change_feed import News
from holdfast.stores.contract import History
from holdfast.stores.operations import Answer, Change, NewRun, Op, ReopenRun, Run, StartRun, Verdict
from holdfast.stores.served_versions import served_name
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.connection import Encryption
from holdfast.stores.temporal.history import events_after
from holdfast.stores.temporal.payloads import largest
from holdfast.stores.temporal.sessions import run_before
from holdfast.stores.temporal.store import TemporalStore
from holdfast.stores.temporal.targets import Target
from holdfast.stores.temporal.visibility import other_task_queues
from holdfast.temporal.activities import Activities
from holdfast.temporal.awaited_run import AwaitedRun, Found
from holdfast.temporal.engine_context import Settings, Site
from holdfast.temporal.rebuilt_runs import Recall
from holdfast.temporal.worker_thread import WorkerThread

log = logging.getLogger("holdfast.engine")

TELL_EVERY = 0.3
"""Seconds between two looks of whoever follows a run: nobody tells what others write."""


class TemporalEngine:
    """Executes runs that Temporal keeps, in this process."""

    worker = 0
    """Temporal knows its workers; there is no row for this one."""

    def __init__(
        self,
        target: Target,
        definitions: Mapping[str, WorkflowDefinition],
        *,
        lease: float = 10.0,
        concurrency: int = 1000,
        queues: Collection[str] | None = None,
        limits: Mapping[str, QueueLimits] | None = None,
        threads: int = 64,
        max_blocked_s: float = MAX_BLOCKED_S,
        max_value: int = LARGEST,
        continue_after: int | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        self.store = TemporalStore(target, encryption=encryption)
        self._encryption = encryption
        self.clock = SystemClock()
        self.max_value = largest(max_value, apart=bool(target.payloads))
        self.news = News()
        self.on_stuck: Callable[[], None] = lambda: None
        self._max_blocked_s = max_blocked_s
        self._loop_watch: LoopWatch
        self.closers: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self.threads = Threads(threads)
        self.loop: asyncio.AbstractEventLoop
        self._target = target
        self._definitions = definitions
        self._limits: Mapping[str, QueueLimits] = {} if limits is None else limits
        self._queues = None if queues is None else tuple(queues)
        settings = Settings(
            heartbeat=lease / 2,
            max_value=max_value,
            continue_after=continue_after,
        )
        run_log = RunLog(is_encrypted=encryption is not None or bool(os.environ.get(VARIABLE)))
        self.site = Site(definitions, settings, self._serve_too, self._refuse_limits, run_log)
        self._workers = WorkerThread(self.site, self._connect, self._activities, concurrency)
        self._inside: TemporalStore | None = None
        """The store, as the workers' thread has it."""
        self.recall: Recall
        self._published: set[str] = set()
        self._loaded: set[Callable[[], None]] = set()
        self._publishing = asyncio.Lock()
        self._watcher: asyncio.Task[None] | None = None
        self._hurried = False
        self._closed = False

    # Opening and closing

    async def open(self) -> None:
        """Connect, and begin to take runs."""
        replay_logging.install()
        self.loop = asyncio.get_running_loop()
        self._loop_watch = LoopWatch(max_blocked_s=self._max_blocked_s)
        await when_available(self.store.open, self.clock)
        try:
            await self._workers.start()
            await self._publish()
        except BaseException:
            await self._workers.stop(0.0, lambda: True)
            await self.store.close()
            raise
        forked_child.guard_loop(self.loop)
        self._watcher = self.loop.create_task(self._watch(), name="holdfast-engine")

    async def _connect(self) -> Client:
        """In the workers' thread."""
        identity = f"{socket.gethostname()}:{os.getpid()}"
        self._inside = TemporalStore(self._target, encryption=self._encryption, identity=identity)
        await self._inside.open()
        return self._inside.client

    def _activities(self, client: Client) -> Activities:
        self.recall = Recall(self.site, _Histories(client))
        return Activities(self.site, self, self.loop, self.recall, client, self._find_run, self._is_stuck)

    def _is_stuck(self) -> bool:
        """In the workers' thread, at every heartbeat: whether the program's loop has been blocked for too long."""
        was_stuck = self._loop_watch.is_stuck
        self._loop_watch.look()
        if self._loop_watch.is_stuck and not was_stuck:
            self.on_stuck()
        return self._loop_watch.is_stuck

    async def close(self, grace: float = 0.0) -> None:
        """Stop: steps at work get ``grace`` seconds to end; then Temporal gives them to other workers."""
        if self._closed:
            return
        self._closed = True
        if self._watcher is None:  # never opened, or opening failed, and has cleaned up: that error must not be hidden
            self.threads.stop()
            return
        if self._watcher is not asyncio.current_task():
            self._watcher.cancel()
        try:
            await self._workers.stop(grace, lambda: self._hurried)
        finally:
            forked_child.release_loop(self.loop)
        if self._inside is not None:
            self._inside.abandon()  # its loop has ended with the workers
        self.recall.close()
        self.threads.stop()
        for error in await asyncio.gather(*(close() for close in self.closers), return_exceptions=True):
            if isinstance(error, Exception):
                log.error("something that steps have left open could not be closed", exc_info=error)
        await self.store.close()
        self.news.tell_all(UsageError("the runtime was closed; the run goes on when a worker that knows it is open"))

    def abandon(self) -> None:
        """The event loop is gone: let go of everything without it."""
        forked_child.release_loop(self.loop)
        self._closed = True
        self._workers.abandon()
        self.threads.stop()
        self.store.abandon()

    def hurry(self) -> None:
        """Let a ``close`` that is under way wait for nothing more that is in flight."""
        self._hurried = True

    @property
    def is_closed(self) -> bool:
        """Whether this engine has let go of its runs."""
        return self._closed

    @property
    def is_stopping(self) -> bool:
        """Whether it lets go of its runs, or is about to: the end of ``asyncio.run`` cancels all tasks at once."""
        return self._closed or (self._watcher is not None and self._watcher.cancelling() > 0)

    async def _watch(self) -> None:
        try:
            while True:
                await asyncio.sleep(TELL_EVERY)
                if self.news:
                    self.news.tell_all()
        except asyncio.CancelledError:
            # `asyncio.run` cancels every task when its main coroutine has ended: the moment to leave in good order.
            if not self._closed:
                await self.close()
            raise

    async def _publish(self) -> None:
        """Announce what is new since the last time, and poll for it."""
        async with self._publishing:
            new = {name: one for name, one in self._definitions.items() if name not in self._published}
            for definition in new.values():
                self._check(definition)
                if definition.load is not None and definition.load not in self._loaded:
                    await asyncio.to_thread(definition.load)
                    self._loaded.add(definition.load)
            each = {id(definition): definition for definition in new.values()}
            await self.store.publish([definition.spec() for definition in each.values()])
            if each:
                await self._workers.serve_keepers()
            await self._workers.serve(name for one in each.values() for name in self._task_queues(one))
            self._published.update(new)
            if new and self._queues is None:
                await self._serve_others([one.name for one in each.values()])

    async def _serve_others(self, workflows: Collection[str]) -> None:
        """Poll also for runs that somebody has started in other queues than their workflow's own."""
        try:
            async for task_queue in other_task_queues(self.client, workflows, self._workers.task_queues):
                self._serve_too(task_queue)
        except RPCError as error:
            log.warning("runs in other queues than those of their workflows cannot be looked for: %s", error)

    def _check(self, definition: WorkflowDefinition) -> None:
        """Refuse what Temporal cannot do, before a run finds out."""
        self._refuse_limits(definition.queue, f"workflow {definition.name!r}")
        if definition.schedules:
            raise UsageError(
                f"workflow {definition.name!r} has a schedule, and on Temporal runs are started by Temporal's own "
                f"schedules: `temporal schedule create` (see docs/temporal.md)"
            )

    def _refuse_limits(self, queue: str, what: str) -> None:
        if queue in self._limits:
            raise UsageError(
                f"{what} is in the queue {queue!r}, which has limits, and Temporal cannot keep them for a fleet: use a "
                f"plain queue name there (see docs/temporal.md)"
            )

    def _task_queues(self, definition: WorkflowDefinition) -> list[str]:
        queues = (definition.queue,) if self._queues is None else self._queues
        versions = (definition.version, *definition.serves)
        return [identifiers.task_queue(queue, definition.name, version) for queue in queues for version in versions]

    def _serve_too(self, task_queue: str) -> None:
        """A run was started in a queue that is not its workflow's own: serve that as well, if all queues are served."""
        served = task_queue.partition("/")[2]
        if self._queues is None and served in self._published:
            self._workers.serve_soon(task_queue)

    # What the runtime asks for

    async def start(self, new: NewRun, *, join_orphan: bool) -> Answer:
        """Create a run."""
        self._refuse_limits(new.queue, f"run {new.id!r} of workflow {new.workflow!r}")
        if served_name(new.workflow, new.version) not in self._published:
            await self._publish()
        self._serve_too(identifiers.task_queue(new.queue, new.workflow, new.version))
        return await self.perform(StartRun(new, join_orphan=join_orphan))

    async def read_run(self, run_id: str) -> tuple[Run, History] | None:
        """A run's row and journal, if there is such a run."""
        run = await self.store.get(run_id)
        return None if run is None else (run, await self.store.journal(run))

    async def change(self, op: Change) -> Verdict:
        """Change a run from outside."""
        answer = await self.perform(op)
        assert isinstance(answer, Verdict)
        self.news.tell_all()
        return answer

    async def wait(self, run_id: str) -> Run:
        """The run's row, once it has ended, wherever that happens."""
        return await self.store.wait(run_id)

    @property
    def writer(self) -> TemporalEngine:
        """The way to change something."""
        return self

    async def perform(self, op: Op) -> Answer:
        """Carry out an operation, and return the answer."""
        [answer] = await self.store.commit([op])
        return answer

    # What steps ask for

    async def update(self, run: Run, name: str, *args: Any) -> bool:
        """Ask a run for a change of itself."""
        return await self.store.update(run.id, identifiers.PREFIX + name, *args)

    @property
    def client(self) -> Client:
        """The way to Temporal, on the program's loop."""
        return self.store.client

    async def previous_run(self, run: Run) -> str:
        """The run before this one in its session, if that is still there."""
        previous = await run_before(self.client, run)
        if previous and await self.store.get(previous) is None:
            log.info(
                "run %r begins its session %r anew: Temporal has deleted run %r, which came before it",
                run.id,
                run.session,
                previous,
            )
            return ""
        return previous

    async def _find_run(self, awaited: AwaitedRun) -> Found | None:
        """In the workers' thread: look for a run, or wait for its end."""
        assert self._inside is not None
        run = await self._inside.get(awaited.run_id)
        if run is None:
            return None
        if awaited.reopen and run.state.is_terminal and run.state is not RunState.COMPLETED:
            await self._inside.commit([ReopenRun(run.id, self.clock.now())])
            run = await self._inside.get(awaited.run_id) or run
        if awaited.wait and not run.state.is_terminal:
            try:
                run = await self._inside.wait(awaited.run_id)
            except RunNotFound:
                return None
        return Found(run.workflow, run.digest, run.state, run.output, run.error)


class _Histories:
    """Histories, read over the workers' own connection."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def events(self, run_id: str, execution: str, after: int) -> Sequence[HistoryEvent]:
        """The events of one execution so far, behind this number."""
        return await events_after(self._client, run_id, execution, after)
