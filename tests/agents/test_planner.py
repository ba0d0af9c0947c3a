"""Agents that plan: the plan is what was recorded last, and an answer waits until nothing is left of it."""

from __future__ import annotations

from typing import Any

import pytest
from model_scripts import get_sent_contents, write_plan
from pydantic import BaseModel

from holdfast import Agent, Client, Runtime, tool
from holdfast.agents.planner import MAX_ITEMS, PLANNING_GUIDANCE
from holdfast.errors import DefinitionError, RunNotFound
from holdfast.reports.plans import Plan, PlanItem
from holdfast.testing import Runner, ScriptedModel, answer, call

pytestmark = pytest.mark.asyncio


@tool
async def look(where: str) -> str:
    """Looks somewhere."""
    return f"nothing in {where}"


async def test_the_model_writes_a_plan_works_through_it_and_answers(runtime: Runtime) -> None:
    plans: list[Any] = []

    @tool
    async def watched(where: str) -> str:
        """Looks somewhere, while somebody looks at the plan."""
        plans.append(await runtime_handle[0].plan())
        return "nothing"

    script = [
        write_plan(attic="working", cellar="open"),
        call("watched", where="attic"),
        write_plan(attic="done", cellar="working", garden="open"),
        call("watched", where="cellar"),
        write_plan(attic="done", cellar="done", garden="dropped"),
        "Nothing anywhere.",
    ]
    model = ScriptedModel(script)
    agent = Agent(model, name="planning-search", tools=[watched], instructions="You search.", planning=True)
    runtime_handle = [await agent.start("Search the house.")]
    assert (await runtime_handle[0].result()).output == "Nothing anywhere."
    assert model.calls[0].instructions == f"You search.\n\n{PLANNING_GUIDANCE}"
    assert model.calls[0].tool_names == ["watched", "write_plan"]
    assert [(one.done_count, one.open_count, one.working.task) for one in plans] == [(0, 2, "attic"), (1, 2, "cellar")]
    now = await runtime_handle[0].plan()
    assert [(item.task, item.status) for item in now] == [("attic", "done"), ("cellar", "done"), ("garden", "dropped")]
    assert (len(now), now[0].task, now.done_count, now.open_count, now.working) == (3, "attic", 2, 0, None)


async def test_without_planning_there_is_no_plan_and_no_tool(runtime: Runtime) -> None:
    model = ScriptedModel(["Hello."])
    handle = await Agent(model, name="planning-without", tools=[look]).start("Hello?")
    assert await handle.plan() == Plan()
    await handle.result()
    assert not await handle.plan()
    assert model.calls[0].tool_names == ["look"]
    assert model.calls[0].instructions == ""


async def test_an_answer_that_leaves_tasks_is_sent_back_twice_and_then_accepted() -> None:
    model = ScriptedModel([write_plan(attic="done", cellar="working", garden="open"), "Bored.", "Bored!", "Bored!!"])
    result = await Runner().run(Agent(model, name="planning-bored", planning=True), "go")
    assert result.output.output == "Bored!!", result.error
    assert [step.name for step in result.steps] == ["model call", "write_plan", *["model call"] * 3]
    for turn in (2, 3):
        [complaint] = get_sent_contents(model, turn)
        assert "- cellar (working)\n- garden (open)" in complaint
        assert "attic" not in complaint
        assert "dropped with `write_plan`" in complaint


async def test_after_a_revision_of_the_plan_rejections_count_anew() -> None:
    script = [
        write_plan(a="open", b="open"),
        "1",
        "2",
        write_plan(a="done", b="open"),
        "3",
        "4",
        write_plan(a="done", b="dropped"),
        "5",
    ]
    model = ScriptedModel(script)
    result = await Runner().run(Agent(model, name="planning-reviser", planning=True), "go")
    assert result.output.output == "5", result.error
    assert [get_sent_contents(model, turn)[0].count("\n- ") for turn in (2, 3, 5, 6)] == [2, 2, 1, 1]


