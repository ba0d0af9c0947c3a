"""The records of calls that need an approval: what is rebuilt from them is what the model was sent."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic_ai.messages import ModelMessage

from holdfast import Agent, ApprovalNotification, ApprovalPolicy, Budget, Client, Runtime, tool
from holdfast.agents.conversation import Conversation, rebuild_conversation
from holdfast.cli import main as cli
from holdfast.core.records import Record
from holdfast.reports.conversations import build_conversation
from holdfast.reports.tool_calls import match_tool_calls
from holdfast.testing import Runner, RunResult, ScriptedModel, call

pytestmark = pytest.mark.asyncio

Turns = Sequence[Any]


class Seeing(ScriptedModel):
    """Remembers all that it is sent."""

    def __init__(self, script: Turns, **options: Any) -> None:
        super().__init__(script, **options)
        self.sent: list[list[ModelMessage]] = []

    async def request(self, messages: list[ModelMessage], *args: Any) -> Any:
        self.sent.append(list(messages))
        return await super().request(messages, *args)


@tool(requires_approval=lambda amount: amount > 10)
async def pay(amount: int) -> str:
    """Pays; much of it only with an approval."""
    return f"{amount} paid"


@tool(requires_approval=True)
async def wipe(disk: str) -> dict[str, str]:
    """Wipes a disk, which needs an approval."""
    return {"wiped": disk}


@tool(requires_approval=lambda amount: amount > 10, effect="once")
async def send(amount: int) -> str:
    """Sends, and not twice."""
    return f"{amount} sent"


@tool
async def look(at: str) -> str:
    """Looks."""
    return f"{at} seen"


def get_feedback(model: Seeing, turn: int = -1) -> list[Any]:
    """The results of the model's calls."""
    return [part.content for part in model.sent[turn][-1].parts]


async def journal(runner: Runner, result: RunResult) -> tuple[bytes, float, Sequence[Record]]:
    run = await runner._read_run(result.run_id)
    [history] = await runner._world.store.get_histories([run.key])
    return run.inputs, run.clock_started_at, history.records


async def check(runner: Runner, result: RunResult, model: Seeing) -> Conversation:
    """Hold what is rebuilt from the journal, and from each of its beginnings, against what the model was sent."""
    assert result.status == "completed", result.error
    inputs, began_at, records = await journal(runner, result)
    rebuilt = rebuild_conversation(inputs, began_at, records)
    assert rebuilt.messages[:-1] == model.sent[-1]
    for length in range(len(records)):
        messages = rebuild_conversation(inputs, began_at, records[:length]).messages
        assert messages == rebuilt.messages[: len(messages)]
        assert len(messages) in (1, *(len(sent) for sent in model.sent), *(len(sent) + 1 for sent in model.sent))
        build_conversation(inputs, records[:length])  # works for every incomplete journal
    said = [one.content for one in build_conversation(inputs, records) if one.role == "tool"]
    assert len(said) == sum(
        message.parts[0].part_kind == "tool-return" and len(message.parts) for message in rebuilt.messages
    )
    return rebuilt


def get_open_approvals(result: RunResult) -> dict[Any, str]:
    """The ids of the open questions by the first of their arguments."""
    return {next(iter((one.arguments or {}).values())): one.id for one in result.approvals if one.state == "open"}


async def test_one_approved_call() -> None:
    model = Seeing([call("wipe", disk="a"), call("look", at="b"), "done"])
    runner = Runner()
    result = await runner.run(Agent(model, name="journal-one", tools=[wipe, look]), "go")
    assert result.status == "waiting"
    result = await runner.approve(result.run_id, by="ana")
    await check(runner, result, model)
    assert get_feedback(model, 1) == [{"wiped": "a"}]
    assert [(step.number, step.name) for step in result.steps] == [
        (1, "model call"),
        (2, "wipe"),
        (4, "approval start"),  # the question was the third
        (5, "wipe"),
        (6, "model call"),
        (7, "look"),
        (8, "model call"),
    ]


async def test_calls_of_one_tool_that_are_answered_in_another_order() -> None:
    calls = [call("pay", amount=amount) for amount in (20, 5, 30, 40)]
    model = Seeing([calls, [call("pay", amount=50), call("pay", amount=60)], "done"])
    runner = Runner()
    result = await runner.run(Agent(model, name="journal-order", tools=[pay]), "go")
    for amount in (40, 20, 30):
        result = await runner.approve(result.run_id, id=get_open_approvals(result)[amount])
    assert get_feedback(model) == ["20 paid", "5 paid", "30 paid", "40 paid"]
    for amount in (60, 50):
        result = await runner.approve(result.run_id, id=get_open_approvals(result)[amount])
    await check(runner, result, model)
    assert get_feedback(model) == ["50 paid", "60 paid"]


