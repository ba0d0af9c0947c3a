"""A client's backend over a store: what it is asked for, it does there itself."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from contextlib import aclosing
from datetime import date, datetime
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from holdfast.admission.durations import Duration
from holdfast.admission.queue_limits import Queue
from holdfast.client.backend import (
    AddressBackend,
    Backend,
    KeyBackend,
    MemoryBackend,
    PolicyBackend,
    QueueBackend,
    ScheduleBackend,
)
from holdfast.client.listener import Listener
from holdfast.client.store_connections import LoopConnections
from holdfast.client.store_resources import (
    StoreAddresses,
    StoreKeys,
    StoreMemory,
    StorePolicies,
    StoreQueues,
    StoreSchedules,
)
from holdfast.client.store_runs import StoreRuns
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.reports.budgets import BudgetInfo, read_budget
from holdfast.reports.dead_runs import DeadRun, list_dead_runs
from holdfast.reports.run_info import RunInfo, read_run_infos
from holdfast.reports.tail import TailEvent, TailFilter, read_tail
from holdfast.reports.usage_report import UsageReport, build_usage_report
from holdfast.services.addresses import send_to_address
from holdfast.services.approvals import get_os_user
from holdfast.services.audit_log import AuditEntry, read_audit_log
from holdfast.services.bulk_start import CallArguments, start_many
from holdfast.services.forks import fork_run
from holdfast.services.health import DisabledWorkflow, Health, read_health
from holdfast.services.input_validation import bind_inputs, parse_schema
from holdfast.services.journal_files import Journal, export_run
from holdfast.services.retention import PruneReport, make_prune_request, prune_runs
from holdfast.services.run_control import retry_run
from holdfast.services.run_start import StartOptions, build_new_run, find_spec, resolve_start
from holdfast.services.settlement import settle_step
from holdfast.services.timestamps import to_datetime
from holdfast.services.workers import WorkerInfo, list_workers
from holdfast.stores.contract import DEFAULT_NAMESPACE, RunFilter, Store
from holdfast.stores.operations import StartRun
from holdfast.stores.queues import NewQueue
from holdfast.stores.urls import redact_url, split_namespace, with_namespace


class StoreBackend(StoreRuns, Backend):
    """Over a store.

    Args:
        connections: the way to it, which may be shared; ``close`` closes it.
        url: the store's.
        max_value: the largest value that is sent, in bytes.
    """

    def __init__(self, connections: LoopConnections, url: str, max_value: int = DEFAULT_MAX_VALUE_BYTES) -> None:
        super().__init__(connections, max_value=max_value)
        self.url = redact_url(url)
        self.connections = connections
        place, namespace = split_namespace(url)
        self._namespace = namespace or DEFAULT_NAMESPACE
        self._default_connections = connections.for_url(with_namespace(place, DEFAULT_NAMESPACE))
        """The way to the default namespace of the same database, where keys are kept."""
        self._announced_queues: WeakKeyDictionary[Store, WeakSet[Queue]] = WeakKeyDictionary()
        """The queues whose limits were announced, over which connection."""

    @property
    def memory(self) -> MemoryBackend:
        """Values that outlive runs."""
        return StoreMemory(self.connections, self.max_value)

    @property
    def schedules(self) -> ScheduleBackend:
        """What is started at set times."""
        return StoreSchedules(self.connections, find_spec)

    @property
    def queues(self) -> QueueBackend:
        """Queues with limits."""
        return StoreQueues(self.connections)

    @property
    def addresses(self) -> AddressBackend:
        """Where work is sent to."""
        return StoreAddresses(self.connections)

    @property
    def policies(self) -> PolicyBackend:
        """What a day may cost."""
        return StorePolicies(self.connections)

    @property
    def keys(self) -> KeyBackend:
        """API keys."""
        return StoreKeys(self._default_connections, self._namespace)

    async def open(self, give_up_after_s: float | None = None) -> None:
        """Connect."""
        await self.connections.store()

    async def close(self) -> None:
        """Disconnect the running event loop."""
        await self.connections.close()
        await self._default_connections.close()

    async def start(self, workflow: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: StartOptions) -> str:
        """Start a run or join the one that is there."""
        store = await self.connections.store()
        spec = await find_spec(store, workflow, options.version)
        inputs = bind_inputs(spec, args, kwargs)
        await self._announce_queue(store, options.queue)
        new = build_new_run(spec, inputs, options, now=store.now(), max_value=self.max_value)
        [answer] = await store.commit([StartRun(new)])
        return resolve_start(answer, new).id

    async def start_many(
        self, workflow: str, calls: Iterable[CallArguments], options: StartOptions
    ) -> builtins.list[str]:
        """Start or join a run for each call."""
        store = await self.connections.store()
        spec = await find_spec(store, workflow, options.version)
        await self._announce_queue(store, options.queue)
        return await start_many(store, spec, calls, options, self.max_value)

    async def send(self, address: str, payload: Any, options: StartOptions, deadline_s: float | None) -> str:
        """Send work to an address, or find that it was sent before."""
        store = await self.connections.store()
        await self._announce_queue(store, options.queue)
        run, _ = await send_to_address(
            store, address, payload, options, deadline_s=deadline_s, max_value=self.max_value
        )
        return run.id

    async def _announce_queue(self, store: Store, queue: str | Queue | None) -> None:
        """Make the limits of a queue known, if the client was handed some, before a run is in it."""
        if not isinstance(queue, Queue):
            return
        told = self._announced_queues.setdefault(store, WeakSet())
        if queue not in told:
            await store.queues.declare([NewQueue(queue.name, queue.limits)])
            told.add(queue)

    async def list(self, run_filter: RunFilter, limit: int, before: str | None) -> builtins.list[RunInfo]:
        """Runs that match, newest first."""
        store = await self.connections.store()
        key = None if before is None else (await self.connections.read(before)).key
        return await read_run_infos(
            store, await store.list_runs(run_filter, limit=limit, before_key=key), allow_stale_usage=True
        )

    async def retry(self, run_id: str, *, run_again: bool, version: str | None) -> None:
        """Let a run go on that failed, was cancelled or is dead."""
        await retry_run(self.connections, run_id, run_again=run_again, version=version)

    async def settle(self, run_id: str, step: int | str, *, output: Any, happened: bool, by: str | None) -> None:
        """Say what came of a step of unknown outcome, and let its run go on."""
        store = await self.connections.store()
        await settle_step(store, run_id, step, output=output, happened=happened, by=by, max_value=self.max_value)

    async def fork(self, run_id: str, *, at: int | str | None, with_output: Any, id: str | None) -> str:
        """A new run that shares the beginning of another one."""
        store = await self.connections.store()
        run = await fork_run(store, run_id, at=at, with_output=with_output, new_id=id, max_value=self.max_value)
        return run.id

    async def tail(self, tail_filter: TailFilter, since: datetime | None) -> AsyncGenerator[TailEvent]:
        """What happens in all runs."""
        store = await self.connections.store()
        moment = store.now() if since is None else since.timestamp()
        async with aclosing(read_tail(self.connections, tail_filter, moment)) as happenings:
            async for one in happenings:
                yield one

    async def export(self, run_id: str) -> Journal:
        """A run outside its store."""
        return await export_run(await self.connections.store(), run_id)

    async def budget(self, run_id: str) -> BudgetInfo:
        """What a run may use and has used."""
        return await read_budget(await self.connections.store(), run_id)

    async def dead(self, workflow: str | None, limit: int, before: str | None) -> builtins.list[DeadRun]:
        """Dead runs, newest first."""
        return await list_dead_runs(await self.connections.store(), workflow, limit, before)

    async def prune(
        self,
        older_than: Duration,
        states: Collection[RunState],
        *,
        workflow: str | None,
        keep: int,
        unclaimed: bool,
        run_ids: Collection[str] | None,
        dry_run: bool,
        report: PruneReport,
    ) -> PruneReport:
        """Delete ended runs, and tell in ``report``."""
        store = await self.connections.store()
        what = make_prune_request(
            store.now(), older_than, states, workflow=workflow, keep=keep, unclaimed=unclaimed, run_ids=run_ids,
            dry_run=dry_run,
        )  # fmt: skip
        return await prune_runs(store, what, report)

    async def usage_report(self, since: date | None, until: date | None, workflow: str | None) -> UsageReport:
        """What all runs have used, by day."""
        return await build_usage_report(await self.connections.store(), since, until, workflow)

    def create_listener(self, address: str, *, concurrency: int, name: str | None) -> Listener:
        """Deliveries come from a server."""
        raise UsageError(
            f"{self.url} is a store, and deliveries are handed out by a server: start one over it with `holdfast "
            f"serve`, and listen with Client('http://...'). Code that can reach the store itself needs no deliveries: "
            f"make it a workflow"
        )

    async def workers(self) -> builtins.list[WorkerInfo]:
        """Who takes up runs."""
        return await list_workers(await self.connections.store())

    async def health(self) -> builtins.list[Health]:
        """How it is with all that was announced."""
        return await read_health(await self.connections.store())

    async def inputs_schema(self, workflow: str, version: str | None) -> Mapping[str, Any]:
        """What the inputs of a workflow must be."""
        spec = await find_spec(await self.connections.store(), workflow, version)
        return parse_schema(spec.inputs_schema)

    async def disable(self, workflow: str, reason: str, by: str | None) -> bool:
        """Stop a workflow everywhere."""
        store = await self.connections.store()
        return await store.disabled_workflows.disable(workflow, get_os_user() if by is None else by, reason)

    async def enable(self, workflow: str) -> bool:
        """Let its runs go on."""
        return await (await self.connections.store()).disabled_workflows.enable(workflow)

    async def disabled_workflows(self) -> dict[str, DisabledWorkflow]:
        """What is disabled, since when, by whom, and why."""
        off = await (await self.connections.store()).disabled_workflows.get_all()
        return {
            name: DisabledWorkflow(name, to_datetime(one.disabled_at), one.actor, one.reason)
            for name, one in off.items()
        }

    async def audit(self, limit: int) -> builtins.list[AuditEntry]:
        """Who asked servers for what."""
        return await read_audit_log(await self.connections.store(), limit)
