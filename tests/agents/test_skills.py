"""Skills: the catalog that the model sees, loading them, and their tools."""

from __future__ import annotations

from typing import Any

import pytest
from model_scripts import get_sent_contents

from holdfast import Agent, RunContext, Runtime, Skill, skill, tool
from holdfast.errors import DefinitionError
from holdfast.testing import Runner, ScriptedModel, call

pytestmark = pytest.mark.asyncio


@tool
async def refund(order: str) -> str:
    """Gives the money back."""
    return f"refunded {order}"


@tool
async def look_up(order: str) -> str:
    """Finds an order."""
    return f"order {order}: one teapot"


@skill(tools=[refund])
def refunds() -> str:
    """How to give money back. Use it whenever
    a customer wants that."""
    return "Look the order up first. Never refund more than once."


PLAIN = Skill("shouting", "How to write in capitals.", "WRITE LIKE THIS.")


async def test_names_and_descriptions_are_always_there_and_the_rest_on_demand() -> None:
    model = ScriptedModel([call("load_skill", name="refunds"), call("refund", order="7"), "Done."])
    agent = Agent(model, name="skills-shop", tools=[look_up], instructions="Be kind.", skills=[refunds, PLAIN])
    result = await Runner().run(agent, "I want my money back for order 7.")
    assert result.output.output == "Done.", result.error
    first = model.calls[0]
    assert first.instructions.startswith("Be kind.\n\n# Skills\n")
    assert first.instructions.endswith(
        "- refunds: How to give money back. Use it whenever a customer wants that.\n"
        "- shouting: How to write in capitals."
    )
    assert "Never refund" not in first.instructions
    assert first.tool_names == ["look_up", "load_skill"]
    assert get_sent_contents(model, 1) == [
        "Look the order up first. Never refund more than once.\n\n"
        "Tools of this skill, which you can call from now on: `refund`"
    ]
    assert model.calls[1].tool_names == ["look_up", "load_skill", "refund"]
    assert get_sent_contents(model, 2) == ["refunded 7"]
    assert [step.name for step in result.steps if step.name != "model call"] == ["load_skill", "refund"]


async def test_tools_of_a_skill_that_was_not_loaded_are_not_shown_and_are_not_named() -> None:
    model = ScriptedModel([call("load_skill", name="shouting"), call("refnd", order="7"), "OK"])
    result = await Runner().run(Agent(model, name="skills-unloaded", skills=[refunds, PLAIN]), "go")
    assert result.output.output == "OK", result.error
    assert model.calls[2].tool_names == ["load_skill"]
    assert "refund" not in get_sent_contents(model, 2)[0]


async def test_a_tool_of_a_skill_can_be_called_without_loading_it() -> None:
    """A model that knows of it, from an earlier run or from its instructions, is not sent back for a formality."""
    model = ScriptedModel([call("refund", order="7"), "OK"])
    result = await Runner().run(Agent(model, name="skills-hasty", skills=[refunds]), "go")
    assert get_sent_contents(model, 1) == ["refunded 7"], result.error
    assert model.calls[1].tool_names == ["load_skill"]


async def test_a_skill_that_is_loaded_twice_shows_its_tools_once() -> None:
    load = call("load_skill", name="refunds")
    model = ScriptedModel([[load, load], load, "OK"])
    result = await Runner().run(Agent(model, name="skills-twice", skills=[refunds]), "go")
    assert result.output.output == "OK", result.error
    assert [turn.tool_names for turn in model.calls] == [["load_skill"], *[["load_skill", "refund"]] * 2]


async def test_the_error_for_an_unknown_skill_names_the_known_ones() -> None:
    model = ScriptedModel([call("load_skill", name="refund"), "OK"])
    result = await Runner().run(Agent(model, name="skills-unknown", skills=[PLAIN, refunds]), "go")
    assert get_sent_contents(model, 1) == [
        "There is no skill 'refund'. The skills that you have are: refunds, shouting."
    ], result
    assert model.calls[1].tool_names == ["load_skill"]


async def test_a_skill_that_could_not_be_loaded_shows_no_tools_here_nor_in_the_next_run(runtime: Runtime) -> None:
    @skill(tools=[refund])
    def lost() -> str:
        """Raises."""
        raise OSError("the book is lost")

    model = ScriptedModel([call("load_skill", name="lost"), "Sorry.", "Still sorry."])
    agent = Agent(model, name="skills-lost", skills=[lost])
    await agent.run("Load.", session="s")
    await agent.run("And now?", session="s")
    assert [turn.tool_names for turn in model.calls] == [["load_skill"]] * 3