async def test_calls_with_and_without_and_a_sub_agent() -> None:
    helper = Agent(ScriptedModel([call("pay", amount=70), "helped"]), name="journal-helper", tools=[pay])
    calls = [call("look", at="x"), call("wipe", disk="a"), call("journal-helper", task="help"), call("pay", amount=99)]
    model = Seeing([calls, "done"])
    runner = Runner()
    result = await runner.run(Agent(model, name="journal-mixed", tools=[wipe, pay, look], subagents=[helper]), "go")
    [child] = result.children
    ids = get_open_approvals(result)
    assert set(ids) == {"a", 99}
    asks = await runner.result(child.run_id)
    assert [one.arguments for one in asks.approvals] == [{"amount": 70}]  # from its own run
    result = await runner.approve(result.run_id, id=ids[99])
    await runner.approve(child.run_id)
    result = await runner.deny(result.run_id, id=ids["a"])
    await check(runner, result, model)
    assert get_feedback(model)[0] == "x seen"
    assert "tester denied the call" in get_feedback(model)[1]
    assert get_feedback(model)[2:] == ["helped", "99 paid"]


async def test_arguments_that_a_person_changes() -> None:
    model = Seeing([[call("pay", amount=20), call("pay", amount=30)], "done"])
    runner = Runner()
    result = await runner.run(Agent(model, name="journal-changed", tools=[pay]), "go")
    ids = get_open_approvals(result)
    result = await runner.approve(result.run_id, id=ids[30], arguments={"amount": 31}, by="ana")
    result = await runner.approve(result.run_id, id=ids[20], arguments={"amount": 20})  # which are those that it had
    await check(runner, result, model)
    first, second = get_feedback(model)
    assert first == "20 paid"
    assert (second["arguments"], second["result"]) == ({"amount": 31}, "31 paid")
    assert "ana" in second["note"]


async def test_a_denied_call() -> None:
    model = Seeing([[call("wipe", disk="a"), call("look", at="b")], "done"])
    runner = Runner()
    result = await runner.run(Agent(model, name="journal-denied", tools=[wipe, look]), "go")
    result = await runner.deny(result.run_id, by="ben", reason="It is in use.")
    await check(runner, result, model)
    assert get_feedback(model) == [
        "The tool 'wipe' was not called: ben denied the call. The reason: It is in use.\n"
        "Do not call it again in the same way.",
        "b seen",
    ]
    assert [part.outcome for part in model.sent[-1][-1].parts] == ["denied", "success"]
    assert not result.steps["wipe"][1:]


@pytest.mark.parametrize("on_timeout", ["deny", "approve"])
async def test_a_call_without_an_answer(on_timeout: str) -> None:
    policy = ApprovalPolicy(timeout=3600, on_timeout=on_timeout)
    model = Seeing([[call("pay", amount=20), call("look", at="b"), call("pay", amount=30)], "done"])
    runner = Runner()
    agent = Agent(model, name=f"journal-silent-{on_timeout}", tools=[pay, look], approvals=policy)
    result = await runner.start(agent, "go")
    result = await runner.approve(result.run_id, id=get_open_approvals(result)[30])
    await runner.advance(3600)
    result = await runner.resume(result.run_id)
    await check(runner, result, model)
    first, *others = get_feedback(model)
    assert others == ["b seen", "30 paid"]
    if on_timeout == "approve":
        assert first == "20 paid"
    else:
        assert "nobody answered within 1 hour" in first


async def ignore_notification(notice: ApprovalNotification) -> None:
    """Notifies in vain."""


POLICIES = {
    "none": None,
    "plain": ApprovalPolicy("ana"),
    "timed": ApprovalPolicy("ana", timeout=60, on_timeout="approve"),
    "told": ApprovalPolicy(notify=ignore_notification),
    "all": ApprovalPolicy(timeout=70, remind_every=20, escalate_to="ben", notify=ignore_notification),
}


@pytest.mark.parametrize("now", POLICIES)
@pytest.mark.parametrize("then", POLICIES)
async def test_another_policy_in_the_code_is_for_the_next_question(then: str, now: str) -> None:
    model = Seeing([call("pay", amount=20), [call("pay", amount=30), call("pay", amount=40)], "done"])
    agent = Agent(model, name=f"journal-policies-{then}-{now}", tools=[pay], approvals=POLICIES[then])
    runner = Runner()
    result = await runner.start(agent, "go")
    await runner.advance(30)
    result = await runner.approve(result.run_id)  # the second question is asked
    await runner.advance(30)
    assert (result.status, len(get_open_approvals(result))) == ("waiting", 2)
    agent.approvals = POLICIES[now] or ApprovalPolicy()
    result = await runner.approve(result.run_id, id=get_open_approvals(result)[40])
    if then in ("timed", "all"):
        await runner.advance(200)
        result = await runner.resume(result.run_id)
    else:
        result = await runner.approve(result.run_id)
    await check(runner, result, model)
    assert get_feedback(model)[1] == "40 paid"
    assert (
        get_feedback(model)[0] == "30 paid"
        if then != "all"
        else "nobody answered within 140 seconds" in get_feedback(model)[0]
    )


