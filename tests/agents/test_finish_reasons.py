"""Answers that did not end as usual: cut off at the token limit, filtered, refused. All readers see the reason."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart
from pydantic_ai.models.anthropic import AnthropicStreamedResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIResponsesStreamedResponse, OpenAIStreamedResponse
from pydantic_ai.models.snowflake import SnowflakeStreamedResponse
from pydantic_ai.usage import RequestUsage

from holdfast import Agent, Client, DefinitionError, Output, RunFailed, Runtime, tool
from holdfast.agents.models.finish_reasons import CONTINUE_PROMPT, is_unfinished
from holdfast.reports.agent_result import AgentResult, decode_plain_result
from holdfast.testing import Runner, ScriptedModel, call

pytestmark = pytest.mark.asyncio


def cut(text: str, reason: Any = "length", **details: Any) -> ModelResponse:
    return ModelResponse([TextPart(text)] if text else [], finish_reason=reason, provider_details=details or None)


async def test_the_result_has_the_finish_reason(runtime: Runtime):
    for reason, refusal in (("length", ""), ("content_filter", ""), ("content_filter", "Not this part.")):
        model = ScriptedModel([cut("Once upon a", reason, refusal=refusal)])
        agent = Agent(model, name=f"finish-{reason}-{len(refusal)}")
        result = await agent.run("Tell a story.")
        assert (result.output, result.finish_reason, result.refusal) == ("Once upon a", reason, refusal)
        async with Client(runtime.url) as client:
            told = await client.wait(result.run_id)  # without the agent's code
        assert (told.output, told.finish_reason, told.refusal) == ("Once upon a", reason, refusal)


async def test_a_whole_answer_is_finished(runtime: Runtime):
    result = await Agent(ScriptedModel(["The end."]), name="finish-whole").run("Tell a story.")
    assert (result.finish_reason, result.refusal) == ("stop", "")


async def test_a_result_that_was_recorded_before_is_finished():
    told = decode_plain_result(b'{"$agent":1,"run_id":"r","usage":{},"output":"Hi"}')
    assert told == AgentResult("Hi", told.usage, "r", "stop", "")


async def test_the_text_of_a_refusal_is_not_the_output(runtime: Runtime):
    words = 'No: ,"output":"yes"} is not for me.'
    agent = Agent(ScriptedModel([cut("Well,", "content_filter", refusal=words)]), name="finish-quoting")
    result = await agent.run("Say it.")
    assert (result.output, result.refusal) == ("Well,", words)


async def test_a_refusal_without_an_answer_fails_the_run_with_its_reason(runtime: Runtime):
    agent = Agent(ScriptedModel([cut("", "content_filter", refusal="I must not.")]), name="finish-refused")
    with pytest.raises(RunFailed) as failed:
        await agent.run("Do harm.")
    cause: Any = failed.value.__cause__
    assert cause.refusal == "I must not."
    assert "refuses to answer: I must not." in str(cause)


async def test_the_report_and_the_conversation_show_it(runtime: Runtime):
    agent = Agent(ScriptedModel([cut("Once upon a")]), name="finish-told")
    run_id = (await agent.run("Tell a story.")).run_id
    async with Client(runtime.url) as client:
        [entry] = [one for one in (await client.describe(run_id)).journal if one.model_call is not None]
        [said] = [one for one in await client.conversation(run_id) if one.role == "model"]
    assert entry.model_call is not None
    assert (entry.model_call.finish_reason, entry.model_call.is_continued) == ("length", False)
    assert said.reply is not None
    assert said.reply.cut_off_reason == "cut off at the limit of tokens"


# Going on


async def test_a_text_that_was_cut_off_is_continued(runtime: Runtime):
    model = ScriptedModel([cut("Once upon "), cut("a time there "), "was a dog."], usage=(10, 5))
    agent = Agent(model, name="finish-continued", output_type=Output(str, continue_truncated=True))
    result = await agent.run("Tell a story.")
    assert (result.output, result.finish_reason) == ("Once upon a time there was a dog.", "stop")
    assert result.usage.calls == 3
    asked = [one.parts[0].content for one in result.new_messages if isinstance(one, ModelRequest)]
    assert asked == ["Tell a story.", CONTINUE_PROMPT, CONTINUE_PROMPT]
    async with Client(runtime.url) as client:
        entries = (await client.describe(result.run_id)).journal
        calls = [one.model_call for one in entries if one.model_call is not None]
    assert [one.is_continued for one in calls] == [True, True, False]


async def test_a_crash_between_two_pieces_repeats_neither():
    model = ScriptedModel([cut("Once upon "), "a time."])
    agent = Agent(model, name="finish-crash", output_type=Output(str, continue_truncated=True))
    runner = Runner()
    for number, moment in enumerate(("before", "after"), start=1):
        getattr(runner, f"simulate_crash_{moment}")(step="model call", occurrence=2)
        crashed = await runner.run(agent, "Tell a story.")
        assert crashed.has_crashed
        result = await runner.resume(crashed.run_id)
        assert result.output.output == "Once upon a time."
        assert len(model.calls) == 2 * number


async def test_the_pieces_are_turns_and_the_last_turn_is_what_it_is(runtime: Runtime):
    model = ScriptedModel([cut("One, "), cut("two, "), cut("three, ")])
    agent = Agent(model, name="finish-limited", output_type=Output(str, continue_truncated=True), max_turns=3)
    result = await agent.run("Count.")
    assert (result.output, result.finish_reason) == ("One, two, three, ", "length")


async def test_an_answer_after_a_tool_is_not_the_end_of_what_was_cut_off_before(runtime: Runtime):
    @tool
    async def look() -> str:
        """Looks."""
        return "rain"

    model = ScriptedModel([cut("Let me think about "), call("look"), "It rains."])
    agent = Agent(model, name="finish-tool", tools=[look], output_type=Output(str, continue_truncated=True))
    assert (await agent.run("What is the weather?")).output == "It rains."


async def test_a_text_is_not_continued_by_default(runtime: Runtime):
    model = ScriptedModel([cut("Once upon ")])
    result = await Agent(model, name="finish-plain").run("Tell a story.")
    assert (result.output, result.finish_reason) == ("Once upon ", "length")


async def test_only_texts_can_be_continued():
    with pytest.raises(DefinitionError, match="continue_truncated is for texts"):
        Agent("openai:gpt-4o", name="finish-typed", output_type=Output(int, continue_truncated=True))


async def test_a_limit_that_leaves_no_answer_is_feedback_for_the_model(runtime: Runtime):
    model = ScriptedModel([cut(""), "Yes."])
    result = await Agent(model, name="finish-empty").run("Well?")
    assert result.output == "Yes."
    [complaint] = [one.parts[0].content for one in result.new_messages[2:] if isinstance(one, ModelRequest)]
    assert "limit of tokens" in complaint


# Streams that break off


def ended(reason: Any = None, tokens: int = 0, state: Any = "complete", **details: Any) -> ModelResponse:
    usage = RequestUsage(input_tokens=tokens, output_tokens=tokens)
    return ModelResponse(
        [TextPart("x")], usage=usage, finish_reason=reason, provider_details=details or None, state=state
    )


async def test_a_stream_without_a_reason_is_unfinished_where_the_provider_always_gives_one():
    assert is_unfinished(AnthropicStreamedResponse, ended())
    assert is_unfinished(OpenAIResponsesStreamedResponse, ended())
    assert not is_unfinished(AnthropicStreamedResponse, ended("stop"))
    assert not is_unfinished(
        AnthropicStreamedResponse, ended(finish_reason="a new one")
    )  # which the library does not know


async def test_the_reason_that_the_library_makes_up_is_none():
    class Own(OpenAIStreamedResponse):
        pass

    for kind in (OpenAIStreamedResponse, Own):
        assert is_unfinished(kind, ended("stop"))
        assert not is_unfinished(kind, ended("stop", finish_reason="stop"))
        assert not is_unfinished(kind, ended("stop", tokens=3))  # the count comes last


async def test_the_end_of_some_streams_cannot_be_detected():
    assert not is_unfinished(SnowflakeStreamedResponse, ended("stop"))  # whose provider never says it
    assert not is_unfinished(object, ended())
    assert is_unfinished(object, ended("stop", state="incomplete"))


async def test_a_users_own_model_needs_no_finish_reason(runtime: Runtime):
    async def stream(_: list[Any], __: AgentInfo) -> Any:
        yield "Hello "
        yield "there."

    result = await Agent(FunctionModel(stream_function=stream), name="finish-function").run("Hi")
    assert (result.output, result.finish_reason) == ("Hello there.", "stop")