class Shop:
    policy = "No refunds on Sundays."


async def test_a_skill_may_be_async_and_take_a_context() -> None:
    @skill(name="policy", description="What the shop allows.")
    async def shop_policy(ctx: RunContext[Shop]) -> str:
        return f"{ctx.deps.policy} ({ctx.agent}, {ctx.tool_name})"

    model = ScriptedModel([call("load_skill", name="policy"), call("load_skill", name="shouting"), "OK"])
    agent = Agent(model, name="skills-context", skills=[shop_policy, PLAIN], deps_type=Shop)
    result = await Runner().run(agent, "go", deps=Shop())
    assert get_sent_contents(model, 1) == ["No refunds on Sundays. (skills-context, load_skill)"], result.error
    assert get_sent_contents(model, 2) == ["WRITE LIKE THIS."]


async def test_a_skill_that_fails_is_feedback_for_the_model() -> None:
    @skill
    def broken() -> str:
        """Raises."""
        raise OSError("the book is lost")

    @skill
    async def number() -> str:
        """Returns a number."""
        return 3  # type: ignore[return-value]

    model = ScriptedModel([[call("load_skill", name="broken"), call("load_skill", name="number")], "OK"])
    agent = Agent(model, name="skills-broken", skills=[broken, number])
    result = await Runner().run(agent, "go")
    first, second = get_sent_contents(model, 1)
    assert "the book is lost" in first, result.error
    assert "skill 'number' returned int, not a text" in second


async def test_a_skill_that_changes_does_not_change_the_conversation() -> None:
    texts = ["the old text", "the new text"]

    @skill(tools=[refund])
    def changing() -> str:
        """Another text each time."""
        return texts.pop(0)

    model = ScriptedModel([call("load_skill", name="changing"), call("refund", order="1"), "done"])
    agent = Agent(model, name="skills-changing", skills=[changing])
    runner = Runner()
    runner.simulate_crash_after(step=2)
    crashed = await runner.run(agent, "go")
    assert crashed.has_crashed
    result = await runner.resume(crashed.run_id)
    assert result.output.output == "done", result.error
    assert result.steps["load_skill"][0].was_replayed
    assert result.steps["load_skill"][0].output.startswith("the old text")
    assert model.calls[1].tool_names == ["load_skill", "refund"]
    assert texts == ["the new text"]


async def test_an_agent_with_a_plan_and_skills_survives_wherever_the_process_dies() -> None:
    def items(status: str) -> Any:
        return call("write_plan", items=[{"task": "refund", "status": status}])

    script = [
        [items("working"), call("load_skill", name="refunds")],
        call("refund", order="1"),
        "?",
        items("done"),
        ".",
    ]
    agent = Agent(ScriptedModel(script), name="skills-everywhere", skills=[refunds], planning=True)
    report = await Runner(max_pairs=5, replay_processes=0).crash_everywhere(agent, "go")
    assert report.point_count > 15


async def test_skills_loaded_earlier_in_a_session_need_not_be_loaded_again(runtime: Runtime) -> None:
    first = [call("load_skill", name="refunds"), "Loaded."]
    model = ScriptedModel([*first, call("refund", order="7"), "Refunded."])
    agent = Agent(model, name="skills-session", tools=[look_up], skills=[refunds, PLAIN])
    await agent.run("Load.", session="s")
    again = await agent.run("Refund.", session="s")
    assert again.output == "Refunded."
    shown = ["look_up", "load_skill", "refund"]
    assert [turn.tool_names for turn in model.calls] == [shown[:2], shown, shown, shown]
    assert [call.tool_name for message in again.new_messages for call in getattr(message, "tool_calls", ())] == [
        "refund"
    ]


async def test_skills_loaded_in_the_message_history_are_loaded(runtime: Runtime) -> None:
    script = [call("load_skill", name="nothing"), call("load_skill", name="refunds"), "Loaded.", "Hello."]
    model = ScriptedModel(script)
    agent = Agent(model, name="skills-history", skills=[refunds])
    before = await agent.run("Load.")
    assert (await agent.run("Hello?", message_history=before.messages)).output == "Hello."
    assert model.calls[-1].tool_names == ["load_skill", "refund"]
    fresh = await agent.options(new=True).run("Hello?", message_history=before.messages[:3])
    assert model.calls[-2].tool_names == ["load_skill"]
    assert fresh.output == "Loaded."


