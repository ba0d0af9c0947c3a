"""What model calls have used, day by day."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from pydantic import Field

from holdfast.reports.usage_report import UsageReport, build_usage_report
from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import Name
from holdfast.server.http.router import RequestModel, Router
from holdfast.stores.daily_usage import DailyRunCount

router = Router()


class UsageQuery(RequestModel):
    """Which days; they are those of UTC."""

    since: Annotated[date | None, Field(description="The first day; 30 days back unless given.")] = None
    until: Annotated[date | None, Field(description="The last day; today unless given.")] = None
    workflow: Name | None = None


@router("GET", "/v1/usage", scope=Scope.READ)
async def get_usage(call: Call, query: UsageQuery) -> UsageReport:
    """What model calls have used, by day, workflow and model, and how many runs were created.

    What a sub-agent has used is the sub-agent's, so that the lines add up. They stay when runs are deleted.
    """
    started = call.platform.daily_run_counts

    async def runs(since: str, until: str) -> list[DailyRunCount]:
        return await started.count_between(call.tenant, since, until, query.workflow)

    return await build_usage_report(await call.store(), query.since, query.until, query.workflow, runs)
