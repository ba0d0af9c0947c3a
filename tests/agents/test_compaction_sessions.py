"""Compaction over several runs: sessions, message histories, and the journal."""

from __future__ import annotations

import pytest
from compaction_agents import Listener, find, make_find_script, texts
from provider_server import ProviderServer
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, SystemPromptPart, TextPart, UserPromptPart

from holdfast import Agent, Compaction, Runtime
from holdfast.agents import sessions
from holdfast.agents.conversation import rebuild_conversation
from holdfast.testing import call

pytestmark = pytest.mark.asyncio

WINDOW = Compaction(window=1000)


# One run


async def test_the_journal_has_the_context_that_the_model_got(runtime: Runtime) -> None:
    script = [*make_find_script(5, ""), *([call("find", number=1), call("find", number=2)] for _ in range(8)), "done"]
    model = Listener(script)
    agent = Agent(model, name="compacted-same", tools=[find], instructions="Find.", compaction=WINDOW)
    result = await agent.run("Find all.")
    assert len(model.transcripts) >= 2
    run, history = await runtime.store_provider.read_journal(result.run_id)
    told = rebuild_conversation(run.inputs, run.clock_started_at, history.records, lambda _: "Find.")
    assert told.context[:-1] == model.sent[-1]
    assert told.usage == result.usage
    # At every turn, not only at the last.
    turns = [record.seq for record in history.records if record.name == "model call" and record.ok]
    for sent, seq in zip(model.sent, turns, strict=True):
        until = [record for record in history.records if record.seq < seq]
        then = rebuild_conversation(run.inputs, run.clock_started_at, until, lambda _: "Find.")
        assert then.context == sent
        # The provider's count from before a compaction says nothing about the new context.
        assert (then.last_usage is None) == (not until or until[-1].name == "compaction")


async def test_the_result_has_all_messages_and_no_summary(runtime: Runtime) -> None:
    model = Listener(make_find_script(20))
    agent = Agent(model, name="compacted-result", tools=[find], compaction=WINDOW)
    handle = await agent.start("Find all.")
    result = await handle.result()
    assert len(model.transcripts) == 2
    assert len(result.messages) == 42
    assert result.new_messages == result.messages
    numbers = [one.tool_calls[0].args_as_dict()["number"] for one in result.messages[1:-1:2]]
    assert numbers == list(range(20))
    assert await handle.messages() == result.messages
    assert "summar" not in str(result.messages)
    assert result.usage.calls == 23


async def test_a_tool_may_be_called_compaction(runtime: Runtime) -> None:
    from holdfast import tool

    @tool
    async def compaction(of: str) -> str:
        """Compacts soil."""
        return of * 300

    model = Listener([*(call("compaction", of="s") for _ in range(12)), "done"])
    agent = Agent(model, name="compacted-soil", tools=[compaction], compaction=WINDOW)
    result = await agent.run("go")
    assert result.output == "done"
    assert len(model.transcripts) == 1
    assert len(result.messages) == 26
    run, history = await runtime.store_provider.read_journal(result.run_id)
    assert rebuild_conversation(run.inputs, run.clock_started_at, history.records).context[:-1] == model.sent[-1]


# Sessions


async def test_the_next_run_of_a_session_continues_the_compacted_context(runtime: Runtime, url: str) -> None:
    model = Listener(
        [*make_find_script(9, "first"), call("find", number=77), "second", "third"], summary="Nine were found."
    )
    agent = Agent(model, name="compacted-session", tools=[find], compaction=WINDOW)
    first = await agent.run("Find nine.", session="s")
    assert len(model.transcripts) == 1
    context = [*model.sent[-1], first.messages[-1]]
    second = await agent.run("And one.", session="s")
    assert (first.output, second.output) == ("first", "second")
    begin = model.sent[-2]
    assert begin[: len(context)] == context
    assert len(begin) == len(context) + 1
    assert len(second.messages) == 20 + 4
    assert len(second.new_messages) == 4
    # In another process nothing is kept: it is all read from the journals.
    await runtime.close()
    async with Runtime(url):
        third = await agent.run("Well?", session="s")
    assert third.output == "third"
    assert model.sent[-1][: len(context)] == context
    assert len(model.sent[-1]) == len(context) + 5
    assert len(third.messages) == 26


