"""People: questions, choices, forms, a no, time-outs, reminders and escalation, and who comes second."""

from __future__ import annotations

from typing import Any

import pytest
from conformance_world import World, effect_counts, fails_with, make_unique_id, wait_for_approval
from pydantic import BaseModel

from holdfast import (
    ApprovalClosed,
    ApprovalDenied,
    ApprovalNotification,
    ApprovalTimedOut,
    Client,
    InputError,
    RunCancelled,
    UnknownApproval,
    ask,
    current_run,
    step,
    workflow,
)
from waits import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@workflow
async def pp_release(version: str) -> list[Any]:
    if not await ask(f"Release {version}?", to="ann"):
        return ["not released"]
    return ["released", await ask("Where to?", choices=["staging", "production"])]


async def test_a_question_is_listed_answered_and_the_run_goes_on(world: World, client: Client) -> None:
    run = make_unique_id("release")
    handle = await pp_release.options(id=run).start("2.1")
    first = await wait_for_approval(client, run)
    assert (first.question, first.assignee, first.workflow, first.state) == (
        "Release 2.1?", "ann", "pp_release", "open",
    )  # fmt: skip
    assert await client.approve(first.id, by="ann", reason="tests are green") is True
    second = await wait_for_approval(client, run, "Where")
    assert second.choices == ("staging", "production")
    with pytest.raises(InputError, match="staging"):
        await client.approve(second.id, "the moon", by="ann")
    assert await handle.approve(second.id, "staging", by="bob") is True
    assert await handle.result() == ["released", "staging"]
    closed = await client.approvals(run, all=True)
    assert [(one.state, one.answered_by) for one in closed] == [("answered", "ann"), ("answered", "bob")]
    assert await client.approvals(run) == []


async def test_a_no_to_a_plain_question_is_false(world: World, client: Client) -> None:
    run = make_unique_id("release")
    handle = await pp_release.options(id=run).start("2.2")
    question = await wait_for_approval(client, run)
    assert await client.deny(question.id, by="ann", reason="not on a Friday") is True
    assert await handle.result() == ["not released"]


async def test_the_second_answer_learns_of_the_first(world: World, client: Client) -> None:
    run = make_unique_id("release")
    handle = await pp_release.options(id=run).start("2.3")
    question = await wait_for_approval(client, run)
    await client.deny(question.id, by="ann")
    await handle.result()
    with pytest.raises(ApprovalClosed, match="ann"):
        await client.approve(question.id, by="bob")
    assert await client.deny(question.id, by="ann") is False  # the very same again
    with pytest.raises(UnknownApproval):
        await client.approve("aaaaaaaaaaaa")


class Trip(BaseModel):
    days: int
    by: str = "train"


@workflow
async def pp_travelling() -> list[Any]:
    trip = await ask("How long?", form=Trip)
    try:
        await ask("Which way?", choices=["north", "south"])
    except ApprovalDenied as denied:
        return [type(trip).__name__, trip.days, trip.by, denied.by, denied.reason]
    return []


async def test_a_form_is_filled_in_and_a_choice_may_be_denied(world: World, client: Client) -> None:
    run = make_unique_id("travelling")
    handle = await pp_travelling.options(id=run).start()
    form = await wait_for_approval(client, run)
    assert form.form is not None
    assert set(form.form["properties"]) == {"days", "by"}
    with pytest.raises(InputError):
        await client.approve(form.id, {"days": "many"})
    await client.approve(form.id, {"days": 3})
    await client.deny((await wait_for_approval(client, run, "way")).id, by="ann", reason="stay")
    assert await handle.result() == ["Trip", 3, "train", "ann", "stay"]


@workflow
async def pp_denied() -> str:
    return await ask("Which?", choices=["a", "b"])


async def test_a_no_that_nobody_catches_fails_the_run(world: World, client: Client) -> None:
    run = make_unique_id("denied")
    handle = await pp_denied.options(id=run).start()
    await client.deny((await wait_for_approval(client, run)).id, by="ann")
    with fails_with(ApprovalDenied, "ann"):
        await handle.result()


