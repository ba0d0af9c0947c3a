"""A run's page: what it did, step by step, what it cost, and what can be done with it, by mouse, keyboard and phone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from accessibility import violations
from dashboard_server import Stage, check_looks, staged
from live_server import running_live_server

from holdfast import Agent, Client, Runtime, ask, step, tool, wait_for_signal, workflow
from holdfast.testing import ScriptedModel, call
from waits import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOSTILE = '<img src=x onerror="window.harmed = 1"><script>window.harmed = 1</script>'
broken = {"is": True}


@step
async def page_quote(item: str) -> dict[str, Any]:
    return {"item": item, "cents": 100}


@step
async def page_bill(quote: dict[str, Any]) -> str:
    return f"{quote['item']} for {quote['cents']} cents"


@workflow(name="page_sale")
async def page_sale(item: str) -> str:
    return await page_bill(await page_quote(item))


@step
async def page_fragile() -> str:
    if broken["is"]:
        raise ValueError(HOSTILE)
    return "mended"


@workflow(name="page_repair")
async def page_repair() -> list[str]:
    await page_quote("bolt")
    return [await page_fragile()]


@step
async def page_text(text: str) -> str:
    return text


@workflow(name="page_wait")
async def page_wait(text: str) -> Any:
    await page_text(text)
    value = await wait_for_signal("go")
    if await ask("Really?"):
        await page_text("yes")
    return value


@step
async def page_tick(number: int) -> int:
    return number


@workflow(name="page_long")
async def page_long(many: int) -> int:
    numbers: list[int] = []
    for first in range(0, many, 500):
        numbers += await asyncio.gather(*(page_tick(first + number) for number in range(min(500, many - first))))
    return len(numbers)


@workflow(name="page_family")
async def page_family() -> list[str]:
    return [await page_sale("nail"), await page_sale("screw")]


@tool
async def page_look(place: str) -> str:
    """Looks somewhere."""
    return f"{place}: nothing but {HOSTILE}"


page_agent = Agent(
    name="page_agent",
    model=ScriptedModel(
        [
            call(
                "write_plan", items=[{"task": "look around", "status": "done"}, {"task": "guess", "status": "dropped"}]
            ),
            ["I look.", call("page_look", place="north"), call("page_look", place="south")],
            "There is nothing to be seen.",
        ],
        name="gpt-4o",
        provider="openai",
    ),
    instructions="You look around.",
    tools=[page_look],
    planning=True,
)


@tool(requires_approval=True)
async def page_send(to: str) -> str:
    """Sends a letter."""
    return f"sent to {to}"


page_sender = Agent(
    name="page_sender",
    model=ScriptedModel([call("page_send", to="ann"), "It is on its way."], name="gpt-4o", provider="openai"),
    tools=[page_send],
)


@workflow(name="page_order")
class PageOrder:
    @step(1)
    async def check(self, amount: int) -> int:
        return amount

    @step(2, depends_on=1, when=lambda check: check > 100)
    async def review(self, check: int) -> str:
        return "reviewed"

    @step(3, depends_on=1)
    async def ship(self, check: int) -> str:
        return "shipped"


@workflow(name="page_approval")
async def page_approval() -> bool:
    await page_text("first")
    return bool(await ask("Really?"))


SERVED = (
    "page_order",
    "page_approval",
    "page_sale",
    "page_repair",
    "page_wait",
    "page_long",
    "page_family",
    "page_agent",
    "page_sender",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncGenerator[Stage]:
    async with staged(*SERVED) as stage:
        yield stage


async def begin(stage: Stage, workflow: str, id: str, state: str, **inputs: Any) -> None:
    """A run, once it is in this state."""
    body = {"workflow": workflow, "id": id, "kwargs": inputs, "budget": {"usd": 1.0}}
    answer = await stage.http.post("/v1/runs", json=body)
    assert answer.status_code == 201, answer.text

    async def is_so() -> bool:
        return (await stage.client.get(id)).state.value == state

    await wait_until(is_so)


async def test_a_step_is_opened_by_keyboard_alone(stage: Stage, page: Any) -> None:
    await begin(stage, "page_sale", "sale-keys", "completed", item="lamp")
    await stage.open(page, "runs/sale-keys")
    await page.locator(".row", has_text="page_bill").wait_for()
    for key in ("j", "j", "Enter"):
        await page.keyboard.press(key)
    detail = page.get_by_label("step 2 page_bill")
    await detail.get_by_role("region", name="output").get_by_text("lamp for 100 cents").wait_for()
    await page.keyboard.press("k")  # an open step goes along
    await page.get_by_label("step 1 page_quote").get_by_text('"cents": 100').wait_for()
    await check_looks(page, ("light", "dark"))
    await page.keyboard.press("Escape")
    assert await page.get_by_label("step 1 page_quote").count() == 0
    await page.keyboard.press("]")
    await page.get_by_role("tab", name="Input & output", selected=True).wait_for()
    await page.get_by_role("region", name="output").get_by_text("lamp for 100 cents").wait_for()
    await check_looks(page)


async def test_the_rows_match_the_command_line(stage: Stage, page: Any) -> None:
    await begin(stage, "page_order", "order-skipping", "completed", amount=5)
    await stage.open(page, "runs/order-skipping")
    await page.locator(".row.skipped", has_text="review").wait_for()
    assert await read_rows(page) == [["1", "check"], ["–", "review", "skipped"], ["2", "ship"]]
    await check_looks(page)
    await begin(stage, "page_approval", "asked", "waiting")
    [asked] = await stage.client.approvals("asked")
    await stage.client.approve(asked.id)
    await stage.open(page, "runs/asked")
    await page.get_by_text("completed", exact=True).first.wait_for()
    assert [words[1] for words in await read_rows(page)] == ["page_text", "approval"]


async def read_rows(page: Any) -> list[list[str]]:
    """The number, the name and the marks of each row."""
    rows = await page.locator(".rows .row:not(.axis)").all()
    return [" ".join([await row.locator(one).inner_text() for one in (".no", ".what")]).split() for row in rows]


async def test_a_fork_with_an_edited_value_completes_with_it(stage: Stage, page: Any) -> None:
    await begin(stage, "page_sale", "sale-fork", "completed", item="lamp")
    await stage.open(page, "runs/sale-fork?row=r0")
    await page.get_by_role("button", name="Fork from here").click()
    dialog = page.get_by_role("dialog")
    value = dialog.get_by_label("What it returned")
    assert '"cents": 100' in await value.input_value()
    assert await violations(page) == []
    await value.fill('{"item": "lamp", "cents": ')
    await dialog.get_by_role("button", name="Fork", exact=True).click()
    await dialog.get_by_text("That is no JSON").wait_for()
    await value.fill('{"item": "lamp", "cents": 7}')
    await dialog.get_by_label("Id of the new run").fill("sale-forked")
    await dialog.get_by_role("button", name="Fork", exact=True).click()
    await page.get_by_role("heading", name="sale-forked").wait_for()
    await page.get_by_text("completed", exact=True).wait_for()
    await page.get_by_role("link", name="sale-fork", exact=True).wait_for()
    assert (await stage.client.get("sale-forked")).output == "lamp for 7 cents"


async def test_a_refused_action_is_reported_in_its_dialog(stage: Stage, page: Any) -> None:
    page.allowed.append("409")
    await begin(stage, "page_sale", "sale-taken", "completed", item="lamp")
    await stage.open(page, "runs/sale-taken")
    await page.get_by_role("button", name="Fork", exact=True).click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Go on").click()
    await dialog.get_by_label("Id of the new run").fill("sale-taken")
    await dialog.get_by_role("button", name="Fork", exact=True).click()
    await dialog.get_by_role("alert").get_by_text("sale-taken").wait_for()
    await check_looks(page)


async def test_the_page_of_a_run_enables_its_disabled_workflow(stage: Stage, page: Any) -> None:
    await begin(stage, "page_wait", "off", "waiting", text="x")
    await stage.client.disable("page_wait")
    await stage.client.signal("off", "go", 1)
    await stage.open(page, "runs/off")
    await page.get_by_role("list", name="what to do now").get_by_role("button", name="Enable").click()
    await page.get_by_role("button", name="Answer", exact=True).wait_for()  # it has gone on to its question
    assert await stage.client.disabled_workflows() == {}


async def test_a_retry_lists_what_it_rewinds_and_the_page_follows(stage: Stage, page: Any) -> None:
    broken["is"] = True
    await begin(stage, "page_repair", "repair", "failed")
    await stage.open(page, "runs/repair")
    await page.locator(".row.failed", has_text="page_fragile").get_by_role("button", name="page_fragile").click()
    await page.locator(".detail").get_by_text("ValueError").wait_for()
    broken["is"] = False
    await page.get_by_role("group", name="what can be done").get_by_role("button", name="Retry").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_text("#2 page_fragile, which failed").wait_for()
    assert await violations(page) == []
    await dialog.get_by_role("button", name="Retry").click()
    await page.get_by_text("completed", exact=True).wait_for()
    assert await page.locator(".row.failed").count() == 0
    await page.get_by_label("step 2 page_fragile").get_by_text("mended").wait_for()  # still open
    assert await page.evaluate("window.harmed") is None


async def test_signals_pauses_approvals_and_budgets_are_handled_on_the_page(stage: Stage, page: Any) -> None:
    await begin(stage, "page_wait", "waiter", "waiting", text=HOSTILE)
    await stage.open(page, "runs/waiter?row=r0")
    detail = page.locator(".detail")
    assert HOSTILE in await detail.get_by_role("region", name="output").inner_text()  # text, and nothing else
    await page.get_by_role("button", name="Pause").click()
    await page.get_by_text("paused", exact=True).wait_for()
    await page.get_by_role("group", name="what can be done").get_by_role("button", name="Resume").click()
    await page.get_by_role("button", name="Pause").wait_for()
    await page.get_by_role("button", name="Budget").click()
    await page.get_by_role("dialog").get_by_label("Dollars").fill("2.5")
    await page.get_by_role("button", name="Set").click()
    await page.get_by_text("$2.50 of $2.50").wait_for()
    await page.get_by_role("button", name="Signal", exact=True).click()
    dialog = page.get_by_role("dialog")
    assert await dialog.get_by_label("Name").input_value() == "go"
    await dialog.get_by_label("Value").fill('{"by": "hand"}')
    assert await violations(page) == []
    await dialog.get_by_role("button", name="Send").click()
    await page.get_by_role("button", name="Answer", exact=True).click()  # the advice leads to the question
    await page.get_by_role("tab", name="Approvals", selected=True).wait_for()
    await check_looks(page)
    await page.get_by_role("button", name="Approve").click()
    await page.get_by_text("completed", exact=True).wait_for()
    assert (await stage.client.get("waiter")).output == {"by": "hand"}
    assert await page.evaluate("window.harmed") is None


async def test_a_large_value_is_read_on_demand(stage: Stage, page: Any) -> None:
    await begin(stage, "page_wait", "large", "waiting", text="many words " * 2_000)
    await stage.open(page, "runs/large?row=r0")
    output = page.locator(".detail").get_by_role("region", name="output")
    await output.wait_for()
    assert len(await output.inner_text()) < 2_000
    await page.get_by_role("button", name="Read all of it").click()
    await page.get_by_role("button", name="Read all of it").wait_for(state="detached")
    assert len(await output.inner_text()) == 22_000
    await page.get_by_role("button", name="Fork from here").click()  # which needs all of it, too
    value = page.get_by_role("dialog").get_by_label("What it returned")
    assert len(await value.input_value()) == 22_002


async def test_a_run_is_cancelled_only_after_a_confirmation(stage: Stage, page: Any) -> None:
    await begin(stage, "page_wait", "cancelled", "waiting", text="x")
    await stage.open(page, "runs/cancelled")
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("dialog").get_by_role("button", name="Leave it").click()
    assert (await stage.client.get("cancelled")).state.value == "waiting"
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="Cancel the run").click()
    await page.get_by_text("cancelled", exact=True).first.wait_for()
    cancel = page.get_by_role("button", name="Cancel", exact=True)
    assert await cancel.is_disabled()
    assert await cancel.get_attribute("title") == "the run is cancelled"


async def test_the_conversation_plan_and_cost_of_an_agent(stage: Stage, page: Any) -> None:
    await begin(stage, "page_agent", "looker", "completed", prompt="What is there?")
    await stage.open(page, "runs/looker?tab=conversation")
    messages = page.get_by_role("list", name="conversation")
    await messages.get_by_text("There is nothing to be seen.").wait_for()
    assert await messages.locator("> li").evaluate_all("all => all.map((one) => one.classList[1])") == [
        *("user", "model", "tool", "model", "tool", "tool", "model"),
    ]
    assert await messages.locator("li.model .spent").count() == 3
    await check_looks(page, ("light", "dark"))
    await messages.get_by_role("button", name="step 4 in the timeline").click()
    await page.get_by_label("step 4 page_look").wait_for()
    await page.get_by_role("tab", name="Plan").click()
    await page.get_by_text("look around").wait_for()
    assert await violations(page) == []
    await page.get_by_role("tab", name="Events").click()
    await page.get_by_label("Kind").select_option("answered")
    await page.get_by_text("3 events").wait_for()
    await check_looks(page)
    assert await page.evaluate("window.harmed") is None


async def test_a_tool_call_is_approved_in_the_conversation(stage: Stage, page: Any) -> None:
    await begin(stage, "page_sender", "sender", "waiting", prompt="Write to Ann.")
    await stage.open(page, "runs/sender?tab=conversation")
    await page.get_by_role("region", name="question").get_by_role("button", name="Approve the call").wait_for()
    await check_looks(page, ("light",))
    await page.get_by_label("Reason").fill("she waits for it")
    await page.get_by_role("button", name="Approve the call").click()
    messages = page.get_by_role("list", name="conversation")
    await messages.get_by_text("It is on its way.").wait_for()
    await messages.get_by_text("she waits for it").wait_for()
    assert await page.get_by_role("region", name="question").count() == 0


async def test_related_runs_are_a_tree_and_expand_in_place(stage: Stage, page: Any) -> None:
    await begin(stage, "page_family", "family", "completed")
    await stage.open(page, "runs/family")
    child = page.locator(".row", has_text="child page_sale").first
    await child.get_by_role("button", name="in place").click()
    await page.locator(".row .depth-1", has_text="page_bill").wait_for()
    await page.get_by_role("tab", name="Tree").click()
    tree = page.get_by_role("list", name="runs that belong together")
    await tree.locator("li").nth(2).wait_for()
    await check_looks(page)
    await tree.get_by_role("link").first.click()
    await page.get_by_role("link", name="family", exact=True).wait_for()  # started by


async def test_a_journal_of_five_thousand_records_scrolls(stage: Stage, page: Any) -> None:
    await begin(stage, "page_long", "long", "completed", many=5000)
    await stage.open(page, "runs/long")
    await page.get_by_text("5,000 records").wait_for()
    rows = page.get_by_role("region", name="timeline")
    await page.wait_for_function("() => document.querySelector('.rows').scrollHeight > 5000 * 34")
    assert await page.locator(".row").count() < 120  # only what is in view is on the page
    await rows.evaluate("(box) => box.scrollTo(0, box.scrollHeight)")
    await page.locator(".row .no").get_by_text("5000", exact=True).wait_for()
    await page.get_by_label("find a step").fill("#4321 ")
    await page.locator(".row .no").get_by_text("4321", exact=True).wait_for()
    assert await page.locator(".row .no").count() == 1


async def test_a_phone_shows_the_whole_page(stage: Stage, page: Any) -> None:
    await begin(stage, "page_sale", "sale-phone", "completed", item="lamp")
    await page.set_viewport_size({"width": 390, "height": 844})
    await stage.open(page, "runs/sale-phone")
    await page.locator(".row").get_by_role("button", name="page_bill").click()
    detail = page.locator(".detail")
    await detail.get_by_role("region", name="output").get_by_text("lamp for 100 cents").wait_for()
    assert (await detail.bounding_box())["y"] > (await page.locator(".rows").bounding_box())["y"]  # below the rows
    await check_looks(page, ("phone",))


async def test_the_page_of_an_unknown_run_says_so(stage: Stage, page: Any) -> None:
    page.allowed.append("404")
    await stage.open(page, "runs/nobody")
    await page.get_by_text("There is no such run").wait_for()


async def test_a_key_that_may_only_read_sees_why_it_can_do_nothing(page: Any) -> None:
    async with staged("page_wait") as stage:
        await begin(stage, "page_wait", "read-only", "waiting", text="x")
        await stage.open(page, "runs/read-only", await stage.key("read"))
        cancel = page.get_by_role("button", name="Cancel")
        await cancel.wait_for()
        assert await cancel.is_disabled()
        assert "operate" in (await cancel.get_attribute("title"))
        assert await page.get_by_role("button", name="Signal", exact=True).is_disabled()


async def test_a_page_continues_after_a_restart_of_its_server(page: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    page.allowed += ["ERR_INCOMPLETE_CHUNKED_ENCODING", "503"]
    async with Runtime(url, workflows=["page_wait"]), Client(url) as client:
        async with running_live_server(url) as server:
            await client.options(id="restarted").start("page_wait", "x")
            await page.goto(f"{server.address}/#/runs/restarted?row=r0")
            await page.get_by_text("waits for signal").wait_for()
            await page.evaluate("window.stays = true")
        await page.get_by_text("not connected").wait_for()
        await page.get_by_text("waits for signal").wait_for()  # what is known stays
        async with running_live_server(url, port=int(server.address.rpartition(":")[2])):
            await client.signal("restarted", "go", 1)
            await page.get_by_role("button", name="Answer", exact=True).wait_for()
            await page.locator(".detail").get_by_role("region", name="output").wait_for()  # what was open is open
            assert await page.evaluate("window.stays")
