"""Agents: tools, sub-agents, plans, approvals of tools, skills, typed answers, limits, usage; single model calls."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from conformance_world import World, effect_counts, fails_with, make_unique_id, wait_for_approval
from model_scripts import write_plan
from pydantic import BaseModel
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from holdfast import (
    Agent,
    AgentResult,
    ApprovalPolicy,
    Client,
    ModelOptions,
    ModelRequestRejected,
    ModelRetry,
    RunContext,
    TurnLimitReached,
    current_run,
    llm_step,
    skill,
    step,
    tool,
    workflow,
)
from holdfast.testing import ScriptedModel, answer, call
from waits import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@tool
async def ag_search(query: str) -> str:
    """Search the web."""
    effect_counts[current_run().id, f"searched {query}"] += 1
    return f"About {query}: much."


@tool
def ag_count(words: list[str]) -> int:
    """Count words, in a thread."""
    return len(words)


researcher = Agent(
    ScriptedModel(
        [
            [call("ag_search", query="bees"), call("ag_count", words=["a", "b"])],
            "Bees are many.",
        ],
        name="gpt-4o-mini",
        provider="openai",
    ),
    name="ag-research",
    tools=[ag_search, ag_count],
    instructions="You search.",
)


async def test_an_agent_calls_its_tools_and_answers(world: World, client: Client) -> None:
    run = make_unique_id("research")
    result = await researcher.options(id=run).run("What of bees?")
    assert (result.output, result.run_id, result.usage.calls) == ("Bees are many.", run, 2)
    assert effect_counts[run, "searched bees"] == 1
    assert [type(message).__name__ for message in result.messages] == [
        "ModelRequest", "ModelResponse", "ModelRequest", "ModelResponse",
    ]  # fmt: skip
    returned = {part.tool_name: part.content for part in result.messages[2].parts}  # type: ignore[union-attr]
    assert returned == {"ag_search": "About bees: much.", "ag_count": 2}
    told = await client.run("ag-research", "What of bees?")
    assert isinstance(told, AgentResult)
    assert told.output == "Bees are many."


async def test_a_run_has_usage_and_cost(world: World, client: Client) -> None:
    run = make_unique_id("research")
    result = await researcher.options(id=run).run("What of bees?")
    used = await client.usage(run)
    assert (used.calls, used.tokens) == (2, result.usage.tokens)
    assert used.tokens > 0
    assert result.cost is not None
    assert used.cost == result.cost
    assert Decimal(0) < result.cost < Decimal("0.01")


trier = Agent(TestModel(), name="ag-test-model", tools=[ag_search])


async def test_the_test_model_of_the_library(world: World) -> None:
    result = await trier.options(id=make_unique_id("tester")).run("Anything")
    assert "ag_search" in result.output


async def _reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=[TextPart(f"{len(messages)} message, {len(info.function_tools)} tool")])


whole = ModelOptions(stream=False)
functional = Agent(FunctionModel(_reply), name="ag-function-model", tools=[ag_search], model_options=whole)


async def test_the_function_model_of_the_library(world: World) -> None:
    assert (await functional.options(id=make_unique_id("function")).run("Hello")).output == "1 message, 1 tool"


class City(BaseModel):
    name: str
    people: int


geographer = Agent(
    ScriptedModel([answer(name="Paris"), answer(name="Paris", people=2_100_000)]), name="ag-city", output_type=City
)


async def test_an_answer_that_does_not_fit_goes_back_to_the_model(world: World, client: Client) -> None:
    result = await geographer.options(id=make_unique_id("city")).run("The largest city?")
    assert result.output == City(name="Paris", people=2_100_000)
    assert result.usage.calls == 2
    assert (await client.get(result.run_id)).output == {"name": "Paris", "people": 2_100_000}


historian = Agent(ScriptedModel(["Built in 1889."], usage=(10, 5)), name="ag-historian", instructions="Dates.")
engineer = Agent(ScriptedModel([RuntimeError("no idea")], usage=(10, 5)), name="ag-engineer", instructions="Measures.")
guide = Agent(
    ScriptedModel(
        [
            [call("ag-historian", task="When?"), call("ag-engineer", task="How high?")],
            "Built in 1889.",
        ],
        usage=(100, 50),
    ),
    name="ag-guide",
    subagents=[historian, engineer],
)


async def test_sub_agents_are_runs_of_their_own_and_their_failure_is_an_observation(
    world: World, client: Client
) -> None:
    run = make_unique_id("guide")
    result = await guide.options(id=run).run("Tell me about the tower.")
    assert result.output == "Built in 1889."
    assert (await client.usage(run)).tokens == 2 * 150 + 15

    async def children() -> dict[str, str]:
        return {one.workflow: one.state for one in await client.list(parent=run)}

    assert await wait_until(lambda: _await_both(children)) == {"ag-historian": "completed", "ag-engineer": "failed"}


async def _await_both(children: Any) -> Any:
    found = await children()
    return found if len(found) == 2 else None


plans: dict[str, list[Any]] = {}


@tool
async def ag_look(ctx: RunContext, place: str) -> str:
    """Look somewhere."""
    async with Client(_url[0]) as client:
        plan = await client.plan(ctx.run_id)
        plans.setdefault(ctx.run_id, []).append([plan.done_count, plan.working and plan.working.task])
    return "nothing"


_url: list[str] = [""]

searcher = Agent(
    ScriptedModel(
        [
            write_plan(attic="working", cellar="open"),
            call("ag_look", place="attic"),
            write_plan(attic="done", cellar="working"),
            call("ag_look", place="cellar"),
            "Nothing in the attic.",
            write_plan(attic="done", cellar="done"),
            "Nothing at all.",
        ]
    ),
    name="ag-searcher",
    tools=[ag_look],
    planning=True,
)


async def test_a_plan_can_be_followed_while_the_agent_works(world: World, client: Client) -> None:
    _url[0] = world.url
    run = make_unique_id("searcher")
    handle = await searcher.options(id=run).start("Where is the key?")
    assert (await handle.result()).output == "Nothing at all."
    assert plans[run] == [[0, "attic"], [1, "cellar"]]
    for plan in (await handle.plan(), await client.plan(run)):
        assert [(item.task, item.status) for item in plan] == [("attic", "done"), ("cellar", "done")]


def is_large(amount: int) -> bool | str:
    return f"{amount} is more than 100" if amount > 100 else False


@tool(requires_approval=is_large)
async def ag_pay(to: str, amount: int) -> str:
    """Pay somebody."""
    effect_counts[current_run().id, f"paid {to} {amount}"] += 1
    return f"paid {amount} to {to}"


payer = Agent(
    ScriptedModel(
        [
            [call("ag_pay", to="bob", amount=20), call("ag_pay", to="eve", amount=5000)],
            call("ag_pay", to="mallory", amount=900),
            "Paid.",
        ]
    ),
    name="ag-payer",
    tools=[ag_pay],
    approvals=ApprovalPolicy(assignee="ann", timeout=3600),
)


async def test_calls_of_tools_wait_for_a_person_who_may_change_them_or_say_no(world: World, client: Client) -> None:
    run = make_unique_id("payer")
    handle = await payer.options(id=run).start("Pay.")
    first = await wait_for_approval(client, run)
    assert (first.tool, first.arguments, first.assignee) == ("ag_pay", {"to": "eve", "amount": 5000}, "ann")
    assert first.reason == "5000 is more than 100"
    await client.approve(first.id, arguments={"to": "eve", "amount": 50}, by="ann")

    async def next_one() -> Any:
        return next((one for one in await client.approvals(run) if one.id != first.id), None)

    second = await wait_until(next_one)
    await client.deny(second.id, by="ann", reason="who is that?")
    result = await handle.result()
    assert result.output == "Paid."
    payments = ("paid bob 20", "paid eve 50", "paid eve 5000", "paid mallory 900")
    assert [effect_counts[run, name] for name in payments] == [1, 1, 0, 0]
    assert "who is that?" in str(result.messages)


@tool
async def ag_refund(order: str) -> str:
    """Give the money for an order back."""
    return f"refunded {order}"


@skill(tools=[ag_refund])
def ag_refunds() -> str:
    """How to give money back."""
    return "Apologise first."


skilled = ScriptedModel([call("load_skill", name="ag_refunds"), call("ag_refund", order="17"), "Done."])
clerk = Agent(skilled, name="ag-clerk", skills=[ag_refunds])


async def test_a_skill_is_loaded_when_it_is_needed(world: World) -> None:
    skilled.calls.clear()
    result = await clerk.options(id=make_unique_id("clerk")).run("My money!")
    assert result.output == "Done."
    assert "ag_refund" not in skilled.calls[0].tool_names
    assert "ag_refund" in skilled.calls[1].tool_names
    assert "Apologise first." in str(result.messages)


@dataclass
class Shop:
    stock: dict[str, int]


@tool(retries=1, backoff=0.001, retry_on=ConnectionError)
async def ag_stock(ctx: RunContext[Shop], item: str) -> int:
    """How many there are."""
    run = current_run().id
    effect_counts[run, item] += 1
    if item not in ctx.deps.stock:
        raise ModelRetry(f"There is no {item}.")
    if effect_counts[run, item] == 1:
        raise ConnectionError("again")
    return ctx.deps.stock[item]


seller = Agent(
    ScriptedModel(
        [
            call("ag_stock", item="coffee"),
            call("ag_stock", '{"item": '),
            call("no_such_tool"),
            call("ag_stock", item="tea"),
            "Three.",
        ]
    ),
    name="ag-seller",
    tools=[ag_stock],
    deps_type=Shop,
)


async def test_errors_are_feedback_for_the_model_and_tools_get_their_deps(world: World) -> None:
    run = make_unique_id("seller")
    result = await seller.options(id=run).run("How much tea?", deps=Shop({"tea": 3}))
    assert (result.output, result.usage.calls) == ("Three.", 5)
    assert [effect_counts[run, "coffee"], effect_counts[run, "tea"]] == [1, 2]
    assert "There is no coffee." in str(result.messages)


endless = Agent(ScriptedModel([call("ag_count", words=["x"])] * 5), name="ag-endless", tools=[ag_count], max_turns=3)


async def test_turns_are_limited(world: World, client: Client) -> None:
    run = make_unique_id("endless")
    with fails_with(TurnLimitReached, "3"):
        await endless.options(id=run).run("Go on for ever.")
    assert (await client.usage(run)).calls == 3


def _refused() -> BaseException:
    from pydantic_ai.exceptions import ModelHTTPError

    return ModelHTTPError(401, "gpt-4o-mini", {"message": "bad key"})


unlucky = Agent(ScriptedModel([_refused()]), name="ag-unlucky")
backed = Agent(ScriptedModel([_refused()]), name="ag-backed", fallback=ScriptedModel(["The other one."], name="other"))


async def test_a_model_that_refuses_fails_the_run_unless_another_one_answers(world: World) -> None:
    with fails_with(ModelRequestRejected, "401"):
        await unlucky.options(id=make_unique_id("unlucky")).run("Hello")
    assert (await backed.options(id=make_unique_id("backed")).run("Hello")).output == "The other one."


friend = Agent(ScriptedModel(["Hello Ada.", "You are Ada."]), name="ag-friend")


async def test_a_session_goes_on_where_the_last_run_ended(world: World) -> None:
    session = make_unique_id("ada")
    await friend.options(id=make_unique_id("friend")).run("I am Ada.", session=session)
    result = await friend.options(id=make_unique_id("friend")).run("Who am I?", session=session)
    assert (result.output, len(result.messages), len(result.new_messages)) == ("You are Ada.", 4, 2)


@step
@llm_step(model=ScriptedModel(["tides, moon"], name="gpt-4o-mini", provider="openai"))
async def ag_keywords(text: str) -> str:
    return f"Give the keywords of this text: {text}"


@llm_step(model=ScriptedModel([answer(name="Rome"), answer(name="Rome", people=3)]), output_type=City)
async def ag_city(country: str) -> str:
    return f"The capital of {country}?"


@workflow
async def ag_index(text: str) -> list[Any]:
    city = await ag_city("Italy")
    return [(await ag_keywords(text)).split(", "), isinstance(city, City), city.people]


async def test_single_model_calls_in_a_workflow(world: World, client: Client) -> None:
    run = make_unique_id("index")
    told = await ag_index.options(id=run)("Tides come with the moon.")
    assert told == [["tides", "moon"], True, 3]
    assert (await client.usage(run)).calls == 3


@workflow
async def ag_asking(question: str) -> str:
    return (await researcher.run(question)).output


async def test_an_agent_is_a_child_of_workflow_code(world: World, client: Client) -> None:
    run = make_unique_id("asking")
    assert await ag_asking.options(id=run)("What of bees?") == "Bees are many."
    assert (await client.usage(run)).calls == 2


async def test_the_events_of_an_agent_tell_its_calls_and_its_answer(world: World, client: Client) -> None:
    run = make_unique_id("research")
    handle = await researcher.options(id=run).start("What of bees?")
    events = [event async for event in handle.events()]
    kinds = [event.kind for event in events if event.kind not in ("started",)]
    assert kinds.count("answered") == 2
    assert {event.name for event in events if event.kind == "step"} >= {"ag_search", "ag_count"}
    text = "".join(event.text for event in events if event.kind == "text")
    assert text.endswith("Bees are many.")
    assert events[-1].kind == "ended"
    assert events[-1].data["state"] == "completed"
