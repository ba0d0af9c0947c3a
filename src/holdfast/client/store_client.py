"""A client over a store."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from contextlib import aclosing
from datetime import date, datetime
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from typing_extensions import override

from holdfast.admission.durations import Duration
from holdfast.admission.queue_limits import Queue
from holdfast.client.client import Client
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
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, Encryption
from holdfast.core.states import RunState, parse_run_states
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
from holdfast.services.forks import NOT_GIVEN, fork_run
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
from holdfast.stores.urls import create_store, redact_url, resolve_store_url, split_namespace, with_namespace


class StoreClient(StoreRuns, Client):
    """A client over a store.

    Args, in addition to those of ``Client``:
        connections: connections to share; ``close`` closes them.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        max_value: int = DEFAULT_MAX_VALUE_BYTES,
        encryption: Encryption | None = None,
        api_key: str | None = None,
        insecure: bool = False,
        connections: LoopConnections | None = None,
    ) -> None:
        if connections is None:
            connections = LoopConnections(
                resolve_store_url(url, namespace), partial(create_store, encryption=encryption)
            )
        self.url = redact_url(connections.url)
        if api_key is not None or insecure:
            option = "api_key" if api_key is not None else "insecure"
            raise UsageError(f"Client({option}=...) is for a Holdfast server (https://...), and {self.url} is a store")
        self.connections = connections
        super().__init__(connections, max_value=max_value)
        place, own_namespace = split_namespace(connections.url)
        self._default_connections = connections.for_url(with_namespace(place, DEFAULT_NAMESPACE))
        """Connections to the default namespace of the same database, which holds the API keys."""
        self.memory = StoreMemory(connections, self._run_sync, max_value)
        self.schedules = StoreSchedules(connections, self._run_sync)
        self.queues = StoreQueues(connections, self._run_sync)
        self.addresses = StoreAddresses(connections, self._run_sync)
        self.policies = StorePolicies(connections, self._run_sync)
        self.keys = StoreKeys(self._default_connections, self._run_sync, own_namespace or DEFAULT_NAMESPACE)
        self._announced_queues: WeakKeyDictionary[Store, WeakSet[Queue]] = WeakKeyDictionary()
        """The queues whose limits were announced, by connection."""

    @override
    async def open(self, timeout: Duration | None = None) -> None:
        await self.connections.store()

    @override
    async def close(self) -> None:
        await self.connections.close()
        await self._default_connections.close()

    @override
    async def _start(self, workflow: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        store = await self.connections.store()
        spec = await find_spec(store, workflow, self._options.version)
        inputs = bind_inputs(spec, args, kwargs)
        await self._announce_queue(store, self._options.queue)
        new = build_new_run(spec, inputs, self._options, now=store.now(), max_value=self.max_value)
        [answer] = await store.commit([StartRun(new)])
        return resolve_start(answer, new).id

    @override
    async def start_many(self, workflow: str, calls: Iterable[CallArguments]) -> builtins.list[str]:
        store = await self.connections.store()
        spec = await find_spec(store, workflow, self._options.version)
        await self._announce_queue(store, self._options.queue)
        return await start_many(store, spec, calls, self._options, self.max_value)

    @override
    async def _send(self, address: str, payload: Any, options: StartOptions, deadline_s: float | None) -> str:
        store = await self.connections.store()
        await self._announce_queue(store, options.queue)
        run, _ = await send_to_address(
            store, address, payload, options, deadline_s=deadline_s, max_value=self.max_value
        )
        return run.id

    async def _announce_queue(self, store: Store, queue: str | Queue | None) -> None:
        """Declare the limits of a queue, if the client was given some, before a run is in it."""
        if not isinstance(queue, Queue):
            return
        announced = self._announced_queues.setdefault(store, WeakSet())
        if queue not in announced:
            await store.queues.declare([NewQueue(queue.name, queue.limits)])
            announced.add(queue)

    @override
    async def _list(self, run_filter: RunFilter, limit: int, before: str | None) -> builtins.list[RunInfo]:
        store = await self.connections.store()
        key = None if before is None else (await self.connections.read(before)).key
        return await read_run_infos(
            store, await store.list_runs(run_filter, limit=limit, before_key=key), allow_stale_usage=True
        )

    @override
    async def retry(self, run_id: str, *, run_again: bool = False, version: str | None = None) -> None:
        await retry_run(self.connections, run_id, run_again=run_again, version=version)

    @override
    async def settle(
        self, run_id: str, step: int | str, output: Any = NOT_GIVEN, *, happened: bool = True, by: str | None = None
    ) -> None:
        store = await self.connections.store()
        await settle_step(store, run_id, step, output=output, happened=happened, by=by, max_value=self.max_value)

    @override
    async def _fork(self, run_id: str, *, at: int | str | None, with_output: Any, id: str | None) -> str:
        store = await self.connections.store()
        run = await fork_run(store, run_id, at=at, with_output=with_output, new_id=id, max_value=self.max_value)
        return run.id

    @override
    async def _tail(self, tail_filter: TailFilter, since: datetime | None) -> AsyncGenerator[TailEvent]:
        store = await self.connections.store()
        moment = store.now() if since is None else since.timestamp()
        async with aclosing(read_tail(self.connections, tail_filter, moment)) as happenings:
            async for one in happenings:
                yield one

    @override
    async def export(self, run_id: str) -> Journal:
        return await export_run(await self.connections.store(), run_id)

    @override
    async def budget(self, run_id: str) -> BudgetInfo:
        return await read_budget(await self.connections.store(), run_id)

    @override
    async def dead(
        self, *, workflow: str | None = None, limit: int = 50, before: str | None = None
    ) -> builtins.list[DeadRun]:
        return await list_dead_runs(await self.connections.store(), workflow, limit, before)

    @override
    async def prune(
        self,
        older_than: Duration,
        *,
        state: RunState | str | Collection[RunState | str] = (),
        workflow: str | None = None,
        keep: int = 0,
        unclaimed: bool = False,
        run_ids: Collection[str] | None = None,
        dry_run: bool = False,
        report: PruneReport | None = None,
    ) -> PruneReport:
        store = await self.connections.store()
        request = make_prune_request(
            store.now(), older_than, parse_run_states(state), workflow=workflow, keep=keep, unclaimed=unclaimed,
            run_ids=run_ids, dry_run=dry_run,
        )  # fmt: skip
        return await prune_runs(store, request, report or PruneReport())

    @override
    async def usage_report(
        self, since: date | None = None, until: date | None = None, *, workflow: str | None = None
    ) -> UsageReport:
        return await build_usage_report(await self.connections.store(), since, until, workflow)

    @override
    def _create_listener(self, address: str, *, concurrency: int, name: str | None) -> Listener:
        raise UsageError(
            f"{self.url} is a store, and deliveries are handed out by a server: start one over it with `holdfast "
            f"serve`, and listen with Client('http://...'). Code that can reach the store itself needs no deliveries: "
            f"make it a workflow"
        )

    @override
    async def workers(self) -> builtins.list[WorkerInfo]:
        return await list_workers(await self.connections.store())

    @override
    async def health(self) -> builtins.list[Health]:
        return await read_health(await self.connections.store())

    @override
    async def inputs_schema(self, workflow: str, *, version: str | None = None) -> Mapping[str, Any]:
        spec = await find_spec(await self.connections.store(), workflow, version)
        return parse_schema(spec.inputs_schema)

    @override
    async def disable(self, workflow: str, *, reason: str = "", by: str | None = None) -> bool:
        store = await self.connections.store()
        return await store.disabled_workflows.disable(workflow, get_os_user() if by is None else by, reason)

    @override
    async def enable(self, workflow: str) -> bool:
        return await (await self.connections.store()).disabled_workflows.enable(workflow)

    @override
    async def disabled_workflows(self) -> dict[str, DisabledWorkflow]:
        off = await (await self.connections.store()).disabled_workflows.get_all()
        return {
            name: DisabledWorkflow(name, to_datetime(one.disabled_at), one.actor, one.reason)
            for name, one in off.items()
        }

    @override
    async def audit(self, limit: int = 100) -> builtins.list[AuditEntry]:
        return await read_audit_log(await self.connections.store(), limit)