async def test_a_question_that_is_passed_on_and_repeated() -> None:
    notices: list[tuple[str, str, Any]] = []

    async def notify(notice: ApprovalNotification) -> None:
        notices.append((notice.kind, notice.assignee, notice.arguments))

    policy = ApprovalPolicy("ana", timeout=100, remind_every=60, escalate_to=["ben"], notify=notify)
    model = Seeing([[call("pay", amount=20), call("pay", amount=30)], "done"])
    runner = Runner()
    agent = Agent(model, name="journal-escalated", tools=[pay], approvals=policy)
    result = await runner.start(agent, "go")
    ids = get_open_approvals(result)
    await runner.advance(130)
    result = await runner.approve(result.run_id, id=ids[30], by="ben")
    await runner.advance(100)
    result = await runner.resume(result.run_id)
    await check(runner, result, model)
    assert "nobody answered within 200 seconds" in get_feedback(model)[0]
    assert get_feedback(model)[1] == "30 paid"
    assert [kind for kind, _, arguments in notices if arguments == {"amount": 30}] == [
        "requested",
        "reminder",
        "escalated",
    ]
    assert {who for kind, who, _ in notices if kind == "escalated"} == {"ben"}


async def test_a_budget_that_runs_out_between() -> None:
    model = Seeing([call("pay", amount=20), call("pay", amount=30), "done"], usage=(100, 10))
    runner = Runner()
    agent = Agent(model, name="journal-budget", tools=[pay], budget=Budget(turns=1))
    result = await runner.run(agent, "go")
    result = await runner.approve(result.run_id)
    assert result.status == "waiting"
    result = await runner.set_budget(result.run_id, Budget(turns=3))
    result = await runner.approve(result.run_id)
    await check(runner, result, model)
    assert get_feedback(model) == ["30 paid"]
    assert len(result.steps["model call"]) == 4


async def test_a_once_tool_whose_rule_says_yes_or_no() -> None:
    model = Seeing([[call("send", amount=1), call("send", amount=20), call("send", amount=2)], "done"])
    runner = Runner()
    result = await runner.run(Agent(model, name="journal-once", tools=[send]), "go")
    result = await runner.approve(result.run_id)
    await check(runner, result, model)
    assert get_feedback(model) == ["1 sent", "20 sent", "2 sent"]


async def test_the_journal_does_not_show_which_of_several_calls_is_in_flight() -> None:
    model = Seeing([[call("pay", amount=20), call("pay", amount=30)], "done"])
    runner = Runner()
    result = await runner.run(Agent(model, name="journal-partly", tools=[pay]), "go")
    for amount in (30, 20):
        result = await runner.approve(result.run_id, id=get_open_approvals(result)[amount])
    _, _, records = await journal(runner, result)
    ordered = sorted(records, key=lambda record: record.position)
    called = match_tool_calls(2, 1, ordered)
    assert [one.record.payload for one in called if one is not None] == [b'"20 paid"', b'"30 paid"']
    missing = [record for record in ordered if record.payload != b'"30 paid"']
    assert [one is not None and one.has_ended for one in match_tool_calls(2, 1, missing)] == [False, False]


async def test_the_command_line_shows_denied_calls(url: str, runtime: Runtime) -> None:
    asked_now: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def notify(notice: ApprovalNotification) -> None:
        asked_now.put_nowait((str(notice.arguments), notice.id))

    turn = [call("pay", amount=20), call("send", amount=5), call("pay", amount=30)]
    model = ScriptedModel([turn, call("wipe", disk="a"), "done"])
    policy = ApprovalPolicy("ana", notify=notify)
    agent = Agent(model, name="journal-shown", tools=[pay, send, wipe], approvals=policy)
    handle = await agent.options(id="shown").start("go")
    async with Client(url) as client:
        (_, first), (_, second) = sorted([await asked_now.get(), await asked_now.get()])
        await client.approve(first, arguments={"amount": 21}, by="ana")
        await client.deny(second, by="ben", reason="Too much.")
        _, third = await asked_now.get()

        async def holdfast(*arguments: str) -> str:
            result = await asyncio.to_thread(
                CliRunner().invoke, cli, [*arguments, "--url", url], env={"COLUMNS": "120"}
            )
            assert result.exit_code == 0, result.output
            return result.output

        shown = await holdfast("show", "shown")
        assert len(re.findall(r" {2}pay .* needs an approval\n", shown)) == 2
        assert len(re.findall(r" {2}send .* needs no approval\n", shown)) == 1
        assert "  approval of #2 " in shown
        assert "ApprovalRequired" not in shown
        conversation = await holdfast("show", "shown", "--conversation")
        assert "pay  approved by ana, who changed the arguments\n    → pay(amount=21)\n    21 paid\n" in conversation
        assert "pay  denied by ben\n" in conversation
        assert f"wipe: waits for a person's approval: `holdfast approvals --url {url}`" in conversation
        messages = json.loads(await holdfast("show", "shown", "--conversation", "--json"))["messages"]
        decided = [one["approval"] for one in messages if one["role"] == "tool"]
        assert decided == [
            {"approved": True, "answered_by": "ana", "reason": "", "changed_arguments": {"amount": 21}},
            None,
            {"approved": False, "answered_by": "ben", "reason": "Too much.", "changed_arguments": None},
        ]
        await client.approve(third)
        assert (await handle.result(timeout=30)).output == "done"
