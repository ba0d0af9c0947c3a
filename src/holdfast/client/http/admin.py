"""Operations on the workflows, the workers, and the ended runs of a server."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from datetime import date
from typing import Any

from typing_extensions import override

from holdfast.admission.durations import Duration, duration_to_seconds
from holdfast.client.admin_operations import AdminOperations
from holdfast.client.http.decoders import decode, decode_list
from holdfast.client.http.requests import HttpRequests, drop_none, quote_segment
from holdfast.core.states import RunState, parse_run_states
from holdfast.reports.dead_runs import DeadRun
from holdfast.reports.usage_report import UsageReport, to_utc_date
from holdfast.services.audit_log import AuditEntry
from holdfast.services.erasure import EraseReport
from holdfast.services.health import DisabledWorkflow, Health
from holdfast.services.retention import PruneReport, make_prune_request
from holdfast.services.workers import WorkerInfo

PRUNE_TIMEOUT_S = 600.0
"""Seconds that deleting or erasing runs may take."""


class HttpAdmin(HttpRequests, AdminOperations):
    """Operations on the workflows, the workers, and the ended runs of a server."""

    @override
    async def usage_report(
        self, since: date | None = None, until: date | None = None, *, workflow: str | None = None
    ) -> UsageReport:
        first, last = (None if day is None else to_utc_date(day).isoformat() for day in (since, until))
        return decode(UsageReport, await self._get("/v1/usage", since=first, until=last, workflow=workflow))

    @override
    async def dead(self, *, workflow: str | None = None, limit: int = 50, before: str | None = None) -> list[DeadRun]:
        return await self._get_pages(DeadRun, "/v1/dead-runs", limit, before, workflow=workflow)

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
        states = parse_run_states(state)
        make_prune_request(0.0, older_than, states, keep=keep)  # raises what a client over a store raises
        body = {
            "older_than": duration_to_seconds(older_than, "older_than", may_be_zero=True),
            "state": [str(each) for each in states],
            "workflow": workflow,
            "keep": keep,
            "unclaimed": unclaimed,
            "run_ids": None if run_ids is None else [*run_ids],
            "dry_run": dry_run,
        }
        response = await self._transport.request("POST", "/v1/prune", body=drop_none(body), timeout_s=PRUNE_TIMEOUT_S)
        found = decode(PruneReport, response.unwrap())
        if report is None:
            return found
        for field in fields(found):
            setattr(report, field.name, getattr(found, field.name))
        return report

    @override
    async def erase(
        self,
        run_ids: Collection[str] = (),
        *,
        tag: str = "",
        memories: Collection[str] = (),
        by: str | None = None,
        dry_run: bool = False,
    ) -> EraseReport:
        body = {"run_ids": [*run_ids], "tag": tag, "memories": [*memories], "by": by, "dry_run": dry_run}
        response = await self._transport.request("POST", "/v1/erase", body=drop_none(body), timeout_s=PRUNE_TIMEOUT_S)
        return decode(EraseReport, response.unwrap())

    @override
    async def workers(self) -> list[WorkerInfo]:
        return decode_list(WorkerInfo, await self._get("/v1/workers"))

    @override
    async def health(self) -> list[Health]:
        return decode_list(Health, await self._get("/v1/agents"))

    @override
    async def inputs_schema(self, workflow: str, *, version: str | None = None) -> Mapping[str, Any]:
        return decode(Health, await self._get(f"/v1/agents/{quote_segment(workflow)}")).inputs_schema

    @override
    async def disable(
        self, workflow: str, *, reason: str = "", by: str | None = None, allow_unknown: bool = False
    ) -> bool:
        body = drop_none({"reason": reason, "by": by, "allow_unknown": allow_unknown or None})
        return await self._change(f"/v1/agents/{quote_segment(workflow)}/disable", body)

    @override
    async def enable(self, workflow: str) -> bool:
        return await self._change(f"/v1/agents/{quote_segment(workflow)}/enable")

    @override
    async def disabled_workflows(self) -> dict[str, DisabledWorkflow]:
        return {one.name: one for one in decode_list(DisabledWorkflow, await self._get("/v1/disabled"))}

    @override
    async def audit(self, limit: int = 100) -> list[AuditEntry]:
        return await self._get_pages(AuditEntry, "/v1/audit", limit)