async def test_the_journal_has_the_conversation_that_a_model_with_skills_saw(runtime: Runtime) -> None:
    seen: list[Any] = []

    def last(messages: list[Any]) -> str:
        seen.extend(messages)
        return "done"

    model = ScriptedModel([call("load_skill", name="refunds"), call("refund", order="7"), last])
    agent = Agent(model, name="skills-same", skills=[refunds], instructions=lambda: "Made.")
    result = await agent.run("go")
    assert result.messages[:-1] == seen
    assert result.messages[0].instructions.startswith("Made.\n\n# Skills")
    assert result.messages[0].instructions == model.calls[0].instructions


async def test_what_the_model_is_shown_is_made_once_for_all_runs() -> None:
    shown: list[Any] = []

    def turn(_: Any, parameters: Any) -> str:
        shown.append(parameters.function_tools)
        return "ok"

    script = [call("load_skill", name="refunds"), turn]
    agent = Agent(ScriptedModel(script), name="skills-shown-once", tools=[look_up], skills=[refunds])
    for _ in range(2):
        await Runner().run(agent, "go")
    assert [one.name for one in shown[0]] == ["look_up", "load_skill", "refund"]
    assert all(one is other for one, other in zip(*shown, strict=True))
    assert shown[0] is not shown[1]


def two_of(name: str) -> list[Skill]:
    return [Skill(name, "One.", "One."), Skill(name, "Another.", "Another.")]


other_refund = tool(name="refund", description="Another one.")(lambda: "")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"skills": two_of("same")}, "two of its skills are called 'same'"),
        ({"skills": PLAIN}, "skills is a list"),
        ({"skills": "folder"}, r"skills is a list, as in skills=\['folder'\]"),
        ({"skills": [lambda: "x"]}, "a skill is a function with @skill, a Skill, or the path of a folder"),
        ({"skills": [refunds], "tools": [other_refund]}, "skill 'refunds' has a tool 'refund', and there is another"),
        (
            {"skills": [refunds, Skill("more", "More.", "More.", [other_refund])]},
            "skill 'more' has a tool 'refund', and there is another",
        ),
        ({"skills": [PLAIN], "tools": [tool(name="load_skill")(lambda: "")]}, "'load_skill'.*give yours another name"),
        ({"skills": ["/no/such/folder"]}, "/no/such/folder does not exist"),
    ],
    ids=["two", "one", "text", "function", "clash", "clash-of-skills", "load", "nowhere"],
)
async def test_skills_that_an_agent_cannot_have(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        Agent("openai:gpt-4o", name="skills-refused", **options)


async def test_a_tool_may_be_the_agents_own_and_a_skills() -> None:
    model = ScriptedModel(["OK"])
    agent = Agent(model, name="skills-shared", tools=[refund], skills=[refunds])
    await Runner().run(agent, "go")
    assert model.calls[0].tool_names == ["refund", "load_skill"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Skill("two words", "d", "i"), "skill 'two words': a model could not call it.*with name="),
        (lambda: Skill("s", "", "i"), "skill 's' has no description"),
        (lambda: Skill("s", "x" * 1025, "i"), "1025 characters, and at most 1024"),
        (lambda: Skill("s", "d", " "), "its instructions are empty"),
        (lambda: Skill("s", "d", 3), "instructions is a text, or a function"),  # type: ignore[arg-type]
        (lambda: Skill("s", "d", "i", [PLAIN]), "a tool is a function"),  # type: ignore[list-item]
        (lambda: skill(lambda a, b: ""), "takes a RunContext|has no description"),
        (lambda: skill(description="d", name="s")(lambda a, b: ""), "takes a RunContext, .* or nothing"),
        (lambda: skill(lambda: ""), "has no description: write a docstring"),
        (lambda: skill(Shop), "@skill goes on a function"),  # type: ignore[arg-type]
    ],
    ids=["name", "no-description", "long", "empty", "number", "tool", "lambda", "two", "docstring", "class"],
)
async def test_an_invalid_skill_is_refused_when_it_is_defined(make: Any, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        make()
