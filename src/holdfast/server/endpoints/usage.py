"""What model calls have used, day by day."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from pydantic import BaseModel, Field

from holdfast.reports.usage_report import build_usage_report
from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import Name, UsageInfo
from holdfast.server.http.router import RequestModel, Router
from holdfast.stores.daily_usage import DailyRunCount

router = Router()


class UsageQuery(RequestModel):
    """Which days; they are those of UTC."""

    since: Annotated[date | None, Field(description="The first day; 30 days back unless given.")] = None
    until: Annotated[date | None, Field(description="The last day; today unless given.")] = None
    workflow: Name | None = None


class DailyUsage(BaseModel):
    """What the runs of a workflow have used on a day of one model."""

    day: date
    workflow: str
    model: Annotated[str, Field(description="As it was asked for; empty if that is not known.")]
    usage: Annotated[UsageInfo, Field(description="Its `seconds` are 0: they are not kept by day.")]


class RunCountOfDay(BaseModel):
    """How many runs of a workflow were created on a day, without those that were deleted since: of days that are over,
    as it was within the last hour.
    """

    day: date
    workflow: str
    run_count: int


class UsageReport(BaseModel):
    """What was used on some days."""

    since: date
    until: date
    items: Annotated[list[DailyUsage], Field(description="By day, workflow and model.")]
    daily_runs: Annotated[list[RunCountOfDay], Field(description="By day and workflow.")]


@router("GET", "/v1/usage", scope=Scope.READ)
async def get_usage(call: Call, query: UsageQuery) -> UsageReport:
    """What model calls have used, by day, workflow and model, and how many runs were created.

    What a sub-agent has used is the sub-agent's, so that the lines add up. They stay when runs are deleted.
    """
    started = call.platform.daily_run_counts

    async def runs(since: str, until: str) -> list[DailyRunCount]:
        return await started.count_between(call.tenant, since, until, query.workflow)

    report = await build_usage_report(await call.store(), query.since, query.until, query.workflow, runs)
    return UsageReport(
        since=report.since,
        until=report.until,
        items=[
            DailyUsage(day=one.day, workflow=one.workflow, model=one.model, usage=UsageInfo.from_usage(one.usage))
            for one in report.daily_usage
        ],
        daily_runs=[
            RunCountOfDay(day=one.day, workflow=one.workflow, run_count=one.run_count) for one in report.daily_runs
        ],
    )
