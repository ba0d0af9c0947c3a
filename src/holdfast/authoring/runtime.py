"""``Runtime``: an open engine in this process, and the default runtime if none was opened.

A runtime belongs to the event loop that opened it. ``await etl("acme")`` uses the runtime opened last on the running
loop. If there is none, it opens the default runtime, on ``HOLDFAST_URL`` or the SQLite file ``.holdfast/runs.db``. When
its loop has closed, the next use opens another one, so two calls of ``asyncio.run``, and notebooks, work.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import ParamSpec, TypeVar

from typing_extensions import override

from holdfast.admission.durations import Duration, duration_to_seconds
from holdfast.admission.queue_limits import Queue
from holdfast.authoring.registry import definitions
from holdfast.authoring.stop_signals import STOP_SIGNALS, StopSignalHandler, end_process
from holdfast.authoring.workflow import Workflow
from holdfast.client.handle import Handle
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, Encryption
from holdfast.engine import forked_child, step_context
from holdfast.engine.contract import Engine
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.host import StepEngine
from holdfast.engine.journal_engine import JournalEngine
from holdfast.engine.loop_watchdog import MAX_BLOCKED_S
from holdfast.errors import UsageError
from holdfast.log_output import log_to_terminal
from holdfast.processes.readiness import STARTING
from holdfast.services import queue_options
from holdfast.services.lookup import make_run_not_found
from holdfast.services.run_start import build_new_run, resolve_start
from holdfast.services.store_provider import StoreProvider
from holdfast.stores.change_feed import Subscription
from holdfast.stores.contract import History, Store
from holdfast.stores.memories import MemoryChange
from holdfast.stores.operations import ClientOp, OpStatus, Run
from holdfast.stores.temporal.targets import is_temporal_url
from holdfast.stores.urls import create_store, redact_url, resolve_store_url

log = logging.getLogger("holdfast")

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_GRACE_S = 30.0
"""Seconds that steps in flight get to end when a worker stops."""


class Runtime:
    """An open engine: it starts runs, and executes those of the workflows that this process knows.

    Args:
        url: the store, such as ``sqlite:///runs.db`` (default: ``HOLDFAST_URL``, else the default file).
        namespace: separates the runs of several programs or tenants that share a store (default: that of the URL, else
            ``HOLDFAST_NAMESPACE``, else ``default``).
        lease: the time after which a silent worker counts as dead, if nothing shows it earlier.
        max_concurrency: how many runs may be in memory at once.
        queues: take runs only from these queues: names, or ``Queue`` objects (default: all).
        workflows: execute only the workflows with these names: ``"etl"`` means all versions that this process knows,
            ``"etl@2"`` one of them (default: all that this process knows).
        max_blocked: how long a step may block the event loop of this process. After that the worker stops
            renewing its lease, and others take its runs over.
        max_value: the largest value that can be recorded, in bytes (default: 64 MiB).
        encryption: encrypts what is recorded, such as ``AesEncryption(key)`` (default: with the keys in
            ``HOLDFAST_ENCRYPTION_KEYS``, if there are any).
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        lease: Duration = 10.0,
        max_concurrency: int = 1000,
        queues: Collection[str | Queue] | None = None,
        workflows: Collection[str] | None = None,
        max_blocked: Duration = MAX_BLOCKED_S,
        max_value: int = DEFAULT_MAX_VALUE_BYTES,
        encryption: Encryption | None = None,
    ) -> None:
        target = resolve_store_url(url, namespace)
        self.url = redact_url(target)
        """The store's URL, without secrets."""
        self._engine = _create_engine(
            target,
            _select_definitions(workflows),
            duration_to_seconds(lease, "Runtime: lease"),
            max_concurrency,
            _declare_queues(queues),
            duration_to_seconds(max_blocked, "Runtime: max_blocked"),
            max_value,
            encryption,
        )
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Runtime:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect and start to take runs; from now on this loop's workflows use this runtime."""
        if self._loop is not None:
            raise UsageError("this Runtime was opened before: make a new one")
        self._loop = asyncio.get_running_loop()
        log_to_terminal()
        await self._engine.open()
        _open_runtimes.append(self)

    async def close(self, grace: Duration = 0.0) -> None:
        """Hand every unfinished run over and disconnect; steps in flight get ``grace`` to end first."""
        grace_s = duration_to_seconds(grace, "close: grace", may_be_zero=True)
        _remove_open(self)
        await self._engine.close(grace_s)

    async def start(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Start a run, or join the existing one, and return a handle to it."""
        definition, options = workflow.definition, workflow.start_options
        given = workflow.prepare_start(args, kwargs)
        inputs = definition.inputs_codec.encode(given.args, given.kwargs)
        engine = self._engine
        new = build_new_run(
            definition.to_spec(),
            inputs,
            options,
            now=engine.clock.now(),
            starter=engine.worker_id,
            defaults=definition.defaults,
            max_value=engine.max_value,
        )
        if given.bind_run is not None:
            given.bind_run(new.id)
        # A caller that names the run to join means no other one.
        join_orphan = new.has_generated_id and not options.new and not new.dedup_key
        run = resolve_start(await engine.start(new, join_orphan=join_orphan), new)
        given.rebind_run(new.id, run.id)
        return workflow.get_handle(self.store_provider, run.id)

    async def run_worker(
        self, *, grace: Duration = DEFAULT_GRACE_S, stop: asyncio.Event | None = None, exit_if_blocked: bool = False
    ) -> None:
        """Serve runs until SIGTERM, SIGINT, or ``stop``. Then finish or hand over, and close.

        Steps in flight get ``grace`` to end and be recorded; no new ones are started meanwhile. A second
        signal hands over at once. If a step blocks the event loop, nothing can be handed over: then a signal ends the
        process after the grace, and other workers take over as after a crash. Raises ``SchemaTooNew`` when a newer
        Holdfast has migrated the store meanwhile.

        Args:
            grace: how long steps in flight get to end.
            stop: stop when this is set.
            exit_if_blocked: end the process when a step has blocked the event loop for ``max_blocked``, so that a
                supervisor can restart it. For a process that does nothing else.
        """
        grace_s = duration_to_seconds(grace, "run_worker: grace", may_be_zero=True)
        engine, stop = self._engine, stop or asyncio.Event()
        if isinstance(engine, JournalEngine):
            engine.on_fatal_store_error = stop.set
        if exit_if_blocked:
            engine.on_stuck = lambda: end_process("a step has blocked the event loop of this process for too long")
        signals = StopSignalHandler(lambda: engine.skip_grace() if stop.is_set() else stop.set(), grace_s)
        with signals, forked_child.guard_signals(STOP_SIGNALS):
            await stop.wait()
            log.info("stopping: steps in flight get %g s to end, then their runs are handed over", grace_s)
            await self.close(grace_s)
        if isinstance(engine, JournalEngine) and engine.fatal_store_error is not None:
            raise engine.fatal_store_error

    @property
    def store_provider(self) -> StoreProvider:
        """Access to its store, for Holdfast's own code. Your code uses handles, or a ``Client``."""
        return EngineStoreProvider(self._engine)

    @classmethod
    async def current(cls) -> Runtime:
        """The runtime of the calling step, else the one opened last on the running loop, or the default one."""
        loop = asyncio.get_running_loop()
        step = step_context.find_step_executor()
        for runtime in list(_open_runtimes):
            if runtime.is_closed:
                _remove_open(runtime)
            elif runtime._loop is not None and runtime._loop.is_closed():
                _remove_open(runtime)
                runtime._engine.abandon()
        here = [runtime for runtime in reversed(_open_runtimes) if runtime._loop is loop]
        if here:
            # A step starts runs in the store of its own run: other runtimes here may be of other namespaces.
            return next((runtime for runtime in here if step is not None and runtime._engine is step.engine), here[0])
        opening = _opening_tasks.get(loop)
        if opening is None:
            # One task opens it for all callers; a caller that is cancelled does not stop it.
            opening = _opening_tasks[loop] = loop.create_task(_open_default())
            opening.add_done_callback(lambda _: _opening_tasks.pop(loop, None))
        return await asyncio.shield(opening)

    @property
    def namespace(self) -> str:
        """The namespace of its runs."""
        return self._engine.store.namespace

    @property
    def worker_id(self) -> int:
        """The id of this runtime as a worker."""
        return self._engine.worker_id

    @property
    def not_ready_reason(self) -> str:
        """Why this runtime takes no runs at the moment, for a readiness probe; empty if it does. Any thread may ask."""
        return STARTING if self._loop is None else self._engine.not_ready_reason

    @property
    def is_closed(self) -> bool:
        """Whether the runtime was closed, explicitly or because its loop ended."""
        return self._engine.is_closed


class StepStoreProvider(StoreProvider):
    """The store of the engine that executes a step."""

    def __init__(self, engine: StepEngine) -> None:
        self._step_engine = engine

    @override
    async def store(self) -> Store:
        return self._step_engine.store

    @override
    async def now(self) -> float:
        return self._step_engine.clock.now()

    @override
    async def change_memory(self, change: MemoryChange) -> None:
        await self._step_engine.writer.perform(change)


class EngineStoreProvider(StepStoreProvider):
    """The store of an open engine, which also executes runs itself."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._engine = engine

    @override
    async def read_journal(self, run_id: str) -> tuple[Run, History]:
        found = await self._engine.read_run(run_id)
        if found is None:
            raise make_run_not_found(self._engine.store, run_id)
        return found

    @override
    async def change(self, op: ClientOp) -> OpStatus:
        return await self._engine.change_run(op)

    @override
    async def wait_for_end(self, run_id: str) -> Run:
        return await self._engine.wait(run_id)

    @override
    def subscribe(self, run_id: str) -> AbstractContextManager[Subscription]:
        return self._engine.change_feed.subscribe(run_id)


_open_runtimes: list[Runtime] = []
_opening_tasks: dict[asyncio.AbstractEventLoop, asyncio.Task[Runtime]] = {}

if hasattr(os, "register_at_fork"):  # a forked child opens its own
    os.register_at_fork(after_in_child=_open_runtimes.clear)
    os.register_at_fork(after_in_child=_opening_tasks.clear)


def _create_engine(
    url: str,
    definitions_by_name: Mapping[str, WorkflowDefinition],
    lease_s: float,
    max_concurrency: int,
    queues: tuple[str, ...] | None,
    max_blocked_s: float,
    max_value: int,
    encryption: Encryption | None,
) -> Engine:
    """The engine for a URL."""
    limits = queue_options.declared_limits
    if is_temporal_url(url):
        from holdfast.stores.temporal.targets import parse_target
        from holdfast.temporal.engine import TemporalEngine

        return TemporalEngine(
            parse_target(url), definitions_by_name, lease_s=lease_s, max_concurrency=max_concurrency, queues=queues,
            queue_limits=limits, max_blocked_s=max_blocked_s, max_value=max_value, encryption=encryption,
        )  # fmt: skip
    return JournalEngine(
        create_store(url, encryption=encryption), definitions_by_name, lease_s=lease_s, max_concurrency=max_concurrency,
        queues=queues, queue_limits=limits, max_blocked_s=max_blocked_s, max_value=max_value,
    )  # fmt: skip


def _select_definitions(workflows: Collection[str] | None) -> Mapping[str, WorkflowDefinition]:
    """The definitions of these workflows (default: all, including those defined later)."""
    if workflows is None:
        return definitions
    selected = {name: one for name, one in definitions.items() if name in workflows or one.name in workflows}
    found = selected.keys() | {one.name for one in selected.values()}
    if unknown := [name for name in workflows if name not in found]:
        known = ", ".join(definitions) or "none"
        raise UsageError(f"Runtime: no workflow {unknown[0]!r} is defined in this process (known: {known})")
    return selected


def _declare_queues(queues: Collection[str | Queue] | None) -> tuple[str, ...] | None:
    """The names of the queues to serve; declares those with limits."""
    if queues is None:
        return None
    if isinstance(queues, str | Queue):
        raise UsageError(f"Runtime: queues is a collection of queues, not one: queues=[{queues!r}]")
    return tuple(dict.fromkeys(queue_options.declare_queue(queue) for queue in queues))


def _remove_open(runtime: Runtime) -> None:
    if runtime in _open_runtimes:
        _open_runtimes.remove(runtime)


async def _open_default() -> Runtime:
    runtime = Runtime()
    await runtime.open()
    return runtime
