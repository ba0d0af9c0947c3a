"""What model calls have used, by day, agent and model: as a client tells it."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from pydantic_ai.exceptions import ModelHTTPError

from holdfast import Agent, Client, Runtime, Usage, UsageError, llm_step, workflow
from holdfast.services.json_form import to_json
from holdfast.testing import ScriptedModel, call

URL = "sqlite:///runs.db"
GPT = ScriptedModel(
    [call("report-helper", task="Help."), "Done."], name="gpt-4o-mini", provider="openai", usage=(1_000_000, 0)
)
HELPING = ScriptedModel(["Helped."], usage=(10, 5))
DOWN = ScriptedModel([ModelHTTPError(401, "gpt-5", {})], name="gpt-5", provider="openai")

helper = Agent(DOWN, fallback=HELPING, name="report-helper", description="Helps.")
boss = Agent(GPT, name="report-boss", tools=[helper])


@llm_step(model=ScriptedModel(["yes"], name="gpt-4o-mini", provider="openai", usage=(7, 3)))
async def is_it(what: str) -> str:
    return f"Is it {what}?"


@workflow(name="report-asker")
async def asker() -> str:
    return await is_it("so")


def test_each_call_counts_for_its_own_agent_and_the_model_that_answered() -> None:
    async def main() -> None:
        async with Runtime(URL):
            result = await boss.run("Go.")
            await asker()
            assert result.usage.calls == 3, "a run's own usage has that of its sub-agents in it"

    asyncio.run(main())
    client = Client(URL)
    report = client.usage_report_sync()
    assert [(line.workflow, line.model, line.usage) for line in report.daily_usage] == [
        ("report-asker", "openai:gpt-4o-mini", Usage(1, 7, 3, nano_usd=2_850)),
        ("report-boss", "openai:gpt-4o-mini", Usage(2, 2_000_000, 0, nano_usd=300_000_000)),
        ("report-helper", HELPING.model_id, Usage(1, 10, 5, unpriced=1)),
    ]
    assert [line.cost for line in report.daily_usage] == [Decimal("0.00000285"), Decimal("0.3"), None]
    assert report.total == Usage(4, 2_000_017, 8, nano_usd=300_002_850, unpriced=1)
    assert [(line.workflow, line.run_count) for line in report.daily_runs] == [
        ("report-asker", 1), ("report-boss", 1), ("report-helper", 1),
    ]  # fmt: skip
    today = report.until
    assert {line.day for line in (*report.daily_usage, *report.daily_runs)} <= {today, today - timedelta(days=1)}
    assert report.since == today - timedelta(days=29)

    only = client.usage_report_sync(workflow="report-helper")
    assert (only.daily_usage, only.daily_runs) == (report.daily_usage[2:], report.daily_runs[2:])
    assert only.cost is None
    earlier = client.usage_report_sync(until=today - timedelta(days=2))
    assert (list(earlier.daily_usage), list(earlier.daily_runs), earlier.cost) == ([], [], Decimal(0))
    json = to_json(report)
    assert json["daily_usage"][0] == {
        "day": report.daily_usage[0].day.isoformat(), "workflow": "report-asker", "model": "openai:gpt-4o-mini",
        "usage": to_json(report.daily_usage[0].usage),
    }  # fmt: skip
    assert json["daily_usage"][0]["usage"]["usd"] == 0.00000285


def test_days_are_those_of_utc_and_must_be_in_order() -> None:
    async def main() -> None:
        async with Runtime(URL), Client(URL) as client:
            night = datetime(2026, 11, 2, 1, 0, tzinfo=timezone(timedelta(hours=2)))
            report = await client.usage_report(night, datetime(2026, 11, 5, tzinfo=UTC))
            assert (report.since, report.until) == (date(2026, 11, 1), date(2026, 11, 5))
            first = await client.usage_report(until=date(1, 1, 3))
            assert first.since == date.min
            with pytest.raises(UsageError, match="from 2026-11-02 to 2026-11-01 has no days"):
                await client.usage_report(date(2026, 11, 2), date(2026, 11, 1))

    asyncio.run(main())
