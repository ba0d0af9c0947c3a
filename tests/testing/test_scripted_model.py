"""``ScriptedModel``: a script that goes on where the conversation stands."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from holdfast import UsageError
from holdfast.agents.output import OutputSpec
from holdfast.testing import ScriptedModel, answer, call

NOTHING = ModelRequestParameters()


class Report(BaseModel):
    title: str


def question(text: str = "What is it?") -> ModelRequest:
    return ModelRequest.user_text_prompt(text)


async def ask(model: ScriptedModel, *messages: ModelMessage, offered: ModelRequestParameters = NOTHING) -> Any:
    return await model.request(list(messages) or [question()], None, offered)


def test_it_is_there_without_the_model_library_being_imported() -> None:
    code = "import sys, holdfast.testing, holdfast.testing.runner; assert 'pydantic_ai' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.asyncio
async def test_the_conversation_alone_determines_the_next_turn() -> None:
    script = ["one", "two"]
    first = await ask(ScriptedModel(script))
    second = await ask(ScriptedModel(script), question(), first, question("More?"))
    again = await ask(ScriptedModel(script), question("Something else"))
    assert [first.text, second.text, again.text] == ["one", "two", "one"]


@pytest.mark.asyncio
async def test_calls_have_ids_that_are_the_same_every_time() -> None:
    model = ScriptedModel(
        [["Let me look.", call("search", query="x"), call("read", page=3)], call("search", "{broken")]
    )
    response = await ask(model)
    assert response.parts == [
        TextPart("Let me look."),
        ToolCallPart("search", {"query": "x"}, "call_1_1"),
        ToolCallPart("read", {"page": 3}, "call_1_2"),
    ]
    assert response.finish_reason == "tool_call"
    [broken] = (await ask(model, question(), response, question())).parts
    assert (broken.args, broken.tool_call_id) == ("{broken", "call_2_1")


@pytest.mark.asyncio
async def test_a_function_may_decide_from_the_messages_and_from_what_is_offered() -> None:
    async def look_at_tools(messages: list[ModelMessage], offered: ModelRequestParameters) -> str:
        return f"{len(messages)} messages, {len(offered.function_tools)} tools"

    model = ScriptedModel([lambda messages: [ThinkingPart("hm"), messages[-1].parts[0].content], look_at_tools])
    first = await ask(model, question("echo"))
    assert (first.text, first.thinking) == ("echo", "hm")
    offered = ModelRequestParameters(function_tools=[ToolDefinition(name="search")])
    second = await ask(model, question(), first, question(), offered=offered)
    assert second.text == "3 messages, 1 tools"
    assert [(one.turn, one.message_count, one.tool_names) for one in model.calls] == [(1, 1, []), (2, 3, ["search"])]
    assert model.calls[0].last_message.parts[0].content == "echo"


@pytest.mark.asyncio
async def test_an_exception_is_raised_however_often_it_is_asked() -> None:
    model = ScriptedModel([ConnectionError("gone"), "never"])
    for _ in range(2):
        with pytest.raises(ConnectionError, match="gone"):
            await ask(model)


@pytest.mark.asyncio
async def test_a_structured_answer_calls_the_output_tool() -> None:
    wrapped = OutputSpec(list[int]).make_parameters([], None)
    [given] = (await ask(ScriptedModel([answer([1, 2])]), offered=wrapped)).tool_calls
    assert (given.tool_name, given.args) == ("final_result", {"response": [1, 2]})
    fields = OutputSpec(Report).make_parameters([], None)
    [given] = (await ask(ScriptedModel([answer(title="x")]), offered=fields)).tool_calls
    assert given.args == {"title": "x"}
    [given] = (await ask(ScriptedModel([answer(Report(title="y"))]), offered=fields)).tool_calls
    assert given.args == {"title": "y"}
    with pytest.raises(UsageError, match="wants text"):
        await ask(ScriptedModel([answer(1)]))


@pytest.mark.asyncio
async def test_a_script_that_is_used_up_says_so() -> None:
    model = ScriptedModel(["only"])
    first = await ask(model)
    with pytest.raises(UsageError, match=r"turn 2 of a conversation, and its script has 1.*And then\?"):
        await ask(model, question(), first, question("And then?"))


@pytest.mark.asyncio
async def test_usage_is_given_computed_or_estimated_from_characters() -> None:
    fixed = await ask(ScriptedModel(["x"], usage=(1000, 20)))
    assert (fixed.usage.input_tokens, fixed.usage.output_tokens) == (1000, 20)
    made = await ask(ScriptedModel(["abc"], usage=lambda messages, response: (len(messages), len(response.text))))
    assert (made.usage.input_tokens, made.usage.output_tokens) == (1, 3)
    model = ScriptedModel(["b" * 400, "c" * 40])
    first = await ask(model, question("a" * 4000))
    assert (first.usage.input_tokens, first.usage.output_tokens) == (1001, 101)
    second = await ask(model, question("a" * 4000), first, question("d" * 80))
    assert second.usage.input_tokens == 1001 + 101 + 21


@pytest.mark.asyncio
async def test_the_name_of_a_known_model_gives_answers_a_price() -> None:
    response = await ask(ScriptedModel(["x"], name="gpt-4o-mini", provider="openai", usage=(1_000_000, 0)))
    assert (response.model_name, response.provider_name) == ("gpt-4o-mini", "openai")
    assert float(response.cost().total_price) == pytest.approx(0.15)


@pytest.mark.parametrize("mistake", ["text", 3])
def test_a_script_is_a_list(mistake: Any) -> None:
    with pytest.raises(UsageError, match="takes a list of turns"):
        ScriptedModel(mistake)


@pytest.mark.parametrize(
    "mistake", [lambda: answer(), lambda: answer(1, 2), lambda: answer(1, a=2), lambda: call("t", "{}", a=1)]
)
def test_arguments_are_given_one_way(mistake: Any) -> None:
    with pytest.raises(UsageError):
        mistake()


@pytest.mark.asyncio
async def test_a_response_of_the_library_is_taken_as_it_is() -> None:
    given = ModelResponse([TextPart("as it is")], finish_reason="length")
    model = ScriptedModel([given])
    response = await ask(model)
    assert (response.text, response.finish_reason, response.usage.output_tokens) == ("as it is", "length", 3)
    assert not given.usage.has_values()