async def test_writing_the_same_plan_again_does_not_reset_the_rejections() -> None:
    same = write_plan(a="open")
    model = ScriptedModel([same, "1", same, "2", same, "3"])
    result = await Runner().run(Agent(model, name="planning-stubborn", planning=True), "go")
    assert result.output.output == "3", result.error


async def test_the_feedback_for_many_remaining_tasks_is_short() -> None:
    model = ScriptedModel([write_plan(**{f"t{n}": "open" for n in range(30)}), "1", "2", "3"])
    result = await Runner().run(Agent(model, name="planning-many", planning=True), "go")
    assert result.status == "completed"
    assert "- t9 (open)\n- and 20 more\n" in get_sent_contents(model, 2)[0]


async def test_the_last_turn_is_not_spent_on_a_complaint() -> None:
    model = ScriptedModel([write_plan(a="open"), "It is done."])
    result = await Runner().run(Agent(model, name="planning-last-turn", planning=True, max_turns=2), "go")
    assert result.output.output == "It is done.", result.error


async def test_a_question_that_is_answered_at_once_needs_no_plan() -> None:
    model = ScriptedModel([call("look", where="here"), call("look", where="there"), "No."])
    result = await Runner().run(Agent(model, name="planning-quick", tools=[look], planning=True), "go")
    assert result.output.output == "No.", result.error
    assert result.output.usage.calls == 3


async def test_an_answer_after_work_without_a_plan_is_sent_back_once() -> None:
    script = [*[call("look", where=place) for place in ("here", "there", "everywhere")], "No.", "Still no."]
    model = ScriptedModel(script)
    result = await Runner().run(Agent(model, name="planning-planless", tools=[look], planning=True), "go")
    assert result.output.output == "Still no.", result.error
    assert "without a plan" in get_sent_contents(model, 4)[0]


class Report(BaseModel):
    found: int


async def test_a_structured_answer_is_sent_back_too_and_read_when_it_fits() -> None:
    script = [write_plan(a="working"), answer(found="many"), answer(found=3), write_plan(a="done"), answer(found=4)]
    model = ScriptedModel(script)
    agent = Agent(model, name="planning-report", output_type=Report, planning=True)
    result = await Runner().run(agent, "go")
    assert result.output.output == Report(found=4), result.error
    assert "found" in get_sent_contents(model, 2)[0]
    assert "- a (working)" in get_sent_contents(model, 3)[0]


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([], "at least 1 item"),
        ([{"task": str(n)} for n in range(MAX_ITEMS + 1)], f"at most {MAX_ITEMS} items"),
        ([{"task": "a"}, {"task": " "}], "Task 2 of the plan is empty"),
        ([{"task": "x" * 501}], "501 characters, and at most 500"),
        ([{"task": "a", "status": "working"}, {"task": "b", "status": "working"}], "Tasks 1, 2 of the plan"),
        ([{"task": "a", "status": "finished"}], "items[0].status should be 'open', 'working', 'done' or 'dropped'"),
        ([{"status": "open"}], "items[0].task is missing"),
    ],
    ids=["empty", "too-many", "blank", "too-long", "two-working", "unknown-status", "no-task"],
)
async def test_a_plan_that_does_not_fit_is_refused_and_the_one_before_stays(
    runtime: Runtime, items: list[Any], words: str, request: pytest.FixtureRequest
) -> None:
    model = ScriptedModel([write_plan(first="done"), call("write_plan", items=items), "ok"])
    name = f"planning-misfit-{request.node.callspec.id}"
    handle = await Agent(model, name=name, planning=True).start("go")
    assert (await handle.result()).output == "ok"
    assert words in get_sent_contents(model, 2)[0]
    assert model.calls[2].last_message.parts[0].outcome == "retried"
    assert list(await handle.plan()) == [PlanItem("first", "done")]


