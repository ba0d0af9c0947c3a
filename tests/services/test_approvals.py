"""Answering questions through a client: whoever answers sees what is asked, and is told what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from pydantic import BaseModel

from holdfast import (
    ApprovalClosed,
    ApprovalError,
    Client,
    InputError,
    Runtime,
    UnknownApproval,
    UsageError,
    ValueTooLarge,
    ask,
    workflow,
)
from holdfast.services import approvals
from holdfast.services.approvals import Answer, describe_form, describe_form_fields
from holdfast.stores.approvals import AnswerApproval, ApprovalFilter, ApprovalRequest
from holdfast.stores.operations import OpStatus

URL = "sqlite:///runs.db"


class Parcel(BaseModel):
    weight: float
    notes: list[str] = []


@workflow(id="shipping-{name}")
async def shipping(name: str) -> str:
    if not await ask(f"Ship {name}?", to="ann", timeout=timedelta(hours=1)):
        return "kept"
    how = await ask("How?", choices=["by sea", "by air"], to="bob")
    parcel = await ask("What is in it?", form=Parcel)
    return f"{how}: {parcel.weight}"


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Client]:
    async with Runtime(URL), Client(URL) as client:
        await client.start("shipping", "x")
        await wait_for_approval(client)
        yield client


async def wait_for_approval(client: Client, *, other_than: str = "", **which: Any) -> Any:
    """The open approval, once there is one."""
    async with asyncio.timeout(20):
        while True:
            if found := [one for one in await client.approvals(**which) if one.id != other_than]:
                return found[0]
            await asyncio.sleep(0.005)


@pytest.mark.asyncio
async def test_an_approval_has_everything_and_is_answered(client: Client):
    one = await wait_for_approval(client)
    assert (one.run_id, one.workflow, one.step_number, one.question) == ("shipping-x", "shipping", 1, "Ship x?")
    assert (one.assignee, one.choices, one.form, one.tool, one.arguments) == ("ann", (), None, "", None)
    assert (one.state, one.answer, one.answered_by, one.answered_at, one.reminder_count) == ("open", None, "", None, 0)
    assert one.expires_at - one.requested_at == timedelta(hours=1)
    assert await client.approve(one.id, by="ann", reason="paid")

    two = await wait_for_approval(client, assignee="bob")
    assert (two.choices, two.expires_at) == (("by sea", "by air"), None)
    assert await client.approve(two.id, "by air")

    handle = client.handle("shipping-x")
    three = await wait_for_approval(client)
    assert three.form["properties"].keys() == {"weight", "notes"}
    assert await handle.approve(three.id, Parcel(weight=2.5))
    assert await handle.result() == "by air: 2.5"

    assert await client.approvals() == []
    closed = await client.approvals("shipping-x", all=True)
    assert [one.answer.value for one in closed] == [None, "by air", {"weight": 2.5, "notes": []}]
    assert (closed[0].answered_by, closed[0].answer.reason, closed[0].answered_at is None) == ("ann", "paid", False)
    assert closed[1].answered_by == approvals.get_os_user()


@pytest.mark.asyncio
async def test_approvals_are_found_by_run_workflow_and_assignee(client: Client):
    await client.start("shipping", "y")
    await wait_for_approval(client, run_id="shipping-y")
    assert [one.run_id for one in await client.approvals()] == ["shipping-x", "shipping-y"]
    assert [one.run_id for one in await client.approvals("shipping-y")] == ["shipping-y"]
    assert len(await client.approvals(workflow="shipping", assignee="ann")) == 2
    assert [one.run_id for one in await client.approvals(limit=1)] == ["shipping-x"]
    assert await client.approvals(workflow="other") == []
    assert await client.approvals(assignee="bob") == []


@pytest.mark.asyncio
async def test_a_denial_has_its_reason(client: Client):
    one = await wait_for_approval(client)
    assert await client.deny(one.id, by="ann", reason="not paid")
    assert await client.wait("shipping-x") == "kept"
    [closed] = await client.handle("shipping-x").approvals(all=True)
    assert closed.answer == Answer(False, reason="not paid", answered_by="ann", answered_at=closed.answer.answered_at)


@pytest.mark.asyncio
async def test_an_id_may_be_shortened_as_long_as_it_names_one(client: Client, monkeypatch: pytest.MonkeyPatch):
    one = await wait_for_approval(client)
    await client.start("shipping", "y")
    other = await wait_for_approval(client, run_id="shipping-y")
    length = next(n for n in range(1, 13) if one.id[:n] != other.id[:n])
    with pytest.raises(
        UnknownApproval, match=r"there is no approval 'nope!' in .*: open are .*`holdfast approvals --all`"
    ):
        await client.approve("nope!")
    with pytest.raises(UnknownApproval, match="there is no approval ''"):
        await client.deny("")
    assert await client.deny(f" {one.id[:length].upper()} ", by="ann")
    assert (await client.approvals("shipping-x", all=True))[0].state == "answered"

    store = await client.connections.store()
    same = await store.list_approvals(ApprovalFilter(only_open=False))

    async def both(*_: Any, **__: Any) -> Any:
        return same

    monkeypatch.setattr(store, "list_approvals", both)
    with pytest.raises(UnknownApproval, match=r"2 approvals begin with 'a': .* Give more of the id\.") as ambiguous:
        await client.approve("a")
    assert ambiguous.value.approval_id == "a"
    assert isinstance(ambiguous.value, ApprovalError)


@pytest.mark.asyncio
async def test_a_second_answer_is_an_error_that_names_the_first(client: Client):
    one = await wait_for_approval(client)
    assert await client.approve(one.id, by="ann", reason="paid")
    with pytest.raises(
        ApprovalClosed, match=r"is closed: ann answered it at .*: yes \(paid\)\. That answer counts"
    ) as raised:
        await client.deny(one.id, by="bob")
    assert raised.value.approval_id == one.id
    with pytest.raises(ApprovalClosed, match="ann answered it"):
        await client.approve(one.id, by="bob", reason="paid")
    with pytest.raises(ApprovalClosed):
        await client.approve(one.id, by="ann")
    assert not await client.approve(one.id, by="ann", reason="paid"), "the very same by the same person is harmless"
    two = await wait_for_approval(client, assignee="bob")
    assert await client.approve(two.id, "by sea", by="bob")
    with pytest.raises(ApprovalClosed, match=r"bob answered it at .*: by sea"):
        await client.approve(two.id, "by air", by="bob")


@pytest.mark.asyncio
async def test_of_two_concurrent_answers_one_wins_and_the_other_is_an_error(client: Client):
    one = await wait_for_approval(client)
    answers = await asyncio.gather(
        client.approve(one.id, by="ann"), client.deny(one.id, by="bob"), return_exceptions=True
    )
    assert sorted(map(str, map(type, answers))) == sorted(map(str, [bool, ApprovalClosed]))
    [closed] = [row for row in await client.approvals("shipping-x", all=True) if row.id == one.id]
    winner = "ann" if answers[0] is True else "bob"
    assert closed.answered_by == winner
    assert winner in str(next(one for one in answers if isinstance(one, ApprovalClosed)))


@pytest.mark.asyncio
async def test_an_answer_that_does_not_fit_leaves_the_question_open(client: Client):
    one = await wait_for_approval(client)
    for value in (False, "yes", 1.5):
        with pytest.raises(InputError, match="is answered with yes or no"):
            await client.approve(one.id, value)
    with pytest.raises(InputError, match="has no arguments to edit"):
        await client.approve(one.id, arguments={"a": 1})
    for odd in (object(), "half a \ud800 character", 10**5000, b"\xff"):
        with pytest.raises(InputError, match="cannot be written as JSON"):
            await client.approve(one.id, odd)
    assert await client.approve(one.id, True)
    two = await wait_for_approval(client, assignee="bob")
    with pytest.raises(InputError, match="choose one of by sea, by air"):
        await client.approve(two.id, ["by sea"])
    await client.approve(two.id, "by sea")
    three = await wait_for_approval(client)
    with pytest.raises(InputError, match=r"\$\.weight: 'much' is not of type 'number'.* The question is still open"):
        await client.approve(three.id, {"weight": "much"})
    small = Client(URL, max_value=1000)
    with pytest.raises(ValueTooLarge):
        await small.approve(three.id, {"weight": 1, "notes": ["x" * 2000]})
    await small.close()
    assert (await wait_for_approval(client)).id == three.id


@pytest.mark.asyncio
async def test_a_handle_answers_for_its_own_run_only(client: Client):
    one = await wait_for_approval(client)
    await client.start("shipping", "y")
    with pytest.raises(UnknownApproval, match="was asked for by run 'shipping-x', not by run 'shipping-y'"):
        await client.handle("shipping-y").deny(one.id)
    assert await client.handle("shipping-x").deny(one.id)


@pytest.mark.asyncio
async def test_without_a_user_name_the_answer_is_anonymous(client: Client, monkeypatch: pytest.MonkeyPatch):
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(approvals.getpass, "getuser", nobody)
    one = await wait_for_approval(client)
    assert await client.deny(one.id)
    with pytest.raises(ApprovalClosed, match="somebody answered it at"):
        await client.deny(one.id, by="ann")


@pytest.mark.asyncio
async def test_an_answer_to_a_closed_approval_is_an_error(client: Client):
    one = await wait_for_approval(client)
    await client.cancel("shipping-x")
    with pytest.raises(Exception, match="cancelled"):
        await client.wait("shipping-x")
    with pytest.raises(ApprovalClosed, match=r"run 'shipping-x' was cancelled\. Nobody waits for the answer"):
        await client.approve(one.id)
    store = await client.connections.store()
    assert await store.commit([AnswerApproval("zzz", b"{}", "", 0.0)]) == [OpStatus.UNKNOWN_APPROVAL]


@pytest.mark.asyncio
async def test_an_answer_to_an_approval_from_before_a_deploy_names_the_new_one():
    text = "Sell them?"

    @workflow(id="reworded")
    async def rewording() -> bool:
        return await ask(text)

    async with Client(URL) as client:
        async with Runtime(URL):
            await client.start("rewording")
            shown = await wait_for_approval(client)
        text = "Give them away?"
        async with Runtime(URL):
            now = await wait_for_approval(client, other_than=shown.id)
            with pytest.raises(ApprovalClosed) as raised:
                await client.approve(shown.id)
            assert await client.deny(now.id)
    assert str(raised.value) == (
        f"approval {shown.id} ('Sell them?') is closed: run 'reworded' asks something else in its place now: "
        f"'Give them away?'. If you mean that, answer approval {now.id}."
    )
    assert raised.value.approval_id == shown.id


def test_the_same_without_an_event_loop():
    async def begin() -> None:
        async with Runtime(URL):
            await shipping.start("z")
            async with Client(URL) as client:
                await wait_for_approval(client)

    asyncio.run(begin())
    client = Client(URL)
    [one] = client.approvals_sync("shipping-z", workflow="shipping", assignee="ann", all=True)
    assert client.approve_sync(one.id, by="ann", reason="paid")
    with pytest.raises(ApprovalClosed):
        client.deny_sync(one.id, by="ann")
    assert client.approvals_sync() == []
    assert client.approvals_sync(all=True)[0].answer.reason == "paid"


def test_an_answer_in_words():
    assert Answer(True).describe() == "yes"
    assert Answer(False, reason="no money").describe() == "no (no money)"
    assert Answer(True, "by sea").describe() == "by sea"
    assert Answer(True, {"a": "ü"}).describe() == '{"a": "ü"}'
    assert Answer(True, arguments={"to": "x"}, reason="typo").describe() == 'yes, with {"to": "x"} (typo)'
    assert Answer.from_value(False, "ann", 1.0) == Answer(False, answered_by="ann", answered_at=1.0)
    assert Answer.from_value({"a": (1,)}, "ann", 1.0) == Answer(True, {"a": [1]}, answered_by="ann", answered_at=1.0)
    assert Answer.from_payload(b'{"approved": true, "of a later version": 1}') == Answer(True)
    assert Answer.from_payload(Answer(True, 1, None, "ü", "ann", 2.5).encode()) == Answer(
        True, 1, None, "ü", "ann", 2.5
    )


def test_a_form_in_words():
    schema = {
        "properties": {
            "a": {"type": "integer", "description": "how many"},
            "b": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
            "c": {"type": "array", "items": {"enum": ["x", 1]}},
            "d": {"$ref": "#/$defs/Colour"},
            "e": {"const": 7},
            "f": {},
            "g": True,
            "h": {"type": ["string", "null"]},
        },
        "required": ["a"],
    }
    assert describe_form_fields(schema) == [
        "a (integer): how many",
        "b (string, date or null, may be left out)",
        'c (list of "x" or 1, may be left out)',
        "d (Colour, may be left out)",
        "e (7, may be left out)",
        "f (anything, may be left out)",
        "g (anything, may be left out)",
        "h (string or null, may be left out)",
    ]
    assert describe_form({"type": "integer"}) == "a value of type integer"
    assert describe_form({}) == "any JSON value"
    assert describe_form({"properties": {"a": {"type": "integer"}}}) == "an object with a (integer, may be left out)"


def test_questions_of_calls_are_checked_by_the_schema_of_their_arguments():
    question = ApprovalRequest(
        "Call?", tool="mail", form_schema=b'{"properties": {"to": {"type": "string"}}, "required": ["to"]}'
    )
    approvals._check_schema(question, {"to": "x"}, "it")
    with pytest.raises(InputError, match="it: \\$\\.to: 3 is not of type 'string'") as unfit:
        approvals._check_schema(question, {"to": 3}, "it", "arguments")
    assert unfit.value.violations == ({"path": "arguments.to", "message": "3 is not of type 'string'"},)
    approvals._check_schema(question._replace(form_schema=b""), {"to": 3}, "it")
    with pytest.raises(UsageError):
        asyncio.run(ask("Anybody?"))
