"""The inbox: questions are answered with a form, by keyboard too, and what does not fit is told where it stands."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any, Literal

import pytest
import pytest_asyncio
from dashboard_server import Stage, check_looks, staged
from pydantic import BaseModel, Field

from holdfast import ApprovalPolicy, ask, workflow
from holdfast.authoring.approval_requests import request_approval
from holdfast.core.execution import get_current_execution
from holdfast.stores.approvals import ApprovalRequest
from waits import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOSTILE = '<img src=x onerror="window.harmed = 1">Release <b>2.1</b>?'


class Trip(BaseModel):
    days: int = Field(ge=1, le=30, description="nights included")
    by: Literal["train", "plane"]
    note: str = ""


@workflow(name="inbox_trip")
async def inbox_trip() -> str:
    trip = await ask("How long is the trip?", form=Trip)
    return f"{trip.days} days by {trip.by}"


@workflow(name="inbox_release")
async def inbox_release(question: str) -> bool:
    return bool(await ask(question, to="ann", timeout=timedelta(days=2), escalate_to="bob"))


@workflow(name="inbox_place")
async def inbox_place() -> str:
    return await ask("Where to?", choices=["staging", "production"])


@workflow(name="inbox_mail")
async def inbox_mail() -> Any:
    question = ApprovalRequest(
        "Send the mail?",
        tool="send_mail",
        arguments=b'{"to": "customer@example.org", "text": "first line\\nsecond line", "trace": 7}',
        form_schema=b'{"type": "object", "properties": {'
        b'"to": {"type": "string", "not": {"const": "nobody@example.org"}}, "text": {"type": "string"}}, '
        b'"required": ["to"]}',
        reason="it leaves the house",
    )
    decided = await request_approval(get_current_execution(), question, ApprovalPolicy())
    assert decided.answer is not None
    return decided.answer.arguments


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncGenerator[Stage]:
    async with staged("inbox_trip", "inbox_release", "inbox_place", "inbox_mail") as stage:
        yield stage


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def nothing_left_open(stage: Stage) -> AsyncGenerator[None]:
    yield
    for one in await stage.client.approvals():
        await stage.client.cancel(one.run_id)
    await wait_until(lambda: has_no_open_approvals(stage))


async def has_no_open_approvals(stage: Stage) -> bool:
    return not await stage.client.approvals()


async def start_and_wait_for_approval(stage: Stage, name: str, *args: Any, id: str) -> str:
    """The id of the question that a new run asks."""
    await stage.client.options(id=id).start(name, *args)
    return (await wait_until(lambda: stage.client.approvals(id)))[0].id


async def outcome(stage: Stage, run_id: str) -> Any:
    return await stage.client.wait(run_id, timeout=10)


def card(page: Any, words: str) -> Any:
    return page.locator("ol.questions > li").filter(has_text=words)


async def test_an_invalid_value_is_shown_at_its_field_and_a_valid_one_completes_the_run(
    page: Any, stage: Stage, keep_picture: Any
) -> None:
    await start_and_wait_for_approval(stage, "inbox_release", "Release 2.1 to all customers?", id="release-2.1")
    await start_and_wait_for_approval(stage, "inbox_trip", id="trip")
    await stage.open(page, "approvals")
    await card(page, "How long is the trip?").get_by_role("button").first.click()
    form = page.get_by_role("form", name="answer")
    assert "somebody answers" in await card(page, "How long is the trip?").inner_text()
    await form.get_by_label("days").fill("99")
    await form.get_by_role("button", name="Answer").click()
    await form.get_by_text("At most 30").wait_for()
    await form.get_by_text("Choose one.").wait_for()
    assert await form.get_by_label("days").get_attribute("aria-invalid") == "true"
    assert await form.get_by_label("days").input_value() == "99", "what was typed is still there"
    assert [one.run_id for one in await stage.client.approvals("trip")] == ["trip"]

    await form.get_by_label("days").fill("3")
    await form.get_by_label("by", exact=False).first.select_option(label="train")
    await form.get_by_label("Reason").fill("within the budget")
    await form.get_by_label("Answered by").fill("Ada")
    await keep_picture(page, "dashboard-approvals")
    await check_looks(page)
    await form.get_by_role("button", name="Answer").click()
    await card(page, "How long is the trip?").wait_for(state="detached")
    assert await outcome(stage, "trip") == "3 days by train"
    [closed] = await stage.client.approvals("trip", all=True)
    assert (closed.answered_by, closed.answer.reason if closed.answer else "") == ("Ada", "within the budget")

    await page.get_by_role("link", name="Closed").click()
    row = page.get_by_role("row").filter(has_text="How long is the trip?")
    await row.get_by_text("within the budget").wait_for()
    await row.get_by_role("button").click()
    await page.locator("#shown").get_by_text('"by": "train"').wait_for()
    await check_looks(page)


async def test_a_question_is_shown_as_text_and_none_of_it_runs(page: Any, stage: Stage) -> None:
    await start_and_wait_for_approval(stage, "inbox_release", HOSTILE, id="hostile")
    await stage.open(page, "approvals")
    one = card(page, HOSTILE)
    await one.get_by_role("button").first.click()
    assert "ann" in await one.inner_text()
    assert "then the run asks the next person" in await one.inner_text()
    assert await page.locator("main img, main b").count() == 0
    assert await page.evaluate("window.harmed") is None
    await one.get_by_role("button", name="Deny").click()
    assert await outcome(stage, "hostile") is False


async def test_an_approval_is_answered_by_keyboard_alone(page: Any, stage: Stage) -> None:
    await start_and_wait_for_approval(stage, "inbox_release", "First?", id="first")
    await start_and_wait_for_approval(stage, "inbox_place", id="place")
    await stage.open(page, "approvals")
    await card(page, "Where to?").wait_for()
    keys = page.keyboard
    await keys.press("j")
    await keys.press("j")
    assert "Where to?" in await page.locator("li.chosen").inner_text()
    await keys.press("a")  # the first choice has the focus
    await page.locator("input[type=radio]:focus").wait_for()
    await keys.press("ArrowDown")
    for _ in range(3):
        await keys.press("Tab")
    assert await page.evaluate("document.activeElement.textContent") == "Answer"
    await keys.press("Enter")
    assert await outcome(stage, "place") == "production"
    await card(page, "Where to?").wait_for(state="detached")
    await keys.press("k")
    await keys.press("Enter")
    await page.get_by_role("form", name="answer").wait_for()
    await keys.press("d")
    await page.locator("button:focus").filter(has_text="Deny").wait_for()
    await keys.press("Enter")
    assert await outcome(stage, "first") is False


async def test_arguments_of_a_call_are_edited_before_it_is_approved_and_the_server_has_the_last_word(
    page: Any, stage: Stage
) -> None:
    page.allowed.append("422")
    await start_and_wait_for_approval(stage, "inbox_mail", id="mail")
    await stage.open(page, "approvals")
    one = card(page, "Send the mail?")
    await one.get_by_role("button").first.click()
    assert "it leaves the house" in await one.inner_text()
    assert "first line\nsecond line" in await one.locator("table").inner_text()
    await one.get_by_label("edit the arguments").check()
    to = one.locator(".form").locator("input, textarea").first
    await to.fill("nobody@example.org")
    await one.get_by_role("button", name="Approve with these").click()
    field = one.locator("label.field").filter(has=page.locator("[aria-invalid='true']"))
    await field.get_by_text("should not be valid").wait_for()
    assert await to.input_value() == "nobody@example.org"
    await to.fill("somebody@example.org")
    await one.get_by_role("button", name="Approve with these").click()
    assert await outcome(stage, "mail") == {
        "to": "somebody@example.org", "text": "first line\nsecond line", "trace": 7,
    }  # fmt: skip


async def test_the_second_answer_shows_the_first_one_and_keeps_the_draft(page: Any, stage: Stage) -> None:
    page.allowed.append("409")
    id = await start_and_wait_for_approval(stage, "inbox_trip", id="raced")
    await stage.open(page, "approvals")
    one = card(page, "How long is the trip?")
    await one.get_by_role("button").first.click()
    await one.get_by_label("days").fill("7")
    await one.get_by_label("by", exact=False).first.select_option(label="plane")
    await page.route("**/v1/approvals?*", lambda route: route.abort())  # it learns nothing of its own accord
    page.allowed.append("ERR_FAILED")
    await stage.client.approve(id, {"days": 1, "by": "train"}, by="Bob")
    await one.get_by_role("button", name="Answer").click()
    await one.get_by_text("Bob answered it").wait_for()
    assert await one.get_by_label("days").input_value() == "7"
    await page.unroute("**/v1/approvals?*")
    await start_and_wait_for_approval(stage, "inbox_release", "Another?", id="another")  # the page asks again
    await one.get_by_text("It takes no answer any more.").wait_for()
    assert await one.get_by_label("days").input_value() == "7"
    assert await one.get_by_role("button", name="Answer").is_disabled()


async def test_a_key_that_may_only_read_cannot_answer_and_sees_why(page: Any, stage: Stage) -> None:
    await start_and_wait_for_approval(stage, "inbox_release", "May you?", id="reading")
    await stage.open(page, "approvals", await stage.key("read"))
    one = card(page, "May you?")
    await one.get_by_role("button").first.click()
    await page.get_by_text("You can read the questions, but not answer them.").wait_for()
    approve = one.get_by_role("button", name="Approve")
    assert await approve.is_disabled()
    assert "operate" in (await approve.get_attribute("title") or "")
    assert await page.get_by_role("link", name="Keys").count() == 0, "that is for administrators"