async def test_a_status_that_is_not_given_is_open(runtime: Runtime) -> None:
    model = ScriptedModel([call("write_plan", items=[{"task": "a"}]), write_plan(a="done"), "ok"])
    agent = Agent(model, name="planning-default", planning=True)
    await agent.run("go")
    assert get_sent_contents(model, 1) == [[{"task": "a", "status": "open"}]]


async def test_of_two_plans_in_one_answer_the_one_that_is_recorded_last_counts(runtime: Runtime) -> None:
    model = ScriptedModel([[write_plan(a="open"), write_plan(b="open")], "1", "2", "3"])
    handle = await Agent(model, name="planning-twice", planning=True).start("go")
    await handle.result()
    [newest] = await handle.plan()
    assert f"- {newest.task} (open)" in get_sent_contents(model, 2)[0]


async def test_a_tool_of_the_same_name_is_refused() -> None:
    @tool
    async def write_plan() -> str:
        """Another one."""
        return ""

    with pytest.raises(DefinitionError, match=r"two of its tools.*'write_plan'.*planning=.*give yours another name"):
        Agent("openai:gpt-4o", name="planning-clash", tools=[write_plan], planning=True)
    Agent("openai:gpt-4o", name="planning-no-clash", tools=[write_plan])


async def test_planning_is_yes_or_no() -> None:
    with pytest.raises(DefinitionError, match="planning='always' is True or False"):
        Agent("openai:gpt-4o", name="planning-maybe", planning="always")  # type: ignore[arg-type]


async def test_a_run_that_is_not_there_has_no_plan(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel(["x"]), name="planning-nowhere", planning=True)
    with pytest.raises(RunNotFound):
        await agent.get_handle(runtime.store_provider, "no-such-run").plan()


async def test_the_journal_has_the_conversation_that_a_planning_model_saw(runtime: Runtime) -> None:
    seen: list[Any] = []

    def last(messages: list[Any]) -> str:
        seen.extend(messages)
        return "done"

    script = [write_plan(a="working"), "too early", write_plan(a="done"), last]
    for name, instructions in (("text", "Hm."), ("function", lambda: "Made."), ("none", None)):
        seen.clear()
        agent = Agent(ScriptedModel(script), name=f"planning-same-{name}", instructions=instructions, planning=True)
        result = await agent.run("go")
        assert result.messages[:-1] == seen
        assert len(seen) == 7
        assert PLANNING_GUIDANCE in result.messages[0].instructions
    assert seen[0].instructions == PLANNING_GUIDANCE


async def test_a_plan_survives_wherever_the_process_dies() -> None:
    model = ScriptedModel(
        [write_plan(a="working", b="open"), "1", call("look", where="a"), "2", write_plan(a="done"), "3"]
    )
    agent = Agent(model, name="planning-everywhere", tools=[look], planning=True)
    report = await Runner(max_pairs=5, replay_processes=0).crash_everywhere(agent, "go")
    assert report.point_count > 10


async def test_a_planner_that_was_replayed_knows_what_it_knew(runtime: Runtime) -> None:
    """How often an answer was sent back is counted from the records, so a fork counts on."""
    model = ScriptedModel([write_plan(a="open"), "1", "2", "3"])
    agent = Agent(model, name="planning-forked", planning=True)
    result = await agent.run("go")
    assert result.output == "3"
    assert len(model.calls) == 4
    fork = await runtime_fork(runtime, result.run_id, at=4)
    assert (await agent.get_handle(runtime.store_provider, fork).result()).output == "3"
    assert [turn.turn for turn in model.calls[4:]] == [3, 4]
    assert list(await agent.get_handle(runtime.store_provider, fork).plan()) == [PlanItem("a")]


async def runtime_fork(runtime: Runtime, run_id: str, at: int) -> str:
    async with Client(runtime.url) as client:
        return (await client.fork(run_id, at=at)).run_id
