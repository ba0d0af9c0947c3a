"""Queues and schedules: what waits and why, and what is changed by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any

import pytest
import pytest_asyncio
from dashboard_server import Stage, check_looks, staged

from holdfast import Budget, wait_for_signal, workflow
from holdfast.core.states import RunState
from waits import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@workflow(name="queued_work")
async def queued_work(customer: str) -> str:
    return f"done for {customer}"


@workflow(name="queued_work_long")
async def queued_work_long() -> str:
    return await wait_for_signal("go")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncGenerator[Stage]:
    async with staged("queued_work", "queued_work_long") as stage:
        yield stage


async def test_a_paused_queue_starts_nothing_until_it_is_resumed(page: Any, stage: Stage) -> None:
    await stage.client.queues.set("api", concurrency=2, rate="100/min", key_concurrency=1)
    await stage.open(page, "queues")
    row = page.get_by_role("row").filter(has_text="api")
    await row.get_by_role("button", name="Pause").click()
    await row.get_by_text("paused", exact=True).wait_for()
    run = await stage.client.options(queue="api", key="<b>acme</b>").start("queued_work", "acme")
    await row.get_by_text("queue 'api' is paused").wait_for()
    await row.get_by_text("<b>acme</b>").wait_for()
    assert (await run.info()).state is RunState.PENDING
    await check_looks(page)
    await page.set_viewport_size({"width": 1280, "height": 900})
    await row.get_by_role("button", name="Resume").click()
    assert await run.result(10) == "done for acme"


async def test_limits_are_set_by_hand_and_an_invalid_one_is_shown_at_its_field(page: Any, stage: Stage) -> None:
    page.allowed.append("422")
    await stage.open(page, "queues")
    await page.get_by_role("button", name="Limit a queue").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Queue").fill("slow")
    await dialog.get_by_label("Runs at once", exact=False).first.fill("none")
    await dialog.get_by_role("button", name="Set").click()
    await dialog.get_by_text("A whole number from 1 on.").wait_for()
    await dialog.get_by_label("Runs at once", exact=False).first.fill("3")
    await dialog.get_by_label("Rate", exact=False).first.fill("often")
    await dialog.get_by_role("button", name="Set").click()
    await dialog.get_by_role("alert").get_by_text("often", exact=False).wait_for()
    await dialog.get_by_label("Rate", exact=False).first.fill("100/min, 5/s")
    await dialog.get_by_role("button", name="Set").click()
    await page.get_by_role("row").filter(has_text="slow").get_by_text("set by hand").wait_for()
    stored = await stage.client.queues.get("slow")
    assert (stored.concurrency, stored.rate) == (3, ("100/min", "5/s"))
    await page.get_by_role("row").filter(has_text="slow").get_by_role("button", name="Reset").click()
    await page.get_by_role("cell", name="slow", exact=True).wait_for(state="detached")


async def test_a_schedule_is_made_with_a_preview_and_triggered_and_paused_and_deleted(page: Any, stage: Stage) -> None:
    page.allowed.append("422")
    await stage.open(page, "schedules")
    await page.get_by_text("Nothing is started at set times.").wait_for()
    await page.get_by_role("button", name="New schedule").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("textbox", name="Name", exact=True).fill("nightly")
    await dialog.get_by_label("Starts").fill("queued_work")
    await dialog.get_by_label("When").fill("61 2 * * *")
    await dialog.get_by_text("the minute is '61'").wait_for()
    await dialog.get_by_label("When").fill("0 2 * * MON-FRI in Europe/Berlin")
    firings = dialog.get_by_role("list", name="next firings").get_by_role("listitem")
    await firings.first.wait_for()
    ticks = (await stage.http.get("/v1/ticks", params={"timing": "0 2 * * MON-FRI in Europe/Berlin"})).json()
    assert await firings.count() == len(ticks["items"]) == 5
    assert "02:00" in ticks["description"] or "2:00" in ticks["description"]
    await dialog.get_by_label("Inputs").fill('{"customer": ')
    await dialog.get_by_role("button", name="Make it").click()
    await dialog.get_by_text("That is no JSON").wait_for()
    await check_looks(page)
    await page.set_viewport_size({"width": 1280, "height": 900})
    await dialog.get_by_label("Inputs").fill('{"customer": "acme"}')
    await dialog.get_by_role("button", name="Make it").click()

    row = page.get_by_role("row").filter(has_text="nightly")
    await row.get_by_role("button", name="Trigger").click()
    await row.get_by_text("completed").wait_for()
    stored = await stage.client.schedules.get("nightly")
    assert (stored.timing, stored.inputs) == ("0 2 * * MON-FRI in Europe/Berlin", {"customer": "acme"})
    assert (await stage.client.get(stored.last_run_id)).output == "done for acme"
    assert stored.next_at is not None
    assert stored.next_at == datetime.fromisoformat(ticks["items"][0])

    await row.get_by_role("button", name="edit nightly").click()
    await dialog.get_by_label("When").fill("every 15 min")
    await dialog.get_by_role("button", name="Change it").click()
    await row.get_by_text("every 15 min").wait_for()
    await row.get_by_role("button", name="Pause").click()
    await row.get_by_text("paused", exact=True).wait_for()
    assert (await stage.client.schedules.get("nightly")).paused_at is not None
    await check_looks(page)
    await page.set_viewport_size({"width": 1280, "height": 900})
    await row.get_by_role("button", name="delete nightly").click()
    await dialog.get_by_role("button", name="Delete it").click()
    await page.get_by_text("Nothing is started at set times.").wait_for()
    assert await stage.client.schedules.list() == []


async def test_editing_a_schedule_keeps_settings_that_are_not_in_the_form(page: Any, stage: Stage) -> None:
    made = {"workflow": "queued_work", "cron": "every day", "kwargs": {"customer": "acme"}}
    more = {"priority": 3, "max_deliveries": 7, "budget": {"usd": 2.5}}
    await stage.http.put("/v1/schedules/kept", json=made | more)
    await stage.open(page, "schedules")
    await page.get_by_role("row").filter(has_text="kept").get_by_role("button", name="edit kept").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("When").fill("every 2 days")
    await dialog.get_by_role("button", name="Change it").click()
    await page.get_by_role("row").filter(has_text="kept").get_by_text("every 2 day").wait_for()
    [stored] = await stage.store.schedules.list(["kept"])
    assert (stored.definition.priority, stored.definition.max_deliveries) == (3, 7)
    assert stored.definition.budget == Budget(usd=2.5).to_limits()


async def test_keys_move_between_rows_and_open_the_current_one(page: Any, stage: Stage) -> None:
    for name in ("alpha", "beta"):
        made = {"workflow": "queued_work", "cron": "every day", "kwargs": {"customer": name}}
        assert (await stage.http.put(f"/v1/schedules/{name}", json=made)).status_code == 200
    await stage.open(page, "schedules")
    await page.get_by_role("row").filter(has_text="beta").wait_for()
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.get_by_role("dialog", name="beta").get_by_text('"customer": "beta"').wait_for()
    await page.keyboard.press("Escape")
    await page.get_by_role("dialog").wait_for(state="detached")
    trigger = page.get_by_role("row").filter(has_text="alpha").get_by_role("button", name="Trigger")
    await trigger.focus()
    await page.keyboard.press("Enter")  # it is the button's, not the row's
    await wait_until(lambda: has_run(stage, "alpha"))


async def has_run(stage: Stage, name: str) -> bool:
    return bool((await stage.client.schedules.get(name)).last_run_id)


async def test_a_late_response_does_not_close_a_dialog_opened_meanwhile(page: Any, stage: Stage) -> None:
    made = {"workflow": "queued_work", "cron": "every day", "kwargs": {"customer": "acme"}}
    await stage.http.put("/v1/schedules/slowly", json=made)
    let_go, is_deleted = asyncio.Event(), asyncio.Event()

    async def held_up(route: Any) -> None:
        await let_go.wait()
        answer = await route.fetch()
        is_deleted.set()
        await route.fulfill(response=answer)

    await page.route("**/v1/schedules/slowly", held_up)
    await stage.open(page, "schedules")
    row = page.get_by_role("row").filter(has_text="slowly")
    await row.get_by_role("button", name="delete slowly").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Delete it").click()
    await dialog.get_by_role("button", name="Leave it").click()
    await page.get_by_role("button", name="New schedule").click()
    await dialog.get_by_label("Starts").fill("queued_work")
    let_go.set()
    await is_deleted.wait()
    await page.get_by_text("slowly is deleted.").wait_for()
    await row.wait_for(state="detached")
    assert await dialog.get_by_label("Starts").input_value() == "queued_work"
