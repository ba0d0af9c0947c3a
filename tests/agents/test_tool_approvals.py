"""Tools that a person must approve of: when one is asked, what he is shown, and what is called after that."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any

import pytest
from model_scripts import get_sent_contents
from pydantic import AfterValidator, BaseModel, BeforeValidator, SecretStr

from holdfast import (
    Agent,
    ApprovalNotification,
    ApprovalPolicy,
    Client,
    ModelRetry,
    RunContext,
    Runtime,
    tool,
    workflow,
)
from holdfast.agents import deps as handing
from holdfast.agents.tool_results import make_image
from holdfast.errors import ApprovalRequired, DefinitionError, DepsMissing
from holdfast.testing import Runner, RunResult, ScriptedModel, call

pytestmark = pytest.mark.asyncio

Made = list[Any]
"""What tools have done."""


async def asking(name: str, *turns: Any, **options: Any) -> tuple[Runner, RunResult, ScriptedModel]:
    """A run of an agent whose model takes these turns, until it waits or has ended."""
    model = ScriptedModel([*turns, "done"])
    runner = Runner()
    return runner, await runner.run(Agent(model, name=f"approvals-{name}", **options), "go"), model


# Declaring it


def rule(amount: int) -> bool:
    """A rule that fits."""
    return amount > 10


def unknown_parameter(amount: int, colour: str) -> bool:
    """A rule that wants what the tool does not have."""
    return bool(colour)


def misspelt(amuont: int) -> bool:
    """A rule with a misspelt parameter."""
    return amuont > 10


def positional_only(amount: int, /) -> bool:
    """A rule that cannot be called by name."""
    return amount > 10


def late_context(amount: int, ctx: RunContext) -> bool:
    """A rule that takes the context in the wrong place."""
    return amount > 10


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("yes", "requires_approval is True, False, or a function"),
        (1, "requires_approval is True, False, or a function"),
        (None, "requires_approval is True, False, or a function"),
        (unknown_parameter, "takes 'colour', which is no parameter of the tool; it has: amount"),
        (misspelt, "did you mean 'amount'"),
        (positional_only, "by name, so it cannot take"),
        (lambda *amounts: True, "by name, so it cannot take"),
        (late_context, "as its first parameter"),
        (range, "it cannot be told what it takes"),
    ],
    ids=["text", "number", "none", "more", "misspelt", "by-place", "stars", "late-context", "builtin"],
)
async def test_what_cannot_be_meant_is_refused_when_the_tool_is_defined(given: Any, says: str) -> None:
    with pytest.raises(DefinitionError, match=says) as refused:

        @tool(requires_approval=given)
        async def pay(amount: int) -> str:
            """Pays."""
            return "paid"

    assert "tool 'pay'" in str(refused.value)


@pytest.mark.parametrize(
    ("approvals", "says"),
    [
        (600, "an ApprovalPolicy, as in"),
        (ApprovalPolicy(timeout=5, on_timeout=True), "on_timeout='approve', or not, on_timeout='deny'"),
    ],
    ids=["number", "on-timeout"],
)
async def test_an_agents_approvals_are_checked_when_it_is_defined(approvals: Any, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        Agent("openai:gpt-4o", name="approvals-unfit", approvals=approvals)


async def test_the_same_tool_can_be_had_with_and_without() -> None:
    made: Made = []

    @tool
    async def pay(amount: int) -> str:
        """Pays."""
        made.append(amount)
        return "paid"

    careful = pay.with_approval(rule)
    assert (pay.can_require_approval, careful.can_require_approval) == (False, True)
    assert careful.with_approval(False).can_require_approval is False
    with pytest.raises(DefinitionError, match=r"tool 'pay'.*misspelt"):
        pay.with_approval(misspelt)
    _, result, _ = await asking("derived", call("pay", amount=20), tools=[careful])
    assert (result.status, made) == ("waiting", [])
    _, result, _ = await asking("not-derived", call("pay", amount=20), tools=[pay])
    assert (result.status, made) == ("completed", [20])


# When a person is asked


@dataclass
class Limits:
    most: int


def over_the_limit(ctx: RunContext[Limits], amount: int) -> str | bool:
    """A rule that needs the deps."""
    return amount > ctx.deps.most and f"{ctx.tool_name}: more than {ctx.deps.most}"


async def asynchronous(amount: int) -> bool:
    """A rule that waits."""
    await asyncio.sleep(0)
    return amount > 10


class Callable:
    async def __call__(self, amount: int) -> bool:
        return amount > 10


@pytest.mark.parametrize("effect", ["idempotent", "once"])
@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (rule, ""),
        (asynchronous, ""),
        (Callable(), ""),
        (lambda **arguments: arguments["amount"] > 10 and f"{arguments['to']} gets much", "somebody gets much"),
        (lambda to, amount: "  big\n" if (to, amount) == ("somebody", 20) else False, "big"),
        (over_the_limit, "pay: more than 10"),
    ],
    ids=["plain", "async", "object", "all", "defaults", "context"],
)
async def test_a_function_decides_from_the_validated_arguments(
    given: Any, reason: str, is_plain: bool, effect: str
) -> None:
    made: Made = []

    async def pay(amount: int, to: str = "somebody") -> str:
        """Pays."""
        made.append(amount)
        return f"{amount} paid"

    def pay_plainly(amount: int, to: str = "somebody") -> str:
        """Pays, in a thread."""
        made.append(amount)
        return f"{amount} paid"

    gated = tool(name="pay", effect=effect, requires_approval=given)(pay_plainly if is_plain else pay)
    model = ScriptedModel([[call("pay", amount="20"), call("pay", amount=5)], "done"])
    runner = Runner()
    case = f"{getattr(given, '__name__', 'object')}-{reason}-{is_plain}-{effect}".replace("\n", "")
    agent = Agent(model, name=f"approvals-rule-{case}", tools=[gated], deps_type=Limits)
    result = await runner.run(agent, "go", deps=Limits(10))
    [asked] = result.approvals
    assert (asked.tool, asked.arguments, asked.reason) == ("pay", {"amount": 20, "to": "somebody"}, reason)
    assert made == [5]
    result = await runner.approve(result.run_id)
    assert result.output.output == "done", result.error
    assert made == [5, 20]
    assert get_sent_contents(model) == ["20 paid", "5 paid"]


async def test_a_call_that_needs_no_approval_is_one_record() -> None:
    gated = tool(requires_approval=rule, name="pay")(lambda amount: f"{amount} paid")
    _, result, model = await asking("one-record", call("pay", amount=5), tools=[gated])
    assert get_sent_contents(model) == ["5 paid"]
    assert [step.name for step in result.steps] == ["model call", "pay", "model call"]


async def test_arguments_that_do_not_fit_are_the_models_business() -> None:
    asked: Made = []

    @tool(requires_approval=lambda amount: bool(asked.append(amount)))
    async def pay(amount: int) -> str:
        """Pays."""
        return "paid"

    @tool(requires_approval=True)
    async def wipe(disk: str) -> str:
        """Wipes."""
        return "wiped"

    turn = [call("pay", amount="much"), call("wipe", "{broken"), call("wipe", disc="a"), call("wipe")]
    _, result, model = await asking("unfit", turn, tools=[pay, wipe])
    assert (result.status, result.approvals, asked) == ("completed", [], [])
    assert "amount should be a valid integer" in get_sent_contents(model)[0]
    assert "did you mean 'disk'" in get_sent_contents(model)[2]


@pytest.mark.parametrize("said", [None, 1, "raises"])
async def test_a_rule_without_an_answer_keeps_the_tool_from_being_called(said: Any) -> None:
    made: Made = []

    def unsure(amount: int) -> Any:
        if said == "raises":
            raise KeyError("the limits")
        return said

    @tool(requires_approval=unsure)
    async def pay(amount: int) -> str:
        """Pays."""
        made.append(amount)
        return "paid"

    _, result, model = await asking(f"unsure-{said}", call("pay", amount=5), tools=[pay])
    assert (result.status, made) == ("completed", [])
    assert (
        "KeyError" if said == "raises" else f"requires_approval of tool 'pay' returned {said}"
    ) in get_sent_contents(model)[0]


async def test_a_rule_is_retried_as_the_tool_is_and_its_yes_is_not() -> None:
    tries: Made = []

    async def shaky(amount: int) -> bool:
        tries.append(amount)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return True

    @tool(requires_approval=shaky, retries=5)
    async def pay(amount: int) -> str:
        """Pays."""
        return "paid"

    _, result, _ = await asking("shaky", call("pay", amount=5), tools=[pay])
    assert tries == [5, 5, 5]
    assert isinstance(result.steps["pay"][0].error, ApprovalRequired)
    assert len(result.approvals) == 1


async def test_a_person_answers_while_other_calls_are_in_flight(runtime: Runtime) -> None:
    paid = asyncio.Event()
    asked = asyncio.Queue[str]()

    async def notify(notice: ApprovalNotification) -> None:
        asked.put_nowait(notice.id)

    @tool(requires_approval=True)
    async def pay(amount: int) -> str:
        """Pays."""
        paid.set()
        return "paid"

    @tool
    async def look() -> str:
        """Looks until the payment is made."""
        await paid.wait()
        return "seen"

    model = ScriptedModel([[call("pay", amount=1), call("look")], "done"])
    policy = ApprovalPolicy(notify=notify)
    handle = await Agent(model, name="approvals-side-by-side", tools=[pay, look], approvals=policy).start("go")
    async with Client(runtime.url) as client:
        await client.approve(await asked.get())
        assert (await handle.result(timeout=30)).output == "done"
    assert get_sent_contents(model) == ["paid", "seen"]


async def test_a_sub_agent_asks_from_its_own_run() -> None:
    @tool(requires_approval=True)
    async def pay(amount: int) -> str:
        """Pays."""
        return f"{amount} paid"

    clerk = Agent(ScriptedModel([call("pay", amount=7), "paid it"]), name="approvals-clerk", tools=[pay])
    runner, result, model = await asking("chief", call("approvals-clerk", task="pay"), subagents=[clerk])
    assert result.approvals == []
    [child] = result.children
    assert [one.arguments for one in (await runner.result(child.run_id)).approvals] == [{"amount": 7}]
    await runner.approve(child.run_id)
    result = await runner.resume(result.run_id)
    assert get_sent_contents(model) == ["paid it"]


async def test_deps_that_a_rule_lacks_fail_the_run() -> None:
    @tool(requires_approval=over_the_limit)
    async def pay(amount: int) -> str:
        """Pays."""
        return "paid"

    _, result, _ = await asking("no-deps", call("pay", amount=20), tools=[pay], deps_type=Limits)
    assert isinstance(result.error, DepsMissing)


async def test_workflow_code_and_plain_code_need_no_approval() -> None:
    @tool(requires_approval=True)
    async def pay(amount: int) -> str:
        """Pays."""
        return f"{amount} paid"

    @workflow
    async def pays_by_itself() -> str:
        return await pay(5)

    result = await Runner().run(pays_by_itself)
    assert result.output == "5 paid", result.error
    assert await pay(6) == "6 paid"


# What the person is shown, and what is called then


class Order(BaseModel):
    item: str
    price: Decimal
    until: date


def twice(text: str) -> str:
    """A validator that is not to be applied twice."""
    return f"{text}{text}"


async def test_a_person_is_shown_what_the_tool_will_get() -> None:
    made: Made = []

    @tool(requires_approval=True)
    async def buy(order: Order, password: str, count: int = 1, note: str | None = None) -> str:
        """Buys."""
        made.append((order, password, count, note))
        return "bought"

    given = {"item": "a pen", "price": "3.50", "until": "2030-01-31"}
    runner, result, _ = await asking("shown", call("buy", order=given, password="x1", count="2"), tools=[buy])
    [asked] = result.approvals
    assert asked.question == "May the agent 'approvals-shown' call the tool 'buy'?"
    assert asked.arguments == {"order": given, "password": "x1", "count": 2, "note": None}
    assert asked.form is not None
    assert asked.form["required"] == ["order", "password"]
    await runner.approve(result.run_id)
    assert made == [(Order(item="a pen", price=Decimal("3.50"), until=date(2030, 1, 31)), "x1", 2, None)]


async def test_what_cannot_be_written_back_is_shown_as_the_model_sent_it() -> None:
    made: Made = []
    nothing: Any = object()

    @tool(requires_approval=True)
    async def odd(text: Annotated[str, BeforeValidator(twice)], key: SecretStr, more: Any = nothing) -> str:
        """Takes odd things."""
        made.append((text, key.get_secret_value(), more))
        return "taken"

    runner, result, _ = await asking("odd", call("odd", text="ab", key="k"), tools=[odd])
    assert result.approvals[0].arguments == {"text": "ab", "key": "k"}
    await runner.approve(result.run_id)
    assert made == [("abab", "k", nothing)]


async def test_the_approved_call_is_made_with_what_was_approved_even_if_a_default_has_changed() -> None:
    made: Made = []

    def deploy(default: str) -> Any:
        @tool(requires_approval=True)
        async def deploy(version: str, to: str = default) -> str:
            """Deploys."""
            made.append((version, to))
            return "deployed"

        return deploy

    model = ScriptedModel([call("deploy", version="1"), "done"])
    agent = Agent(model, name="approvals-deploys", tools=[deploy("staging")])
    runner = Runner()
    result = await runner.run(agent, "go")
    agent.callables["deploy"] = deploy("production")
    result = await runner.approve(result.run_id)
    assert made == [("1", "staging")]


@pytest.mark.parametrize("change", ["gone", "free"])
async def test_a_tool_may_change_with_a_deploy_while_a_person_is_asked(change: str) -> None:
    made: Made = []

    @tool(requires_approval=True)
    async def pay(amount: int) -> str:
        """Pays."""
        made.append(amount)
        return "paid"

    model = ScriptedModel([[call("pay", amount=1), call("pay", amount=2)], "done"])
    agent = Agent(model, name=f"approvals-tool-{change}", tools=[pay])
    runner = Runner()
    result = await runner.run(agent, "go")
    first, second = [one.id for one in result.approvals]
    if change == "gone":
        del agent.callables["pay"]
    else:
        agent.callables["pay"] = pay.with_approval(False)
    await runner.approve(result.run_id, id=first)
    result = await runner.deny(result.run_id, id=second)
    assert result.output.output == "done", result.error
    assert made == ([] if change == "gone" else [1])
    assert ("There is no tool 'pay'" if change == "gone" else "paid") in get_sent_contents(model)[0]
    assert "denied" in get_sent_contents(model)[1]


def even(amount: int) -> int:
    """A validator that no JSON schema can tell."""
    if amount % 2:
        raise ValueError("must be even")
    return amount


async def test_changed_arguments_are_checked_like_a_models() -> None:
    made: Made = []

    @tool(requires_approval=True)
    async def pay(amount: Annotated[int, AfterValidator(even)]) -> str:
        """Pays."""
        made.append(amount)
        if amount == 8:
            raise ModelRetry("Not 8.")
        return "paid"

    turns = [[call("pay", amount=2), call("pay", amount=4), call("pay", amount=6)]]
    runner, result, model = await asking("changed", *turns, tools=[pay])
    for asked, amount in zip(result.approvals, (3, 8, 10), strict=True):
        result = await runner.approve(result.run_id, id=asked.id, arguments={"amount": amount}, by="ana")
    assert made == [8, 10]
    first, second, third = get_sent_contents(model)
    assert first.startswith('Before approving this call, ana changed its arguments to {"amount": 3}. The arguments do')
    assert "must be even" in first
    assert second == 'Before approving this call, ana changed its arguments to {"amount": 8}. Not 8.'
    assert third == {
        "note": "Before approving this call, ana changed its arguments. It was made with these.",
        "arguments": {"amount": 10},
        "result": "paid",
    }
    assert [part.outcome for part in model.calls[-1].last_message.parts] == ["retried", "retried", "success"]


async def test_an_image_is_still_one_when_the_arguments_were_changed() -> None:
    @tool(requires_approval=True)
    async def draw(size: int) -> list[Any]:
        """Draws."""
        return ["a dot", make_image("image/png", "iVBORw0KGgo=")]

    runner, result, model = await asking("drawn", [call("draw", size=1)], tools=[draw])
    await runner.approve(result.run_id, arguments={"size": 2}, by="ana")
    [[note, text, picture]] = get_sent_contents(model)
    assert note["arguments"] == {"size": 2}
    assert text == "a dot"
    assert picture.media_type == "image/png"


async def test_each_call_needs_an_approval_of_its_own() -> None:
    made: Made = []

    @tool(requires_approval=True)
    async def pay(amount: int) -> str:
        """Pays."""
        made.append(amount)
        return "paid"

    runner, result, model = await asking("each", call("pay", amount=1), call("pay", amount=1), tools=[pay])
    result = await runner.approve(result.run_id)
    assert (result.status, made) == ("waiting", [1])
    result = await runner.deny(result.run_id, by="")
    assert made == [1]
    assert "a person denied the call." in get_sent_contents(model)[0]


async def test_a_tool_that_raises_the_error_itself_has_failed() -> None:
    @tool
    async def pay(amount: int) -> str:
        """Pays."""
        raise ApprovalRequired("ask the boss")

    _, result, model = await asking("raises", call("pay", amount=1), tools=[pay])
    assert (result.status, result.approvals) == ("completed", [])
    assert get_sent_contents(model) == ["The tool 'pay' failed: ApprovalRequired: ask the boss"]


async def test_the_approved_call_has_its_own_retries_and_key() -> None:
    keys: Made = []

    @tool(requires_approval=True, retries=2)
    async def pay(ctx: RunContext, amount: int) -> str:
        """Pays."""
        keys.append((ctx.idempotency_key, ctx.attempt, ctx.tool_call_id))
        if len(keys) < 3:
            raise ConnectionError("not yet")
        return "paid"

    runner, result, model = await asking("retries", call("pay", amount=1), tools=[pay])
    await runner.approve(result.run_id)
    result = await runner.resume(result.run_id)
    assert get_sent_contents(model) == ["paid"]
    assert [attempt for _, attempt, _ in keys] == [1, 2, 3]
    assert len({(key, call_id) for key, _, call_id in keys}) == 1
    assert [step.attempt_count for step in result.steps["pay"]] == [1, 3]


# Crashes


async def test_a_once_tool_is_not_begun_before_it_is_approved_of() -> None:
    made: Made = []

    @tool(requires_approval=rule, effect="once")
    async def pay(amount: int) -> str:
        """Pays, and not twice."""
        made.append(amount)
        return f"{amount} paid"

    for number, amount in enumerate((20, 5)):
        model = ScriptedModel([call("pay", amount=amount), "done"])
        runner = Runner()
        runner.simulate_crash_before(step=2)
        result = await runner.run(Agent(model, name=f"approvals-once-{number}", tools=[pay]), "go")
        assert result.has_crashed
        result = await runner.resume(result.run_id)
        if amount > 10:
            result = await runner.approve(result.run_id)
        assert get_sent_contents(model) == [f"{amount} paid"]
    assert made == [20, 5]


async def test_a_once_tool_that_was_begun_when_its_process_died_is_not_begun_again() -> None:
    made: Made = []

    @tool(requires_approval=True, effect="once")
    async def pay(amount: int) -> str:
        """Pays, and not twice."""
        made.append(amount)
        return "paid"

    runner, result, model = await asking("once-dies", call("pay", amount=20), tools=[pay])
    runner.simulate_crash_before(step=5)  # the question is 3, and begins with 4
    result = await runner.approve(result.run_id)
    assert result.has_crashed
    result = await runner.resume(result.run_id)
    assert "may or may not have happened" in get_sent_contents(model)[0]
    assert made == []


async def test_wherever_the_process_dies_people_are_asked_once_and_calls_are_made_once() -> None:
    @tool(requires_approval=rule)
    async def pay(amount: int) -> str:
        """Pays."""
        return f"{amount} paid"

    @tool(requires_approval=rule, effect="once")
    async def send(amount: int) -> str:
        """Sends, and not twice."""
        return f"{amount} sent"

    calls = [call("pay", amount=20), call("send", amount=5), call("pay", amount=30), call("pay", amount=7)]
    model = ScriptedModel([calls, call("pay", amount=40), "done"])
    policy = ApprovalPolicy(timeout=60, remind_every=40)
    agent = Agent(model, name="approvals-everywhere", tools=[pay, send], approvals=policy)
    runner = Runner(max_pairs=10, replay_processes=0)
    runner.answer_approval("pay", {"amount": 21}, False, None)
    report = await runner.crash_everywhere(agent, "go")
    assert report.point_count > 40
    assert report.result.status == "completed"


# Retries by people


async def test_a_retry_uses_the_approval() -> None:
    made: Made = []

    @tool(requires_approval=True)
    async def pay(ctx: RunContext[Limits], amount: int) -> str:
        """Pays."""
        made.append((ctx.deps.most, amount))
        return "paid"

    model = ScriptedModel([call("pay", amount=1), "done"])
    agent = Agent(model, name="approvals-retried", tools=[pay], deps_type=Limits)
    runner = Runner()
    result = await runner.run(agent, "go")
    result = await runner.approve(result.run_id, arguments={"amount": 2})
    assert isinstance(result.error, DepsMissing)
    handing.set_agent_deps(["approvals-retried"], Limits(3))
    result = await runner.retry(result.run_id)
    assert result.output.output == "done", result.error
    assert made == [(3, 2)]
    assert len(result.approvals) == 1


async def test_a_run_that_is_cancelled_takes_its_question_back_and_asks_again_when_it_is_retried() -> None:
    made: Made = []

    @tool(requires_approval=True)
    async def pay(amount: int) -> str:
        """Pays."""
        made.append(amount)
        return "paid"

    runner, result, model = await asking("cancelled", call("pay", amount=1), tools=[pay])
    result = await runner.cancel(result.run_id)
    assert (result.status, [one.state for one in result.approvals]) == ("cancelled", ["withdrawn"])
    result = await runner.retry(result.run_id)
    assert (result.status, made) == ("waiting", [])
    result = await runner.approve(result.run_id)
    assert result.output.output == "done", result.error
    assert made == [1]
    assert len(model.calls) == 2
