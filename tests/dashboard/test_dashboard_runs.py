"""The list of runs: what it shows, that it is live without moving under one's hands, and what is done to several."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from accessibility import violations
from dashboard_server import Stage, check_looks
from live_server import running_live_server

from holdfast.admission.usage import Usage
from holdfast.codec import encode_error
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.server.endpoints import runs as endpoint
from holdfast.stores.contract import Store, WorkflowSpec
from holdfast.stores.operations import AppendRecord, FinishRun, NewRun, ParkRun, StartResult, StartRun
from holdfast.stores.workers import NewWorker

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOSTILE = '<img src=x onerror="window.harmed = 1">'
FLOWS = ("list_invoices", "list_digest")


@asynccontextmanager
async def stage(page: Any) -> AsyncGenerator[Stage]:
    """A server over a store in which a worker has announced two workflows, and executes nothing."""
    async with running_live_server() as server, httpx2.AsyncClient(base_url=server.address, timeout=30) as http:
        tenant = await server.app.platform.tenants.get_tenant("default")
        store = tenant.store
        worker = await store.workers.register(NewWorker("worker-1", "elsewhere", 1, FLOWS, is_listener=True), 3600)
        await store.announce_workflows([WorkflowSpec(name, ("customer", "amount")) for name in FLOWS], worker)
        yield Stage(server.address, store, tenant.client, http)
        await page.goto("about:blank")  # it would ask a server that is gone


async def put(
    store: Store,
    id: str,
    state: RunState = RunState.COMPLETED,
    *,
    workflow: str = FLOWS[0],
    tags: Sequence[str] = (),
    error: Exception | None = None,
    ago: float = 0.0,
    used: Usage | None = None,
    parent: str = "",
) -> None:
    """A run in this state."""
    at = time.time() - ago
    new = NewRun(id, workflow, b'{"customer":"acme"}', b"digest", id.encode(), at, tags=tuple(tags), parent=parent)
    if state is RunState.PENDING:
        await store.commit([StartRun(new)])
        return
    [started] = await store.commit([StartRun(new, claim_as=1)])
    assert isinstance(started, StartResult)
    run = started.run
    if used is not None:
        record = Record(0, RecordKind.STEP, 0, "model", True, b"1", at, at, 1, 1, run.epoch, "")
        await store.commit([AppendRecord(run.key, record, used=used)])
    if state is RunState.WAITING:
        await store.commit([ParkRun(run.key, run.epoch, None, ("paid",), "signal 'paid'")])
    elif state is not RunState.RUNNING:
        encoded = encode_error(error or ValueError("no such customer")) if state is RunState.FAILED else None
        await store.commit([FinishRun(run.key, run.epoch, state, b'"done"', encoded, at + 14)])


async def start(stage: Stage, id: str, **more: Any) -> None:
    body = {"workflow": FLOWS[0], "id": id, "kwargs": {"customer": "acme", "amount": 1}, **more}
    answer = await stage.http.post("/v1/runs", json=body)
    assert answer.status_code == 201, answer.text


def row(page: Any, id: str) -> Any:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=id, exact=True))


async def ids(page: Any) -> list[str]:
    return await page.locator("td.run a").all_inner_texts()


async def is_shown(page: Any, wanted: Sequence[str]) -> None:
    """Waits until these runs are listed, in this order."""
    await page.wait_for_function(
        "wanted => JSON.stringify([...document.querySelectorAll('td.run a')].map((one) => one.innerText)) === wanted",
        arg=json.dumps(list(wanted), separators=(",", ":")),
    )


async def test_an_empty_list_says_how_to_start_a_run(page: Any) -> None:
    async with stage(page) as here:
        await here.open(page, "runs")
        await page.get_by_text("There are no runs yet.").wait_for()
        assert "@workflow" in await page.get_by_role("region", name="a first run").inner_text()
        await page.get_by_role("button", name="start a run", exact=True).click()
        dialog = page.get_by_role("dialog", name="Start a run")
        await dialog.get_by_label("Workflow or agent").select_option("list_digest")
        await dialog.get_by_label("customer").fill("acme & sons")
        await dialog.get_by_label("amount").fill("[1, 2]")
        await dialog.get_by_label("Id").fill("by-hand")
        await dialog.get_by_label("Tags").fill("eu, trial")
        assert await violations(page) == []
        await dialog.get_by_role("button", name="Start", exact=True).click()
        await page.wait_for_url("**/#/runs/by-hand")
        run = await here.client.get("by-hand")
        assert (run.inputs, run.tags) == ({"customer": "acme & sons", "amount": [1, 2]}, ("eu", "trial"))


async def test_the_start_form_has_fields_by_type_and_names_missing_ones(page: Any) -> None:
    async with stage(page) as here:
        schema = {
            "type": "object",
            "properties": {"customer": {"type": "string"}, "cents": {"type": "integer"}, "note": {"type": "string"}},
            "required": ["customer", "cents"],
        }
        names = ("customer", "cents", "note")
        await here.store.announce_workflows([WorkflowSpec("list_offer", names, inputs_schema=json.dumps(schema))])
        await here.open(page, "runs")
        await page.get_by_role("button", name="start a run", exact=True).click()
        dialog = page.get_by_role("dialog", name="Start a run")
        await dialog.get_by_label("Workflow or agent").select_option("list_offer")
        cents = dialog.get_by_label("cents")
        assert await cents.get_attribute("aria-required") == "true"
        assert await dialog.get_by_label("note").get_attribute("aria-required") is None
        assert await dialog.get_by_text("may be left out", exact=True).count() == 1
        await cents.fill("lots")
        await dialog.get_by_label("Id").fill("typed")
        await dialog.get_by_role("button", name="Start", exact=True).click()
        await dialog.get_by_text("That is no number.").wait_for()
        await dialog.get_by_text("Something must stand here.").wait_for()
        await dialog.get_by_label("customer").fill("500")
        await cents.fill("500")
        assert await violations(page) == []
        await dialog.get_by_role("button", name="Start", exact=True).click()
        await page.wait_for_url("**/#/runs/typed")
        assert (await here.client.get("typed")).inputs == {"customer": "500", "cents": 500}


async def test_runs_appear_and_change_by_themselves(page: Any) -> None:
    async with stage(page) as here:
        await put(
            here.store, "old", ago=7200, used=Usage(calls=1, input_tokens=5200, output_tokens=900, nano_usd=13_000_000)
        )
        await here.open(page, "runs")
        old = row(page, "old")
        await old.get_by_text("2 h ago").wait_for()
        assert await old.get_by_text("14 s", exact=True).count() == 1
        assert await old.get_by_text("6.1k").count() == 1
        assert await old.get_by_text("$0.013").count() == 1
        await start(here, "new", tags=["eu"])
        await row(page, "new").get_by_text("pending").wait_for()
        await is_shown(page, ["new", "old"])
        await page.get_by_role("group", name="states").get_by_role("button", name="pending 1").wait_for()
        assert (await here.http.post("/v1/runs/new/cancel")).status_code == 200
        await row(page, "new").get_by_text("cancelled").wait_for()


async def test_the_list_does_not_move_while_it_is_read(page: Any) -> None:
    async with stage(page) as here:
        for number in range(50):
            await put(here.store, f"r-{number:02}", ago=100 - number)
        await here.open(page, "runs")
        await row(page, "r-49").wait_for()
        await page.mouse.wheel(0, 600)
        await page.wait_for_function("() => window.scrollY > 300")
        before = await row(page, "r-30").bounding_box()
        for number in range(3):
            await start(here, f"new-{number}")
        button = page.get_by_role("button", name="3 new runs")
        await button.wait_for()
        shown = await ids(page)
        assert shown[0] == "r-49"
        after = await row(page, "r-30").bounding_box()
        assert abs(before["y"] - after["y"]) < 60  # the button itself stands above, and nothing else
        await button.click()
        await page.wait_for_function("() => window.scrollY < 10")
        assert (await ids(page))[:4] == ["new-2", "new-1", "new-0", "r-49"]
        assert await button.count() == 0


async def test_a_marked_run_that_left_the_page_does_not_hold_the_list(page: Any) -> None:
    async with stage(page) as here:
        await put(here.store, "marked", workflow=FLOWS[1])
        await put(here.store, "other", workflow=FLOWS[0])
        await here.open(page, "runs")
        await page.get_by_label("mark marked").check()
        await page.get_by_role("region", name="marked runs").wait_for()
        await page.get_by_label("workflow or agent").select_option(FLOWS[0])
        await is_shown(page, ["other"])
        await start(here, "newest")
        await is_shown(page, ["newest", "other"])


async def test_filters_are_in_the_address(page: Any) -> None:
    async with stage(page) as here:
        await put(here.store, "week-old", ago=3 * 86400, tags=["eu"])
        await put(here.store, "failed-eu", RunState.FAILED, tags=["eu", "trial"], ago=50)
        await put(here.store, "failed-us", RunState.FAILED, tags=["us"], ago=40)
        await put(here.store, "waiting-eu", RunState.WAITING, workflow=FLOWS[1], tags=["eu"], ago=30)
        await put(here.store, "child", ago=20, parent="failed-eu")
        await here.open(page, "runs")
        states = page.get_by_role("group", name="states")
        await states.get_by_role("button", name="failed 2").click()
        await is_shown(page, ["failed-us", "failed-eu"])
        await states.get_by_role("button", name="waiting 1").click()
        await is_shown(page, ["waiting-eu", "failed-us", "failed-eu"])
        await row(page, "failed-eu").get_by_role("button", name="eu", exact=True).click()
        await is_shown(page, ["waiting-eu", "failed-eu"])
        await page.get_by_label("workflow or agent").select_option(FLOWS[1])
        await is_shown(page, ["waiting-eu"])
        await row(page, "waiting-eu").get_by_text("waits for signal 'paid'").wait_for()
        assert page.url.endswith("/#/runs?state=waiting%2Cfailed&tag=eu&workflow=list_digest")
        await page.reload()  # a view can be linked to
        await is_shown(page, ["waiting-eu"])
        assert await states.get_by_role("button", name="failed").get_attribute("aria-pressed") == "true"
        await page.get_by_role("button", name="Show all").click()
        await is_shown(page, ["child", "waiting-eu", "failed-us", "failed-eu", "week-old"])
        await page.get_by_label("created").select_option("day")
        await is_shown(page, ["child", "waiting-eu", "failed-us", "failed-eu"])
        await here.open(page, "runs?parent=failed-eu")
        await is_shown(page, ["child"])
        await page.get_by_role("button", name="started by failed-eu").click()
        await is_shown(page, ["child", "waiting-eu", "failed-us", "failed-eu", "week-old"])


async def test_a_search_continues_by_itself_and_shows_its_progress(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_RUNS_SCANNED", 20)
    async with stage(page) as here:
        await put(here.store, "needle-1", RunState.FAILED, error=LookupError("no Xylophone in stock"), ago=90_000)
        for number in range(90):
            await put(here.store, f"hay-{number}", ago=5000 - number)
        await here.open(page, "runs")
        await row(page, "hay-89").wait_for()
        await page.keyboard.press("/")
        await page.keyboard.type("xylophone")
        await is_shown(page, ["needle-1"])
        await row(page, "needle-1").get_by_text("no Xylophone in stock").wait_for()
        assert page.url.endswith("q=xylophone")
        await page.get_by_label("search").fill("needle")  # by its id, which is far back
        await is_shown(page, ["needle-1"])
        await page.get_by_label("search").fill("nowhere")
        await page.get_by_text("No run matches.").wait_for()
        await page.get_by_role("button", name="Show all runs").click()
        await row(page, "hay-89").wait_for()
        assert await page.get_by_label("search").input_value() == ""


async def test_older_runs_load_page_by_page_and_the_keyboard_moves_through_them(page: Any) -> None:
    async with stage(page) as here:
        for number in range(60):
            await put(here.store, f"r-{number:02}", ago=100 - number)
        await here.open(page, "runs")
        await row(page, "r-10").wait_for()
        assert await row(page, "r-09").count() == 0
        await page.get_by_role("button", name="Older runs").click()
        await row(page, "r-00").wait_for()
        assert await ids(page) == [f"r-{number:02}" for number in reversed(range(60))]
        await page.get_by_text("That is all.").wait_for()
        for key in ("j", "j", "j", "k"):
            await page.keyboard.press(key)
        await page.locator("tr[aria-selected=true]").get_by_text("r-58").wait_for()
        await start(here, "newest")  # the row where one is stays the same
        await page.get_by_text("newest").or_(page.get_by_text("1 new run")).first.wait_for()
        await page.locator("tr[aria-selected=true]").get_by_text("r-58").wait_for()
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/#/runs/r-58")


async def test_several_runs_are_cancelled_after_a_confirmation_with_their_number(page: Any) -> None:
    async with stage(page) as here:
        for name in ("one", "two", "three"):
            await put(here.store, name, RunState.PENDING, ago=10)
        await put(here.store, "over", ago=20)
        await here.open(page, "runs")
        for name in ("one", "two", "over"):
            await page.get_by_label(f"mark {name}", exact=True).check()
        marked = page.get_by_role("region", name="marked runs")
        await marked.get_by_text("3 runs marked").wait_for()
        assert await marked.get_by_role("button", name="Resume").is_disabled()
        await marked.get_by_role("button", name="Cancel").click()
        dialog = page.get_by_role("dialog", name="Cancel 2 runs?")
        await dialog.get_by_text("1 marked run cannot be").wait_for()
        assert await violations(page) == []
        await dialog.get_by_role("button", name="Cancel 2 runs").click()
        await row(page, "one").get_by_text("cancelled").wait_for()
        await row(page, "two").get_by_text("cancelled").wait_for()
        states = {run.id: run.state for run in await here.client.list()}
        assert states["three"] is RunState.PENDING
        assert states["over"] is RunState.COMPLETED
        assert await marked.count() == 0


async def test_each_run_shows_its_state_and_its_cost(page: Any, keep_picture: Any) -> None:
    async with stage(page) as here:
        used = Usage(calls=7, input_tokens=18_400, output_tokens=2_100, nano_usd=67_000_000)
        await put(here.store, "digest-2026-11-14", workflow=FLOWS[1], ago=93_000, used=used, tags=["daily"])
        await put(here.store, "invoice-1041", ago=5_400, tags=["eu"])
        error = ConnectionError("the bank does not answer: 3 attempts, the last one 5 s ago")
        await put(here.store, "invoice-1042", RunState.FAILED, ago=3_700, error=error, tags=["eu"])
        await put(here.store, "invoice-1043", RunState.WAITING, ago=1_500, tags=["us"])
        await put(here.store, "digest-2026-11-15", RunState.RUNNING, workflow=FLOWS[1], ago=240, used=used)
        await put(here.store, "invoice-1044", RunState.PENDING, ago=12, tags=["us", "urgent"])
        await here.open(page, "runs")
        failed = row(page, "invoice-1042")
        await failed.get_by_text("ConnectionError: the bank does not answer").wait_for()
        assert await failed.get_by_text("failed", exact=True).count() == 1
        assert await row(page, "invoice-1043").get_by_text("waits for signal 'paid'").count() == 1
        running = row(page, "digest-2026-11-15")
        assert await running.get_by_text("21k", exact=True).count() == 1
        assert await running.get_by_text("$0.067", exact=True).count() == 1
        assert await row(page, "invoice-1044").get_by_role("button", name="urgent").count() == 1
        await keep_picture(page, "dashboard-runs")


async def test_names_and_values_of_runs_are_shown_as_text_in_light_dark_and_on_a_phone(page: Any) -> None:
    async with stage(page) as here:
        await put(here.store, HOSTILE, RunState.FAILED, tags=[HOSTILE, "eu"], error=ValueError(HOSTILE * 20), ago=9)
        await put(here.store, "x" * 180, RunState.WAITING, workflow=FLOWS[1], ago=8)
        await put(here.store, "at-work", RunState.RUNNING, ago=7)
        await here.open(page, "runs")
        await page.get_by_role("link", name=HOSTILE, exact=True).wait_for()
        assert await page.locator("td img, td script").count() == 0
        assert await page.evaluate("window.harmed") is None
        await page.get_by_label("mark all").check()
        await check_looks(page)
        await page.get_by_label("search").fill("onerror")
        await is_shown(page, [HOSTILE])
