"""What model calls have used, day by day."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from pydantic import BaseModel, Field

from holdfast.reports.usage_report import usage_report
from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import Name, Spent
from holdfast.server.http.router import Api, Body
from holdfast.stores.daily_usage import DayRuns

api = Api()


class UsageQuery(Body):
    """Which days; they are those of UTC."""

    since: Annotated[date | None, Field(description="The first day; 30 days back unless given.")] = None
    until: Annotated[date | None, Field(description="The last day; today unless given.")] = None
    workflow: Name | None = None


class DaySpending(BaseModel):
    """What the runs of a workflow have used on a day of one model."""

    day: date
    workflow: str
    model: Annotated[str, Field(description="As it was asked for; empty if that is not known.")]
    usage: Annotated[Spent, Field(description="Its `seconds` are 0: they are not kept by day.")]


class DayStarts(BaseModel):
    """How many runs of a workflow were created on a day, without those that were deleted since: of days that are over,
    as it was within the last hour.
    """

    day: date
    workflow: str
    runs: int


class UsageReport(BaseModel):
    """What was used on some days."""

    since: date
    until: date
    items: Annotated[list[DaySpending], Field(description="By day, workflow and model.")]
    runs: Annotated[list[DayStarts], Field(description="By day and workflow.")]


@api("GET", "/v1/usage", scope=Scope.READ)
async def get_usage(call: Call, query: UsageQuery) -> UsageReport:
    """What model calls have used, by day, workflow and model, and how many runs were created.

    What a sub-agent has used is the sub-agent's, so that the lines add up. They stay when runs are deleted.
    """
    started = call.platform.started

    async def runs(since: str, until: str) -> list[DayRuns]:
        return await started.between(call.tenant, since, until, query.workflow)

    report = await usage_report(await call.store(), query.since, query.until, query.workflow, runs)
    return UsageReport(
        since=report.since,
        until=report.until,
        items=[
            DaySpending(day=one.day, workflow=one.workflow, model=one.model, usage=Spent.of(one.usage))
            for one in report.spending
        ],
        runs=[DayStarts(day=one.day, workflow=one.workflow, runs=one.runs) for one in report.runs],
    )