async def test_a_compaction_covers_what_came_from_earlier_runs(
    runtime: Runtime, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Listener(
        [*make_find_script(3, "one"), *make_find_script(3, "two"), *make_find_script(6, "three"), "four"],
        summary="They talked of numbers.",
    )
    agent = Agent(model, name="compacted-earlier", tools=[find], compaction=WINDOW)
    await agent.run("First.", session="s")
    await agent.run("Second.", session="s")
    assert model.transcripts == []
    third = await agent.run("Third.", session="s")
    assert third.output == "three"
    [shown] = model.transcripts
    assert "First." in shown
    assert "Second." in shown
    assert len(third.messages) == 8 + 8 + 14
    context = [*model.sent[-1], third.messages[-1]]
    await runtime.close()
    read: list[bytes] = []
    monkeypatch.setattr(
        sessions,
        "rebuild_conversation",
        lambda inputs, *more: read.append(inputs) or rebuild_conversation(inputs, *more),
    )
    async with Runtime(url):
        fourth = await (await agent.start("Fourth.", session="s")).result()
    assert fourth.output == "four"
    assert len(read) == 1 + 3  # for the model only the third run; for the result, all messages
    assert model.sent[-1][:-1] == context
    assert len(fourth.messages) == 8 + 8 + 14 + 2


async def test_what_is_kept_may_reach_back_into_earlier_runs(runtime: Runtime, url: str) -> None:
    """The new prompt alone makes it too long: the newest of what came before it is kept as it was."""
    model = Listener([*make_find_script(6, "one"), call("find", number=7), "two", "three"], summary="Six were found.")
    agent = Agent(model, name="compacted-reach", tools=[find], compaction=Compaction(window=1000, keep_share=0.3))
    first = await agent.run("First.", session="s")
    assert model.transcripts == []
    long = "Go on, and well. " * 45
    second = await agent.run(long, session="s")
    assert second.output == "two"
    assert len(model.transcripts) == 1
    begin = model.sent[-2]
    assert "Six were found." in texts(begin[0])[0]
    assert long not in texts(begin[0])  # it is kept behind the summary
    assert texts(begin[-1]) == [long]
    kept = len(begin) - 2
    assert kept >= 1
    assert begin[1:-1] == first.messages[-kept:]
    assert model.sent[-1][: len(begin)] == begin
    await runtime.close()
    async with Runtime(url):
        third = await agent.run("Third.", session="s")
    assert third.output == "three"
    assert model.sent[-1][: len(begin)] == begin
    assert len(third.messages) == 14 + 4 + 2


async def test_a_history_that_is_too_long_is_compacted_before_the_first_answer(runtime: Runtime) -> None:
    history: list[ModelMessage] = [
        ModelRequest([SystemPromptPart("Speak softly."), UserPromptPart("Hello.")], instructions="Old."),
        *(
            message
            for number in range(10)
            for message in (
                ModelResponse([TextPart(f"{number} " + "x" * 400)]),
                ModelRequest([UserPromptPart("More.")]),
            )
        ),
        ModelResponse([TextPart("Enough.")]),
    ]
    model = Listener([*(["unused"] * 11), "done"], summary="Ten times more.")
    agent = Agent(model, name="compacted-history", compaction=WINDOW)
    result = await agent.run("And now?", message_history=history)
    assert result.output == "done"
    [sent] = model.sent
    assert [type(part) for part in sent[0].parts] == [SystemPromptPart, UserPromptPart]
    assert texts(sent[0])[0] == "Speak softly."
    assert "Ten times more." in texts(sent[0])[1]
    assert sent[0].instructions == "Old."  # type: ignore[union-attr]
    assert texts(sent[-1]) == ["And now?"]
    assert 3 <= len(sent) < 8
    assert result.messages[:-2] == history
    assert len(result.new_messages) == 2


# Real providers


MODELS = ["openai-chat:gpt-4o", "openai:gpt-4o", "anthropic:claude-sonnet-5"]


@pytest.mark.parametrize("model", MODELS)
async def test_after_a_too_long_error_the_provider_gets_a_shorter_conversation(
    runtime: Runtime, server: ProviderServer, model: str
) -> None:
    name = f"compacted-by-{MODELS.index(model)}"
    look = [{"text": "", "calls": [{"tool": "find", "arguments": {"number": number}}]} for number in range(4)]
    look[3]["faults"] = [{"kind": "too_long", "over": 300}]
    server.scripts = {name: [*look, {"text": "done"}], f"{name}~summary": [{"text": "summary:1 Three were found."}]}
    agent = Agent(model, name=name, tools=[find], instructions=f"script:{name}")
    result = await agent.run("Find them.")
    assert result.output == "done"
    calls = server.address.calls
    assert [(one.agent, one.turn) for one in calls] == [
        *((name, turn) for turn in range(4)),
        (f"{name}~summary", 0),
        (name, 3),
        (name, 4),
    ]
    assert result.usage.calls == 6
    assert len(result.messages) == 10


@pytest.mark.parametrize("model", MODELS)
async def test_a_provider_that_always_says_too_long_fails_the_run(
    runtime: Runtime, server: ProviderServer, model: str
) -> None:
    name = f"compacted-never-{MODELS.index(model)}"
    look = [{"text": "", "calls": [{"tool": "find", "arguments": {"number": number}}]} for number in range(3)]
    last = {"text": "never", "faults": [{"kind": "too_long", "times": None}]}
    server.scripts = {name: [*look, last], f"{name}~summary": [{"text": "summary:1 Three were found."}]}
    agent = Agent(model, name=name, tools=[find], instructions=f"script:{name}")
    with pytest.raises(Exception, match="was compacted just before"):
        await agent.run("Find them.")
    assert [one.turn for one in server.address.calls if one.agent == name] == [0, 1, 2, 3, 3]
