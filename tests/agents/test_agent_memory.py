"""Agents with a memory: what one run remembers, a later one finds."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Agent, Client, DefinitionError, RunContext, Runtime
from holdfast.testing import Runner, ScriptedModel, call

pytestmark = pytest.mark.asyncio


def get_last_result(messages: list[Any]) -> str:
    """What the last tool returned, as the answer."""
    return str(messages[-1].parts[0].content)


def returns(messages: Any) -> list[str]:
    parts = [part for message in messages for part in message.parts]
    return [str(part.content) for part in parts if part.part_kind == "tool-return"]


async def test_a_later_run_finds_what_an_earlier_one_remembered(runtime: Runtime):
    first = Agent(
        ScriptedModel([call("remember", key="tea", text="Ada takes milk"), get_last_result]),
        name="mem-first",
        memory="u",
    )
    later = Agent(
        ScriptedModel([call("search_memory", words="milk sugar"), get_last_result]), name="mem-later", memory="u"
    )
    assert (await first.run("learn")).output == "Remembered under 'tea'."
    assert "Ada takes milk" in (await later.run("what does she take?")).output


async def test_recall_and_forget(runtime: Runtime, url: str):
    script = [
        call("recall", key="tea"),
        call("remember", key="tea", text="milk"),
        call("recall", key="tea"),
        call("forget", key="tea"),
        lambda messages: " | ".join(
            str(part.content) for m in messages for part in m.parts if part.part_kind == "tool-return"
        ),
    ]
    result = await Agent(ScriptedModel(script), name="mem-recall", memory="u").run("go")
    assert result.output.split(" | ") == [
        "Nothing is remembered under 'tea'.",
        "Remembered under 'tea'.",
        "milk",
        "Nothing is remembered under 'tea' any more.",
    ]
    async with Client(url) as client:
        assert await client.memory.get("u", "tea") is None


async def test_the_code_chooses_the_namespace_from_the_context(runtime: Runtime, url: str):
    def of_user(ctx: RunContext[str]) -> str:
        return f"user/{ctx.deps}"

    model = ScriptedModel([call("remember", key="name", text="from here"), "ok"])
    agent = Agent(model, name="mem-users", memory=of_user, deps_type=str)
    await agent.run("I am Ada", deps="ada")
    await agent.run("I am Bob", deps="bob")
    async with Client(url) as client:
        assert await client.memory.get("user/ada", "name") == "from here"
        assert await client.memory.get("user/bob", "name") == "from here"
        assert await client.memory.list("user/eve") == []


async def test_the_model_gets_memory_guidance_and_tools(runtime: Runtime):
    model = ScriptedModel(["ok"])
    await Agent(model, name="mem-shown", memory="u", instructions="Be kind.").run("go")
    [asked] = model.calls
    assert asked.tool_names == ["remember", "recall", "search_memory", "forget"]
    assert asked.instructions.startswith("Be kind.\n\nYou have a memory that outlives this conversation.")


async def test_bad_keys_and_long_texts_are_feedback_for_the_model(runtime: Runtime, url: str):
    script = [[call("remember", key="", text="x"), call("remember", key="k", text="x" * 20_001)], get_last_result]
    result = await Agent(ScriptedModel(script), name="mem-bad", memory="u").run("go")
    returns = [
        str(part.content) for message in result.messages for part in message.parts if part.part_kind == "tool-return"
    ]
    assert "a key is a printable text" in returns[0]
    assert "remember at most 20,000" in returns[1]
    async with Client(url) as client:
        assert await client.memory.list("u") == []


async def test_memory_of_an_agent_survives_a_crash_at_every_point():
    script = [
        call("remember", key="a", text="one"),
        [call("remember", key="b", text="two"), call("remember", key="c", text="three")],
        call("forget", key="a"),
        call("search_memory", words="one two"),
        get_last_result,
    ]
    agent = Agent(ScriptedModel(script), name="mem-crashes", memory="u")
    await Runner(max_pairs=20, replay_processes=0).crash_everywhere(agent, "go")


@pytest.mark.parametrize("given", ["", 7, lambda: "x"], ids=["empty", "number", "no-context"])
async def test_what_cannot_be_a_namespace_is_refused(given: Any):
    with pytest.raises(DefinitionError, match="memory is a"):
        Agent("openai:gpt-4o", name="mem-refused", memory=given)
