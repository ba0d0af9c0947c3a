"""What agents cost, by day, as a chart and as numbers; and what only administrators see: keys and the audit log."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from decimal import Decimal
from typing import Any

import pytest
import pytest_asyncio
from dashboard_server import Stage, check_looks, staged

from holdfast.admission.usage import NANO_PER_USD, Usage
from holdfast.core.records import Record, RecordKind
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.operations import AppendRecord
from holdfast.stores.workers import NewWorker

pytestmark = pytest.mark.asyncio(loop_scope="module")

DAY = 86400.0
HEIGHTS = """bars => bars.map((bar) => {
  const parts = [...bar.querySelectorAll("rect:not(.reach)")];
  return parts.reduce((sum, part) => sum + part.height.baseVal.value, 0);
})"""
SPENT = {
    "researcher": ("anthropic:claude-sonnet-5", 0.84),
    "support": ("openai:gpt-5-mini", 0.21),
    "reviewer": ("openai:gpt-5", 0.47),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncGenerator[Stage]:
    async with staged() as stage:
        for agent, (model, usd) in SPENT.items():
            await spend(stage, agent, model, usd)
        await spend(stage, "translator", "local:own", 0.0, unpriced=2)
        yield stage


async def spend(stage: Stage, agent: str, model: str, usd: float, unpriced: int = 0) -> None:
    """An agent has called a model on each of twenty days, more on some than on others."""
    store = stage.store
    await store.announce_workflows([WorkflowSpec(agent, ("payload",), is_agent=True)])
    worker = await store.workers.register(NewWorker("worker", "host", 7, (agent,)), 600.0)
    await stage.client.start(agent, 1)
    [run] = await store.claims.claim(worker, workflows=[agent], queues=None, limit=1)
    for back in range(20):
        cost = int(usd * NANO_PER_USD * (1 + (back * 7 + len(agent)) % 5) / 3)
        used = Usage(calls=2, input_tokens=1200, output_tokens=60, cached_tokens=400, nano_usd=cost, unpriced=unpriced)
        record = Record(back, RecordKind.STEP, back, "model", True, b"1", store.now() - back * DAY, epoch=run.epoch)
        await store.commit([AppendRecord(run.key, record, used=used, model=model)])


async def usage(stage: Stage, **query: str) -> Any:
    return (await stage.http.get("/v1/usage", params=query)).json()


def spent(line: Any) -> Decimal:
    return Decimal(line["usage"]["nano_usd"]) / NANO_PER_USD


def dollars(amount: Decimal) -> str:
    return f"${amount:,.2f}"


async def test_the_chart_and_its_table_match_the_api(page: Any, stage: Stage, keep_picture: Any) -> None:
    report = await usage(stage)
    total = sum((spent(one) for one in report["daily_usage"]), Decimal(0))
    await stage.open(page, "costs")
    await page.locator("dd.large").get_by_text(dollars(total)).wait_for()
    await page.get_by_text("40 calls of models without a known price").wait_for()

    by_day: dict[str, Decimal] = {}
    for one in report["daily_usage"]:
        by_day[one["day"]] = by_day.get(one["day"], Decimal(0)) + spent(one)
    assert len(by_day) == 20
    await keep_picture(page, "dashboard-costs")
    await page.get_by_text("Day by day, as a table").click()
    for day, cost in by_day.items():
        assert await page.locator(f"tr[data-day='{day}'] td").last.get_attribute("title") == f"${cost.normalize():f}"
    heights = await page.locator("svg .bar").evaluate_all(HEIGHTS)
    assert len(heights) == 30
    costs = [float(by_day.get(bar, 0)) for bar in sorted(by_day)]
    scale = heights[-1] / costs[-1]
    assert heights[-20:] == pytest.approx([cost * scale for cost in costs], abs=1.0)
    for agent in SPENT:
        cost = sum(spent(one) for one in report["daily_usage"] if one["workflow"] == agent)
        await page.locator(f"tr[data-row='{agent}']").get_by_text(dollars(Decimal(cost)), exact=True).wait_for()
    await check_looks(page)


async def test_arrow_keys_move_between_bars_which_describe_themselves(page: Any, stage: Stage) -> None:
    await spend(stage, "<s>odd</s>", "<s>model</s>", 0.5)
    await stage.open(page, "costs?days=7&by=model")
    last = page.locator("svg .bar").last
    await last.wait_for()
    assert await page.locator("svg .bar").count() == 7
    await page.locator("ul.legend").get_by_text("<s>model</s>").wait_for()
    assert await page.locator("main s").count() == 0, "what a model is called is text"
    await last.focus()
    caption = page.locator("figure .caption")
    await caption.get_by_text("openai:gpt-5-mini").wait_for()
    before = await caption.inner_text()
    await page.keyboard.press("ArrowLeft")
    await caption.filter(has_not_text=before).wait_for()
    assert await page.evaluate("document.activeElement.getAttribute('aria-label')") == await caption.inner_text()
    await page.keyboard.press("Home")
    assert await page.evaluate("document.activeElement === document.querySelector('svg .bar')")


async def test_costs_are_filtered_by_agent_and_days(page: Any, stage: Stage) -> None:
    await stage.open(page, "costs")
    await page.get_by_role("combobox").select_option("support")
    only = await usage(stage, workflow="support")
    cost = sum((spent(one) for one in only["daily_usage"]), Decimal(0))
    await page.locator("dd.large").get_by_text(dollars(cost)).wait_for()
    assert "agent=support" in page.url
    await page.get_by_role("button", name="7 days").click()
    await page.locator("svg .bar").nth(7).wait_for(state="detached")
    assert await page.locator("svg .bar").count() == 7
    assert await page.get_by_role("button", name="7 days").get_attribute("aria-pressed") == "true"


async def test_the_first_key_is_made_and_used_and_everything_is_in_the_audit_log(page: Any, stage: Stage) -> None:
    await stage.open(page, "keys")
    await page.get_by_text("There is no key").wait_for()
    await page.get_by_role("button", name="New key").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Make it").click()
    await dialog.get_by_text("What do people call it?").wait_for()
    await dialog.get_by_label("Name").fill("<b>ops</b>")
    await dialog.get_by_role("button", name="Make it").click()
    token = await dialog.get_by_role("region", name="token").inner_text()
    assert token.startswith("hf_")
    await check_looks(page)
    await page.set_viewport_size({"width": 1280, "height": 900})
    await dialog.get_by_role("button", name="I have kept it").click()
    await page.get_by_role("row").filter(has_text="<b>ops</b>").get_by_text("yours").wait_for()

    await page.get_by_role("button", name="New key").click()
    await dialog.get_by_label("Name").fill("reader")
    await dialog.get_by_role("button", name="Make it").dblclick()  # which makes one
    await dialog.get_by_role("button", name="I have kept it").click()
    await page.get_by_role("row").filter(has_text="reader").wait_for()
    assert await page.get_by_role("row").filter(has_text="reader").count() == 1
    await page.get_by_role("button", name="revoke reader").click()
    await dialog.get_by_role("button", name="Revoke it").click()
    await page.get_by_role("row").filter(has_text="reader").get_by_text("revoked", exact=True).wait_for()
    assert token not in await page.content()
    await check_looks(page)
    await page.set_viewport_size({"width": 1280, "height": 900})

    await page.get_by_role("link", name="Audit log").click()
    await page.get_by_role("row").filter(has_text="revoke_api_key").get_by_text("<b>ops</b>").wait_for()
    await page.get_by_label("find").fill("create")
    await page.get_by_role("row").filter(has_text="revoke_api_key").wait_for(state="detached")
    await check_looks(page)
