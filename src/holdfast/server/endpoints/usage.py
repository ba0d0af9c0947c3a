"""What model calls used, day by day."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from pydantic import Field

from holdfast.reports.usage_report import UsageReport, build_usage_report
from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.models import Name
from holdfast.server.http.router import RequestModel, Router

router = Router()


class UsageQuery(RequestModel):
    """Which days, in UTC."""

    since: Annotated[date | None, Field(description="The first day; default: 30 days ago.")] = None
    until: Annotated[date | None, Field(description="The last day; default: today.")] = None
    workflow: Name | None = None


@router("GET", "/v1/usage", scope=Scope.READ)
async def get_usage(call: Call, query: UsageQuery) -> UsageReport:
    """What model calls used, by day, workflow, and model, and how many runs were created.

    The usage of a sub-agent counts for the sub-agent only, so that the lines add up. They stay when runs are deleted.
    """
    return await build_usage_report(call.store, query.since, query.until, query.workflow)