@workflow
async def pp_in_time(seconds: float) -> list[Any]:
    told: list[Any] = [await ask("Buy?", timeout=seconds, on_timeout=False)]
    try:
        await ask("Sell?", timeout=seconds)
    except ApprovalTimedOut as late:
        told.append(isinstance(late, TimeoutError))
    return told


async def test_a_question_that_nobody_answers_in_time_is_withdrawn(world: World, client: Client) -> None:
    run = make_unique_id("in-time")
    assert await pp_in_time.options(id=run)(0.2) == [False, True]
    closed = await client.approvals(run, all=True)
    assert [(one.question, one.state) for one in closed] == [("Buy?", "withdrawn"), ("Sell?", "withdrawn")]
    with pytest.raises(ApprovalClosed):
        await client.approve(closed[0].id, by="ann")


@step(retries=2, backoff=0.001)
async def pp_mail(notice: ApprovalNotification) -> None:
    effect_counts[current_run().id, f"{notice.kind} {notice.assignee}"] += 1


@workflow
async def pp_purchase(timeout: float) -> str:
    may_buy = await ask(
        "Buy a piano?",
        to="ann",
        notify=pp_mail,
        remind_every=0.3,
        timeout=timeout,
        escalate_to=["bob"],
        on_timeout=False,
    )
    return "bought" if may_buy else "not bought"


async def test_people_are_reminded(world: World, client: Client) -> None:
    run = make_unique_id("purchase")
    handle = await pp_purchase.options(id=run).start(600)
    first = await wait_for_approval(client, run)
    assert first.assignee == "ann"
    await wait_until(lambda: effect_counts[run, "reminder ann"])

    async def reminded() -> bool:
        return (await wait_for_approval(client, run)).reminder_count >= 1

    await wait_until(reminded)
    await client.approve(first.id, by="ann")
    assert await handle.result() == "bought"
    assert effect_counts[run, "requested ann"] == 1
    assert not effect_counts[run, "escalated bob"]


async def test_an_approval_is_escalated_after_a_while(world: World, client: Client) -> None:
    run = make_unique_id("purchase")
    handle = await pp_purchase.options(id=run).start(2)  # so much time has bob as well
    first = await wait_for_approval(client, run)
    await wait_until(lambda: effect_counts[run, "escalated bob"])

    async def passed_on() -> Any:
        return next((one for one in await client.approvals(run) if one.assignee == "bob"), None)

    second = await wait_until(passed_on)
    assert second.id == first.id
    assert second.reminder_count >= 1
    await client.approve(second.id, by="bob")
    assert await handle.result() == "bought"
    assert effect_counts[run, "requested ann"] == 1
    assert effect_counts[run, "escalated bob"] == 1


async def test_questions_are_found_by_who_is_asked_and_by_workflow(world: World, client: Client) -> None:
    run = make_unique_id("release")
    handle = await pp_release.options(id=run).start("3")
    question = await wait_for_approval(client, run)

    async def found(**where: Any) -> list[str]:
        return [one.id for one in await client.approvals(**where)]

    await wait_until(lambda: _contains(found(assignee="ann"), question.id))
    assert question.id in await found(workflow="pp_release")
    assert question.id not in await found(assignee="carol")
    assert [one.id for one in await handle.approvals()] == [question.id]
    await handle.deny(question.id, by="ann")
    assert await handle.result() == ["not released"]


async def _contains(finding: Any, wanted: str) -> bool:
    return wanted in await finding


async def test_questions_of_a_run_that_is_cancelled_are_closed(world: World, client: Client) -> None:
    run = make_unique_id("release")
    handle = await pp_release.options(id=run).start("4")
    question = await wait_for_approval(client, run)
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()
    assert await client.approvals(run) == []
    with pytest.raises(ApprovalClosed):
        await client.approve(question.id, by="ann")
