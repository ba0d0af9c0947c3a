"""``AdminOperations``: what a client does with everything in a store: its workflows, its workers, and ended runs.

``Client`` inherits these methods. Here they work on a store; ``http.admin`` overrides each of them with a request to a
Holdfast server.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import date
from typing import Any

from holdfast.admission.durations import Duration
from holdfast.core.states import RunState, parse_run_states
from holdfast.reports.dead_runs import DeadRun, list_dead_runs
from holdfast.reports.usage_report import UsageReport, build_usage_report
from holdfast.services.approvals import get_os_user
from holdfast.services.audit_log import AuditEntry, read_audit_log
from holdfast.services.disabled_workflows import disable_workflow, enable_workflow
from holdfast.services.erasure import EraseReport, erase_data
from holdfast.services.health import DisabledWorkflow, Health, read_health
from holdfast.services.input_validation import parse_schema
from holdfast.services.retention import PruneReport, make_prune_request, prune_runs
from holdfast.services.run_start import find_spec
from holdfast.services.store_provider import StoreProvider
from holdfast.services.timestamps import to_datetime
from holdfast.services.workers import WorkerInfo, list_workers


class AdminOperations:
    """Operations on the workflows, the workers, and the ended runs of a store."""

    _provider: StoreProvider

    async def usage_report(
        self, since: date | None = None, until: date | None = None, *, workflow: str | None = None
    ) -> UsageReport:
        """What the model calls of all runs used, by day, agent, and model, and how many runs were created.

        Args:
            since: the first day, in UTC; default: 29 days before the last one.
            until: the last day, included; default: today.
            workflow: only runs of this agent or workflow.
        """
        return await build_usage_report(await self._provider.store(), since, until, workflow)

    async def dead(self, *, workflow: str | None = None, limit: int = 50, before: str | None = None) -> list[DeadRun]:
        """Runs whose workers died too often while they held nothing else, newest first, and what was in flight.

        No worker executes them until a person retries them (``retry``).

        Args:
            workflow: only runs of this workflow.
            limit: maximum number of results.
            before: the id of the last run of the previous page, to continue from there.
        """
        return await list_dead_runs(await self._provider.store(), workflow, limit, before)

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
        """Delete runs that ended longer ago than that, with all that belongs to them; never one that is still needed.

        A run is deleted together with its run tree and its session, or stays with them: while one of these runs has
        not ended, or ended too recently, all of them stay. Deletion takes short transactions, so workers are not held
        up. If it is interrupted, the next call continues.

        Args:
            older_than: seconds, a ``timedelta``, or words such as ``30 days``; 0: whenever they ended.
            state: the states of the runs to delete; default: completed and cancelled.
            workflow: only runs of this workflow.
            keep: number of newest runs of each workflow to keep.
            unclaimed: include runs whose result was never returned because the process that started them was killed.
            run_ids: only these runs.
            dry_run: delete nothing, only report.
            report: updated after every batch, so that it is complete if you interrupt this; by a server, at the end.
        """
        store = await self._provider.store()
        request = make_prune_request(
            store.now(), older_than, parse_run_states(state), workflow=workflow, keep=keep, unclaimed=unclaimed,
            run_ids=run_ids, dry_run=dry_run,
        )  # fmt: skip
        return await prune_runs(store, request, report or PruneReport())

    async def erase(
        self,
        run_ids: Collection[str] = (),
        *,
        tag: str = "",
        memories: Collection[str] = (),
        by: str | None = None,
        dry_run: bool = False,
    ) -> EraseReport:
        """Erase all values that ended runs have recorded, with those of the runs that they started, and their forks.

        The runs are still listed, with their steps, times, and usage, and their values read as erased. They cannot be
        retried or forked. A run that has not ended is not erased. The audit log has an entry for each run.

        Args:
            run_ids: these runs.
            tag: all runs with this tag, which is removed from them.
            memories: namespaces whose memories are deleted.
            by: who asks for it, for the audit log; default: the user of the operating system. (A server uses the name
                of the API key.)
            dry_run: erase nothing, only report.
        """
        actor = get_os_user() if by is None else by
        store = await self._provider.store()
        return await erase_data(store, run_ids, tag=tag, memories=memories, actor=actor, dry_run=dry_run)

    async def workers(self) -> list[WorkerInfo]:
        """The processes that execute runs: the live ones, and those that unfinished runs refer to."""
        return await list_workers(await self._provider.store())

    async def health(self) -> list[Health]:
        """The health of every known agent and workflow: who serves it, according to its workers' heartbeats."""
        return await read_health(await self._provider.store())

    async def inputs_schema(self, workflow: str, *, version: str | None = None) -> Mapping[str, Any]:
        """A JSON schema of the inputs of a workflow or an agent; empty if its workers have announced none.

        A start is checked against it before anything is stored. Raises ``UnknownWorkflow``.

        Args:
            workflow: its name.
            version: of its code; default: the newest version that is served.
        """
        return parse_schema((await find_spec(await self._provider.store(), workflow, version)).inputs_schema)

    async def disable(
        self, workflow: str, *, reason: str = "", by: str | None = None, allow_unknown: bool = False
    ) -> bool:
        """Stop a workflow or an agent everywhere: its runs stop at the next recorded point, and none is started.

        It stays disabled until someone enables it, even if a policy had disabled it for the rest of the day. False
        when it was disabled before. Raises ``UnknownWorkflow``.

        Args:
            workflow: its name.
            reason: why, for others to read.
            by: who does it; default: the user of the operating system, or the name of the API key.
            allow_unknown: accept a name that no worker has announced yet.
        """
        store = await (self._provider.created_store() if allow_unknown else self._provider.store())
        return await disable_workflow(store, workflow, reason=reason, by=by, allow_unknown=allow_unknown)

    async def enable(self, workflow: str) -> bool:
        """Enable a workflow again: its runs continue. False when it was not disabled. Raises ``UnknownWorkflow``."""
        return await enable_workflow(await self._provider.store(), workflow)

    async def disabled_workflows(self) -> dict[str, DisabledWorkflow]:
        """The workflows and agents that are disabled: since when, by whom, and why."""
        disabled = await (await self._provider.store()).disabled_workflows.get_all()
        return {
            name: DisabledWorkflow(name, to_datetime(row.disabled_at), row.actor, row.reason)
            for name, row in disabled.items()
        }

    async def audit(self, limit: int = 100) -> list[AuditEntry]:
        """Who asked servers for what, newest first, at most ``limit`` entries, including refused requests."""
        return await read_audit_log(await self._provider.store(), limit)
